// How the recovery of an elastic training grows with the number of ranks, on one machine without devices.
//
// - What every rank computes by itself to find the newest version and who sends what to whom, after one of the ranks of
//   a plan is lost: CPU time of one rank. The ranks of a cluster do this at the same time.
// - The real control plane and the real trainer, rehearsed: a controller, and a member for each rank, over sockets of
//   this machine, with tokens for tensors and the simulator's times of GH200 (runtime/rehearsal). They are threads of a
//   few processes, since one may not open enough files for the connections of 1,024 ranks. The ranks train
//   OPT-30B in pipelines of 8 stages of 4 tensor-parallel ranks, a node for each stage, and one node is spare. One rank
//   dies in the middle of an iteration; its stage moves to the spare node, whose ranks take the state from replicas.
//   Measured: until the next epoch begins, on this machine, whose cores do the work of all ranks one after the other;
//   from there to the end of recover(), and to that of the next iteration, by the devices' clock. CPU time of recover()
//   on a rank is part of that clock.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "elastic/adapted_plan.hpp"
#include "elastic/controller.hpp"
#include "elastic/folder.hpp"
#include "model/model.hpp"
#include "profile/profile.hpp"
#include "profile/text.hpp"
#include "rehearsal/plan_times.hpp"
#include "runtime/copy_layout.hpp"
#include "runtime/recovery.hpp"
#include "runtime/recovery_sources.hpp"
#include "runtime/rehearsal/rehearsal_device.hpp"
#include "runtime/rehearsal/rehearsal_transport.hpp"
#include "runtime/sockets/member.hpp"
#include "runtime/trainer.hpp"
#include "simulator/costs.hpp"
#include "simulator/framework.hpp"
#include "simulator/price_list.hpp"

namespace sailor {
namespace {

constexpr int stages = 8;
constexpr int tensor_parallel = 4;
constexpr int ranks_per_host = 4;
constexpr int ranks_per_pipeline = stages * tensor_parallel;
constexpr const char* gpu = "GH200-96";

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Replicas of a pipeline of 8 stages, each of 4 tensor-parallel ranks.
Plan plan_for(int ranks, const Model& model, bool shards_optimizer) {
  Plan plan;
  plan.job = {.model = model.name, .global_batch = 0, .sequence_length = 2048, .precision = Precision::bf16};
  plan.micro_batch = 1;
  if (shards_optimizer) plan.optimizer_sharding = OptimizerSharding::zero1;
  Pipeline pipeline{.count = ranks / ranks_per_pipeline, .micro_batches = 8, .stages = {}};
  for (int i = 0; i < stages; ++i)
    pipeline.stages.push_back({.layers = {model.layers() * i / stages, model.layers() * (i + 1) / stages},
                               .gpu = gpu,
                               .tensor_parallel = tensor_parallel});
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

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// A plan with its simulated costs. Not movable: parts refer to each other.
struct Simulated {
  Simulated(Plan of, const Model& model, const std::string& profiles)
      : plan(std::move(of)),
        gpus(checked(GpuCatalogue::load(profiles + "/gpus.toml"))),
        framework(checked(simulator::find_framework("sailor", profiles + "/frameworks"))),
        cluster(checked(parse_cluster(fmt::format("schema_version = 1\nname = \"scale\"\n[[nodes]]\ncount = {}\n"
                                                  "gpu = \"{}\"\ngpus_per_node = {}\nmemory_per_node_bytes = 1e12\n",
                                                  plan.ranks() / ranks_per_host + 1, gpu, ranks_per_host),
                                      "the nodes", gpus))),
        profile(checked(load_profile_text(profiles + "/networks/sailor.toml"))),
        environment{.model = model, .profile = profile, .gpus = gpus, .framework = framework, .cluster = &cluster},
        model_of_costs(environment),
        prices(environment),
        place(checked(prices.place_of(plan.pipelines[0].stages[0]))) {
    const auto priced = model_of_costs.price(plan, costs);
    if (!priced) throw std::runtime_error(priced.error().message());
  }
  Simulated(const Simulated&) = delete;
  Simulated& operator=(const Simulated&) = delete;

  template <class T>
  static T checked(Result<T> result) {
    if (!result) throw std::runtime_error(result.error().message());
    return *std::move(result);
  }

  Plan plan;
  GpuCatalogue gpus;
  simulator::Framework framework;
  Cluster cluster;
  Profile profile;  // links; layers are estimated
  simulator::Environment environment;
  simulator::CostModel model_of_costs;
  simulator::PlanCosts costs;
  std::mutex mutex;  // of `prices`
  simulator::PriceList prices;
  std::uint32_t place;
};

/// Times of a plan's messages, and of the state that recover() moves between hosts all of whose ranks communicate.
class RecoveryTimes final : public runtime::CommunicationTimes {
 public:
  RecoveryTimes(Simulated& simulated, const std::vector<std::string>& hosts)
      : simulated_(simulated), hosts_(hosts), of_plan_(simulated.plan, simulated.costs) {}

  [[nodiscard]] std::size_t stage_of(int rank) const { return of_plan_.stage_of(rank); }
  [[nodiscard]] Seconds message(int from, int to, runtime::MessageKind kind, Bytes amount) const override {
    if (kind != runtime::MessageKind::other) return of_plan_.message(from, to, kind, amount);
    const bool is_near = hosts_[static_cast<std::size_t>(from)] == hosts_[static_cast<std::size_t>(to)];
    const std::scoped_lock lock(simulated_.mutex);
    return Simulated::checked(
               simulated_.prices.send_time(simulated_.place, simulated_.place, ranks_per_host, ranks_per_host,
                                           is_near ? simulator::Reach::node : simulator::Reach::leaf, amount))
        .time;
  }
  [[nodiscard]] Seconds collective(runtime::Collective collective, const std::vector<int>& ranks,
                                   Bytes amount) const override {
    return of_plan_.collective(collective, ranks, amount);
  }
  [[nodiscard]] bool messages_block() const override { return of_plan_.messages_block(); }

 private:
  Simulated& simulated_;
  const std::vector<std::string>& hosts_;
  rehearsal::PlanTimes of_plan_;
};

/// Shared by processes.
struct Restart {
  std::atomic<int> joined{0};
  std::atomic<bool> failed{false};
  std::atomic<double> lost{0.0};  // s, of the steady clock
  // The largest of all ranks in the second epoch:
  std::atomic<double> begun{0.0};      // s, of the steady clock
  std::atomic<double> recovered{0.0};  // s, of the devices' clock
  std::atomic<double> cpu{0.0};        // s, of recover()
  std::atomic<double> trained{0.0};    // s, of the devices' clock: end of an iteration
  std::atomic<double> sent{0.0};       // bytes of all ranks
};
static_assert(std::atomic<double>::is_always_lock_free, "processes share them");

void raise_to(std::atomic<double>& largest, double value) {
  for (double known = largest; known < value && !largest.compare_exchange_weak(known, value);) {
  }
}

/// Memory that processes which this one starts share with it.
class SharedRestart {
 public:
  SharedRestart()
      : memory_(::mmap(nullptr, sizeof(Restart), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::runtime_error("there is no memory that processes can share");
    restart_ = new (memory_) Restart;
  }
  ~SharedRestart() { ::munmap(memory_, sizeof(Restart)); }
  SharedRestart(const SharedRestart&) = delete;
  SharedRestart& operator=(const SharedRestart&) = delete;
  Restart& operator*() const { return *restart_; }
  Restart* operator->() const { return restart_; }

 private:
  void* memory_;
  Restart* restart_;
};

/// A member through its epochs.
class Rank {
 public:
  Rank(const std::filesystem::path& folder, int number, Simulated& simulated, Restart& restart)
      : folder_(folder), number_(number), simulated_(simulated), restart_(restart) {}

  void run() {
    while (elastic::find_controller(folder_).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const int ranks = simulated_.plan.ranks();
    auto joined =
        runtime::Member::join(elastic::find_controller(folder_), {.rank = number_ < ranks ? number_ : -1,
                                                                  .timeout = Seconds(3600.0),
                                                                  .heartbeat = Seconds(5.0),
                                                                  .host = fmt::format("n{}", number_ / ranks_per_host),
                                                                  .gpu = gpu});
    if (!joined) throw std::runtime_error(joined.error().message());
    member_ = *std::move(joined);
    ++restart_.joined;
    std::string why;
    while (true) {
      if (const auto begun = member_->begin_epoch(why); !begun) {
        if (member_->dismissal() == runtime::Dismissal::over) return;
        throw std::runtime_error(begun.error().message());
      }
      try {
        if (!live_through_epoch()) return;
        why.clear();
      } catch (const runtime::TransportError& error) {
        why = member_->why_broken().empty() ? error.what() : "";
      }
    }
  }

 private:
  static constexpr std::int64_t iterations = 3;

  /// Whether there is another epoch.
  bool live_through_epoch() {
    const double begun = now();
    const runtime::World inner = member_->world();
    const RecoveryTimes times(simulated_, member_->hosts());
    runtime::RehearsalClock clock(0.0);
    runtime::RehearsalWorld rehearsal(inner, times, clock);
    const Model& model = simulated_.environment.model;
    const Plan& plan = simulated_.plan;
    const int ranks = plan.ranks();
    const bool is_spare = inner.rank() >= ranks;
    // A spare rank computes nothing.
    const simulator::StageCosts& stage = simulated_.costs.stages[times.stage_of(is_spare ? 0 : inner.rank())];
    const runtime::TrainerSettings settings{
        .clip_norm = 1.0,
        .overlap_reduction = simulated_.framework.overlaps_reduction,
        .after_layer =
            [&](int layer, Pass pass) {
              const simulator::PassTimes passes = stage.table->passes({layer, layer + 1});
              rehearsal.compute(pass == Pass::forward ? passes.forward : passes.backward);
            },
        .after_update = [&] { rehearsal.compute(stage.update); }};
    const runtime::World world = rehearsal.world();
    rehearsal.restart();
    const double before = cpu_seconds();
    auto recovery = runtime::recover(state_.get(), model, settings, *device_, world,
                                     [&](const Plan*) -> Result<Plan> { return plan; });
    if (!recovery) throw std::runtime_error(recovery.error().message());
    const double cpu = cpu_seconds() - before;
    rehearsal.compute(Seconds(cpu));
    world.control.barrier();
    const double recovered = clock.now().value();
    if (member_->epoch() > 1) {
      restart_.sent += static_cast<double>(recovery->sent_bytes);
    }
    state_ = std::move(recovery->state);
    if (state_ != nullptr && recovery->needs_checkpoint) state_->restore(0, {});  // memory of a rehearsal has no values
    std::vector<int> first(static_cast<std::size_t>(ranks));
    std::iota(first.begin(), first.end(), 0);
    std::unique_ptr<runtime::Control> part;
    if (inner.size() > ranks) part = inner.control.subgroup(first);
    if (is_spare) {
      while (member_->why_broken().empty() && member_->dismissal() == runtime::Dismissal::none)
        member_->wait_for_news(Seconds(1.0));
      return member_->dismissal() == runtime::Dismissal::none;
    }
    runtime::Control& control = part != nullptr ? *part : world.control;
    runtime::Trainer trainer(*state_, settings, {control, world.transport}, nullptr);
    runtime::MemberProgress progress{.iteration = state_->iteration(), .of = iterations, .from = "memory"};
    member_->report_progress(progress);
    const bool is_second = member_->epoch() > 1;  // or a later one, should the second not live either
    for (bool is_first = true; state_->iteration() < iterations; is_first = false) {
      if (!is_second && state_->iteration() == 1 && number_ == ranks / 2) {
        while (restart_.joined < ranks + ranks_per_host) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        restart_.lost = now();
        state_.reset();
        return false;  // without a word
      }
      (void)trainer.run();
      if (is_second && is_first) {
        raise_to(restart_.begun, begun);
        raise_to(restart_.recovered, recovered);
        raise_to(restart_.cpu, cpu);
        raise_to(restart_.trained, clock.now().value());
      }
      progress.iteration = state_->iteration();
      progress.time = Seconds(1.0);
      member_->report_progress(progress);
    }
    control.barrier();
    member_->leave(0, "");
    return false;
  }

  const std::filesystem::path& folder_;
  int number_;
  Simulated& simulated_;
  Restart& restart_;
  std::unique_ptr<runtime::Device> device_ = runtime::make_rehearsal_device(gpu);
  std::unique_ptr<runtime::TrainingState> state_;
  std::unique_ptr<runtime::Member> member_;
};

/// Runs ranks first ... last - 1. Returns 0, or 1 where one failed.
int run_members(int first, int last, const std::filesystem::path& folder, Simulated& simulated, Restart& restart) {
  std::vector<std::thread> members;
  for (int number = first; number < last; ++number)
    members.emplace_back([&, number] {
      try {
        Rank(folder, number, simulated, restart).run();
      } catch (const std::exception& error) {
        if (!restart.failed.exchange(true)) fmt::print(stderr, "rank {}: {}\n", number, error.what());
      }
    });
  for (std::thread& member : members) member.join();
  return restart.failed ? 1 : 0;
}

// A rank of 1,024 keeps 62 connections to the other 31 replicas alone, and a process may open 20,000 files on many
// machines: a quarter of 1,024 ranks and the spare ones.
constexpr int most_ranks_of_a_process = 257;

void run_restart(int ranks, const Model& model, const std::string& profiles, Restart& restart) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("sailor_scale_{}_{}", ::getpid(), ranks);
  std::filesystem::create_directories(folder);
  Simulated simulated(plan_for(ranks, model, false), model, profiles);
  const elastic::ControllerSettings settings{
      .folder = folder,
      .plan = simulated.plan,
      .make_plan = [](const Plan& before, std::span<const elastic::MemberFacts> members,
                      const std::function<bool()>&) { return elastic::adapt_plan(before, members); },
      .silence = Seconds(3600.0),
      .patience = Seconds(3600.0),
      .copies = {},
      .say =
          [](const std::string& line) {
            if (std::getenv("SCALE_SAYS") != nullptr) fmt::print(stderr, "{}\n", line);
          },
      .beat = {},
      .stop_request = {}};
  const int all = ranks + ranks_per_host;  // a spare node
  std::vector<pid_t> processes;
  std::fflush(nullptr);
  for (int first = 0; first < all; first += most_ranks_of_a_process) {
    const pid_t process = ::fork();
    if (process == 0) {
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it ends with this process
      ::_exit(run_members(first, std::min(all, first + most_ranks_of_a_process), folder, simulated, restart));
    }
    if (process < 0) throw std::runtime_error("no process can be started");
    processes.push_back(process);
  }
  const auto status = elastic::control(settings);
  if (!status) throw std::runtime_error(status.error().message());
  std::string failures;
  for (const pid_t process : processes) {
    int ended = 0;
    if (::waitpid(process, &ended, 0) != process || ended != 0)
      failures += fmt::format("; a process of members ended with {}", ended);
  }
  std::filesystem::remove_all(folder);
  if (*status != 0) failures += fmt::format("; the controller ended with status {}", *status);
  if (restart.trained == 0.0) failures += "; the second epoch has trained nothing";
  if (!failures.empty()) throw std::runtime_error("the training did not go on" + failures);
}

int run(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: elastic_scale PROFILES RANKS...\n");
    return 2;
  }
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }
  const auto model = find_model("opt-30b", std::string(argv[1]) + "/models");
  if (!model) throw std::runtime_error(model.error().message());
  fmt::print(
      "ranks  decision, CPU s: replicas  ZeRO-1  next epoch, s here  moved, GiB  recover(), s of the devices  "
      "its CPU s  first iteration, s of the devices\n");
  for (int i = 2; i < argc; ++i) {
    const int ranks = std::atoi(argv[i]);
    if (ranks < 2 * ranks_per_pipeline || ranks % ranks_per_pipeline != 0)
      throw std::runtime_error(
          fmt::format("'{}' is no number of ranks: two or more pipelines of {}", argv[i], ranks_per_pipeline));
    const SharedRestart restart;
    run_restart(ranks, *model, argv[1], *restart);
    // Only the stage of the rank that died moves: value and moments in fp32.
    const Plan plan = plan_for(ranks, *model, false);
    double largest = 0.0;
    for (const Stage& stage : plan.pipelines[0].stages) {
      double parameters = 0.0;
      for (int layer = stage.layers.first; layer < stage.layers.last; ++layer)
        parameters += static_cast<double>(model->layer_parameters(layer));
      largest = std::max(largest, parameters);
    }
    if (restart->sent > 1.05 * 12.0 * largest)
      throw std::runtime_error(fmt::format("{:.1f} GiB were moved, but a stage has no more than {:.1f}",
                                           Bytes(restart->sent) / gib, Bytes(12.0 * largest) / gib));
    fmt::print("{:>5}  {:>25.3f}  {:>6.3f}  {:>18.2f}  {:>10.1f}  {:>27.2f}  {:>9.2f}  {:>33.2f}\n", ranks,
               seconds_of_decision(ranks, *model, false), seconds_of_decision(ranks, *model, true),
               restart->begun - restart->lost, Bytes(restart->sent) / gib, restart->recovered, restart->cpu,
               restart->trained - restart->recovered);
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
