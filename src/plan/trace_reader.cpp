#include "plan/trace_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/files.hpp"

namespace sailor {

namespace {

using nlohmann::json;

constexpr std::size_t largest_trace = std::size_t{256} << 20;  // bytes

/// The track of a rank, or of its communication that overlaps with computation.
struct Track {
  int rank = 0;
  bool overlapped = false;
};

/// From "rank 3, stage 1, cpu" or "rank 3, overlapped communication"; std::nullopt for other names.
std::optional<Track> read_track(std::string_view name) {
  constexpr std::string_view start = "rank ";
  if (!name.starts_with(start)) return std::nullopt;
  Track track;
  const auto [end, problem] = std::from_chars(name.data() + start.size(), name.data() + name.size(), track.rank);
  if (problem != std::errc{}) return std::nullopt;
  track.overlapped = std::string_view(end, name.data() + name.size()).starts_with(", overlapped");
  return track;
}

std::optional<Activity> read_activity(std::string_view name) {
  using enum Activity;
  for (const Activity activity : {forward, backward, send, receive, reduce, update})
    if (name == to_string(activity)) return activity;
  return std::nullopt;
}

/// Roles of the ranks whose events are wanted, by rank: the first of each stage of each pipeline entry.
std::map<int, RankRole> first_ranks(const Plan& plan) {
  std::map<std::pair<int, int>, RankRole> first;
  for (const RankRole& role : rank_roles(plan)) first.emplace(std::pair(role.pipeline_entry, role.stage), role);
  std::map<int, RankRole> by_rank;
  for (const auto& [stage, role] : first) by_rank.emplace(role.rank, role);
  return by_rank;
}

/// Errors thrown by nlohmann::json mean that it is no trace of ours.
Timeline read_events(const json& trace, const Plan& plan) {
  std::map<std::int64_t, Track> tracks;  // by "tid"
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      if (const auto track = read_track(event.at("args").at("name").get<std::string>()))
        tracks[event.at("tid").get<std::int64_t>()] = *track;
  const std::map<int, RankRole> wanted = first_ranks(plan);
  Timeline timeline;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const Seconds start(event.at("ts").get<double>() * 1e-6);
    const Seconds end = start + Seconds(event.at("dur").get<double>() * 1e-6);
    timeline.length = std::max(timeline.length, end);
    const Track& track = tracks.at(event.at("tid").get<std::int64_t>());
    const auto role = wanted.find(track.rank);
    const auto activity = read_activity(event.at("cat").get<std::string>());
    if (role == wanted.end() || !activity) continue;
    timeline.events.push_back({.pipeline_entry = role->second.pipeline_entry,
                               .stage = role->second.stage,
                               .activity = *activity,
                               .overlapped = track.overlapped,
                               .micro_batch = event.at("args").value("micro_batch", -1),
                               .chunk = event.at("args").value("chunk", 0),
                               .peer = event.at("args").value("peer", -1),
                               .start = start,
                               .end = end});
  }
  return timeline;
}

}  // namespace

Result<Timeline> load_trace(const std::filesystem::path& path, const Plan& plan) {
  const auto text = read_text_file(path, largest_trace);
  if (!text) return fail(text.error());
  const char* const hint = "name a file that sailor-train --trace has written";
  try {
    const json trace = json::parse(*text);
    const std::string traced = trace.at("otherData").at("plan").get<std::string>();
    if (traced != describe(plan))
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}' is the trace of another plan: {}, not {}", path.string(), traced, describe(plan)),
                  "name the trace of this run");
    Timeline timeline = read_events(trace, plan);
    if (timeline.length > Seconds{}) return timeline;
  } catch (const std::exception&) {  // of the parser, or of a member that is missing
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no trace of a training", path.string()), hint);
  }
  return fail(ErrorCode::invalid_input, fmt::format("the trace '{}' has no events", path.string()), hint);
}

}  // namespace sailor
