#include "runtime/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include "runtime/process_memory.hpp"

namespace sailor::runtime {

namespace {

Seconds between(TimelineRecorder::Clock::time_point begin, TimelineRecorder::Clock::time_point end) {
  return Seconds(std::chrono::duration<double>(end - begin).count());
}

}  // namespace

std::string_view to_string(Part part) {
  switch (part) {
    case Part::forward:
      return "forward";
    case Part::backward:
      return "backward";
    case Part::wait_activation:
      return "wait_activation";
    case Part::wait_gradient:
      return "wait_gradient";
    case Part::reduction:
      return "reduction";
    case Part::update:
      return "update";
  }
  return "?";
}

void TimelineRecorder::begin() {
  origin_ = in_step_ == Clock::time_point{} ? Clock::now() : in_step_;
  parts_ = {};
  events_.clear();
}

TimelineEvent TimelineRecorder::event_of(Activity activity, const ScheduleStep& step, int peer) const {
  return {.pipeline_entry = role_.pipeline_entry,
          .stage = role_.stage,
          .activity = activity,
          .micro_batch = step.micro_batch,
          .chunk = step.chunk,
          .peer = peer,
          .rank = role_.rank};
}

TimelineRecorder::Span TimelineRecorder::pass(const ScheduleStep& step) {
  const bool forward = step.pass == Pass::forward;
  return {*this, forward ? Part::forward : Part::backward,
          event_of(forward ? Activity::forward : Activity::backward, step, -1), true};
}

TimelineRecorder::Span TimelineRecorder::wait(const ScheduleStep& step, int peer) {
  return {*this, step.pass == Pass::forward ? Part::wait_activation : Part::wait_gradient,
          event_of(Activity::receive, step, peer), true};
}

TimelineRecorder::Span TimelineRecorder::reduction(bool shown) {
  return {*this, Part::reduction, event_of(Activity::reduce, {.micro_batch = -1}, -1), shown};
}

TimelineRecorder::Span TimelineRecorder::update() {
  return {*this, Part::update, event_of(Activity::update, {.micro_batch = -1}, -1), true};
}

void TimelineRecorder::overlapped(Activity activity, Clock::time_point begin, const ScheduleStep& step, int peer) {
  if (!keep_events_) return;
  TimelineEvent event = event_of(activity, step, peer);
  event.overlapped = true;
  const Clock::time_point end = Clock::now();
  if (activity == Activity::reduce) begin = std::max(begin, std::exchange(reduced_until_, end));
  keep(event, begin, end);
}

void TimelineRecorder::add(Part part, TimelineEvent event, Clock::time_point begin, bool shown) {
  const Clock::time_point end = Clock::now();
  parts_[static_cast<std::size_t>(part)] += between(begin, end);
  if (shown && keep_events_) keep(event, begin, end);
}

void TimelineRecorder::keep(TimelineEvent event, Clock::time_point begin, Clock::time_point end) {
  event.start = between(origin_, begin);
  event.end = between(origin_, end);
  events_.push_back(event);
}

std::vector<TimelineEvent> TimelineRecorder::events() const {
  std::vector<TimelineEvent> sorted = events_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TimelineEvent& a, const TimelineEvent& b) { return a.start < b.start; });
  return sorted;
}

Timeline gather_timeline(const TimelineRecorder& recorder, Communicator& world) {
  std::string mine;
  for (const TimelineEvent& event : recorder.events())
    fmt::format_to(std::back_inserter(mine), "{} {} {} {} {} {} {} {} {:.9f} {:.9f}\n", event.pipeline_entry,
                   event.stage, static_cast<int>(event.activity), event.overlapped ? 1 : 0, event.micro_batch,
                   event.chunk, event.peer, event.rank, event.start.value(), event.end.value());
  Timeline timeline;
  for (const std::string& text : world.gather(mine)) {
    std::istringstream lines(text);
    TimelineEvent event;
    int activity = 0;
    int overlapped = 0;
    double start = 0.0;
    double end = 0.0;
    while (lines >> event.pipeline_entry >> event.stage >> activity >> overlapped >> event.micro_batch >> event.chunk >>
           event.peer >> event.rank >> start >> end) {
      event.activity = static_cast<Activity>(activity);
      event.overlapped = overlapped != 0;
      event.start = Seconds(start);
      event.end = Seconds(end);
      timeline.events.push_back(event);
    }
  }
  Seconds first(std::numeric_limits<double>::max());
  for (const TimelineEvent& event : timeline.events) first = std::min(first, event.start);
  for (TimelineEvent& event : timeline.events) {
    event.start -= first;
    event.end -= first;
    timeline.length = std::max(timeline.length, event.end);
  }
  return timeline;
}

IterationSummary gather_summary(const TimelineRecorder& recorder, const Device& device, Communicator& world) {
  std::string mine = fmt::format("{} {}", device.memory_use().peak.value(), resident_memory().peak.value());
  for (const Seconds time : recorder.parts()) fmt::format_to(std::back_inserter(mine), " {}", time.value());
  IterationSummary summary;
  const std::vector<std::string> texts = world.gather(mine);
  for (const std::string& text : texts) {
    std::istringstream values(text);
    const auto next = [&] {
      double value = 0.0;
      values >> value;
      return value;
    };
    summary.peak_tensor_memory = std::max(summary.peak_tensor_memory, Bytes(next()));
    summary.peak_resident_memory = std::max(summary.peak_resident_memory, Bytes(next()));
    for (std::size_t part = 0; part < part_count; ++part) {
      const Seconds time(next());
      summary.mean[part] += time / static_cast<double>(texts.size());
      summary.slowest[part] = std::max(summary.slowest[part], time);
    }
  }
  return summary;
}

}  // namespace sailor::runtime
