// Processes that share the one GPU train over NCCL to the losses of one rank on the CPU, and go on when one of them is
// killed. NCCL takes two ranks on one GPU where they say that they are of different hosts; its kernels then take turns,
// so that nothing here is a measurement. Exit status: 0 all agree, 1 some do not, 3 no usable GPU.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <sstream>
#include <string_view>

#include "runtime/cuda/cuda_device.hpp"
#include "runtime/cuda/nccl_transport.hpp"
#include "runtime/recovery.hpp"
#include "socket_ranks.hpp"
#include "trainer_runs.hpp"

namespace sailor::runtime::test {
namespace {

constexpr int no_gpu = 3;  // an exit status
constexpr int most_ranks = 4;
#ifdef SAILOR_GPUS_ARE_EMULATED
constexpr int iterations = 3;
constexpr int one_in = 3;  // of the divisions; all with SAILOR_LONG=1 (tests/long.sh nccl)
#else
constexpr int iterations = 5;
constexpr int one_in = 1;
#endif
constexpr double tolerance = 1e-4;

/// A GPU and NCCL of this process alone. Ends the process where there is none.
std::unique_ptr<CudaDevice> device_of_process(int rank) {
  ::setenv("NCCL_HOSTID", fmt::format("process-{}", rank).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ::setenv("NCCL_IB_DISABLE", "1", 0);
  try {
    return make_cuda_device({.tf32 = false, .deterministic = true});
  } catch (const std::exception& error) {
    if (rank == 0) fmt::print("no usable GPU: {}\n", error.what());
    std::fflush(stdout);
    std::_Exit(no_gpu);
  }
}

Samples samples_for(const Model& model) {
  auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
  if (!samples) throw std::runtime_error(samples.error().message());
  return *std::move(samples);
}

std::vector<Named> small_divisions(const Model& model) {
  std::vector<Named> small;
  for (const Named& named : model.experts.count > 0 ? expert_divisions(model.layers()) : divisions(model.layers()))
    if (named.second.ranks() > 1 && named.second.ranks() <= most_ranks) small.push_back(named);
  return share_of(small, 0, one_in);
}

/// Trains all small plans one after the other; the pipe gets the losses of each.
void train_all(const Addresses& coordinator, int rank, const Model& model, const Pipe& losses) {
  const auto device = device_of_process(rank);
  const auto member = member_of(coordinator, {.rank = rank});
  begin(*member);
  Control& all = member->world().control;
  const Samples samples = samples_for(model);
  const TrainerSettings settings = settings_of({});
  for (const auto& [name, plan] : small_divisions(model)) {
    if (rank < plan.ranks()) {
      std::vector<int> ranks(static_cast<std::size_t>(plan.ranks()));
      std::iota(ranks.begin(), ranks.end(), 0);
      const auto control = all.subgroup(ranks);
      const auto transport = make_nccl_transport(*control, *device, {.timeout = Seconds(60.0)});
      TrainingState state(plan, model, rank, *device);
      state.initialize(settings);
      Trainer trainer(state, settings, {*control, *transport}, &samples);
      std::string line;
      for (int i = 0; i < iterations; ++i) line += fmt::format("{:.9g} ", trainer.run().loss);
      trainer.settle();
      device->synchronize();
      if (rank == 0) losses.send(line);
    }
    all.barrier();
  }
}

/// As long as this lives, a transport is aborted when a rank goes away.
class AbortedWithEpoch {
 public:
  AbortedWithEpoch(Member& member, Transport& transport) : member_(member) { member_.abort_with_epoch(&transport); }
  ~AbortedWithEpoch() { member_.abort_with_epoch(nullptr); }
  AbortedWithEpoch(const AbortedWithEpoch&) = delete;
  AbortedWithEpoch& operator=(const AbortedWithEpoch&) = delete;

 private:
  Member& member_;
};

/// Trains plans of as many pipelines as there are ranks, however often one goes away; the pipe gets every loss.
void train_through_kills(const Addresses& coordinator, int rank, const Model& model, const Pipe& losses) {
  const auto device = device_of_process(rank);
  const auto member = member_of(coordinator, {.rank = rank});
  const Samples samples = samples_for(model);
  const TrainerSettings settings = settings_of({});
  std::unique_ptr<TrainingState> state;
  while (state == nullptr || state->iteration() < 2 * iterations) {
    begin(*member);
    Control& control = member->world().control;
    try {
      const auto transport = make_nccl_transport(control, *device, {.timeout = Seconds(60.0)});
      const AbortedWithEpoch watched(*member, *transport);
      const World world{control, *transport};
      const auto choose = [&](const Plan*) -> Result<Plan> {
        return plan_of({{12 / world.size(), 1, {{{{0, model.layers()}}}}, world.size()}});
      };
      auto recovery = recover(state.get(), model, settings, *device, world, choose);
      if (!recovery) throw std::runtime_error(recovery.error().message());
      state = std::move(recovery->state);
      if (recovery->needs_checkpoint) state->initialize(settings);  // nobody has begun
      Trainer trainer(*state, settings, world, &samples);
      while (state->iteration() < 2 * iterations) {
        const double loss = trainer.run().loss;
        if (world.rank() == 0) losses.send(fmt::format("{} {:.9g}", state->iteration() - 1, loss));
      }
      trainer.settle();
      device->synchronize();
      control.barrier();
    } catch (const TransportError& error) {
      fmt::print("# rank {}: {}\n", rank, error.what());
      std::fflush(stdout);
    }
    device->give_up_transfers();
  }
}

struct Count {
  int passed = 0;
  int failed = 0;
  void add(bool good, const std::string& line) {
    fmt::print("{} {}\n", good ? "ok" : "FAILED", line);
    (good ? passed : failed) += 1;
  }
};

double largest_difference(const std::vector<double>& losses, const std::vector<double>& expected) {
  if (losses.size() != expected.size()) return INFINITY;
  double worst = 0.0;
  for (std::size_t i = 0; i < losses.size(); ++i) worst = std::max(worst, std::abs(losses[i] / expected[i] - 1.0));
  return std::isnan(worst) ? INFINITY : worst;
}

/// Losses of the pipe's next line.
std::vector<double> next_losses(const Pipe& pipe) {
  std::istringstream words(pipe.receive());
  std::vector<double> losses;
  for (double loss = 0.0; words >> loss;) losses.push_back(loss);
  return losses;
}

/// False: no usable GPU.
bool check_plans(const Model& model, const std::vector<double>& expected, Count& count) {
  const Pipe losses;
  ForkedRanks ranks(most_ranks, {.members = most_ranks}, [&](int rank, const Addresses& address) {
    try {
      train_all(address, rank, model, losses);
    } catch (const std::exception& error) {
      fmt::print("# rank {}: {}\n", rank, error.what());
      std::fflush(stdout);
      if (rank == 0) losses.send("");  // for whoever waits
    }
  });
  for (const auto& [name, plan] : small_divisions(model)) {
    bool has_come = false;
    for (int second = 0; second < 240 && !has_come && !ranks[0].has_ended(); ++second)
      has_come = losses.is_readable(Seconds(1.0));
    if (!has_come && !losses.is_readable(Seconds(0.0))) {
      if (ranks[0].has_ended() && ranks[0].status() == no_gpu) return false;
      count.add(false, fmt::format("{}: no losses came", name));
      return true;
    }
    const double difference = largest_difference(next_losses(losses), expected);
    count.add(difference <= tolerance, fmt::format("{}, {} ranks: {:.2g}", name, plan.ranks(), difference));
  }
  return true;
}

void check_kill(const Model& model, const std::vector<double>& expected, Count& count) {
  constexpr int ranks_at_first = 3;
  const Pipe pipe;
  ForkedRanks ranks(ranks_at_first, {.members = ranks_at_first},
                    [&](int rank, const Addresses& address) { train_through_kills(address, rank, model, pipe); });
  std::vector<double> losses(expected.size(), std::nan(""));
  std::size_t done = 0;
  while (done < expected.size() && pipe.is_readable(Seconds(120.0))) {
    std::istringstream words(pipe.receive());
    words >> done;
    words >> losses.at(done++);
    if (done == iterations) ranks[ranks_at_first - 1].signal(SIGKILL);
  }
  // The update that the kill fell into is made up for, and its loss then goes to nobody.
  int missing = 0;
  for (std::size_t i = 0; i < losses.size(); ++i)
    if (std::isnan(losses[i]) && ++missing == 1) losses[i] = expected[i];
  const double difference = largest_difference(losses, expected);
  count.add(difference <= tolerance, fmt::format("one of three killed, the others go on: {:.2g}", difference));
}

int check(bool divisions, bool kill) {
  const Model model = deep(gpt_model());
  const Plan one = plan_of({{12, 1, {{{{0, model.layers()}}}}}});
  const std::vector<double> expected = train(one, model, {.iterations = 2 * iterations}).losses;
  fmt::print(
      "# trainings of processes that share the GPU, over NCCL, against one rank on the CPU: largest difference of "
      "a loss\n");
  std::fflush(stdout);  // before it is forked
  Count count;
  if (divisions && !check_plans(model, {expected.begin(), expected.begin() + iterations}, count)) return no_gpu;
  if (divisions) {
    const Model experts = deep(experts_model());
    check_plans(experts,
                train(plan_of({{12, 1, {{{{0, experts.layers()}}}}}}), experts, {.iterations = iterations}).losses,
                count);
  }
  std::fflush(stdout);
  if (kill) check_kill(model, expected, count);
  fmt::print("{} passed, {} failed\n", count.passed, count.failed);
  return count.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sailor::runtime::test

int main(int argc, char** argv) {
  const std::string_view part = argc > 1 ? argv[1] : "";
  try {
    return sailor::runtime::test::check(part != "kill", part != "divisions");
  } catch (const std::exception& error) {
    fmt::print("FAILED {}\n", error.what());
    return 1;
  }
}
