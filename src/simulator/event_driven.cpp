#include "simulator/event_driven.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "core/assert.hpp"
#include "plan/schedule.hpp"

namespace sailor::simulator {

namespace {

constexpr double not_arrived = -1.0;

/// Common to both kinds of transfers: stages do their steps until one has to wait for another.
class Run {
 public:
  Run(const PipelineTimes& pipeline, std::vector<TimelineEvent>* events) : p_(pipeline), events_(events) {
    const auto stages = static_cast<std::size_t>(p_.stages);
    steps_.reserve(stages);
    for (int i = 0; i < p_.stages; ++i)
      steps_.push_back(schedule_steps(p_.schedule, i, p_.stages, p_.chunks, p_.micro_batches));
    next_.assign(stages, 0);
    clock_.assign(stages, 0.0);
    ends_.resize(stages);
    for (StageEnd& end : ends_) end.last_backward.resize(static_cast<std::size_t>(p_.chunks));
  }

 protected:
  /// Runs the pass `step` on `stage` from `start`.
  void compute(int stage, const ScheduleStep& step, double start) {
    const auto s = static_cast<std::size_t>(stage);
    const PassTimes& times = p_.passes[virtual_stage(stage, step.chunk)];
    const bool forward = step.pass == Pass::forward;
    SAILOR_ASSERT(start >= clock_[s], "a pass starts while the stage is busy");
    const double end = start + (forward ? times.forward : times.backward).value();
    if (!forward && step.micro_batch == p_.micro_batches - 1)
      ends_[s].last_backward[static_cast<std::size_t>(step.chunk)] = Seconds(start);
    record(stage, forward ? Activity::forward : Activity::backward, false, step, -1, start, end);
    clock_[s] = end;
  }

  void record(int stage, Activity activity, bool overlapped, const ScheduleStep& step, int peer, double start,
              double end) {
    if (events_ == nullptr) return;
    events_->push_back({.pipeline_entry = 0,
                        .stage = stage,
                        .activity = activity,
                        .overlapped = overlapped,
                        .micro_batch = step.micro_batch,
                        .chunk = step.chunk,
                        .peer = peer,
                        .start = Seconds(start),
                        .end = Seconds(end)});
  }

  [[nodiscard]] std::size_t virtual_stage(int stage, int chunk) const {
    return static_cast<std::size_t>(chunk * p_.stages + stage);
  }

  /// Calls advance(stage, ready) until no stage is ready; it appends the stages that no longer have to wait.
  template <class Advance>
  std::vector<StageEnd> work(Advance advance) {
    std::vector<int> ready(static_cast<std::size_t>(p_.stages));
    for (int i = 0; i < p_.stages; ++i) ready[static_cast<std::size_t>(i)] = p_.stages - 1 - i;
    while (!ready.empty()) {
      const int stage = ready.back();
      ready.pop_back();
      advance(stage, ready);
    }
    return finish();
  }

  std::vector<StageEnd> finish() {
    for (std::size_t i = 0; i < next_.size(); ++i) {
      if (next_[i] < steps_[i].size()) throw std::logic_error("a pipeline schedule waits for itself");
      ends_[i].end = Seconds(clock_[i]);
    }
    return std::move(ends_);
  }

  const PipelineTimes& p_;
  std::vector<TimelineEvent>* events_;
  std::vector<std::vector<ScheduleStep>> steps_;  // by stage
  std::vector<std::size_t> next_;                 // by stage: index into its steps
  std::vector<double> clock_;                     // by stage: time from which it is free
  std::vector<StageEnd> ends_;
};

/// A message starts when it is ready and its link is free; a pass waits only for its own message.
class OverlappedRun : Run {
 public:
  OverlappedRun(const PipelineTimes& pipeline, std::vector<TimelineEvent>* events) : Run(pipeline, events) {
    const std::size_t all = p_.passes.size() * static_cast<std::size_t>(p_.micro_batches);
    arrived_[0].assign(all, not_arrived);
    arrived_[1].assign(all, not_arrived);
    for (int m = 0; m < p_.micro_batches; ++m) arrived_[0][slot(0, m)] = 0.0;
    link_free_[0].assign(static_cast<std::size_t>(p_.stages), 0.0);
    link_free_[1] = link_free_[0];
  }

  std::vector<StageEnd> run() {
    return work([this](int stage, std::vector<int>& ready) { advance(stage, ready); });
  }

 private:
  [[nodiscard]] std::size_t slot(std::size_t virtual_stage, int micro_batch) const {
    return virtual_stage * static_cast<std::size_t>(p_.micro_batches) + static_cast<std::size_t>(micro_batch);
  }

  void advance(int stage, std::vector<int>& ready) {
    const auto s = static_cast<std::size_t>(stage);
    for (; next_[s] < steps_[s].size(); ++next_[s]) {
      const ScheduleStep& step = steps_[s][next_[s]];
      const std::size_t v = virtual_stage(stage, step.chunk);
      const std::size_t direction = step.pass == Pass::forward ? 0 : 1;
      const double arrival = arrived_[direction][slot(v, step.micro_batch)];
      if (arrival == not_arrived) return;
      compute(stage, step, std::max(clock_[s], arrival));
      if (direction == 0 && v + 1 == p_.passes.size()) {
        arrived_[1][slot(v, step.micro_batch)] = clock_[s];  // the loss: its gradient is there at once
      } else if (direction == 0) {
        send(stage, step, v + 1, p_.boundaries[v].forward, ready);
      } else if (v > 0) {
        send(stage, step, v - 1, p_.boundaries[v - 1].backward, ready);
      }
    }
  }

  void send(int stage, const ScheduleStep& step, std::size_t to, Seconds time, std::vector<int>& ready) {
    const auto s = static_cast<std::size_t>(stage);
    const std::size_t direction = step.pass == Pass::forward ? 0 : 1;
    double& free = link_free_[direction][s];
    const double start = std::max(clock_[s], free);
    free = start + time.value();
    arrived_[direction][slot(to, step.micro_batch)] = free;
    const int receiver = static_cast<int>(to % static_cast<std::size_t>(p_.stages));
    record(stage, Activity::send, true, step, receiver, start, free);
    record(receiver, Activity::receive, true, step, stage, start, free);
    if (receiver != stage) ready.push_back(receiver);
  }

  std::array<std::vector<double>, 2> arrived_;    // activation, gradient: by virtual stage and micro-batch
  std::array<std::vector<double>, 2> link_free_;  // by sending stage
};

/// A message occupies both stages. Both sides reach the messages over a boundary in the same order, so the n-th message
/// of one side is the n-th of the other.
class BlockingRun : Run {
 public:
  BlockingRun(const PipelineTimes& pipeline, std::vector<TimelineEvent>* events) : Run(pipeline, events) {
    waiting_.resize(p_.boundaries.size());
    place_.assign(static_cast<std::size_t>(p_.stages), Place::receive);
  }

  std::vector<StageEnd> run() {
    return work([this](int stage, std::vector<int>& ready) { advance(stage, ready); });
  }

 private:
  /// Progress of a stage within its step.
  enum class Place : char { receive, compute, send };
  /// The side that reached a message or exchange first.
  struct Waiting {
    int stage = -1;
    double since = 0.0;
  };

  void advance(int stage, std::vector<int>& ready) {
    const auto s = static_cast<std::size_t>(stage);
    while (next_[s] < steps_[s].size()) {
      const ScheduleStep& step = steps_[s][next_[s]];
      const bool forward = step.pass == Pass::forward;
      if (place_[s] == Place::receive) {
        const int peer = forward ? stage - 1 : stage + 1;
        if (peer >= 0 && peer < p_.stages && !received_with_send(s)) {
          if (!meet(stage, peer, forward ? &step : nullptr, forward ? nullptr : &step, ready)) return;
        }
        place_[s] = Place::compute;
      }
      if (place_[s] == Place::compute) {
        compute(stage, step, clock_[s]);
        place_[s] = Place::send;
      }
      const int peer = forward ? stage + 1 : stage - 1;
      if (peer >= 0 && peer < p_.stages) {
        const ScheduleStep* back = exchanged_with(s);
        if (!meet(stage, peer, forward ? &step : back, forward ? back : &step, ready)) return;
      }
      place_[s] = Place::receive;
      ++next_[s];
    }
  }

  /// Whether the messages after pass `before` are one exchange: in the steady phase of 1F1B, a stage sends to a
  /// neighbour and receives from it at once.
  [[nodiscard]] bool is_exchange(std::size_t stage, std::size_t before) const {
    if (p_.schedule != Schedule::one_f_one_b || before + 1 >= steps_[stage].size()) return false;
    if (p_.micro_batches <= p_.stages - static_cast<int>(stage) - 1) return false;  // it has no steady phase
    return steps_[stage][before].pass != steps_[stage][before + 1].pass;
  }
  [[nodiscard]] const ScheduleStep* exchanged_with(std::size_t stage) const {
    return is_exchange(stage, next_[stage]) ? &steps_[stage][next_[stage] + 1] : nullptr;
  }
  [[nodiscard]] bool received_with_send(std::size_t stage) const {
    return next_[stage] > 0 && is_exchange(stage, next_[stage] - 1);
  }

  /// `stage` reaches a message with `peer`: an activation downstream, a gradient upstream, or both. False if it has to
  /// wait.
  bool meet(int stage, int peer, const ScheduleStep* activation, const ScheduleStep* gradient,
            std::vector<int>& ready) {
    const auto boundary = static_cast<std::size_t>(std::min(stage, peer));
    Waiting& waiting = waiting_[boundary];
    const auto s = static_cast<std::size_t>(stage);
    if (waiting.stage == stage) return false;
    if (waiting.stage < 0) {
      waiting = {.stage = stage, .since = clock_[s]};
      return false;
    }
    waiting.stage = -1;
    const int upper = std::min(stage, peer);
    const int lower = upper + 1;
    double now = std::max(clock_[s], waiting.since);
    if (activation != nullptr) {
      const double end = now + p_.boundaries[boundary].forward.value();
      record(upper, Activity::send, false, *activation, lower, now, end);
      record(lower, Activity::receive, false, *activation, upper, now, end);
      now = end;
    }
    if (gradient != nullptr) {
      const double end = now + p_.boundaries[boundary].backward.value();
      record(lower, Activity::send, false, *gradient, upper, now, end);
      record(upper, Activity::receive, false, *gradient, lower, now, end);
      now = end;
    }
    clock_[s] = now;
    const auto other = static_cast<std::size_t>(peer);
    clock_[other] = now;
    // The other side continues after its message.
    if (place_[other] == Place::receive) {
      place_[other] = Place::compute;
    } else {
      place_[other] = Place::receive;
      ++next_[other];
    }
    ready.push_back(peer);
    return true;
  }

  std::vector<Place> place_;      // by stage
  std::vector<Waiting> waiting_;  // by boundary
};

}  // namespace

void least_ends(const PipelineTimes& p, std::vector<LeastEnd>& ends) {
  const auto stages = static_cast<std::size_t>(p.stages);
  const auto chunks = static_cast<std::size_t>(p.chunks);
  const double n = p.micro_batches;
  ends.assign(stages, {});
  const bool blocks = !p.overlaps_transfers && p.schedule != Schedule::interleaved_1f1b;
  const auto boundary = [&](std::size_t i) { return i + 1 < stages ? p.boundaries[i] : BoundaryTimes{}; };
  // From the start of the first forward pass of stage i to the end of its first backward pass.
  std::vector<Seconds> round(stages);
  if (chunks == 1) {
    Seconds below{};
    for (std::size_t i = stages; i-- > 0;) {
      below += p.passes[i].forward + p.passes[i].backward + boundary(i).forward + boundary(i).backward;
      round[i] = below;
    }
  }
  Seconds start{};
  for (std::size_t i = 0; i < stages; ++i) {
    Seconds& passed = ends[i].passed;
    if (chunks > 1) {
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const PassTimes& pass = p.passes[chunk * stages + i];
        passed += (pass.forward + pass.backward) * n;
      }
      continue;
    }
    const PassTimes& pass = p.passes[i];
    const double first = std::min(n, p.schedule == Schedule::gpipe ? n : static_cast<double>(stages - i));
    const BoundaryTimes before = blocks && i > 0 ? p.boundaries[i - 1] : BoundaryTimes{};
    const BoundaryTimes behind = blocks ? boundary(i) : BoundaryTimes{};
    // Time that the stage is occupied without a pause, and time with the wait for the first gradient.
    const Seconds busy = (pass.forward + pass.backward) * n + (before.forward + before.backward) * (n - 1.0) +
                         (behind.forward + behind.backward) * n;
    const Seconds waited = round[i] + pass.backward * (n - 1.0) + (before.backward + behind.backward) * (n - 1.0) +
                           (pass.forward + before.forward + behind.forward) * (n - first);
    passed = start + std::max(busy, waited);
    start += pass.forward + boundary(i).forward;
  }
  for (std::size_t i = stages; i-- > 0;) {
    if (i + 1 < stages) {
      const Seconds gradient = p.boundaries[i].backward + p.passes[i].backward;
      ends[i].passed = std::max(ends[i].passed, ends[i + 1].passed + gradient);
    }
    ends[i].end = ends[i].passed + (blocks && i > 0 ? p.boundaries[i - 1].backward : Seconds{});
  }
}

std::vector<StageEnd> run_pipeline(const PipelineTimes& pipeline, std::vector<TimelineEvent>* events) {
  if (pipeline.overlaps_transfers || pipeline.schedule == Schedule::interleaved_1f1b)
    return OverlappedRun(pipeline, events).run();
  return BlockingRun(pipeline, events).run();
}

}  // namespace sailor::simulator
