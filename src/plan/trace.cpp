#include "plan/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "plan/trace_events.hpp"

namespace sailor {

namespace {

constexpr double longest_s = 1e9;  // in nanoseconds far below the limit of 64 bits

/// One box of a track.
struct Slice {
  const TimelineEvent* event = nullptr;  ///< nullptr: idle
  std::size_t lane = 0;                  ///< 0: computation and what takes turns with it
  Nanoseconds start = 0;
  Nanoseconds end = 0;
};

/// A message: from its send an arrow leads to its receive.
struct Message {
  std::size_t number = 0;  ///< within a chain
  const TimelineEvent* send = nullptr;
};

/// Activity of a rank, or of all ranks of a stage alike.
struct RankTrace {
  std::vector<Slice> slices{};  ///< in each lane in the order of time
  std::size_t lanes = 1;
};

/// Messages along a pipeline between members of the same index in their tensor-parallel groups, found by either end.
using Chain = std::unordered_map<const TimelineEvent*, Message>;

bool is_transfer(const TimelineEvent& event) {
  return (event.activity == Activity::send || event.activity == Activity::receive) && event.peer >= 0;
}

/// Matches the sends of a chain with their receives. The same two stages may exchange several messages of a micro-batch
/// in the same direction (interleaved chunks): they arrive in the order in which they were sent.
Chain match_messages(const std::vector<const TimelineEvent*>& events) {
  struct Ends {
    std::vector<const TimelineEvent*> sends;
    std::vector<const TimelineEvent*> receives;
  };
  std::map<std::tuple<int, int, int>, Ends> routes;  // from, to, micro-batch
  for (const TimelineEvent* event : events) {
    if (!is_transfer(*event)) continue;
    if (event->activity == Activity::send)
      routes[{event->stage, event->peer, event->micro_batch}].sends.push_back(event);
    else
      routes[{event->peer, event->stage, event->micro_batch}].receives.push_back(event);
  }
  Chain messages;
  std::size_t count = 0;
  const auto earlier = [](const TimelineEvent* a, const TimelineEvent* b) { return a->start < b->start; };
  for (auto& [route, ends] : routes) {
    std::stable_sort(ends.sends.begin(), ends.sends.end(), earlier);
    std::stable_sort(ends.receives.begin(), ends.receives.end(), earlier);
    for (std::size_t i = 0; i < std::min(ends.sends.size(), ends.receives.size()); ++i, ++count)
      for (const TimelineEvent* end : {ends.sends[i], ends.receives[i]})
        messages.emplace(end, Message{.number = count, .send = ends.sends[i]});
  }
  return messages;
}

RankTrace trace_rank(std::vector<const TimelineEvent*> events, Nanoseconds length) {
  std::stable_sort(events.begin(), events.end(),
                   [](const TimelineEvent* a, const TimelineEvent* b) { return a->start < b->start; });
  RankTrace trace;
  std::vector<Nanoseconds> until(1, 0);  // of each lane
  for (const TimelineEvent* event : events) {
    Nanoseconds start = nanoseconds(event->start);
    std::size_t lane = 0;
    if (event->overlapped) {  // the first lane that is free: a track must not hold slices that overlap
      lane = 1;
      while (lane < until.size() && until[lane] > start) ++lane;
      if (lane == until.size()) until.push_back(0);
    } else {
      start = std::max(start, until[0]);
      if (start > until[0]) trace.slices.push_back({.start = until[0], .end = start});
    }
    const Nanoseconds end = std::max(start, nanoseconds(event->end));
    trace.slices.push_back({.event = event, .lane = lane, .start = start, .end = end});
    until[lane] = end;
  }
  if (length > until[0]) trace.slices.push_back({.start = until[0], .end = length});
  trace.lanes = until.size();
  return trace;
}

std::string layers_text(const LayerRange& layers) { return fmt::format("[{}, {})", layers.first, layers.last); }

std::string layers_text(const Stage& stage, const TimelineEvent& event) {
  const bool whole_stage = event.activity == Activity::reduce || event.activity == Activity::update;
  if (!whole_stage && event.chunk >= 0 && event.chunk < stage.chunks()) return layers_text(stage.chunk(event.chunk));
  std::string text;
  for (int chunk = 0; chunk < stage.chunks(); ++chunk)
    text += (chunk > 0 ? ", " : "") + layers_text(stage.chunk(chunk));
  return text;
}

/// "forward 3": viewers choose colours by what precedes the number.
std::string name_of(const Plan& plan, const TimelineEvent& event) {
  std::string name(to_string(event.activity));
  if (event.activity == Activity::reduce && plan.optimizer_sharding == OptimizerSharding::none) name = "all-reduce";
  return event.micro_batch < 0 ? name : fmt::format("{} {}", name, event.micro_batch);
}

/// Lays out the events of all ranks, and writes them piece by piece.
class Writer {
 public:
  Writer(const Plan& plan, const Timeline& timeline, TraceRanks ranks)
      : plan_(plan), timeline_(timeline), one_alike_(ranks == TraceRanks::one_alike) {}

  /// Lays out every stage, and refuses what cannot be shown.
  Result<void> prepare() {
    SAILOR_CHECK(check_events());
    Seconds length = timeline_.length;
    by_rank_ = !timeline_.events.empty() && timeline_.events.front().rank >= 0;
    for (const Pipeline& pipeline : plan_.pipelines) {
      first_stage_.push_back(stages_);
      stages_ += pipeline.stages.size();
    }
    const std::vector<RankRole> roles = rank_roles(plan_);
    std::vector<std::vector<const TimelineEvent*>> events(by_rank_ ? roles.size() : stages_);
    for (const TimelineEvent& event : timeline_.events) {
      events[owner(event.rank, event.pipeline_entry, event.stage)].push_back(&event);
      length = std::max(length, event.end);
    }
    for (const auto& of_owner : events) {
      traces_.push_back(trace_rank(of_owner, nanoseconds(length)));
      most_lanes_ = std::max(most_lanes_, traces_.back().lanes);
    }
    std::size_t all = 0;
    std::size_t one_alike = 0;
    std::map<ChainKey, std::vector<const TimelineEvent*>> of_chains;
    for (const RankRole& role : roles) {
      const std::size_t slices = trace_of(role).slices.size();
      all += slices;
      if (is_first_alike(role)) one_alike += slices;
      if (!by_rank_ && !is_first_alike(role)) continue;
      const auto& of_owner = events[owner(role.rank, role.pipeline_entry, role.stage)];
      auto& of_chain = of_chains[chain_of(role)];
      of_chain.insert(of_chain.end(), of_owner.begin(), of_owner.end());
    }
    for (const auto& [key, of_chain] : of_chains) chains_.emplace(key, match_messages(of_chain));
    // Each member of a tensor-parallel group sends its own message: an arrow per chain of every pipeline.
    for (const RankRole& role : roles)
      first_message_.emplace(std::pair(role.pipeline, member_of(role)), std::size_t{0});
    std::size_t arrows = 0;
    std::map<int, int> entry_of;
    for (const RankRole& role : roles) entry_of.emplace(role.pipeline, role.pipeline_entry);
    for (auto& [member, first] : first_message_) {
      first = arrows;
      arrows += chains_.at(by_rank_ ? member : ChainKey{entry_of.at(member.first), -1}).size() / 2;
    }
    const std::size_t count = one_alike_ ? one_alike : all;
    if (count <= most_trace_events) return {};
    return fail(ErrorCode::invalid_input,
                fmt::format("the trace would have {} events; viewers open {} at most", count, most_trace_events),
                one_alike <= most_trace_events && !by_rank_
                    ? "use --trace-ranks one-alike: of the ranks that do the same only the first"
                    : "trace a plan with fewer micro-batches (a smaller global_batch)");
  }

  Result<void> write(const TraceEvents::Sink& sink) {
    TraceEvents trace(sink);
    trace.begin(fmt::format(R"({{"model":{},"plan":{},"iteration_time_s":{}}})", json_text(plan_.job.model),
                            json_text(describe(plan_)), timeline_.length.value()));
    int pipeline = -1;
    for (const RankRole& role : rank_roles(plan_)) {
      if (one_alike_ && !is_first_copy(role)) continue;
      if (role.pipeline != pipeline) write_process(role, trace);
      pipeline = role.pipeline;
      if (!one_alike_ || is_first_alike(role)) SAILOR_CHECK(write_rank(role, trace));
    }
    return trace.end();
  }

 private:
  /// Identifies the ranks of a pipeline's stages that exchange messages.
  [[nodiscard]] static int member_of(const RankRole& role) {
    return role.context_parallel_index << 16 | role.tensor_parallel_index;
  }
  /// Pipeline and member_of(); if events have no ranks, entry of the plan and -1.
  using ChainKey = std::pair<int, int>;

  [[nodiscard]] std::size_t owner(int rank, int entry, int stage) const {
    if (by_rank_) return static_cast<std::size_t>(rank);
    return first_stage_[static_cast<std::size_t>(entry)] + static_cast<std::size_t>(stage);
  }
  [[nodiscard]] const RankTrace& trace_of(const RankRole& role) const {
    return traces_[owner(role.rank, role.pipeline_entry, role.stage)];
  }
  [[nodiscard]] ChainKey chain_of(const RankRole& role) const {
    return by_rank_ ? ChainKey{role.pipeline, member_of(role)} : ChainKey{role.pipeline_entry, -1};
  }
  [[nodiscard]] bool is_first_copy(const RankRole& role) const {
    int first = 0;  // pipeline of the entry
    for (int entry = 0; entry < role.pipeline_entry; ++entry)
      first += plan_.pipelines[static_cast<std::size_t>(entry)].count;
    return role.pipeline == first;
  }
  /// Whether this is the first of the ranks that have the same stage.
  [[nodiscard]] bool is_first_alike(const RankRole& role) const { return member_of(role) == 0 && is_first_copy(role); }

  [[nodiscard]] Result<void> check_events() const {
    const auto good = [](Seconds time) { return time.value() >= 0.0 && time.value() <= longest_s; };
    if (!good(timeline_.length))
      return fail(ErrorCode::invalid_input,
                  fmt::format("an iteration of {} s cannot be traced", timeline_.length.value()));
    const int ranks = plan_.ranks();
    for (const TimelineEvent& event : timeline_.events) {
      if (event.rank >= ranks || (event.rank < 0) != (timeline_.events.front().rank < 0))
        return fail(ErrorCode::failure,
                    fmt::format("the timeline has an event of rank {}; the plan has {} ranks", event.rank, ranks));
      const auto entry = static_cast<std::size_t>(event.pipeline_entry);
      const auto stages = entry < plan_.pipelines.size() ? static_cast<int>(plan_.pipelines[entry].stages.size()) : 0;
      if (event.stage < 0 || event.stage >= stages || event.peer >= stages)
        return fail(ErrorCode::failure, fmt::format("the timeline has an event of stage {} of pipeline entry {}, which "
                                                    "the plan does not have",
                                                    event.stage, event.pipeline_entry));
      if (!good(event.start) || !good(event.end))
        return fail(ErrorCode::invalid_input, fmt::format("{} of stage {} of pipeline entry {} from {} s to {} s "
                                                          "cannot be traced",
                                                          to_string(event.activity), event.stage, event.pipeline_entry,
                                                          event.start.value(), event.end.value()));
    }
    return {};
  }

  void write_process(const RankRole& role, TraceEvents& trace) const {
    const int count = plan_.pipelines[static_cast<std::size_t>(role.pipeline_entry)].count;
    trace.process(role.pipeline, one_alike_ && count > 1
                                     ? fmt::format("pipeline {} (of {} alike)", role.pipeline, count)
                                     : fmt::format("pipeline {}", role.pipeline));
  }

  void write_track(const RankRole& role, const Stage& stage, std::size_t lane, std::size_t track,
                   TraceEvents& trace) const {
    std::string name = fmt::format("rank {}, stage {}, {}", role.rank, role.stage, stage.gpu);
    if (stage.tensor_parallel > 1)
      name += fmt::format(", tensor parallel {} of {}", role.tensor_parallel_index, stage.tensor_parallel);
    if (plan_.context_parallel > 1)
      name += fmt::format(", context parallel {} of {}", role.context_parallel_index, plan_.context_parallel);
    if (lane > 0) name = fmt::format("rank {}, overlapped communication", role.rank);
    if (lane > 1) name += fmt::format(" {}", lane);
    trace.track(role.pipeline, track, name);
  }

  Result<void> write_rank(const RankRole& role, TraceEvents& trace) const {
    const Stage& stage = stage_of(plan_, role);
    const Chain& chain = chains_.at(chain_of(role));
    const RankTrace& mine = trace_of(role);
    // Tracks of a rank follow each other: tracks are numbered with the maximum number of lanes per rank.
    const std::size_t first_track = static_cast<std::size_t>(role.rank) * most_lanes_;
    for (std::size_t lane = 0; lane < mine.lanes; ++lane) write_track(role, stage, lane, first_track + lane, trace);
    for (const Slice& slice : mine.slices) {
      write_slice(role, stage, slice, first_track + slice.lane, trace);
      if (slice.event != nullptr && is_transfer(*slice.event)) {
        const auto found = chain.find(slice.event);
        if (found != chain.end()) write_arrow(role, slice, found->second, first_track + slice.lane, trace);
      }
      SAILOR_CHECK(trace.flush());
    }
    return {};
  }

  void write_slice(const RankRole& role, const Stage& stage, const Slice& slice, std::size_t track,
                   TraceEvents& trace) const {
    if (slice.event == nullptr) {
      trace.slice(role.pipeline, track, slice.start, slice.end, "idle", "idle", {});
      return;
    }
    const TimelineEvent& event = *slice.event;
    std::string args = fmt::format(R"({{"layers":"{}")", layers_text(stage, event));
    if (event.micro_batch >= 0) args += fmt::format(R"(,"micro_batch":{})", event.micro_batch);
    if (stage.chunks() > 1) args += fmt::format(R"(,"chunk":{})", event.chunk);
    if (event.peer >= 0) args += fmt::format(R"(,"peer":{})", event.peer);
    args += '}';
    trace.slice(role.pipeline, track, slice.start, slice.end, name_of(plan_, event), to_string(event.activity), args);
  }

  /// Between groups of different size, as many arrows as the smaller group has members.
  void write_arrow(const RankRole& role, const Slice& slice, const Message& message, std::size_t track,
                   TraceEvents& trace) const {
    const auto& stages = plan_.pipelines[static_cast<std::size_t>(role.pipeline_entry)].stages;
    const Stage& peer = stages[static_cast<std::size_t>(slice.event->peer)];
    if (role.tensor_parallel_index >= peer.tensor_parallel) return;
    const bool begins = slice.event == message.send;
    // A receive may have begun to wait before its message was sent; arrows must not lead back in time.
    const Nanoseconds at = begins ? slice.start : std::clamp(nanoseconds(message.send->start), slice.start, slice.end);
    const std::size_t id = first_message_.at({role.pipeline, member_of(role)}) + message.number;
    trace.arrow_end(role.pipeline, track, at, begins, id, "message");
  }

  const Plan& plan_;
  const Timeline& timeline_;
  bool one_alike_;
  bool by_rank_ = false;
  std::size_t stages_ = 0;                // of all entries
  std::vector<std::size_t> first_stage_;  // of each entry among them
  std::vector<RankTrace> traces_;         // by owner()
  std::map<ChainKey, Chain> chains_;
  std::map<std::pair<int, int>, std::size_t> first_message_;  // by pipeline and member_of()
  std::size_t most_lanes_ = 1;
};

}  // namespace

Result<std::string> to_trace_json(const Plan& plan, const Timeline& timeline, TraceRanks ranks) {
  Writer writer(plan, timeline, ranks);
  SAILOR_CHECK(writer.prepare());
  return trace_text([&](const TraceEvents::Sink& sink) { return writer.write(sink); });
}

Result<void> save_trace(const Plan& plan, const Timeline& timeline, const std::filesystem::path& path,
                        TraceRanks ranks) {
  SAILOR_CHECK(check_can_write(path));
  Writer writer(plan, timeline, ranks);
  SAILOR_CHECK(writer.prepare());
  return save_trace_text(path, [&](const TraceEvents::Sink& sink) { return writer.write(sink); });
}

}  // namespace sailor
