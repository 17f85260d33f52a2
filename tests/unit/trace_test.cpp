// The trace of a timeline, as a viewer of Chrome trace events reads it.
#include "plan/trace.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "core/files.hpp"

namespace sailor::trace_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Track = std::pair<int, int>;  ///< process, thread

Stage stage(int first, int last, int tensor_parallel = 1) {
  return {.layers = {first, last}, .gpu = "GH200-96", .tensor_parallel = tensor_parallel, .zone = ""};
}

/// Two copies of two stages, the first of two ranks: six ranks.
Plan six_ranks() {
  Plan plan;
  plan.job.model = "tiny-gpt";
  plan.pipelines.push_back({.count = 2, .micro_batches = 1, .stages = {stage(0, 3, 2), stage(3, 6)}});
  return plan;
}

/// By hand, in milliseconds: stage 0 forward 0-1, send 1-2, idle, receive 7-8, backward 8-10, update 11-12;
/// stage 1 idle, receive 1-2, forward 2-3.5, backward 3.5-7, send 7-8, reduction beside it 7-9, update 10-12.
Timeline by_hand() {
  const auto ms = [](double value) { return Seconds(value * 1e-3); };
  Timeline timeline;
  timeline.length = ms(12);
  const auto add = [&](int at, Activity activity, double start, double end, int peer = -1, bool overlapped = false) {
    timeline.events.push_back({.stage = at,
                               .activity = activity,
                               .overlapped = overlapped,
                               .micro_batch = activity < Activity::reduce ? 0 : -1,
                               .peer = peer,
                               .start = ms(start),
                               .end = ms(end)});
  };
  add(0, Activity::forward, 0, 1);
  add(0, Activity::send, 1, 2, 1);
  add(0, Activity::receive, 7, 8, 1);
  add(0, Activity::backward, 8, 10);
  add(0, Activity::update, 11, 12);
  add(1, Activity::receive, 1, 2, 0);
  add(1, Activity::forward, 2, 3.5);
  add(1, Activity::backward, 3.5, 7);
  add(1, Activity::send, 7, 8, 0);
  add(1, Activity::reduce, 7, 9, -1, true);
  add(1, Activity::update, 10, 12);
  return timeline;
}

json parsed(const Plan& plan, const Timeline& timeline, TraceRanks ranks = TraceRanks::all) {
  const auto text = to_trace_json(plan, timeline, ranks);
  EXPECT_TRUE(text) << text.error().message();
  return text ? json::parse(*text) : json();
}

/// The complete events ("X") of each track in the order of time.
std::map<Track, std::vector<json>> tracks(const json& trace) {
  std::map<Track, std::vector<json>> found;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") found[{event.at("pid"), event.at("tid")}].push_back(event);
  for (auto& [track, events] : found)
    std::stable_sort(events.begin(), events.end(),
                     [](const json& a, const json& b) { return a.at("ts").get<double>() < b.at("ts").get<double>(); });
  return found;
}

std::map<Track, std::string> track_names(const json& trace) {
  std::map<Track, std::string> names;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
  return names;
}

TEST(Trace, EveryRankIsBusyOrIdleFromBeginningToEnd) {
  const json trace = parsed(six_ranks(), by_hand());
  const auto names = track_names(trace);
  std::set<std::string> ranks;
  for (const auto& [track, events] : tracks(trace)) {
    ASSERT_TRUE(names.contains(track));
    double until = 0.0;
    double sum = 0.0;
    for (const json& event : events) {
      EXPECT_GE(event.at("ts").get<double>(), until - 1e-9) << "crossing slices in " << names.at(track);
      until = event.at("ts").get<double>() + event.at("dur").get<double>();
      sum += event.at("dur").get<double>();
    }
    if (names.at(track).find("overlapped") != std::string::npos) {
      EXPECT_EQ(sum, 2000.0);  // the reduction alone
      continue;
    }
    EXPECT_DOUBLE_EQ(sum, 12000.0) << names.at(track);
    EXPECT_EQ(until, 12000.0);
    ranks.insert(names.at(track));
  }
  EXPECT_EQ(ranks,
            (std::set<std::string>{"rank 0, stage 0, GH200-96, tensor parallel 0 of 2",
                                   "rank 1, stage 0, GH200-96, tensor parallel 1 of 2", "rank 2, stage 1, GH200-96",
                                   "rank 3, stage 0, GH200-96, tensor parallel 0 of 2",
                                   "rank 4, stage 0, GH200-96, tensor parallel 1 of 2", "rank 5, stage 1, GH200-96"}));
}

TEST(Trace, SlicesSayWhatIsDoneToWhichLayers) {
  const json trace = parsed(six_ranks(), by_hand());
  // Rank 2 is the second stage of the first pipeline; two tracks are reserved for each rank.
  const auto all = tracks(trace);
  std::string said;
  for (const json& event : all.at({0, 4}))
    said += event.at("name").get<std::string>() + " " + std::to_string(event.at("ts").get<int>()) + "; ";
  EXPECT_EQ(said, "idle 0; receive 0 1000; forward 0 2000; backward 0 3500; send 0 7000; idle 8000; update 10000; ");
  EXPECT_EQ(all.at({0, 4})[1].at("args"), (json{{"layers", "[3, 6)"}, {"micro_batch", 0}, {"peer", 0}}));
  EXPECT_EQ(all.at({0, 5}).front().at("name"), "all-reduce");
  EXPECT_EQ(all.at({0, 5}).front().at("args"), (json{{"layers", "[3, 6)"}}));
  EXPECT_FALSE(all.contains({0, 1})) << "stage 0 overlaps nothing";
  // Without pid and tid, the copies do the same.
  auto copy = all.at({1, 10});
  for (json& event : copy) {
    event["pid"] = 0;
    event["tid"] = 4;
  }
  EXPECT_EQ(copy, all.at({0, 4}));
}

TEST(Trace, ArrowsLeadFromEverySendToItsReceive) {
  const json trace = parsed(six_ranks(), by_hand());
  std::map<int, std::vector<json>> arrows;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "s" || event.at("ph") == "f") arrows[event.at("id")].push_back(event);
  // Two messages in each of two pipelines; the second stage has one rank, so one arrow each.
  ASSERT_EQ(arrows.size(), 4U);
  for (const auto& [id, ends] : arrows) {
    ASSERT_EQ(ends.size(), 2U);
    EXPECT_EQ(ends[0].at("pid"), ends[1].at("pid"));
    EXPECT_NE(ends[0].at("tid"), ends[1].at("tid"));
    EXPECT_NE(ends[0].at("ph"), ends[1].at("ph"));
  }
}

TEST(Trace, OverlappedCommunicationThatCrossesGetsFurtherTracks) {
  Timeline timeline = by_hand();
  TimelineEvent crossing = timeline.events[9];  // the reduction 7-9
  crossing.start = Seconds(8e-3);
  crossing.end = Seconds(11e-3);
  timeline.events.push_back(crossing);
  const json trace = parsed(six_ranks(), timeline);
  const auto names = track_names(trace);
  EXPECT_EQ(names.at({0, 7}), "rank 2, overlapped communication");
  EXPECT_EQ(names.at({0, 8}), "rank 2, overlapped communication 2");
  EXPECT_EQ(tracks(trace).at({0, 8}).front().at("dur"), 3000.0);
}

TEST(Trace, OneRankStandsForThoseAlike) {
  const json trace = parsed(six_ranks(), by_hand(), TraceRanks::one_alike);
  const auto names = track_names(trace);
  std::string said;
  for (const auto& [track, name] : names) said += name + "; ";
  EXPECT_EQ(said,
            "rank 0, stage 0, GH200-96, tensor parallel 0 of 2; rank 2, stage 1, GH200-96; "
            "rank 2, overlapped communication; ");
  for (const json& event : trace.at("traceEvents"))
    if (event.at("name") == "process_name") {
      EXPECT_EQ(event.at("args").at("name"), "pipeline 0 (of 2 alike)");
    }
}

/// What by_hand() says of stages, of every rank: rank r a tenth of a millisecond times r later.
Timeline by_rank(const Plan& plan) {
  Timeline timeline;
  for (const RankRole& role : rank_roles(plan))
    for (TimelineEvent event : by_hand().events)
      if (event.stage == role.stage) {
        event.rank = role.rank;
        event.start += Seconds(role.rank * 1e-4);
        event.end += Seconds(role.rank * 1e-4);
        timeline.events.push_back(event);
      }
  timeline.length = Seconds(12.5e-3);
  return timeline;
}

TEST(Trace, MeasuredRanksHaveTracksOfTheirOwnWithTheSameNames) {
  const json trace = parsed(six_ranks(), by_rank(six_ranks()));
  EXPECT_EQ(track_names(trace), track_names(parsed(six_ranks(), by_hand())));
  for (const auto& [track, events] : tracks(trace)) {
    const int rank = track.second / 2;
    std::vector<json> busy;
    for (const json& event : events)
      if (event.at("name") != "idle") busy.push_back(event);
    // Stage 0 begins with its forward pass at 0, stage 1 receives at 1 ms; what overlaps begins at 7 ms.
    const double first = track.second % 2 == 1 ? 7000.0 : rank % 3 == 2 ? 1000.0 : 0.0;
    EXPECT_NEAR(busy.front().at("ts").get<double>(), first + 100.0 * rank, 1e-3) << rank;
  }
  std::map<int, std::vector<json>> arrows;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "s" || event.at("ph") == "f") arrows[event.at("id")].push_back(event);
  ASSERT_EQ(arrows.size(), 4U);  // from and to the only rank of stage 1, in both pipelines
  for (const auto& [id, ends] : arrows) EXPECT_EQ(ends.size(), 2U);
}

TEST(Trace, RanksThatThePlanDoesNotHaveAreRefused) {
  Timeline timeline = by_rank(six_ranks());
  timeline.events.back().rank = 6;
  EXPECT_EQ(to_trace_json(six_ranks(), timeline).error().message(),
            "the timeline has an event of rank 6; the plan has 6 ranks");
  timeline.events.back().rank = -1;  // some with and some without
  EXPECT_EQ(to_trace_json(six_ranks(), timeline).error().code, ErrorCode::failure);
}

TEST(Trace, RoundingNeitherCrossesNorLosesTime) {
  // Thirds of a nanosecond add up to no whole ones.
  Timeline timeline;
  const int count = 1000;
  for (int i = 0; i < count; ++i)
    timeline.events.push_back({.micro_batch = i, .start = Seconds(i * 1e-8 / 3), .end = Seconds((i + 1) * 1e-8 / 3)});
  timeline.length = Seconds(count * 1e-8 / 3);
  Plan plan;
  plan.pipelines.push_back({.count = 1, .micro_batches = count, .stages = {stage(0, 6)}});
  std::int64_t until = 0;
  const auto all = tracks(parsed(plan, timeline));
  for (const json& event : all.at({0, 0})) {
    const std::int64_t start = std::llround(event.at("ts").get<double>() * 1e3);
    EXPECT_EQ(start, until);
    until = start + std::llround(event.at("dur").get<double>() * 1e3);
  }
  EXPECT_EQ(until, 3333);
}

TEST(Trace, NamesCannotBreakOutOfTheirText) {
  Plan plan = six_ranks();
  plan.job.model = "a\"}],\n\\ \xff";
  plan.pipelines[0].stages[0].gpu = "\"},{\"ph\":\"X\"\x01\n</script>";
  const json trace = parsed(plan, by_hand());
  EXPECT_EQ(trace.at("otherData").at("model"), "a\"}],\n\\ \xef\xbf\xbd");
  EXPECT_EQ(track_names(trace).at({0, 0}), "rank 0, stage 0, \"},{\"ph\":\"X\"\x01\n</script>, tensor parallel 0 of 2");
}

TEST(Trace, WhatNoViewerOpensIsRefusedWithWhatToDo) {
  Timeline timeline;
  const int count = 1 << 20;  // of one rank: with the idle time 1048577 events
  for (int i = 0; i < count; ++i) timeline.events.push_back({.start = Seconds(i), .end = Seconds(i + 1)});
  timeline.length = Seconds(count + 1);
  Plan plan;
  plan.pipelines.push_back({.count = 5, .micro_batches = 1, .stages = {stage(0, 6)}});
  EXPECT_EQ(
      to_trace_json(plan, timeline).error().message(),
      "the trace would have 5242885 events; viewers open 5000000 at most; use --trace-ranks one-alike: of the ranks "
      "that do the same only the first");
  timeline.length = Seconds(1e300);
  EXPECT_EQ(to_trace_json(plan, timeline).error().message(), "an iteration of 1e+300 s cannot be traced");
  timeline = by_hand();
  timeline.events.back().stage = 7;
  EXPECT_EQ(to_trace_json(plan, timeline).error().code, ErrorCode::failure);
}

TEST(Trace, IsWrittenWholeOrNotAtAll) {
  const fs::path folder = fs::temp_directory_path() / ("sailor_trace_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  ASSERT_TRUE(save_trace(six_ranks(), by_hand(), folder / "t.json"));
  EXPECT_EQ(*read_text_file(folder / "t.json"), *to_trace_json(six_ranks(), by_hand()));
  const auto nowhere = save_trace(six_ranks(), by_hand(), folder / "no/such/t.json");
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::io);
  EXPECT_NE(nowhere.error().message().find("no/such"), std::string::npos) << nowhere.error().message();
  // An event that cannot be traced leaves the file that is there.
  Timeline bad = by_hand();
  bad.events.front().end = Seconds(-1);
  EXPECT_FALSE(save_trace(six_ranks(), bad, folder / "t.json"));
  EXPECT_EQ(*read_text_file(folder / "t.json"), *to_trace_json(six_ranks(), by_hand()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace sailor::trace_test
