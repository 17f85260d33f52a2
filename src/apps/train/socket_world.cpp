#include "apps/train/socket_world.hpp"

#include <utility>

#include "runtime/mpi/mpi_session.hpp"
#include "runtime/sockets/coordinator.hpp"
#include "runtime/sockets/member.hpp"

namespace sailor::apps {

struct SocketWorld::State {
  std::unique_ptr<runtime::Coordinator> coordinator;  // on rank 0; outlives its member
  std::unique_ptr<runtime::Member> member;
};

Result<std::unique_ptr<SocketWorld>> SocketWorld::join(const runtime::World& started, const std::string& program,
                                                       Seconds timeout) {
  runtime::Control& control = started.control;
  auto state = std::make_unique<State>();
  const auto coordinate = [&]() -> Result<void> {
    auto coordinator = runtime::Coordinator::start({.members = control.size(), .least = control.size()});
    if (!coordinator) return fail(coordinator.error());
    state->coordinator = *std::move(coordinator);
    return {};
  };
  SAILOR_CHECK(runtime::agree(control, control.rank() == 0 ? coordinate() : Result<void>()));
  const runtime::Addresses address =
      control.broadcast(state->coordinator == nullptr ? std::string() : state->coordinator->addresses());
  auto member = runtime::Member::join(address, {.program = program, .rank = control.rank(), .timeout = timeout});
  SAILOR_CHECK(runtime::agree(control, member));
  state->member = *std::move(member);
  SAILOR_CHECK(runtime::agree(control, state->member->begin_epoch()));
  return std::unique_ptr<SocketWorld>(new SocketWorld(std::move(state)));
}

SocketWorld::SocketWorld(std::unique_ptr<State> state) : state_(std::move(state)) {}

SocketWorld::~SocketWorld() { state_->member.reset(); }

runtime::World SocketWorld::world() { return state_->member->world(); }

}  // namespace sailor::apps
