// Lookups of the simulator and the planner in a profile.
#include <gtest/gtest.h>

#include <limits>

#include "profile/profile.hpp"
#include "tests/unit/profile_samples.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace sailor::profile_lookup_test {
namespace {

LinkEnd end(const std::string& gpu) { return {.gpu = gpu}; }
LayerKey block_key(int micro_batch) { return layer(micro_batch, LayerKind::block, 0).key; }

TEST(ProfileLookup, FindsALayerByItsKey) {
  const Profile profile(sample());
  auto found = profile.layer(block_key(2));
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->forward.median, Seconds(0.0018));
}

TEST(ProfileLookup, TakesTheNearestBusyRanksAtOrAboveElseBelow) {
  ProfileData data;
  data.layer_memory = {memory(1, LayerKind::block)};
  for (const int busy : {1, 2, 4}) {
    LayerTime row = layer(1, LayerKind::block, 0.001 * busy);
    row.key.busy_ranks = busy;
    data.layer_times.push_back(row);
    row.key.kind = LayerKind::head;
    row.forward = times(1.0);
    data.layer_times.push_back(row);
  }
  const Profile profile(data);
  auto forward = [&](int busy) {
    LayerKey key = block_key(1);
    key.busy_ranks = busy;
    return profile.layer(key)->forward.median.value();
  };
  EXPECT_DOUBLE_EQ(forward(1), 0.001);
  EXPECT_DOUBLE_EQ(forward(2), 0.002);
  EXPECT_DOUBLE_EQ(forward(3), 0.004);
  EXPECT_DOUBLE_EQ(forward(16), 0.004);
}

TEST(ProfileLookup, MissingLayerSaysWhatIsThere) {
  const Profile profile(sample());
  auto message = [&](auto change) {
    LayerKey key = block_key(1);
    change(key);
    return profile.layer(key).error().message();
  };
  EXPECT_EQ(message([](LayerKey& key) { key.micro_batch = 3; }),
            "the profile has no layers of micro-batch 3 for model tiny-gpt, GPU cpu, precision fp32, recompute none, "
            "tensor parallel 1, sequence length 64 (micro-batches there: 1, 2); measure it with sailor-profile layers, "
            "or import it with sailor-profile import");
  EXPECT_EQ(
      message([](LayerKey& key) { key.model = "opt-30b"; }),
      "the profile has no layers of model opt-30b (models there: tiny-gpt); measure it with sailor-profile layers, "
      "or import it with sailor-profile import");
  EXPECT_EQ(message([](LayerKey& key) { key.kind = LayerKind::embedding; }),
            "the profile has no layers of layer kind embedding for model tiny-gpt, GPU cpu, precision fp32, recompute "
            "none, tensor parallel 1, sequence length 64, micro-batch 1 (layer kinds there: block, head); measure it "
            "with sailor-profile layers, "
            "or import it with sailor-profile import");
  EXPECT_EQ(Profile(ProfileData{}).layer(block_key(1)).error().message(),
            "the profile has no measurements of layers; measure it with sailor-profile layers, "
            "or import it with sailor-profile import");
}

TEST(ProfileLookup, MessageTimeIsInterpolatedInLogarithms) {
  // 1 us at 1 KiB, 4 us at 16 KiB: a slope of log 4 / log 16 = 1/2, so 4 KiB takes 1 us * 4^(1/2) = 2 us.
  const Profile profile(sample());
  auto time = [&](double bytes) {
    return profile.send_time(end("cpu"), end("cpu"), LinkScope::intra_node, Bytes(bytes))->time.value();
  };
  EXPECT_NEAR(time(4096), 2e-6, 1e-15);
  EXPECT_NEAR(time(1024), 1e-6, 1e-15);
  EXPECT_NEAR(time(16384), 4e-6, 1e-15);
}

TEST(ProfileLookup, MessageTimeIsClampedOutsideTheMeasuredSizes) {
  const Profile profile(sample());
  auto time = [&](double bytes) {
    return profile.send_time(end("cpu"), end("cpu"), LinkScope::intra_node, Bytes(bytes))->time.value();
  };
  EXPECT_DOUBLE_EQ(time(1), 1e-6);  // the smallest message's time
  EXPECT_DOUBLE_EQ(time(0), 1e-6);
  EXPECT_DOUBLE_EQ(time(16384.0 * 8), 32e-6);  // the largest message's bandwidth
}

TEST(ProfileLookup, LinkIsUsedInBothDirections) {
  ProfileData data;
  data.links = {link(LinkOperation::send_receive, 2, 1024, 1e-6)};
  data.links[0].key.to.gpu = "A100-40";
  const Profile profile(data);
  EXPECT_TRUE(profile.send_time(end("cpu"), end("A100-40"), LinkScope::intra_node, kib));
  EXPECT_TRUE(profile.send_time(end("A100-40"), end("cpu"), LinkScope::intra_node, kib));
  EXPECT_EQ(profile.send_time(end("cpu"), end("cpu"), LinkScope::inter_node, kib).error().message(),
            "the profile has no send_receive between cpu and cpu, inter_node (there: cpu - A100-40 intra_node); "
            "measure it with sailor-profile links, "
            "or import it with sailor-profile import");
}

TEST(ProfileLookup, AllReduceOverOtherRankCountsFollowsTheRing) {
  // Measured over 4 ranks: 8 us. The ring moves 2(n-1)/n of the message: 1.5 for 4 ranks, 1 for 2, 1.75 for 8.
  const Profile profile(sample());
  auto time = [&](int ranks) {
    return profile.all_reduce_time(end("cpu"), end("cpu"), LinkScope::intra_node, ranks, kib)->time.value();
  };
  EXPECT_DOUBLE_EQ(time(4), 8e-6);
  EXPECT_DOUBLE_EQ(time(2), 8e-6 / 1.5);
  EXPECT_DOUBLE_EQ(time(8), 8e-6 / 1.5 * 1.75);
  EXPECT_DOUBLE_EQ(time(1), 0.0);
  EXPECT_EQ(
      profile.all_reduce_time(end("cpu"), end("cpu"), LinkScope::inter_node, 2, kib).error().message(),
      "the profile has no all_reduce or send_receive between cpu and cpu, inter_node (there: cpu - cpu intra_node; "
      "cpu - cpu intra_node, cpu - cpu intra_node a - b); measure it with sailor-profile links, "
      "or import it with sailor-profile import");
}

TEST(ProfileLookup, MeasuredValuesAreListedAscending) {
  const Profile profile(sample());
  EXPECT_EQ(profile.micro_batches("tiny-gpt", "cpu", Precision::fp32, 1, 64), (std::vector{1, 2}));
  EXPECT_EQ(profile.tensor_parallel_degrees("tiny-gpt", "cpu", Precision::fp32, 64), (std::vector{1}));
  EXPECT_EQ(profile.sequence_lengths("tiny-gpt", "cpu"), (std::vector{64}));
  EXPECT_TRUE(profile.micro_batches("tiny-gpt", "cpu", Precision::bf16, 1, 64).empty());
}

TEST(ProfileLookup, BaseMemoryIsKnownPerFramework) {
  const Profile profile(sample());
  EXPECT_EQ(profile.base_memory("cpu", "sailor"), Bytes(5e7));
  EXPECT_EQ(profile.base_memory("cpu", "megatron-deepspeed"), std::nullopt);
}

TEST(ProfileLookup, LayersAreCutWhereTheirRowsBegin) {
  // Blocks 0 to 3 take 1 ms, blocks from 4 on 2 ms; memory is the same for all.
  ProfileData data;
  for (const int first : {4, 0}) {
    LayerTime row = layer(1, LayerKind::block, first == 0 ? 0.001 : 0.002);
    row.key.first_layer = first;
    data.layer_times.push_back(row);
  }
  data.layer_memory = {memory(1, LayerKind::block)};
  const Profile profile(data);
  auto cost = [&](int index) {
    LayerKey key = block_key(1);
    key.first_layer = index;
    return *profile.layer(key);
  };
  EXPECT_EQ(cost(0).forward.median, Seconds(0.001));
  EXPECT_EQ(cost(0).last_layer, 4);
  EXPECT_EQ(cost(3).forward.median, Seconds(0.001));
  EXPECT_EQ(cost(4).forward.median, Seconds(0.002));
  EXPECT_EQ(cost(99).forward.median, Seconds(0.002));
  EXPECT_GT(cost(4).last_layer, 1'000'000);
}

TEST(ProfileLookup, MemoryOfAnyGpuAndOfAnotherMicroBatchIsScaled) {
  ProfileData data;
  for (const int micro_batch : {1, 4, 8}) data.layer_times.push_back(layer(micro_batch, LayerKind::block, 0.001));
  for (const int micro_batch : {2, 8}) {
    data.layer_memory.push_back(memory(micro_batch, LayerKind::block));
    data.layer_memory.back().key.gpu = any_gpu;
    data.layer_memory.back().activation = Bytes(micro_batch == 2 ? 100.0 : 1000.0);
  }
  const Profile profile(data);
  auto cost = [&](int micro_batch) { return *profile.layer(block_key(micro_batch)); };
  EXPECT_EQ(cost(8).activation, Bytes(1000.0));  // measured
  EXPECT_EQ(cost(4).activation, Bytes(200.0));   // from 2, the nearest below
  EXPECT_EQ(cost(4).output, Bytes(131072.0));    // 32768 a sequence
  EXPECT_EQ(cost(1).activation, Bytes(50.0));    // none below: half of 2
  EXPECT_EQ(cost(1).parameters, 198272);
  // Memory of the GPU itself goes first, even from another micro-batch.
  data.layer_memory.push_back(memory(1, LayerKind::block));
  data.layer_memory.back().activation = Bytes(7.0);
  EXPECT_EQ(Profile(data).layer(block_key(8))->activation, Bytes(56.0));
}

/// A message between nodes, from zone to zone, `ranks` of the sending node at once.
LinkMeasurement message_between(const std::string& from, const std::string& to, int ranks, double seconds) {
  LinkMeasurement row = link(LinkOperation::send_receive, 2, 1024, seconds);
  row.key.scope = LinkScope::inter_node;
  row.key.from.zone = from;
  row.key.to.zone = to;
  row.key.from.ranks = ranks;
  return row;
}

TEST(ProfileLookup, ZonesMustMatch) {
  ProfileData data;
  data.links = {message_between("a", "a", 1, 1.0), message_between("a", "b", 1, 5.0), message_between("", "", 1, 9.0)};
  auto time = [](const ProfileData& rows, const std::string& from, const std::string& to) {
    const auto found =
        Profile(rows).send_time({.gpu = "cpu", .zone = from}, {.gpu = "cpu", .zone = to}, LinkScope::inter_node, kib);
    return found ? found->time.value() : -1.0;
  };
  EXPECT_EQ(time(data, "a", "a"), 1.0);
  EXPECT_EQ(time(data, "a", "b"), 5.0);
  EXPECT_EQ(time(data, "b", "a"), 5.0);      // measured the other way round
  EXPECT_EQ(time(data, "b", "b"), 9.0);      // b was measured, but not inside: wherever
  EXPECT_EQ(time(data, "new", "new"), 1.0);  // inside any one zone
  EXPECT_EQ(time(data, "new", "a"), 9.0);
  EXPECT_EQ(time(data, "", ""), 1.0);
  data.links.pop_back();
  EXPECT_EQ(time(data, "b", "b"), -1.0);
  EXPECT_EQ(time(data, "new", "a"), -1.0);
  EXPECT_EQ(time(data, "new", "new"), 1.0);
}

TEST(ProfileLookup, OfTheRanksThatSendTheNearestAtOrAboveCountsElseBelow) {
  ProfileData data;
  data.links = {message_between("", "", 1, 1.0), message_between("", "", 4, 4.0), message_between("", "", 8, 8.0)};
  const Profile profile(data);
  auto time = [&](int ranks) {
    return profile.send_time({.gpu = "cpu", .ranks = ranks}, end("cpu"), LinkScope::inter_node, kib)->time.value();
  };
  EXPECT_EQ(time(1), 1.0);
  EXPECT_EQ(time(2), 4.0);
  EXPECT_EQ(time(4), 4.0);
  EXPECT_EQ(time(5), 8.0);
  EXPECT_EQ(time(64), 8.0);
}

TEST(ProfileLookup, ACurveCountsWhereNoMessageWasMeasured) {
  // B = 2x + 3 GB/s. 4 MB: x = 2, 7 GB/s. From 8 MB on: x = 3, 9 GB/s. 1 MB: x = 0, 3 GB/s.
  ProfileData data;
  data.sessions = {session("published", "2026-01-01")};
  data.fits = {{.key = {.from = {.gpu = "H200"}, .to = {.gpu = "H200"}, .scope = LinkScope::inter_node},
                .curve = {.linear = 2.0,
                          .constant = 3.0,
                          .smallest_message = Bytes(1e6),
                          .largest_message = Bytes(8e6),
                          .latency = Seconds(1e-4)}}};
  auto time = [&](double bytes, int ranks = 1) {
    return Profile(data)
        .send_time({.gpu = "H200", .ranks = ranks}, {.gpu = "H200"}, LinkScope::inter_node, Bytes(bytes))
        ->time.value();
  };
  EXPECT_DOUBLE_EQ(time(4e6), 4e6 / 7e9);
  EXPECT_DOUBLE_EQ(time(4e6, 2), 8e6 / 7e9);  // two send, each half as fast
  EXPECT_DOUBLE_EQ(time(32e6), 32e6 / 9e9);   // never extrapolated
  // Half of the smallest message: half way from the latency, 0.1 ms, to 1 MB / (3 GB/s) = 0.333... ms.
  EXPECT_DOUBLE_EQ(time(0.5e6), 1e-4 + (1e6 / 3e9 - 1e-4) / 2);
  EXPECT_DOUBLE_EQ(time(0), 1e-4);
  data.fits[0].curve.largest_bandwidth = BytesPerSecond(5e9);
  EXPECT_DOUBLE_EQ(time(4e6), 4e6 / 5e9);  // cut
  // The latency is never above the smallest message's time.
  data.fits[0].curve.latency = Seconds(1.0);
  EXPECT_DOUBLE_EQ(time(0), 1e6 / 3e9);
  const auto found = Profile(data).send_time({.gpu = "H200"}, {.gpu = "H200"}, LinkScope::inter_node, kib);
  EXPECT_EQ(found->origin, Origin::published);  // the session names its source
}

#ifdef SAILOR_HAVE_RAPIDCHECK

RC_GTEST_PROP(ProfileLookup, LongerMessagesNeverTakeLess, ()) {
  ProfileData data;
  double seconds = 1e-6;
  double bytes = 64;
  const int points = *rc::gen::inRange(1, 8);
  for (int i = 0; i < points; ++i) {
    data.links.push_back(link(LinkOperation::send_receive, 2, bytes, seconds));
    bytes *= *rc::gen::inRange(2, 9);
    seconds *= 1.0 + *rc::gen::inRange(0, 100) / 10.0;
  }
  const Profile profile(data);
  const double small = *rc::gen::inRange(0, 1 << 24);
  const double large = small + *rc::gen::inRange(0, 1 << 24);
  const double small_time =
      profile.send_time(end("cpu"), end("cpu"), LinkScope::intra_node, Bytes(small))->time.value();
  const double large_time =
      profile.send_time(end("cpu"), end("cpu"), LinkScope::intra_node, Bytes(large))->time.value();
  RC_ASSERT(small_time <= large_time * (1.0 + 1e-12));
}

#endif

}  // namespace
}  // namespace sailor::profile_lookup_test
