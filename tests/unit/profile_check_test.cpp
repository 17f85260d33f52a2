// check_profile: every kind of finding from minimal data, and none from clean data.
#include "profile/check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace sailor::profile_check_test {
namespace {

TimeStatistics steady(double seconds) {
  return {.median = Seconds(seconds),
          .p10 = Seconds(seconds * 0.99),
          .p90 = Seconds(seconds * 1.01),
          .low = Seconds(seconds * 0.995),
          .high = Seconds(seconds * 1.005),
          .samples = 40};
}

/// tiny-gpt, all kinds of layer, micro-batches 1, 2, 4 and tensor parallel 1, 2; times as a good machine has them.
ProfileData clean() {
  ProfileData data;
  data.sessions = {{.id = "s",
                    .provenance = {.date = "2026-01-02T03:04:05Z"},
                    .lowest_clock_hz = 1.9e9,
                    .highest_clock_hz = 2e9,
                    .slowdown = 1.02}};
  for (const int tensor_parallel : {1, 2})
    for (const int micro_batch : {1, 2, 4})
      for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
        const LayerKey key{.model = "tiny-gpt",
                           .gpu = "cpu",
                           .tensor_parallel = tensor_parallel,
                           .micro_batch = micro_batch,
                           .sequence_length = 64,
                           .kind = kind};
        const double forward = micro_batch / (1.0 + 0.8 * (tensor_parallel - 1));
        data.layer_times.push_back({.key = key,
                                    .forward = steady(forward),
                                    .backward = steady(2 * forward),
                                    .update = steady(kind == LayerKind::block ? 0.5 : 0.25)});
        if (micro_batch == 1) data.layer_memory.push_back({.key = key, .parameters = 10, .activation = Bytes(10)});
      }
  const LinkKey link{.from = {.gpu = "cpu"}, .to = {.gpu = "cpu"}};
  // 1 us + 1 GB/s
  for (const double bytes : {1024.0, 65536.0, 1048576.0})
    data.links.push_back({.key = link, .message = Bytes(bytes), .time = steady(1e-6 + bytes / 1e9)});
  data.fits.push_back(
      {.key = link, .curve = {.constant = 1.0}, .median_error = 0.02, .largest_error = 0.1, .points = 3});
  return data;
}

constexpr const char* today = "2026-11-21T00:00:00Z";

LayerTime& row(ProfileData& data, LayerKind kind, int tensor_parallel, int micro_batch) {
  return *std::find_if(data.layer_times.begin(), data.layer_times.end(), [&](const LayerTime& time) {
    return time.key.kind == kind && time.key.tensor_parallel == tensor_parallel && time.key.micro_batch == micro_batch;
  });
}

/// The one finding of clean data with a change.
Finding only(const std::function<void(ProfileData&)>& change) {
  ProfileData data = clean();
  change(data);
  const auto findings = check_profile(data, today);
  EXPECT_EQ(findings.size(), 1U);
  for (const Finding& finding : findings)
    if (findings.size() > 1) ADD_FAILURE() << to_string(finding.problem) << ": " << finding.what;
  return findings.empty() ? Finding{} : findings.front();
}

void expect(const Finding& finding, Severity severity, Problem problem, const std::string& where,
            const std::string& what) {
  EXPECT_EQ(finding.severity, severity);
  EXPECT_EQ(to_string(finding.problem), to_string(problem));
  EXPECT_EQ(finding.where, where);
  EXPECT_EQ(finding.what, what);
  EXPECT_FALSE(why_it_matters(finding.problem).empty());
  EXPECT_FALSE(remedy(finding.problem).empty());
}

constexpr const char* setting = "tiny-gpt on cpu, fp32, sequence 64";
constexpr const char* link_name = "send_receive cpu -> cpu, intra_node";

TEST(ProfileCheck, FindsNothingInCleanData) {
  for (const Finding& finding : check_profile(clean(), today))
    ADD_FAILURE() << to_string(finding.problem) << ": " << finding.what;
  EXPECT_TRUE(check_profile(ProfileData{}, today).empty());
}

TEST(ProfileCheck, MoreDevicesThatTakeLonger) {
  // At micro-batch 2: 2 s alone, now 2.2 s with two. Per sequence it stays within 20% of its neighbours only upwards.
  const auto finding = only([](ProfileData& data) {
    for (const int micro_batch : {1, 2, 4}) {
      auto& block = row(data, LayerKind::block, 2, micro_batch);
      block.backward = steady(2.2 * micro_batch);
    }
    data.layer_times.erase(std::remove_if(data.layer_times.begin(), data.layer_times.end(),
                                          [](const LayerTime& time) { return time.key.micro_batch > 1; }),
                           data.layer_times.end());
  });
  expect(finding, Severity::warn, Problem::slower_with_tensor_parallel, setting,
         "backward of block (micro-batch 1): 2.20 s at tensor parallel 2, 2.00 s at 1");
}

TEST(ProfileCheck, MoreDevicesWithinTheNoiseAreNoFinding) {
  ProfileData data = clean();
  for (const int micro_batch : {1, 2, 4})
    row(data, LayerKind::block, 2, micro_batch).forward = steady(1.005 * micro_batch);
  EXPECT_TRUE(check_profile(data, today).empty());
}

TEST(ProfileCheck, WideSpread) {
  const auto finding = only([](ProfileData& data) {
    row(data, LayerKind::head, 1, 4).forward.p90 = Seconds(4.5);  // p10 is 3.96: 0.54 of 4
  });
  expect(finding, Severity::warn, Problem::wide_spread, setting,
         "forward of head (tensor parallel 1, micro-batch 4): 4.00 s, spread 14% (p10 3.96 s, p90 4.50 s)");
}

TEST(ProfileCheck, WideInterval) {
  const auto finding = only([](ProfileData& data) {
    data.links[1].time.low = Seconds(60e-6);
    data.links[1].time.high = Seconds(70e-6);
  });
  // The median is 66.536 us.
  expect(finding, Severity::warn, Problem::wide_interval, link_name,
         "64.0 KiB: median of 40 samples in 60.0 us to 70.0 us, 15% wide");
}

TEST(ProfileCheck, PublishedMeansHaveNoSpread) {
  ProfileData data = clean();
  for (LayerTime& time : data.layer_times) time.forward = TimeStatistics::single(time.forward.median);
  EXPECT_TRUE(check_profile(data, today).empty());
}

TEST(ProfileCheck, StatisticsThatNoSamplesHave) {
  const auto finding = only([](ProfileData& data) { row(data, LayerKind::block, 1, 1).update.low = Seconds(0.51); });
  expect(finding, Severity::fail, Problem::inconsistent_statistics, setting,
         "update of block (tensor parallel 1, micro-batch 1): median 500 ms, but 10th to 90th percentile 495 ms to "
         "505 ms, interval 510 ms to 502 ms");
}

TEST(ProfileCheck, MissingMicroBatch) {
  auto without_2 = [](ProfileData& data) {
    data.layer_times.erase(std::remove_if(data.layer_times.begin(), data.layer_times.end(),
                                          [](const LayerTime& time) {
                                            return time.key.micro_batch == 2 && time.key.tensor_parallel == 2;
                                          }),
                           data.layer_times.end());
  };
  expect(only(without_2), Severity::warn, Problem::missing_micro_batch, setting,
         "no micro-batch 2 between 1 and 4 (tensor parallel 2)");
  ProfileData explained = clean();
  without_2(explained);
  LayerKey key = row(explained, LayerKind::block, 2, 1).key;
  key.micro_batch = 2;
  explained.out_of_memory.push_back({.key = key, .needed = Bytes(2), .available = Bytes(1)});
  EXPECT_TRUE(check_profile(explained, today).empty());
}

TEST(ProfileCheck, MissingLayerKind) {
  auto without_head = [](ProfileData& data) {
    data.layer_times.erase(data.layer_times.begin() + (&row(data, LayerKind::head, 2, 4) - data.layer_times.data()));
  };
  expect(only(without_head), Severity::fail, Problem::missing_layer_kind, setting,
         "no times of head (tensor parallel 2, micro-batch 4)");
  ProfileData explained = clean();
  without_head(explained);
  explained.out_of_memory.push_back({.key = row(explained, LayerKind::block, 2, 4).key});
  EXPECT_TRUE(check_profile(explained, today).empty());
}

TEST(ProfileCheck, MissingMemory) {
  auto forget = [](ProfileData& data) {
    std::erase_if(data.layer_memory, [](const LayerMemory& memory) {
      return memory.key.tensor_parallel == 2 && memory.key.kind == LayerKind::block;
    });
  };
  expect(only(forget), Severity::warn, Problem::missing_memory, setting,
         "times but no memory of block (tensor parallel 2)");
  ProfileData published = clean();
  for (LayerMemory& memory : published.layer_memory) memory.key.gpu = any_gpu;
  EXPECT_TRUE(check_profile(published, today).empty());
}

TEST(ProfileCheck, TimePerSequenceThatRises) {
  // 1 s at 1, now 2.6 s at 2 (1.3 per sequence), 4 s at 4; below its backward of 4 s.
  const auto finding = only([](ProfileData& data) { row(data, LayerKind::block, 1, 2).forward = steady(2.6); });
  expect(finding, Severity::warn, Problem::rising_time_per_sequence, setting,
         "forward of block (tensor parallel 1): 1.30 s per sequence at micro-batch 2, 1.00 s at 1");
}

TEST(ProfileCheck, BackwardFasterThanForward) {
  auto faster = [](LayerKind kind) {
    return [kind](ProfileData& data) {
      for (const int micro_batch : {1, 2, 4})
        for (const int tensor_parallel : {1, 2}) {
          auto& time = row(data, kind, tensor_parallel, micro_batch);
          time.backward = steady(time.forward.median.value() * (tensor_parallel == 2 && micro_batch == 4 ? 0.9 : 1.1));
        }
    };
  };
  expect(only(faster(LayerKind::head)), Severity::warn, Problem::backward_faster, setting,
         "head (tensor parallel 2, micro-batch 4): backward 2.00 s, forward 2.22 s");
  ProfileData data = clean();
  faster(LayerKind::embedding)(data);
  EXPECT_TRUE(check_profile(data, today).empty());
}

TEST(ProfileCheck, ZeroTimes) {
  expect(only([](ProfileData& data) { row(data, LayerKind::block, 2, 4).forward = {}; }), Severity::fail,
         Problem::zero_time, setting, "forward of block (tensor parallel 2, micro-batch 4) takes no time");
  EXPECT_EQ(only([](ProfileData& data) { row(data, LayerKind::embedding, 2, 4).backward = {}; }).severity,
            Severity::warn);
  expect(only([](ProfileData& data) { data.links[0].time = {}; }), Severity::fail, Problem::zero_time, link_name,
         "1.00 KiB take no time");
}

TEST(ProfileCheck, OneUpdateForAllLayersIsNoted) {
  const auto finding = only([](ProfileData& data) {
    for (LayerTime& time : data.layer_times)
      if (time.key.tensor_parallel == 1 && time.key.micro_batch == 1) time.update = steady(0.5);
  });
  expect(finding, Severity::note, Problem::same_update, setting,
         "update of all layers: 500 ms (tensor parallel 1, micro-batch 1)");
}

TEST(ProfileCheck, SlowDevicesAndClocks) {
  expect(only([](ProfileData& data) { data.sessions[0].slowdown = 1.3; }), Severity::warn, Problem::device_slowed,
         "session s", "reference computations took up to 30% longer");
  expect(only([](ProfileData& data) { data.sessions[0].lowest_clock_hz = 1.2e9; }), Severity::warn,
         Problem::clocks_throttled, "session s", "clocks throttled: from 2.00 GHz down to 1.20 GHz");
}

TEST(ProfileCheck, OldSessions) {
  auto old = [](ProfileData& data) { data.sessions[0].provenance.date = "2025-11-20T23:00:00Z"; };
  expect(only(old), Severity::warn, Problem::old_session, "session s", "2025-11-20, 366 days ago");
  EXPECT_EQ(only([&](ProfileData& data) {
              old(data);
              data.sessions[0].provenance.source = "a paper";
            }).severity,
            Severity::note);
  for (const char* date : {"", "yesterday", "2026-13-01", "20xx-01-01"}) {
    ProfileData data = clean();
    data.sessions[0].provenance.date = date;
    EXPECT_TRUE(check_profile(data, today).empty()) << date;
  }
}

TEST(ProfileCheck, LinksThatFall) {
  // 64 KiB in 66.5 us are 985 MB/s; 1 MiB in 2 ms are 524 MB/s.
  expect(only([](ProfileData& data) { data.links[2].time = steady(2e-3); }), Severity::warn, Problem::falling_bandwidth,
         link_name, "524 MB/s with 1.00 MiB, but 985 MB/s with 64.0 KiB");
  expect(only([](ProfileData& data) { data.links[0].time = steady(80e-6); }), Severity::warn, Problem::falling_time,
         link_name, "64.0 KiB take 66.5 us, but 1.00 KiB take 80.0 us");
}

TEST(ProfileCheck, FitsThatMissTheirPoints) {
  expect(only([](ProfileData& data) { data.fits[0].median_error = data.fits[0].largest_error = 0.2; }), Severity::warn,
         Problem::poor_fit, link_name, "the curve is off by 20% (median) to 20% (largest) over 3 messages");
  EXPECT_EQ(only([](ProfileData& data) { data.fits[0].largest_error = 0.2; }).severity, Severity::note);
  ProfileData published = clean();
  published.fits[0].points = 0;
  published.fits[0].largest_error = 0.0;
  EXPECT_TRUE(check_profile(published, today).empty());
}

TEST(ProfileCheck, TheWorstStandsForAllOfAPlace) {
  ProfileData data = clean();
  row(data, LayerKind::head, 1, 2).forward.p90 = Seconds(2.4);
  row(data, LayerKind::head, 1, 4).forward.p90 = Seconds(5.0);
  row(data, LayerKind::head, 1, 1).forward.p90 = Seconds(1.3);  // 0.31: the widest
  data.links[0].time.p90 = Seconds(1.0);
  const auto folded = fold_findings(check_profile(data, today));
  ASSERT_EQ(folded.size(), 2U);
  EXPECT_EQ(folded[0].where, setting);
  EXPECT_EQ(folded[0].count, 3);
  EXPECT_EQ(folded[0].what,
            "forward of head (tensor parallel 1, micro-batch 1): 1.00 s, spread 31% (p10 990 ms, p90 1.30 s)");
  EXPECT_EQ(folded[1].where, link_name);
  EXPECT_EQ(folded[1].count, 1);
}

TEST(ProfileCheck, FailuresStandFirst) {
  ProfileData data = clean();
  data.sessions[0].slowdown = 1.3;
  row(data, LayerKind::block, 2, 4).forward = {};
  data.fits[0].largest_error = 0.2;
  const auto findings = check_profile(data, today);
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_EQ(findings[0].severity, Severity::fail);
  EXPECT_EQ(findings[1].severity, Severity::warn);
  EXPECT_EQ(findings[2].severity, Severity::note);
}

}  // namespace
}  // namespace sailor::profile_check_test
