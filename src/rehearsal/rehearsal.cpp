#include "rehearsal/rehearsal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "rehearsal/plan_times.hpp"
#include "runtime/rehearsal/rehearsal_device.hpp"
#include "runtime/rehearsal/rehearsal_transport.hpp"
#include "runtime/trainer.hpp"

namespace sailor::rehearsal {

namespace {

/// Device memory that a rank would need, by the profile: activations come and go as layers run.
class ProfiledMemory {
 public:
  ProfiledMemory(const simulator::StageCosts& stage, const Stage& described, int layers)
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
  /// An allocator keeps the memory of logits for the next micro-batch's: it counts as if it stayed in use.
  [[nodiscard]] Bytes peak() const { return fixed_ + peak_ + logits_peak_; }

 private:
  const simulator::LayerTable& table_;
  int head_;
  Bytes fixed_;
  std::set<int> first_layers_;  // of chunks that receive an input
  Bytes kept_{};
  Bytes peak_{};
  Bytes logits_{};
  Bytes logits_peak_{};
};

/// How much slower than the devices this machine can run so many processes without being late: they may take a quarter
/// of its cores' time, and collectives, which follow each other, a fiftieth of an iteration each way.
double usual_slowdown(const Plan& plan, Seconds iteration, int ranks_per_host, int sums) {
  // Time of a process's wake-up, a message and a small all-reduce of a tensor-parallel group, measured with 64 ranks on
  // 2 cores.
  constexpr double wait_s = 30e-6;
  constexpr double message_s = 50e-6;
  constexpr double group_sum_s = 80e-6;
  constexpr double idle_share = 0.005;  // of a core, used by a process that waits for another
  constexpr double sum_s = 60e-6;       // per process of a core, until all have answered
  double busy = 0.0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const double passes = 2.0 * pipeline.micro_batches * stage.layer_count();
      const double rank = passes * (wait_s + (stage.tensor_parallel > 1 ? 2.0 * group_sum_s : 0.0) +
                                    (plan.context_parallel > 1 ? 2.5 * group_sum_s : 0.0) +
                                    (plan.expert_parallel > 1 ? 4.0 * group_sum_s : 0.0)) +
                          4.0 * message_s * pipeline.micro_batches * stage.chunks();
      busy += rank * plan.ranks_of(stage) * pipeline.count;
    }
  busy *= static_cast<double>(ranks_per_host) / plan.ranks();
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double crowd = ranks_per_host / cores;
  const double share = std::max(0.05, 0.25 - idle_share * crowd);
  const double by_work = busy / cores / (share * iteration.value());
  const double by_sums = sums * sum_s * crowd / (0.02 * iteration.value());
  return std::max(1.0, std::ceil(std::max(by_work, by_sums)));
}

/// Collective: the max number of ranks on a host.
int ranks_per_host(runtime::Control& control) {
  std::map<std::string, int> ranks;
  int most = 0;
  for (const std::string& host : control.gather(control.host())) most = std::max(most, ++ranks[host]);
  return static_cast<int>(control.max(most));
}

/// Collective: the needs by stage on rank 0, else nothing.
std::vector<StageNeed> gather_needs(runtime::Control& control, const PlanTimes& times, std::size_t stages,
                                    Bytes tensors, Bytes profiled, std::size_t communicators) {
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

}  // namespace

Plan trained_plan(Plan plan) {
  if (plan.job.precision == Precision::tf32) plan.job.precision = Precision::fp32;
  return plan;
}

Rehearsal rehearse(const Subject& subject, const RehearsalSettings& settings, const runtime::World& world) {
  const bool speaks = world.rank() == 0;
  const PlanTimes times(subject.plan, subject.costs);
  runtime::RehearsalClock clock(0.0);
  runtime::RehearsalWorld rehearsal(world, times, clock);
  const simulator::StageCosts& stage = subject.costs.stages[times.stage_of(world.rank())];
  const auto device = runtime::make_rehearsal_device(stage.table->gpu);
  const Pipeline& pipeline = subject.plan.pipelines[static_cast<std::size_t>(stage.entry)];
  ProfiledMemory profiled(stage, pipeline.stages[static_cast<std::size_t>(stage.stage)], subject.model.layers());
  const runtime::TrainerSettings trainer_settings{
      .clip_norm = 1.0,
      .overlap_reduction = subject.framework.overlaps_reduction,
      .after_layer =
          [&](int layer, Pass pass) {
            simulator::PassTimes passes = stage.table->passes({layer, layer + 1});
            if (stage.exchanges != nullptr) {
              const auto at = stage.exchanges->begin() + layer;
              passes.forward += at[1].forward - at[0].forward;
              passes.backward += at[1].backward - at[0].backward;
            }
            rehearsal.compute(pass == Pass::forward ? passes.forward : passes.backward);
            profiled.after_layer(layer, pass);
          },
      .after_update = [&] { rehearsal.compute(stage.update); }};
  runtime::TrainingState state(trained_plan(subject.plan), subject.model, world.rank(), *device);
  runtime::Trainer trainer(state, trainer_settings, rehearsal.world(), nullptr);
  const int crowd = ranks_per_host(world.control);
  const bool twice = subject.plan.optimizer_sharding == OptimizerSharding::zero1;  // reduce-scatter, then all-gather
  const int sums =
      static_cast<int>(world.control.max(static_cast<double>(trainer.reducer().buckets() * (twice ? 2 : 1))));
  const double slowdown =
      settings.slowdown ? *settings.slowdown : usual_slowdown(subject.plan, subject.simulated, crowd, sums);
  clock.set_slowdown(slowdown);
  if (speaks && settings.started) settings.started(slowdown);

  Rehearsal done;
  for (std::int64_t iteration = 0; iteration < settings.iterations; ++iteration) {
    rehearsal.restart();
    const auto start = std::chrono::steady_clock::now();
    static_cast<void>(trainer.run());
    trainer.settle();  // includes all-gathers that go on after the update
    const std::chrono::duration<double> here = std::chrono::steady_clock::now() - start;
    const Seconds passed(world.control.max(here.count()));
    std::optional<Seconds> waited;
    if (slowdown > 0.0) waited = passed / slowdown;
    if (waited) done.times.waited.push_back(waited->value());
    done.times.due.push_back(clock.now().value());
    if (speaks && settings.ran) settings.ran(iteration, waited, clock.now());
  }
  done.needs = gather_needs(world.control, times, subject.costs.stages.size(),
                            stage.memory.base + device->memory_use().peak, profiled.peak(), trainer.communicators());
  return done;
}

}  // namespace sailor::rehearsal
