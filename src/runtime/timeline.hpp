// Timeline of one rank in an iteration, for `sailor-train --metrics` and `--trace`. Points in time are events of the
// device's streams: they tell when the device got there, not when the host enqueued the operation.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "plan/schedule.hpp"
#include "plan/timeline.hpp"
#include "runtime/control.hpp"
#include "runtime/device.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

/// Parts of an iteration's time. Waiting for messages of neighbouring stages, and for other ranks' gradients in
/// `reduction`, is counted only while the rank can do nothing else.
enum class Part { forward, backward, wait_activation, wait_gradient, reduction, update };
inline constexpr std::size_t part_count = 6;
/// "wait_activation".
std::string_view to_string(Part part);

using PartTimes = std::array<Seconds, part_count>;  // by Part

class TimelineRecorder {
 public:
  TimelineRecorder(Device& device, const RankRole& role) : device_(device), role_(role) {}

  /// Whether to keep events, from the next begin() on.
  void keep_events(bool keep) { keep_events_ = keep; }

  /// Begins an iteration and drops what was kept of the last one.
  void begin();
  /// Marks a point that the main streams of all ranks reach at about the same time. Events of the next iteration are
  /// counted from here, so that those of several ranks, also on several hosts, have one origin.
  void in_step();
  /// Ends the iteration: nothing more of it will be recorded.
  void end();

  /// Measures on the main stream until it goes out of scope.
  class Span {
   public:
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() { recorder_.end(index_, recorder_.device_.main()); }

   private:
    friend class TimelineRecorder;
    Span(TimelineRecorder& recorder, std::size_t index) : recorder_(recorder), index_(index) {}
    TimelineRecorder& recorder_;
    std::size_t index_;
  };

  [[nodiscard]] Span pass(const ScheduleStep& step);
  /// Wait for the message that the step needs, from stage `peer` of the pipeline.
  [[nodiscard]] Span wait(const ScheduleStep& step, int peer);
  /// If `shown`, it is kept as an event, too; all-reduces that overlap with the backward passes have events of their
  /// own, see begin_overlapped().
  [[nodiscard]] Span reduction(bool shown);
  [[nodiscard]] Span update();
  /// Begins an activity on another stream that overlaps with the computation; the result is to be passed to
  /// end_overlapped(). `step` and `peer` have no meaning for reductions.
  [[nodiscard]] std::size_t begin_overlapped(Stream& stream, Activity activity,
                                             const ScheduleStep& step = {.micro_batch = -1}, int peer = -1);
  /// The same for an activity that overlaps with the next iteration and is counted as an event of that one.
  [[nodiscard]] std::size_t begin_overlapping_next(Stream& stream, Activity activity);
  void end_overlapped(std::size_t index, Stream& stream) { end(index, stream); }

  // To be called after end(); the first of these calls waits until the device has done all that was recorded.
  /// Times of the parts of this iteration.
  [[nodiscard]] const PartTimes& parts();
  /// Events of this iteration by start, counted from the origin of in_step() (before the first in_step(): of begin()).
  [[nodiscard]] const std::vector<TimelineEvent>& events();

 private:
  /// An interval between two events of a stream.
  struct Recorded {
    TimelineEvent event;
    Part part = Part::forward;
    bool counts = false;   // in parts_
    bool shown = false;    // in events_
    bool is_next = false;  // belongs to the next iteration
    Event* begin = nullptr;
    Event* end = nullptr;
  };
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  /// A pool of events that are handed out one after the other, and all again in a later iteration.
  struct Points {
    std::vector<std::unique_ptr<Event>> all;
    std::size_t used = 0;
  };

  void read_times();
  std::size_t start(Stream& stream, Recorded recorded);
  void end(std::size_t index, Stream& stream);
  [[nodiscard]] Event* record(Stream& stream);
  [[nodiscard]] TimelineEvent event_of(Activity activity, const ScheduleStep& step, int peer) const;

  Device& device_;
  RankRole role_;
  bool keep_events_ = false;
  std::unique_ptr<Event> origin_;   // of this iteration
  std::unique_ptr<Event> in_step_;  // of the next; null: none yet
  std::array<Points, 2> points_;    // of this iteration and of the last one, alternating
  std::size_t turn_ = 0;
  std::vector<Recorded> recorded_;
  Event* end_ = nullptr;  // on the main stream, after all that is recorded; null: times were read
  PartTimes parts_{};
  std::vector<TimelineEvent> events_;
};

/// Collective: the events of all ranks, on rank 0; empty on other ranks. Times begin with the first event.
[[nodiscard]] Timeline gather_timeline(TimelineRecorder& recorder, Control& control);

/// Summary of an iteration over all ranks.
struct IterationSummary {
  PartTimes mean{};
  PartTimes slowest{};           ///< per part: of the rank that took longest
  Bytes peak_tensor_memory{};    ///< maximum over the ranks so far
  Bytes peak_resident_memory{};  ///< maximum over the ranks' processes so far
  // These two are means over all forward passes of blocks with experts, on all ranks; 0: there are none.
  double expert_load = 0.0;       ///< tokens of the busiest expert over the mean
  double expert_imbalance = 0.0;  ///< tokens of the busiest rank of an expert-parallel group over the mean
};

/// Collective: the summary on rank 0; zeros on other ranks.
[[nodiscard]] IterationSummary gather_summary(TimelineRecorder& recorder, const Device& device,
                                              const RoutingLoads& loads, Control& control);

}  // namespace sailor::runtime
