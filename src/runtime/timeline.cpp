#include "runtime/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include "core/text.hpp"
#include "runtime/waits.hpp"

namespace sailor::runtime {

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
  std::erase_if(recorded_, [](const Recorded& recorded) { return !recorded.is_next; });
  for (Recorded& recorded : recorded_) recorded.is_next = false;
  end_ = nullptr;
  events_.clear();
  parts_ = {};
  turn_ = 1 - turn_;
  points_[turn_].used = 0;
  if (in_step_ != nullptr) {
    std::swap(origin_, in_step_);
  } else {
    if (origin_ == nullptr) origin_ = device_.make_event();
    device_.main().record(*origin_);
  }
}

void TimelineRecorder::in_step() {
  if (in_step_ == nullptr) in_step_ = device_.make_event();
  device_.main().record(*in_step_);
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

Event* TimelineRecorder::record(Stream& stream) {
  Points& points = points_[turn_];
  if (points.used == points.all.size()) points.all.push_back(device_.make_event());
  Event* const point = points.all[points.used++].get();
  stream.record(*point);
  return point;
}

std::size_t TimelineRecorder::start(Stream& stream, Recorded recorded) {
  recorded.begin = record(stream);
  recorded_.push_back(recorded);
  return recorded_.size() - 1;
}

void TimelineRecorder::end(std::size_t index, Stream& stream) {
  if (index != none) recorded_[index].end = record(stream);
}

TimelineRecorder::Span TimelineRecorder::pass(const ScheduleStep& step) {
  const bool forward = step.pass == Pass::forward;
  return {*this, start(device_.main(), {.event = event_of(forward ? Activity::forward : Activity::backward, step, -1),
                                        .part = forward ? Part::forward : Part::backward,
                                        .counts = true,
                                        .shown = true})};
}

TimelineRecorder::Span TimelineRecorder::wait(const ScheduleStep& step, int peer) {
  return {*this,
          start(device_.main(), {.event = event_of(Activity::receive, step, peer),
                                 .part = step.pass == Pass::forward ? Part::wait_activation : Part::wait_gradient,
                                 .counts = true,
                                 .shown = true})};
}

TimelineRecorder::Span TimelineRecorder::reduction(bool shown) {
  return {*this, start(device_.main(), {.event = event_of(Activity::reduce, {.micro_batch = -1}, -1),
                                        .part = Part::reduction,
                                        .counts = true,
                                        .shown = shown})};
}

TimelineRecorder::Span TimelineRecorder::update() {
  return {*this, start(device_.main(), {.event = event_of(Activity::update, {.micro_batch = -1}, -1),
                                        .part = Part::update,
                                        .counts = true,
                                        .shown = true})};
}

std::size_t TimelineRecorder::begin_overlapped(Stream& stream, Activity activity, const ScheduleStep& step, int peer) {
  if (!keep_events_) return none;
  TimelineEvent event = event_of(activity, step, peer);
  event.overlapped = true;
  return start(stream, {.event = event, .shown = true});
}

std::size_t TimelineRecorder::begin_overlapping_next(Stream& stream, Activity activity) {
  const std::size_t index = begin_overlapped(stream, activity);
  if (index != none) recorded_[index].is_next = true;
  return index;
}

void TimelineRecorder::end() { end_ = record(device_.main()); }

const PartTimes& TimelineRecorder::parts() {
  read_times();
  return parts_;
}

const std::vector<TimelineEvent>& TimelineRecorder::events() {
  read_times();
  return events_;
}

void TimelineRecorder::read_times() {
  if (end_ == nullptr) return;
  if (waits(Wait::host_for_the_timeline)) device_.wait(*end_);
  end_ = nullptr;
  for (const Recorded& recorded : recorded_) {
    if (recorded.is_next) continue;
    const Event& begin = *recorded.begin;
    const Event& end = *recorded.end;
    if (recorded.counts) parts_[static_cast<std::size_t>(recorded.part)] += device_.elapsed(begin, end);
    if (!recorded.shown || !keep_events_) continue;
    TimelineEvent event = recorded.event;
    event.start = device_.elapsed(*origin_, begin);
    event.end = device_.elapsed(*origin_, end);
    events_.push_back(event);
  }
  std::stable_sort(events_.begin(), events_.end(),
                   [](const TimelineEvent& a, const TimelineEvent& b) { return a.start < b.start; });
}

Timeline gather_timeline(TimelineRecorder& recorder, Control& control) {
  std::string mine;
  for (const TimelineEvent& event : recorder.events())
    append(mine, "{} {} {} {} {} {} {} {} {:.9f} {:.9f}\n", event.pipeline_entry, event.stage,
           static_cast<int>(event.activity), event.overlapped ? 1 : 0, event.micro_batch, event.chunk, event.peer,
           event.rank, event.start.value(), event.end.value());
  Timeline timeline;
  for (const std::string& text : control.gather(mine)) {
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

IterationSummary gather_summary(TimelineRecorder& recorder, const Device& device, const RoutingLoads& loads,
                                Control& control) {
  std::string mine = fmt::format("{} {} {} {} {}", device.memory_use().peak.value(),
                                 device.peak_memory_of_process().value(), loads.passes, loads.experts, loads.ranks);
  for (const Seconds time : recorder.parts()) append(mine, " {}", time.value());
  IterationSummary summary;
  double passes = 0.0;
  const std::vector<std::string> texts = control.gather(mine);
  for (const std::string& text : texts) {
    std::istringstream values(text);
    const auto next = [&] {
      double value = 0.0;
      values >> value;
      return value;
    };
    summary.peak_tensor_memory = std::max(summary.peak_tensor_memory, Bytes(next()));
    summary.peak_resident_memory = std::max(summary.peak_resident_memory, Bytes(next()));
    passes += next();
    summary.expert_load += next();
    summary.expert_imbalance += next();
    for (std::size_t part = 0; part < part_count; ++part) {
      const Seconds time(next());
      summary.mean[part] += time / static_cast<double>(texts.size());
      summary.slowest[part] = std::max(summary.slowest[part], time);
    }
  }
  summary.expert_load /= std::max(1.0, passes);
  summary.expert_imbalance /= std::max(1.0, passes);
  return summary;
}

}  // namespace sailor::runtime
