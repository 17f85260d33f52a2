// The trace of a whole elastic training, as a viewer of Chrome trace events reads it, against the events that it is of.
#include "elastic/run_trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "elastic/folder.hpp"

namespace sailor::elastic::run_trace_test {
namespace {

using nlohmann::json;

/// What a viewer shows of a slice, instant or counter; seconds.
struct Shown {
  std::string process;
  std::string track;
  std::string name;
  double start = 0.0;
  double end = 0.0;
  json args;
};

struct Viewer {
  std::vector<Shown> slices;
  std::vector<Shown> instants;
  std::map<std::string, std::vector<std::pair<double, double>>> counters;  // by name: time and value

  explicit Viewer(const std::vector<json>& events) {
    const auto text = to_run_trace_json(events);
    EXPECT_TRUE(text) << text.error().message();
    const json trace = json::parse(text.value_or("{\"traceEvents\": []}"));
    std::map<int, std::string> processes;
    std::map<std::pair<int, int>, std::string> tracks;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("name") == "process_name") processes[event.at("pid")] = event.at("args").at("name");
      if (event.at("name") == "thread_name") tracks[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    }
    EXPECT_EQ(processes.at(0), "elastic training");
    for (const json& event : trace.at("traceEvents")) {
      const std::string phase = event.at("ph");
      const double time = event.value("ts", 0.0) / 1e6;
      if (phase == "C") counters[event.at("name")].emplace_back(time, event.at("args").at("value"));
      if (phase != "X" && phase != "i") continue;
      (phase == "X" ? slices : instants)
          .push_back({.process = processes.at(event.at("pid")),
                      .track = tracks.at({event.at("pid"), event.at("tid")}),
                      .name = event.at("name"),
                      .start = time,
                      .end = time + event.value("dur", 0.0) / 1e6,
                      .args = event.value("args", json())});
    }
  }
  [[nodiscard]] std::vector<Shown> on(const std::string& process, const std::string& track = "") const {
    std::vector<Shown> found;
    for (const Shown& slice : slices)
      if (slice.process == process && (track.empty() || slice.track == track)) found.push_back(slice);
    return found;
  }
};

/// "epoch 1 [0, 12]"
std::string text_of(const Shown& slice) {
  return slice.name + " [" + std::to_string(std::lround(slice.start * 10)) + ", " +
         std::to_string(std::lround(slice.end * 10)) + "]";
}
std::vector<std::string> texts_of(const std::vector<Shown>& slices) {
  std::vector<std::string> texts;
  for (const Shown& slice : slices) texts.push_back(text_of(slice));
  return texts;
}
using Texts = std::vector<std::string>;

std::vector<json> events_of(const std::string& lines) {
  std::vector<json> events;
  for (std::size_t begin = 0, end = lines.find('\n'); end != std::string::npos;
       begin = end + 1, end = lines.find('\n', begin))
    events.push_back(json::parse(lines.substr(begin, end - begin)));
  return events;
}

/// n2 is lost, n3 joins, the spare n4 is excluded. Each iteration is of 1000 tokens and takes a second.
constexpr const char* by_hand =
    R"({"what":"epoch","epoch":1,"ranks":2,"plan":"two","tokens_per_iteration":1000.0,"members":[{"host":"n1","gpu":"G","process":11},{"host":"n2","gpu":"G","process":22}],"unix_time_s":100.0}
{"what":"begins","epoch":1,"iteration":0,"ranks":2,"plan":"two","unix_time_s":102.0}
{"what":"lost","epoch":1,"iteration":9,"rank":1,"host":"n2","how":"has gone away","unix_time_s":112.0}
{"what":"epoch","epoch":2,"ranks":1,"plan":"one","tokens_per_iteration":1000.0,"members":[{"host":"n1","gpu":"G","process":11}],"unix_time_s":113.0}
{"what":"goes_on","epoch":2,"iteration":11,"seconds":3.0,"seconds_again":0.0,"why":"rank 1 on n2 has gone away","from":"memory","unix_time_s":115.0}
{"what":"joined","host":"n3","gpu":"G","process":33,"unix_time_s":116.0}
{"what":"change","iteration":17,"why":"1 device more","unix_time_s":120.0}
{"what":"epoch","epoch":3,"ranks":2,"plan":"two","tokens_per_iteration":1000.0,"members":[{"host":"n1","gpu":"G","process":11},{"host":"n3","gpu":"G","process":33},{"host":"n4","gpu":"G","process":44}],"unix_time_s":121.0}
{"what":"goes_on","epoch":3,"iteration":17,"seconds":2.0,"seconds_again":0.0,"why":"planned change: 1 device more","from":"memory","unix_time_s":122.0}
{"what":"excluded","host":"n4","unix_time_s":124.0}
{"what":"sent_home","host":"n4","process":44,"unix_time_s":125.0}
{"what":"done","iteration":28,"status":0,"unix_time_s":132.0}
)";

TEST(RunTrace, ShowsEveryMemberInEveryEpoch) {
  const Viewer viewer(events_of(by_hand));
  // In tenths of a second since the first event.
  EXPECT_EQ(texts_of(viewer.on("elastic training", "epochs")),
            Texts({"epoch 1: two [0, 120]", "state and first iteration [0, 20]", "epoch 2: one [130, 200]",
                   "state and first iteration [130, 150]", "epoch 3: two [210, 320]",
                   "state and first iteration [210, 220]"}));
  EXPECT_EQ(texts_of(viewer.on("elastic training", "interruptions")),
            Texts({"interrupted: rank 1 on n2 has gone away [120, 150]",
                   "interrupted: planned change: 1 device more [200, 220]"}));
  EXPECT_EQ(texts_of(viewer.on("n1", "process 11, G")),
            Texts({"rank 0 in epoch 1: two [0, 120]", "rank 0 in epoch 2: one [130, 200]",
                   "rank 0 in epoch 3: two [210, 320]"}));
  EXPECT_EQ(texts_of(viewer.on("n2")), Texts({"rank 1 in epoch 1: two [0, 120]"}));
  EXPECT_EQ(viewer.on("n2").front().args.at("left"), "lost: it has gone away");
  EXPECT_FALSE(viewer.on("n1").front().args.contains("left"));
  EXPECT_EQ(texts_of(viewer.on("n3")), Texts({"rank 1 in epoch 3: two [210, 320]"}));
  EXPECT_EQ(texts_of(viewer.on("n4")), Texts({"spare in epoch 3: two [210, 250]"}));
  EXPECT_EQ(viewer.on("n4").front().args.at("left"), "excluded");
  EXPECT_EQ(texts_of(viewer.instants),
            Texts({"lost: rank 1, n2 [120, 120]", "joined: n3 [160, 160]", "planned change: 1 device more [200, 200]",
                   "excluded: n4 [240, 240]", "sent home: n4 [250, 250]", "done [320, 320]"}));
  EXPECT_EQ(viewer.instants.front().args.at("how"), "has gone away");
}

TEST(RunTrace, CountsGoodputAndTokens) {
  const Viewer viewer(events_of(by_hand));
  // By hand: 10 iterations in 10 s; 5 in 5 s; 10 in 10 s; none between.
  const std::vector<std::pair<double, double>> tokens{{2, 1000}, {12, 0}, {15, 1000}, {20, 0}, {22, 1000}, {32, 0}};
  EXPECT_EQ(viewer.counters.at("tokens/s"), tokens);
  const auto& goodput = viewer.counters.at("goodput (%)");
  EXPECT_EQ(goodput.front(), std::pair(2.0, 100.0));
  EXPECT_DOUBLE_EQ(goodput.back().first, 32.0);
  EXPECT_NEAR(goodput.back().second, (1.0 - 5.0 / 30.0) * 100.0, 1e-3);
}

TEST(RunTrace, AnInterruptionThatNeverEndedLastsUntilTheLastEvent) {
  std::vector<json> events = events_of(by_hand);
  events.resize(3);
  events.push_back({{"what", "waits"}, {"why", "no plan"}, {"unix_time_s", 130.0}});
  const Viewer viewer(events);
  EXPECT_EQ(texts_of(viewer.on("elastic training", "interruptions")),
            Texts({"interrupted: rank 1 on n2 has gone away [120, 300]"}));
  EXPECT_EQ(texts_of(viewer.on("n1")), Texts({"rank 0 in epoch 1: two [0, 120]"}));
}

TEST(RunTrace, AJobThatVanishedIsNotClaimedToHaveTrained) {
  std::vector<json> events = events_of(by_hand);
  events.resize(2);
  events.push_back(events.front());
  events.back()["unix_time_s"] = 500.0;
  const Viewer viewer(events);
  const auto epochs = viewer.on("elastic training", "epochs");
  EXPECT_EQ(epochs.front().args.at("ended_by"), "not known: the job was lost with its controller");
  EXPECT_FALSE(viewer.counters.contains("tokens/s"));
}

TEST(RunTrace, AJobThatGoesOnLaterHasItsOwnGoodput) {
  std::vector<json> events = events_of(by_hand);
  events.back()["status"] = 75;
  events.push_back(events[0]);
  events.push_back(events[1]);
  for (std::size_t i = 12; i < 14; ++i) events[i]["unix_time_s"] = 500.0 + 2.0 * static_cast<double>(i);
  const Viewer viewer(events);
  EXPECT_EQ(viewer.instants.back().name, "ended with status 75");
  const auto& goodput = viewer.counters.at("goodput (%)");
  ASSERT_GE(goodput.size(), 2U);
  EXPECT_DOUBLE_EQ(goodput[goodput.size() - 2].first, 32.0);
  EXPECT_EQ(goodput.back(), std::pair(426.0, 100.0));
}

TEST(RunTrace, EventsOfEarlierControllersHaveEpochsWithoutMembers) {
  std::vector<json> events = events_of(by_hand);
  events.erase(std::remove_if(events.begin(), events.end(), [](const json& e) { return e.at("what") == "epoch"; }),
               events.end());
  const Viewer viewer(events);
  EXPECT_EQ(texts_of(viewer.on("elastic training", "epochs")),
            Texts({"epoch 1: two [0, 100]", "epoch 2:  [130, 180]", "epoch 3:  [200, 300]"}));
  EXPECT_EQ(viewer.slices.size(), 3U + 2U);
}

TEST(RunTrace, WithoutEventsThereIsNone) {
  const auto none = to_run_trace_json({});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::invalid_input);
  EXPECT_NE(none.error().message().find("there are no events of an elastic training"), std::string::npos);
}

/// Recorded by tests/elastic/trials.py: ranks are killed, others join, a node is excluded.
TEST(RunTrace, OfARecordedTrainingAgreesWithItsEvents) {
  const auto events = read_json_lines(SAILOR_SOURCE_DIR "/tests/data/elastic_events.jsonl");
  ASSERT_TRUE(events) << events.error().message();
  const Viewer viewer(*events);
  const double start = events->front().at("unix_time_s");
  std::set<std::pair<std::string, std::int64_t>> members;
  std::size_t epochs = 0;
  std::size_t changes = 0;
  std::size_t instants = 0;
  for (const json& event : *events) {
    const std::string what = event.at("what");
    const double time = event.at("unix_time_s").get<double>() - start;
    if (what == "epoch") {
      ++epochs;
      const std::string plan = "epoch " + event.at("epoch").dump() + ": " + event.at("plan").get<std::string>();
      int rank = 0;
      for (const json& member : event.at("members")) {
        members.emplace(member.at("host"), member.at("process"));
        const std::string role = rank < event.at("ranks") ? "rank " + std::to_string(rank) : "spare";
        const std::string track = "process " + member.at("process").dump() + ", " + member.at("gpu").get<std::string>();
        const auto slices = viewer.on(member.at("host"), track);
        EXPECT_EQ(std::count_if(slices.begin(), slices.end(),
                                [&](const Shown& slice) {
                                  return slice.name == role + " in " + plan && std::abs(slice.start - time) < 1e-5;
                                }),
                  1)
            << role << " in " << plan;
        ++rank;
      }
    } else if (what == "goes_on") {
      const auto slices = viewer.on("elastic training", "interruptions");
      ASSERT_LT(changes, slices.size());
      EXPECT_EQ(slices[changes].name, "interrupted: " + event.at("why").get<std::string>());
      EXPECT_NEAR(slices[changes].end, time, 1e-5);
      EXPECT_NEAR(slices[changes].end - slices[changes].start, event.at("seconds").get<double>(), 1e-3);
      ++changes;
    } else if (what != "begins" && what != "written") {
      ASSERT_LT(instants, viewer.instants.size());
      EXPECT_NEAR(viewer.instants[instants].start, time, 1e-5);
      if (event.contains("host")) {
        EXPECT_NE(viewer.instants[instants].name.find(event.at("host").get<std::string>()), std::string::npos);
      }
      ++instants;
    }
  }
  EXPECT_GE(epochs, 3U);
  EXPECT_EQ(instants, viewer.instants.size());
  EXPECT_EQ(changes, viewer.on("elastic training", "interruptions").size());
  // No track shows two things at once.
  std::map<std::pair<std::string, std::string>, double> until;
  std::set<std::pair<std::string, std::string>> tracks;
  for (const Shown& slice : viewer.slices) {
    if (slice.name == "state and first iteration") continue;  // within its epoch
    double& end = until[{slice.process, slice.track}];
    EXPECT_GE(slice.start, end - 1e-6) << slice.name;
    EXPECT_GE(slice.end, slice.start) << slice.name;
    end = slice.end;
    if (slice.process != "elastic training") tracks.emplace(slice.process, slice.track);
  }
  EXPECT_EQ(tracks.size(), members.size());
  // As the training itself said at its end.
  EXPECT_NEAR(viewer.counters.at("goodput (%)").back().second, events->back().at("goodput").get<double>() * 100.0, 0.1);
}

}  // namespace
}  // namespace sailor::elastic::run_trace_test
