// What one rank does in an iteration and when: for `sailor-train --metrics` and `--trace`. Points in time are events of
// the device's streams: what counts is when the device got there, not when the host asked for it.
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

namespace sailor::runtime {

/// What the time of an iteration goes to. Waiting for the neighbours' messages, and for the other ranks' gradients in
/// `reduction`, is counted only while the rank can do nothing else.
enum class Part { forward, backward, wait_activation, wait_gradient, reduction, update };
inline constexpr std::size_t part_count = 6;
/// "wait_activation".
std::string_view to_string(Part part);

using PartTimes = std::array<Seconds, part_count>;  // by Part

class TimelineRecorder {
 public:
  TimelineRecorder(Device& device, const RankRole& role) : device_(device), role_(role) {}

  /// From the next begin() on.
  void keep_events(bool keep) { keep_events_ = keep; }

  /// An iteration begins; what was kept of the last one is dropped.
  void begin();
  /// All ranks get here on their main streams at about the same time: events of the next iteration are counted from
  /// here, so that those of several ranks, also on several hosts, have one origin.
  void in_step();
  /// Nothing more of this iteration will be recorded.
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
  /// For the message that the step needs, from stage `peer` of the pipeline.
  [[nodiscard]] Span wait(const ScheduleStep& step, int peer);
  /// `shown`: as an event too; sums that overlap with the backward passes have their own, see begin_overlapped().
  [[nodiscard]] Span reduction(bool shown);
  [[nodiscard]] Span update();
  /// Something beside the computation begins on another stream; to be handed to end_overlapped(). Step and peer say
  /// nothing of reductions.
  [[nodiscard]] std::size_t begin_overlapped(Stream& stream, Activity activity,
                                             const ScheduleStep& step = {.micro_batch = -1}, int peer = -1);
  /// The same of what goes on in the next iteration, of which it is counted an event.
  [[nodiscard]] std::size_t begin_overlapping_next(Stream& stream, Activity activity);
  void end_overlapped(std::size_t index, Stream& stream) { end(index, stream); }

  // After end(); the first of them waits until the device has done all that was recorded.
  /// Of this iteration.
  [[nodiscard]] const PartTimes& parts();
  /// The same, counted from the origin of in_step() (before the first: of begin()), by start.
  [[nodiscard]] const std::vector<TimelineEvent>& events();

 private:
  /// Between two events of a stream.
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
  /// Events, handed out one after the other and all again.
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
  std::array<Points, 2> points_;    // of this iteration and of the last one, in turns
  std::size_t turn_ = 0;
  std::vector<Recorded> recorded_;
  Event* end_ = nullptr;  // on the main stream, behind all that is recorded; null: times are read
  PartTimes parts_{};
  std::vector<TimelineEvent> events_;
};

/// Collective: the events of all ranks, on rank 0; empty elsewhere. Begins with the first event.
[[nodiscard]] Timeline gather_timeline(TimelineRecorder& recorder, Control& control);

/// An iteration over all ranks.
struct IterationSummary {
  PartTimes mean{};
  PartTimes slowest{};           ///< of each part the rank that it took longest
  Bytes peak_tensor_memory{};    ///< of the rank that needed most so far
  Bytes peak_resident_memory{};  ///< the same of its process
};

/// Collective: on rank 0; zero elsewhere.
[[nodiscard]] IterationSummary gather_summary(TimelineRecorder& recorder, const Device& device, Control& control);

}  // namespace sailor::runtime
