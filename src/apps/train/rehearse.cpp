#include "apps/train/rehearse.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/log.hpp"
#include "core/statistics.hpp"
#include "core/terminal.hpp"
#include "profile/profile.hpp"
#include "profile/store.hpp"
#include "runtime/mpi/mpi_session.hpp"
#include "runtime/rehearsal/rehearsal_transport.hpp"
#include "runtime/rehearsal/rehearsal_device.hpp"
#include "runtime/trainer.hpp"
#include "simulator/costs.hpp"
#include "simulator/framework.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

namespace {

using runtime::Collective;
using runtime::MessageKind;
using runtime::RehearsalClock;
using runtime::RehearsalWorld;
using runtime::Trainer;
using simulator::PlanCosts;
using simulator::StageCosts;

constexpr std::int64_t usual_iterations = 3;  // the first one connects the ranks

/// What all ranks read. Not movable: parts refer to each other.
struct Inputs {
  Plan plan;
  Model model;
  GpuCatalogue gpus;
  std::optional<Profile> profile;
  std::optional<Cluster> cluster;
  simulator::Framework framework;
  std::string store;
  PlanCosts costs;
  std::unique_ptr<simulator::CostModel> cost_model;  // its tables are what `costs` points to

  [[nodiscard]] simulator::Environment environment() const {
    return {.model = model,
            .profile = *profile,
            .gpus = gpus,
            .framework = framework,
            .cluster = cluster ? &*cluster : nullptr};
  }
};

/// TF32 is a mode of the GPUs' matrix products: to the trainer its tensors are fp32.
Plan trained_plan(Plan plan) {
  if (plan.job.precision == Precision::tf32) plan.job.precision = Precision::fp32;
  return plan;
}

Result<void> read_inputs(const Options& options, const Environment& environment, int started_ranks, Inputs& inputs) {
  const std::string& path = options.positional("PLAN").front();
  auto plan = load_plan(path);
  if (!plan) return fail(plan.error());
  inputs.plan = *std::move(plan);
  auto model = find_model(inputs.plan.job.model, models_folder(options, environment));
  if (!model) return fail(model.error(), path);
  inputs.model = *std::move(model);
  if (auto checked = runtime::check_trainable(trained_plan(inputs.plan), inputs.model, started_ranks); !checked)
    return fail(checked.error(), path);

  auto gpus = GpuCatalogue::load(gpus_file(options, environment));
  if (!gpus) return fail(gpus.error());
  inputs.gpus = *std::move(gpus);
  for (Pipeline& pipeline : inputs.plan.pipelines)
    for (Stage& stage : pipeline.stages)
      if (const auto type = inputs.gpus.find(stage.gpu)) stage.gpu = type->name;  // the simulator says what is unknown
  inputs.store = options.has("profile") ? options.text("profile") : inputs.plan.origin.profile_store;
  if (inputs.store.empty())
    return fail(ErrorCode::usage,
                fmt::format("--profile is missing, and '{}' does not say what it was made with", path),
                "name a profile store: --profile published");
  auto data = load_profile(find_store(inputs.store, environment));
  if (!data) return fail(data.error());
  inputs.profile.emplace(*std::move(data));
  if (options.has("cluster")) {
    auto cluster = load_cluster(options.text("cluster"), inputs.gpus);
    if (!cluster) return fail(cluster.error());
    inputs.cluster = *std::move(cluster);
  }
  const std::string made_for = inputs.plan.origin.framework.empty() ? "sailor" : inputs.plan.origin.framework;
  auto framework = simulator::find_framework(options.has("framework") ? options.text("framework") : made_for,
                                             frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  inputs.framework = *std::move(framework);

  inputs.cost_model = std::make_unique<simulator::CostModel>(inputs.environment());
  return inputs.cost_model->price(inputs.plan, inputs.costs);
}

/// The simulator's prices, by rank.
class PlanTimes final : public runtime::CommunicationTimes {
 public:
  PlanTimes(const Plan& plan, const PlanCosts& costs) : costs_(costs), roles_(rank_roles(plan)) {}

  [[nodiscard]] std::size_t stage_of(int rank) const {
    const RankRole& role = roles_[static_cast<std::size_t>(rank)];
    return costs_.pipelines[static_cast<std::size_t>(role.pipeline_entry)].first_stage +
           static_cast<std::size_t>(role.stage);
  }

  [[nodiscard]] Seconds message(int from, int, MessageKind kind) const override {
    const RankRole& role = roles_[static_cast<std::size_t>(from)];
    const simulator::PipelineCosts& pipeline = costs_.pipelines[static_cast<std::size_t>(role.pipeline_entry)];
    // The boundary behind the last stage leads to the first, whose next chunk follows.
    const int boundary =
        kind == MessageKind::activation ? role.stage : (role.stage + pipeline.stages - 1) % pipeline.stages;
    const simulator::BoundaryTimes& times =
        costs_.boundaries[pipeline.first_boundary + static_cast<std::size_t>(boundary)];
    return kind == MessageKind::activation ? times.forward : times.backward;
  }

  [[nodiscard]] Seconds collective(Collective collective, const std::vector<int>& ranks, Bytes amount) const override {
    std::set<std::size_t> holders;
    bool one_group = true;
    const RankRole& first = roles_[static_cast<std::size_t>(ranks.front())];
    for (const int rank : ranks) {
      const RankRole& role = roles_[static_cast<std::size_t>(rank)];
      one_group = one_group && role.pipeline == first.pipeline && role.stage == first.stage;
      holders.insert(stage_of(rank));
    }
    if (one_group || amount <= totals) return {};
    const Seconds all_reduce = rate(holders) * amount.value();
    return collective == Collective::all_reduce ? all_reduce : all_reduce * 0.5;
  }

  [[nodiscard]] bool messages_block() const override { return !costs_.overlaps_transfers; }

 private:
  /// The gradients' norm and the loss of an iteration, at most: some numbers that all ranks sum, which the simulator
  /// does not know.
  static constexpr Bytes totals{64.0};

  /// Of a byte, as the simulator prices all that these stages hold in common.
  [[nodiscard]] Seconds rate(const std::set<std::size_t>& holders) const {
    const auto [entry, is_new] = rates_.try_emplace(holders);
    if (!is_new) return entry->second;
    Seconds time{};
    Bytes amount{};
    for (const simulator::Reduction& reduction : costs_.reductions) {
      const auto held = costs_.holders_of(reduction);
      if (std::set<std::size_t>(held.begin(), held.end()) != holders) continue;
      time += reduction.time;
      amount += reduction.amount;
    }
    if (amount <= Bytes(0)) throw std::logic_error("the simulator knows nothing of a sum that the trainer makes");
    return entry->second = time / amount.value();
  }

  const PlanCosts& costs_;
  std::vector<RankRole> roles_;
  mutable std::map<std::set<std::size_t>, Seconds> rates_;  // looked up for every bucket
};

/// What a rank would need of its device, by the profile: activations come and go as layers run.
class ProfiledMemory {
 public:
  ProfiledMemory(const StageCosts& stage, const Stage& described, int layers)
      : table_(*stage.table),
        head_(layers - 1),
        fixed_(stage.memory.states() + stage.memory.communication + stage.memory.base) {
    for (int chunk = 0; chunk < described.chunks(); ++chunk) {
      const LayerRange& range = described.chunk(chunk);
      if (range.first > 0) first_layers_.insert(range.first);
      if (range.last == layers) fixed_ += table_.extra_logits;
    }
  }

  void after_layer(int layer, Pass pass) {
    const auto index = static_cast<std::size_t>(layer);
    Bytes kept = table_.activations[index + 1] - table_.activations[index];
    if (first_layers_.contains(layer)) kept += table_.stage_input;
    const Bytes logits = layer == head_ ? table_.logits : Bytes(0);
    if (pass == Pass::forward) {
      kept_ += kept;
      logits_ += logits;
    }
    peak_ = std::max(peak_, kept_ + table_.workspace[index]);
    logits_peak_ = std::max(logits_peak_, logits_);
    if (pass == Pass::backward) {
      kept_ -= kept;
      logits_ -= logits;
    }
  }
  /// An allocator keeps what logits took for the next micro-batch's: they count as if they stayed.
  [[nodiscard]] Bytes peak() const { return fixed_ + peak_ + logits_peak_; }

 private:
  const simulator::LayerTable& table_;
  int head_;
  Bytes fixed_;
  std::set<int> first_layers_;  // of chunks that receive something
  Bytes kept_{};
  Bytes peak_{};
  Bytes logits_{};
  Bytes logits_peak_{};
};

/// How much slower than on the devices this machine can run so many processes without being late: they may take a
/// quarter of its cores' time, and sums, which follow each other, a fiftieth of an iteration each way.
double usual_slowdown(const Inputs& inputs, Seconds iteration, int ranks_per_host, int sums) {
  // Wake-ups of a process, messages and small sums of a tensor-parallel group, measured with 64 ranks on 2 cores.
  constexpr double wait_s = 30e-6;
  constexpr double message_s = 50e-6;
  constexpr double group_sum_s = 80e-6;
  constexpr double idle_share = 0.005;  // of a core, by a process that waits for another
  constexpr double sum_s = 60e-6;       // for each process of a core: until all have answered
  double busy = 0.0;
  for (const Pipeline& pipeline : inputs.plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      int layers = 0;
      for (int chunk = 0; chunk < stage.chunks(); ++chunk) layers += stage.chunk(chunk).size();
      const double passes = 2.0 * pipeline.micro_batches * layers;
      const double rank = passes * (wait_s + (stage.tensor_parallel > 1 ? 2.0 * group_sum_s : 0.0)) +
                          4.0 * message_s * pipeline.micro_batches * stage.chunks();
      busy += rank * stage.tensor_parallel * pipeline.count;
    }
  busy *= static_cast<double>(ranks_per_host) / inputs.plan.ranks();
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double crowd = ranks_per_host / cores;
  const double share = std::max(0.05, 0.25 - idle_share * crowd);
  const double by_work = busy / cores / (share * iteration.value());
  const double by_sums = sums * sum_s * crowd / (0.02 * iteration.value());
  return std::max(1.0, std::ceil(std::max(by_work, by_sums)));
}

/// Collective: the most ranks that a host has.
int ranks_per_host(runtime::Control& control) {
  std::map<std::string, int> ranks;
  int most = 0;
  for (const std::string& host : control.gather(control.host())) most = std::max(most, ++ranks[host]);
  return static_cast<int>(control.max(most));
}

struct IterationTimes {
  std::vector<double> waited;  // s, on the devices: divided by the slowdown
  std::vector<double> due;     // with waits that end exactly when they should
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

/// The worst rank of a stage.
struct StageNeed {
  int rank = -1;
  Bytes tensors{};   // of the runtime, with the base of a process
  Bytes profiled{};  // by the profile and the framework
  int communicators = 0;
};

/// Collective; on rank 0 the needs by stage, else nothing.
std::vector<StageNeed> gather_needs(runtime::Control& control, const PlanTimes& times, std::size_t stages, Bytes tensors,
                                    Bytes profiled, std::size_t communicators) {
  std::vector<StageNeed> needs;
  int rank = 0;
  for (const std::string& text :
       control.gather(fmt::format("{} {} {}", tensors.value(), profiled.value(), communicators))) {
    needs.resize(stages);
    std::istringstream in(text);
    double own = 0.0;
    double by_profile = 0.0;
    int count = 0;
    in >> own >> by_profile >> count;
    StageNeed& need = needs[times.stage_of(rank)];
    if (need.rank < 0) need.rank = rank;
    need.tensors = std::max(need.tensors, Bytes(own));
    need.profiled = std::max(need.profiled, Bytes(by_profile));
    need.communicators = std::max(need.communicators, count);
    ++rank;
  }
  return needs;
}

std::string gibibytes(Bytes amount) { return fmt::format("{:.2f}", amount / gib); }

std::string error_text(Seconds time, Seconds simulated) {
  return fmt::format("{:+.1f}%", 100.0 * (time / simulated - 1.0));
}

void print_report(const Inputs& inputs, const IterationTimes& times, Seconds simulated,
                  const std::vector<StageNeed>& needs) {
  // The first iteration of several connects the ranks.
  const auto later = [](const std::vector<double>& all) {
    return Seconds(median({all.begin() + (all.size() > 1 ? 1 : 0), all.end()}));
  };
  const Seconds waited = later(times.waited);
  const Seconds due = later(times.due);
  if (waited > Seconds(0))
    fmt::print("# iteration time: rehearsed {} ({} with exact waits), simulated {}: {} ({})\n", format_time(waited),
               format_time(due), format_time(simulated), error_text(waited, simulated), error_text(due, simulated));
  else
    fmt::print("# iteration time: rehearsed {} without waiting, simulated {}: {}\n", format_time(due),
               format_time(simulated), error_text(due, simulated));

  Table table({{"pipeline"},
               {"stage"},
               {"gpu", Align::left},
               {"ranks"},
               {"communicators"},
               {"tensors"},
               {"rehearsed"},
               {"simulated"},
               {"device"},
               {"fits", Align::left}});
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const StageCosts& stage = inputs.costs.stages[i];
    const Pipeline& pipeline = inputs.plan.pipelines[static_cast<std::size_t>(stage.entry)];
    const Stage& described = pipeline.stages[static_cast<std::size_t>(stage.stage)];
    const Bytes need = std::max(needs[i].tensors, needs[i].profiled);
    table.add_row({std::to_string(stage.entry), std::to_string(stage.stage), described.gpu,
                   std::to_string(described.tensor_parallel * pipeline.count), std::to_string(needs[i].communicators),
                   gibibytes(needs[i].tensors), gibibytes(needs[i].profiled), gibibytes(stage.memory.total()),
                   stage.capacity ? gibibytes(*stage.capacity) : "-",
                   !stage.capacity ? "" : (need <= *stage.capacity ? "yes" : "no")});
  }
  fmt::print(
      "# memory of a rank in GiB: tensors of sailor-train; all of it by the profile, rehearsed and simulated\n{}",
      table.to_string());
}

/// One line about the stage whose prediction is furthest from what the runtime allocates.
void warn_of_unlike_memory(const Inputs& inputs, const std::vector<StageNeed>& needs) {
  constexpr double most = 0.25;
  std::size_t worst = 0;
  double largest = 0.0;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const double difference = std::abs(needs[i].tensors / inputs.costs.stages[i].memory.total() - 1.0);
    if (difference <= largest) continue;
    largest = difference;
    worst = i;
  }
  if (largest <= most) return;
  const StageCosts& stage = inputs.costs.stages[worst];
  const bool ours = inputs.framework.name == "sailor";
  const bool estimated = stage.table->origin == Origin::estimated;
  spdlog::warn(
      "rank {} (pipeline {}, stage {}): the tensors of sailor-train take {}, {:.0f}% {} than the {} that is predicted; "
      "{}",
      needs[worst].rank, stage.entry, stage.stage, format_bytes(needs[worst].tensors), 100.0 * largest,
      needs[worst].tensors > stage.memory.total() ? "more" : "less", format_bytes(stage.memory.total()),
      !ours       ? fmt::format("the prediction is for framework {}: for sailor-train, use --framework sailor",
                                inputs.framework.name)
      : estimated ? "the layers' sizes are estimated: measure them with sailor-profile layers"
                  : "the profile's layers are not those of this runtime: measure them with sailor-profile layers");
}

Result<void> check_memory(const Inputs& inputs, const std::vector<StageNeed>& needs) {
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const StageCosts& stage = inputs.costs.stages[i];
    const Bytes need = std::max(needs[i].tensors, needs[i].profiled);
    if (!stage.capacity || need <= *stage.capacity) continue;
    return fail(
        ErrorCode::infeasible,
        fmt::format("the plan does not fit into memory: rank {} (pipeline {}, stage {}) needs {} but a {} has {}",
                    needs[i].rank, stage.entry, stage.stage, format_bytes(need), stage.table->gpu,
                    format_bytes(*stage.capacity)),
        "use more stages, a smaller micro-batch, recompute or optimizer_sharding; sailor-simulate says which");
  }
  return {};
}

}  // namespace

std::vector<Option> rehearsal_options() {
  const std::string group = "Rehearsal";
  Option store = shared::profile_store();
  store.help += " [default: the one that the plan was made with]";
  Option framework = shared::framework();
  framework.help += " [default: the one that the plan was made for, else sailor]";
  framework.default_value.clear();
  std::vector<Option> options{
      {.name = "rehearse",
       .type = OptionType::flag,
       .help = "run the plan of other devices here: the same schedule, messages and memory, with waits for computation "
               "and tokens for tensors"},
      {.name = "rehearse-slowdown",
       .type = OptionType::number,
       .value_name = "FACTOR",
       .help = "let time pass so many times slower than on the devices; 0: wait for nothing, and only reckon; not "
               "given: as slow as this machine needs for so many ranks",
       .minimum = 0,
       .maximum = 1e6},
      {.name = "max-communicators",
       .type = OptionType::integer,
       .value_name = "N",
       .help = "warn when a rank is in more communicators",
       .default_value = "64",
       .minimum = 1},
      store,
      framework,
      {.name = "cluster", .value_name = "FILE", .help = "cluster description (cluster.toml): nodes and zones"}};
  for (Option& option : options) option.group = group;
  return options;
}

Result<void> rehearse(const Options& options, const Environment& environment, const runtime::World& world) {
  const bool speaks = world.rank() == 0;
  Inputs inputs;
  SAILOR_CHECK(agree(world.control, read_inputs(options, environment, world.size(), inputs)));
  Seconds simulated{};
  const auto simulate = [&]() -> Result<void> {
    auto prediction = simulator::simulate(inputs.plan, inputs.environment());
    if (!prediction) return fail(prediction.error());
    simulated = prediction->iteration_time;
    return {};
  };
  SAILOR_CHECK(agree(world.control, speaks ? simulate() : Result<void>()));
  simulated = Seconds(world.control.max(simulated.value()));

  const PlanTimes times(inputs.plan, inputs.costs);
  RehearsalClock clock(0.0);
  RehearsalWorld rehearsal(world, times, clock);
  const StageCosts& stage = inputs.costs.stages[times.stage_of(world.rank())];
  const auto device = runtime::make_rehearsal_device(stage.table->gpu);
  const Pipeline& pipeline = inputs.plan.pipelines[static_cast<std::size_t>(stage.entry)];
  ProfiledMemory profiled(stage, pipeline.stages[static_cast<std::size_t>(stage.stage)], inputs.model.layers());
  const runtime::TrainerSettings settings{
      .clip_norm = 1.0,
      .overlap_reduction = inputs.framework.overlaps_reduction,
      .after_layer =
          [&](int layer, Pass pass) {
            const simulator::PassTimes passes = stage.table->passes({layer, layer + 1});
            rehearsal.compute(pass == Pass::forward ? passes.forward : passes.backward);
            profiled.after_layer(layer, pass);
          },
      .after_update = [&] { rehearsal.compute(stage.update); }};
  runtime::TrainingState state(trained_plan(inputs.plan), inputs.model, world.rank(), *device);
  Trainer trainer(state, settings, rehearsal.world(), nullptr);
  const int crowd = ranks_per_host(world.control);
  const bool twice = inputs.plan.optimizer_sharding == OptimizerSharding::zero1;  // scattered, then gathered
  const int sums = static_cast<int>(world.control.max(static_cast<double>(trainer.reducer().buckets() * (twice ? 2 : 1))));
  const double slowdown = options.given("rehearse-slowdown") ? options.number("rehearse-slowdown")
                                                             : usual_slowdown(inputs, simulated, crowd, sums);
  clock.set_slowdown(slowdown);
  if (speaks) {
    fmt::print("# {}: {} in {}, {}; {}, rehearsal of {} by {}, {}\n", options.positional("PLAN").front(),
               inputs.plan.job.model, to_string(inputs.plan.job.precision), describe(inputs.plan),
               plural(static_cast<std::size_t>(inputs.plan.ranks()), "rank"), inputs.framework.name, inputs.store,
               slowdown > 0.0 ? fmt::format("{:g} times slower than there", slowdown) : "without waiting");
    fmt::print("# {:>9} {:>12} {:>12}\n", "iteration", "time_ms", "exact_ms");
  }

  IterationTimes iterations;
  const std::int64_t count = options.given("iterations") ? options.integer("iterations") : usual_iterations;
  for (std::int64_t iteration = 0; iteration < count; ++iteration) {
    rehearsal.restart();
    const runtime::IterationResult result = trainer.run();
    trainer.settle();
    if (slowdown > 0.0) iterations.waited.push_back(result.time.value() / slowdown);
    iterations.due.push_back(clock.now().value());
    if (!speaks) continue;
    fmt::print("{:>11} {:>12} {:>12.1f}\n", iteration,
               slowdown > 0.0 ? fmt::format("{:.1f}", iterations.waited.back() * 1e3) : "-",
               iterations.due.back() * 1e3);
    std::fflush(stdout);
  }

  const std::vector<StageNeed> needs =
      gather_needs(world.control, times, inputs.costs.stages.size(), stage.memory.base + device->memory_use().peak,
                   profiled.peak(), trainer.communicators());
  if (speaks) {
    print_report(inputs, iterations, simulated, needs);
    warn_of_unlike_memory(inputs, needs);
    int most = 0;
    for (const StageNeed& need : needs) most = std::max(most, need.communicators);
    if (most > options.integer("max-communicators"))
      spdlog::warn("a rank is in {} communicators, more than {} (--max-communicators)", most,
                   options.integer("max-communicators"));
  }
  return agree(world.control, speaks ? check_memory(inputs, needs) : Result<void>());
}

}  // namespace sailor::apps
