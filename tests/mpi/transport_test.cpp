// The transport and the control plane over MPI: what they leave in memory. This program starts itself under mpirun, and
// there is each rank's check.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "../fakes/transport_checks.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor {
namespace {

std::string own_path;  // NOLINT

int start_ranks(int ranks) {
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);  // containers run tests as root
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  const bool is_open_mpi = runtime::MpiSession::version().starts_with("Open MPI");
  const int status = std::system(
      fmt::format("{}{} -n {} {} ranks", SAILOR_MPIEXEC, is_open_mpi ? " --oversubscribe" : "", ranks, own_path)
          .c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MpiTransport, LeavesTheRightValuesOnOneToFourRanks) {
  for (const int ranks : {1, 2, 3, 4}) EXPECT_EQ(start_ranks(ranks), 0) << ranks << " ranks";
}

int check_rank() {
  auto session = runtime::MpiSession::start({.program = "communicator_test", .timeout = Seconds(60.0)}, {});
  if (!session) return 1;
  const runtime::World world = (*session)->world();
  std::string wrong;
  const auto all = world.transport.make_group(runtime::test::all_ranks(world));
  for (const std::int64_t slice : {1, 7, 100'000})
    for (const auto check : {runtime::test::check_collectives<float>, runtime::test::check_collectives<std::uint16_t>})
      if (wrong.empty()) wrong = check(*all, slice);
  for (const std::size_t bytes : {0, 1, 5000, 3'000'000})
    if (wrong.empty()) wrong = runtime::test::check_messages(world, bytes);
  if (world.size() >= 3 && world.rank() > 0) {  // rank i of a subgroup is not rank i of the world
    std::vector<int> ranks(static_cast<std::size_t>(world.size() - 1));
    std::iota(ranks.begin(), ranks.end(), 1);
    const auto group = world.transport.make_group(ranks);
    for (const auto check : {runtime::test::check_collectives<float>, runtime::test::check_collectives<std::uint16_t>})
      if (wrong.empty()) wrong = check(*group, 5);
    const auto some = world.control.subgroup(ranks);
    if (some->rank() != world.rank() - 1 && wrong.empty()) wrong = "rank of the subgroup";
    if (some->max(world.rank()) != world.size() - 1.0 && wrong.empty()) wrong = "maximum of the subgroup";
  }
  if (!wrong.empty()) fmt::print(stderr, "rank {}: {}\n", world.rank(), wrong);
  return world.control.max(wrong.empty() ? 0.0 : 1.0) > 0.0 ? 1 : 0;
}

}  // namespace
}  // namespace sailor

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "ranks") return sailor::check_rank();
  sailor::own_path = argv[0];
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
