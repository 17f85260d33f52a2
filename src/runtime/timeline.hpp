// What one rank does in an iteration and when: for `sailor-train --metrics` and `--trace`. Times of the passes are
// always taken (two looks at a clock each); events are kept only when asked for.
//
// On a device that computes later than it is told, a part ends when the host goes on.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <vector>

#include "core/units.hpp"
#include "plan/plan.hpp"
#include "plan/schedule.hpp"
#include "plan/timeline.hpp"
#include "runtime/communicator.hpp"
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
  using Clock = std::chrono::steady_clock;

  explicit TimelineRecorder(const RankRole& role) : role_(role) {}

  /// From the next begin() on.
  void keep_events(bool keep) { keep_events_ = keep; }

  /// An iteration begins; what was kept of the last one is dropped.
  void begin();
  /// All ranks are here at about the same time: events of the next iteration are counted from here, so that those of
  /// several ranks, also on several hosts, have one origin.
  void in_step() { in_step_ = Clock::now(); }

  /// Measures until it goes out of scope.
  class Span {
   public:
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() { recorder_.add(part_, event_, begin_, shown_); }

   private:
    friend class TimelineRecorder;
    Span(TimelineRecorder& recorder, Part part, const TimelineEvent& event, bool shown)
        : recorder_(recorder), part_(part), event_(event), shown_(shown), begin_(Clock::now()) {}
    TimelineRecorder& recorder_;
    Part part_;
    TimelineEvent event_;
    bool shown_;
    Clock::time_point begin_;
  };

  [[nodiscard]] Span pass(const ScheduleStep& step);
  /// For the message that the step needs, from stage `peer` of the pipeline.
  [[nodiscard]] Span wait(const ScheduleStep& step, int peer);
  /// `shown`: as an event too; sums that overlap with the backward passes have their own, see overlapped().
  [[nodiscard]] Span reduction(bool shown);
  [[nodiscard]] Span update();
  /// Something beside the computation that began at `begin` and ends now. Of reductions, which are asked for long
  /// before their turn comes, the time from the end of the one before on; step and peer say nothing of them.
  void overlapped(Activity activity, Clock::time_point begin, const ScheduleStep& step = {.micro_batch = -1},
                  int peer = -1);

  /// Of this iteration so far.
  [[nodiscard]] const PartTimes& parts() const { return parts_; }
  /// The same, counted from the origin of in_step() (before the first: of begin()), by start.
  [[nodiscard]] std::vector<TimelineEvent> events() const;

 private:
  void add(Part part, TimelineEvent event, Clock::time_point begin, bool shown);
  void keep(TimelineEvent event, Clock::time_point begin, Clock::time_point end);
  [[nodiscard]] TimelineEvent event_of(Activity activity, const ScheduleStep& step, int peer) const;

  RankRole role_;
  bool keep_events_ = false;
  Clock::time_point in_step_{};
  Clock::time_point origin_{};
  Clock::time_point reduced_until_{};
  PartTimes parts_{};
  std::vector<TimelineEvent> events_;
};

/// Collective: the events of all ranks, on rank 0; empty elsewhere. Begins with the first event.
[[nodiscard]] Timeline gather_timeline(const TimelineRecorder& recorder, Communicator& world);

/// An iteration over all ranks.
struct IterationSummary {
  PartTimes mean{};
  PartTimes slowest{};           ///< of each part the rank that it took longest
  Bytes peak_tensor_memory{};    ///< of the rank that needed most so far
  Bytes peak_resident_memory{};  ///< the same of its process
};

/// Collective: on rank 0; zero elsewhere.
[[nodiscard]] IterationSummary gather_summary(const TimelineRecorder& recorder, const Device& device,
                                              Communicator& world);

}  // namespace sailor::runtime
