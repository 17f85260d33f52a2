#include "simulator/iteration.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "simulator/closed_form.hpp"

namespace sailor::simulator {

namespace {

/// When the backward pass of the last micro-batch starts, by stage and chunk.
using LastBackward = std::vector<StageEnd>;

class Assembly {
 public:
  Assembly(const PlanCosts& costs, IterationScratch& scratch, const LastBackward* last_backward, Timeline* timeline)
      : costs_(costs),
        ends_(scratch.ends),
        network_(scratch.network),
        last_backward_(last_backward),
        timeline_(timeline) {}

  /// Needs the ends of the stages' passes in IterationScratch::ends.
  IterationTimes run() {
    IterationTimes times;
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i] <= times.pipelines) continue;
      times.pipelines = ends_[i];
      times.slowest_pipeline = static_cast<std::size_t>(costs_.stages[i].entry);
    }
    network_.assign(ends_.size(), Seconds{});
    if (costs_.overlaps_reduction) {
      reduce_in_buckets();
    } else {
      network_ = ends_;
      for (const Reduction& reduction : costs_.reductions) reduce(reduction, reduction.time - reduction.gather, false);
    }
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      ends_[i] = std::max(ends_[i], network_[i]);
      times.reduced = std::max(times.reduced, ends_[i]);
    }
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      // Steps wait for the norm of all gradients. Without sharding that is left out: no stage waits for another's step,
      // and the end moves by no more than the difference between the stages' steps.
      if (costs_.shards_optimizer) ends_[i] = times.reduced;
      const Seconds update = costs_.stages[i].update;
      record(i, Activity::update, false, ends_[i], ends_[i] + update);
      ends_[i] += update;
      times.updated = std::max(times.updated, ends_[i]);
    }
    if (costs_.shards_optimizer) {
      network_ = ends_;
      for (const Reduction& reduction : costs_.reductions) reduce(reduction, reduction.gather, false);
      ends_ = network_;
    }
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i] <= times.end) continue;
      times.end = ends_[i];
      times.last_stage = i;
    }
    return times;
  }

 private:
  /// A reduction starts when every holder has reached it, and occupies them all.
  void reduce(const Reduction& reduction, Seconds time, bool overlapped, Seconds ready = {}) {
    const auto holders = costs_.holders_of(reduction);
    Seconds start = ready;
    for (const std::size_t holder : holders) start = std::max(start, network_[holder]);
    for (const std::size_t holder : holders) {
      network_[holder] = start + time;
      record(holder, Activity::reduce, overlapped, start, start + time);
    }
  }

  void reduce_in_buckets() {
    for (const Reduction& reduction : costs_.reductions) {
      const double buckets = costs_.buckets_of(reduction);
      for (double bucket = 1.0; bucket <= buckets; bucket += 1.0) {
        const double down_to = holds_share(reduction, bucket / buckets);
        Seconds ready{};
        for (const std::size_t holder : costs_.holders_of(reduction))
          ready = std::max(ready, reduction.tied ? ends_[holder] : gradients_ready(holder, reduction, down_to));
        reduce(reduction, (reduction.time - reduction.gather) * (1.0 / buckets), true, ready);
      }
    }
  }

  /// The layer (a fraction if within a layer) above which `share` of the gradients of a reduction lie.
  double holds_share(const Reduction& reduction, double share) const {
    const std::vector<double>& parameters = *costs_.layer_parameters;
    const double top = parameters[static_cast<std::size_t>(reduction.last_layer)];
    const double wanted = share * (top - parameters[static_cast<std::size_t>(reduction.first_layer)]);
    for (int layer = reduction.last_layer; layer-- > reduction.first_layer;) {
      const double above = top - parameters[static_cast<std::size_t>(layer) + 1];
      const double here = top - parameters[static_cast<std::size_t>(layer)];
      if (here >= wanted && here > above) return layer + 1 - (wanted - above) / (here - above);
    }
    return reduction.first_layer;
  }

  /// Time when the last backward pass of `holder` has reached layer `down_to` (a fraction if within a layer).
  Seconds gradients_ready(std::size_t holder, const Reduction& reduction, double down_to) const {
    const StageCosts& stage = costs_.stages[holder];
    const PipelineCosts& pipeline = costs_.pipelines[static_cast<std::size_t>(stage.entry)];
    const auto stages = static_cast<std::size_t>(pipeline.stages);
    for (std::size_t chunk = 0; chunk < static_cast<std::size_t>(pipeline.chunks); ++chunk) {
      const std::size_t pass = pipeline.first_pass + chunk * stages + static_cast<std::size_t>(stage.stage);
      const LayerRange& layers = costs_.layers[pass];
      if (reduction.first_layer < layers.first || reduction.first_layer >= layers.last) continue;
      const auto whole = static_cast<std::size_t>(std::ceil(down_to));
      Seconds passed = stage.table->passes({static_cast<int>(whole), layers.last}).backward;
      if (down_to < static_cast<double>(whole)) {
        const int layer = static_cast<int>(whole) - 1;
        passed += stage.table->passes({layer, layer + 1}).backward * (static_cast<double>(whole) - down_to);
      }
      // Exchanges of context and expert parallelism are spread over the pass.
      if (const Seconds computing = stage.table->passes(layers).backward; computing > Seconds(0))
        passed *= costs_.passes[pass].backward / computing;
      return start_of_last_backward(holder, pipeline, chunk) + passed;
    }
    return ends_[holder];
  }

  Seconds start_of_last_backward(std::size_t holder, const PipelineCosts& pipeline, std::size_t chunk) const {
    if (last_backward_ != nullptr) return (*last_backward_)[holder].last_backward[chunk];
    Seconds start = ends_[holder];  // the chunks end one after the other, the first one last
    const auto stages = static_cast<std::size_t>(pipeline.stages);
    const auto stage = static_cast<std::size_t>(costs_.stages[holder].stage);
    for (std::size_t c = 0; c <= chunk; ++c) start -= costs_.passes[pipeline.first_pass + c * stages + stage].backward;
    return start;
  }

  void record(std::size_t index, Activity activity, bool overlapped, Seconds start, Seconds end) {
    if (timeline_ == nullptr) return;
    timeline_->events.push_back({.pipeline_entry = costs_.stages[index].entry,
                                 .stage = costs_.stages[index].stage,
                                 .activity = activity,
                                 .overlapped = overlapped,
                                 .micro_batch = -1,
                                 .chunk = 0,
                                 .peer = -1,
                                 .start = start,
                                 .end = end});
  }

  const PlanCosts& costs_;
  std::vector<Seconds>& ends_;
  std::vector<Seconds>& network_;
  const LastBackward* last_backward_;  // null: derived from the ends
  Timeline* timeline_;
};

}  // namespace

IterationTimes closed_iteration(const PlanCosts& costs, IterationScratch& scratch) {
  scratch.ends.clear();
  for (std::size_t entry = 0; entry < costs.pipelines.size(); ++entry) {
    const PipelineTimes times = costs.times_of(entry);
    Seconds end = closed_form(times);
    for (std::size_t i = 0; i < static_cast<std::size_t>(times.stages); ++i) {
      scratch.ends.push_back(end);
      end -= times.passes[i].backward;
      if (i < times.boundaries.size()) end -= times.boundaries[i].backward;
    }
  }
  return Assembly(costs, scratch, nullptr, nullptr).run();
}

IterationTimes least_iteration(const PlanCosts& costs, IterationScratch& scratch) {
  scratch.ends.clear();
  LastBackward last_backward;  // where reductions overlap it
  for (std::size_t entry = 0; entry < costs.pipelines.size(); ++entry) {
    const PipelineTimes times = costs.times_of(entry);
    least_ends(times, scratch.least);
    for (std::size_t i = 0; i < scratch.least.size(); ++i) {
      scratch.ends.push_back(scratch.least[i].end);
      if (!costs.overlaps_reduction) continue;
      // For later chunks, whose last backward pass is earlier, no bound is known.
      StageEnd& end = last_backward.emplace_back();
      end.last_backward.resize(static_cast<std::size_t>(times.chunks));
      end.last_backward.front() = scratch.least[i].passed - times.passes[i].backward;
    }
  }
  return Assembly(costs, scratch, costs.overlaps_reduction ? &last_backward : nullptr, nullptr).run();
}

IterationTimes event_driven_iteration(const PlanCosts& costs,
                                      const std::function<std::span<const StageEnd>(const PipelineTimes&)>& run) {
  LastBackward ends;
  for (std::size_t entry = 0; entry < costs.pipelines.size(); ++entry) {
    const auto known = run(costs.times_of(entry));
    ends.insert(ends.end(), known.begin(), known.end());
  }
  IterationScratch scratch;
  for (const StageEnd& end : ends) scratch.ends.push_back(end.end);
  return Assembly(costs, scratch, &ends, nullptr).run();
}

IterationTimes event_driven_iteration(const PlanCosts& costs, Timeline* timeline) {
  LastBackward ends;
  std::vector<TimelineEvent> events;
  for (std::size_t entry = 0; entry < costs.pipelines.size(); ++entry) {
    events.clear();
    for (StageEnd& end : run_pipeline(costs.times_of(entry), timeline != nullptr ? &events : nullptr))
      ends.push_back(std::move(end));
    if (timeline == nullptr) continue;
    for (TimelineEvent& event : events) {
      event.pipeline_entry = static_cast<int>(entry);
      timeline->events.push_back(event);
    }
  }
  IterationScratch scratch;
  for (const StageEnd& end : ends) scratch.ends.push_back(end.end);
  const IterationTimes times = Assembly(costs, scratch, &ends, timeline).run();
  if (timeline != nullptr) {
    timeline->length = times.end;
    std::stable_sort(
        timeline->events.begin(), timeline->events.end(), [](const TimelineEvent& a, const TimelineEvent& b) {
          return std::tie(a.pipeline_entry, a.stage, a.start) < std::tie(b.pipeline_entry, b.stage, b.start);
        });
  }
  return times;
}

}  // namespace sailor::simulator
