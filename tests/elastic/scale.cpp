// How the recovery of an elastic training grows with the number of ranks, on one machine without devices.
//
// - What every rank computes by itself to find the newest version and who sends what to whom, after one of the ranks of
//   a plan is lost: CPU time of one rank. The ranks of a cluster do this at the same time.
// - The real control plane: a controller, and a member for each rank, over sockets of this machine. One member dies;
//   the time until all others have ended the first iteration of the next epoch. The cores of this machine do the work
//   of all ranks, one after the other.
//
// State and gradients are not moved: see `sailor-simulate --copies` for bytes and links.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "elastic/adapted_plan.hpp"
#include "elastic/controller.hpp"
#include "elastic/folder.hpp"
#include "model/model.hpp"
#include "runtime/copy_layout.hpp"
#include "runtime/recovery_sources.hpp"
#include "runtime/sockets/member.hpp"

namespace sailor {
namespace {

constexpr int stages = 8;
constexpr int tensor_parallel = 8;
constexpr int ranks_per_host = 4;

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Replicas of a pipeline of 8 stages, each divided 8 times; with fewer than 64 ranks, of one rank.
Plan plan_for(int ranks, const Model& model, bool shards_optimizer) {
  const bool is_large = ranks >= stages * tensor_parallel;
  Plan plan;
  plan.job = {.model = model.name, .global_batch = 0, .sequence_length = 64, .precision = Precision::fp32};
  plan.micro_batch = 1;
  if (shards_optimizer) plan.optimizer_sharding = OptimizerSharding::zero1;
  Pipeline pipeline{.count = is_large ? ranks / (stages * tensor_parallel) : ranks, .micro_batches = 64, .stages = {}};
  const int parts = is_large ? stages : 1;
  for (int i = 0; i < parts; ++i)
    pipeline.stages.push_back({.layers = {model.layers() * i / parts, model.layers() * (i + 1) / parts},
                               .gpu = "A100-80",
                               .tensor_parallel = is_large ? tensor_parallel : 1});
  plan.job.global_batch = pipeline.count * pipeline.micro_batches;
  plan.pipelines.push_back(std::move(pipeline));
  return plan;
}

/// CPU time in which one rank finds the newest version, and its own moves under a plan of as many ranks.
double seconds_of_decision(int ranks, const Model& model, bool shards_optimizer) {
  using namespace runtime;
  const Plan plan = plan_for(ranks, model, shards_optimizer);
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(fmt::format("n{}", rank / ranks_per_host));
  const CopyLayout layout(ParameterMap(plan, model), hosts);
  Inventory inventory{.host_of_rank = hosts, .plans = {plan}, .hosts = {hosts}};
  std::vector<std::vector<int>> kept(static_cast<std::size_t>(ranks));  // owners, by keeper
  for (const CopyLayout::Copy& copy : layout.copies())
    kept[static_cast<std::size_t>(copy.keeper)].push_back(copy.owner);
  constexpr int lost = 5;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == lost) continue;
    inventory.states.push_back(
        {.rank = rank, .version = {10, 0}, .place = rank, .is_live = true, .totals = IterationTotals{}});
    if (layout.copies().empty()) continue;
    for (const int version : {9, 8}) inventory.states.push_back({.rank = rank, .version = {version, 0}, .place = rank});
    for (const int owner : kept[static_cast<std::size_t>(rank)])
      for (const int version : {9, 8})
        inventory.states.push_back({.rank = rank, .version = {version, 0}, .place = owner, .hosts = 0});
  }
  const double begin = cpu_seconds();
  const auto cut = newest_cut(inventory, model);
  if (!cut) throw std::runtime_error("the ranks that are left do not have all of the state");
  const Division division(plan, model);
  const CopyLayout next(division.map, hosts);
  std::size_t moves = 0;
  for (int rank = 0; rank < ranks; ++rank) moves += moves_to(rank, division, &next, inventory, cut->holdings).size();
  if (moves == 0) throw std::runtime_error("nobody sends anything");
  return cpu_seconds() - begin;
}

struct Restart {
  std::atomic<double> lost{0.0};   // s, of the steady clock
  std::atomic<double> again{0.0};  // when the last member had ended the first iteration of the second epoch
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// A member that agrees with the others, iteration by iteration. The last rank dies in the first epoch.
void take_part(const std::filesystem::path& folder, int rank, int ranks, Restart& restart) {
  constexpr std::int64_t iterations = 6;
  while (elastic::find_controller(folder).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  auto joined =
      runtime::Member::join(elastic::find_controller(folder), {.rank = rank,
                                                               .timeout = Seconds(600.0),
                                                               .heartbeat = Seconds(2.0),
                                                               .host = fmt::format("n{}", rank / ranks_per_host),
                                                               .gpu = "A100-80"});
  if (!joined) throw std::runtime_error(joined.error().message());
  runtime::Member& member = **joined;
  std::int64_t iteration = 0;
  std::string why;
  while (true) {
    if (const auto begun = member.begin_epoch(why); !begun) {
      if (member.dismissal() == runtime::Dismissal::over) return;
      throw std::runtime_error(begun.error().message());
    }
    try {
      const runtime::World world = member.world();
      iteration = static_cast<std::int64_t>(world.control.max(static_cast<double>(iteration)));
      member.report_progress({.iteration = iteration, .of = iterations, .from = "memory"});
      for (; iteration < iterations; ++iteration) {
        (void)world.control.sum(1.0);
        if (member.epoch() == 1 && iteration == 3 && rank == ranks - 1) {
          restart.lost = now();
          return;  // without a word
        }
        if (member.epoch() == 2 && restart.again == 0.0 && world.rank() == 0) restart.again = now();
        member.report_progress({.iteration = iteration + 1, .time = Seconds(0.01), .of = iterations, .from = "memory"});
      }
      world.control.barrier();
      member.leave(0, "");
      return;
    } catch (const runtime::TransportError& error) {
      why = member.why_broken().empty() ? error.what() : "";
    }
  }
}

/// Wall time from the loss of a member to the end of the first iteration of all others.
double seconds_of_restart(int ranks, const Model& model) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("sailor_scale_{}_{}", ::getpid(), ranks);
  std::filesystem::create_directories(folder);
  Plan plan = plan_for(1, model, false);  // pipelines of one rank: any number of ranks has a plan
  plan.pipelines[0].count = ranks;
  plan.pipelines[0].micro_batches = 4;
  plan.job.global_batch = 4 * ranks;
  const elastic::ControllerSettings settings{
      .folder = folder,
      .plan = plan,
      .make_plan = [](const Plan& before, std::span<const elastic::MemberFacts> members,
                      const std::function<bool()>&) { return elastic::adapt_plan(before, members); },
      .silence = Seconds(60.0),
      .say = {},
      .beat = {},
      .stop_request = {}};
  Restart restart;
  std::atomic<bool> failed = false;
  std::vector<std::thread> members;
  for (int rank = 0; rank < ranks; ++rank)
    members.emplace_back([&, rank] {
      try {
        take_part(folder, rank, ranks, restart);
      } catch (const std::exception& error) {
        if (!failed.exchange(true)) fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      }
    });
  const auto status = elastic::control(settings);
  for (std::thread& member : members) member.join();
  std::filesystem::remove_all(folder);
  if (!status) throw std::runtime_error(status.error().message());
  if (failed || *status != 0 || restart.again == 0.0) throw std::runtime_error("the training did not go on");
  return restart.again - restart.lost;
}

int run(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: elastic_scale MODELS RANKS...\n");
    return 2;
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }
  const auto model = find_model("opt-30b", argv[1]);
  if (!model) throw std::runtime_error(model.error().message());
  fmt::print("ranks  decision of a rank, CPU s: replicas  ZeRO-1  restart of the control plane, s\n");
  for (int i = 2; i < argc; ++i) {
    const int ranks = std::atoi(argv[i]);
    if (ranks < 8) throw std::runtime_error(fmt::format("'{}' is no number of ranks from 8 on", argv[i]));
    fmt::print("{:>5}  {:>35.3f}  {:>6.3f}  {:>31.2f}\n", ranks, seconds_of_decision(ranks, *model, false),
               seconds_of_decision(ranks, *model, true), seconds_of_restart(ranks, *model));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace sailor

int main(int argc, char** argv) {
  try {
    return sailor::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "elastic_scale: error: {}\n", error.what());
    return 1;
  }
}
