// Stores are merged, sessions removed and replaced, without losing anything else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "profile/manage.hpp"
#include "profile/profile.hpp"
#include "profile/run_file.hpp"
#include "profile/text.hpp"
#include "tests/unit/profile_samples.hpp"

namespace sailor::profile_merge_test {
namespace {

using ProfileMerge = ProfileStore;

/// Without the order of rows, which means nothing.
ProfileData sorted(ProfileData data) {
  auto by_key = [](auto& rows) {
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  };
  by_key(data.layer_times);
  by_key(data.layer_memory);
  by_key(data.out_of_memory);
  std::sort(data.links.begin(), data.links.end(), [](const LinkMeasurement& a, const LinkMeasurement& b) {
    return std::pair(a.key, a.message.value()) < std::pair(b.key, b.message.value());
  });
  by_key(data.fits);
  return data;
}

/// One session with a block of micro-batch `micro_batch` that takes `forward` seconds.
ProfileData one_block(const std::string& id, const std::string& date, int micro_batch, double forward) {
  return {.sessions = {session(id, date)}, .layer_times = {layer(micro_batch, LayerKind::block, forward)}};
}
double forward_of(const ProfileData& data, int micro_batch) {
  for (const LayerTime& row : data.layer_times)
    if (row.key.micro_batch == micro_batch) return row.forward.median.value();
  return -1.0;
}

TEST(ProfileMergeData, SessionsJoinByIdAndRowsByKeyAndTheNewestCounts) {
  const ProfileData a = one_block("old", "2026-01-01T00:00:00Z", 1, 0.1);
  ProfileData b = one_block("new", "2026-02-01T00:00:00Z", 1, 0.2);
  b.layer_times.push_back(layer(2, LayerKind::block, 0.4));
  const ProfileData c = one_block("middle", "2026-01-15T00:00:00Z", 3, 0.3);
  const ProfileData merged = merge_profiles({a, b, c});
  ASSERT_EQ(merged.sessions.size(), 3U);
  EXPECT_EQ(merged.sessions[0].id, "old");  // kept, though none of its rows is
  EXPECT_EQ(merged.sessions[1].id, "middle");
  EXPECT_EQ(merged.sessions[2].id, "new");
  ASSERT_EQ(merged.layer_times.size(), 3U);
  EXPECT_EQ(forward_of(merged, 1), 0.2);
  EXPECT_EQ(forward_of(merged, 2), 0.4);
  EXPECT_EQ(forward_of(merged, 3), 0.3);
  for (const LayerTime& row : merged.layer_times)
    EXPECT_EQ(merged.sessions[static_cast<std::size_t>(row.session)].id, row.key.micro_batch == 3 ? "middle" : "new");
}

TEST(ProfileMergeData, NeitherOrderNorRepetitionMatters) {
  ProfileData other = sample();
  other.sessions[0].id = "other";
  other.sessions[0].provenance.date = "2026-01-03T00:00:00Z";
  other.links[0].time = times(1.0);
  other.layer_times.pop_back();
  ProfileData part = sample();  // the same session with one more row and one less
  part.layer_times[0].key.micro_batch = 9;
  const ProfileData once = merge_profiles({sample(), other, part});
  EXPECT_EQ(once.sessions.size(), 2U);
  EXPECT_EQ(once.layer_times.size(), 4U);
  std::vector<ProfileData> stores{sample(), other, part};
  std::array<std::size_t, 3> order{0, 1, 2};
  do {
    expect_equal(sorted(merge_profiles({stores[order[0]], stores[order[1]], stores[order[2]]})), sorted(once));
  } while (std::next_permutation(order.begin(), order.end()));
  expect_equal(merge_profiles({once}), once);
  expect_equal(merge_profiles({once, once}), once);
  expect_equal(sorted(merge_profiles({once, other, sample()})), sorted(once));
}

TEST(ProfileMergeData, ConflictsWithinASessionAreCountedAndDecidedAlikeInEveryOrder) {
  const ProfileData a = one_block("s", "2026-01-01", 1, 0.1);
  const ProfileData b = one_block("s", "2026-01-01", 1, 0.2);
  EXPECT_EQ(conflicting_rows(a, b), 1U);
  EXPECT_EQ(conflicting_rows(a, a), 0U);
  EXPECT_EQ(conflicting_rows(a, one_block("t", "2026-01-01", 1, 0.2)), 0U);
  expect_equal(merge_profiles({a, b}), merge_profiles({b, a}));
}

TEST(ProfileMergeData, ARepeatedMeasurementWidensTheIntervalOnTheSameMachineOnly) {
  // Each says +-5% of itself; the medians differ by 30% and 50%.
  const ProfileData first = one_block("a", "2026-01-01", 1, 1.0);
  const ProfileData second = one_block("b", "2026-01-02", 1, 0.7);
  const ProfileData third = one_block("c", "2026-01-03", 1, 1.5);
  const auto forward = [](std::vector<ProfileData> stores, Intervals intervals) {
    return merge_profiles(std::move(stores), intervals).layer_times[0].forward;
  };
  const TimeStatistics both = forward({first, second, third}, Intervals::with_repetitions);
  EXPECT_EQ(both.median, Seconds(1.5));
  EXPECT_EQ(both.low, Seconds(0.7));
  EXPECT_EQ(both.high, Seconds(1.5 * 1.05));
  ProfileData elsewhere = first;
  elsewhere.sessions[0].provenance.host = "another";
  EXPECT_EQ(forward({elsewhere, third}, Intervals::with_repetitions).low, Seconds(1.5 * 0.95));
  EXPECT_EQ(forward({first, third}, Intervals::as_stored), third.layer_times[0].forward);  // what a merged file holds
}

TEST(ProfileMergeData, ANewerSessionReplacesALayerWithAllItsParts) {
  // The older session cut the blocks at 0, 1 and 2, the newer one measured them as one.
  ProfileData old = one_block("old", "2026-01-01", 1, 0.1);
  for (const int first : {1, 2}) {
    old.layer_times.push_back(old.layer_times[0]);
    old.layer_times.back().key.first_layer = first;
  }
  const ProfileData uncut = one_block("new", "2026-02-01", 1, 0.5);
  for (const ProfileData& merged : {merge_profiles({old, uncut}), merge_profiles({uncut, old})}) {
    ASSERT_EQ(merged.layer_times.size(), 1U);
    EXPECT_EQ(merged.layer_times[0].forward.median, Seconds(0.5));
  }
  // And the other way round.
  old.sessions[0].provenance.date = "2026-03-01";
  EXPECT_EQ(merge_profiles({old, uncut}).layer_times.size(), 3U);
}

TEST_F(ProfileMerge, IntoAFileWhichMayBeAnInputIsIdempotent) {
  ASSERT_TRUE(save_profile(one_block("a", "2026-01-01", 1, 0.1), file("a.h5")));
  ASSERT_TRUE(save_profile(one_block("b", "2026-01-02", 1, 0.2), file("b.h5")));
  auto result = merge_into_file({file("a.h5"), file("b.h5")}, file("b.h5"));
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->sessions, 2);
  EXPECT_EQ(result->added, 1);
  const std::string once = content_of(file("b.h5"));
  const auto data = load_profile(file("b.h5"));
  ASSERT_TRUE(data);
  EXPECT_EQ(data->sessions.size(), 2U);
  EXPECT_EQ(forward_of(*data, 1), 0.2);
  EXPECT_EQ(merge_into_file({file("a.h5"), file("b.h5")}, file("b.h5"))->added, 0);
  EXPECT_EQ(content_of(file("b.h5")), once);
}

TEST_F(ProfileMerge, IntoAFolderKeepsEverySessionWholeAndAddsWhatIsNew) {
  const fs::path a = folder_ / "a";
  const fs::path b = folder_ / "b";
  ASSERT_TRUE(add_to_store(a, one_block("one", "2026-01-01", 1, 0.1)));
  ASSERT_TRUE(add_to_store(a, one_block("two", "2026-01-02", 1, 0.2)));
  ASSERT_TRUE(add_to_store(b, one_block("three", "2026-01-03", 3, 0.3)));
  auto result = merge_into_folder({a, b}, b);
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->sessions, 3);
  EXPECT_EQ(result->added, 2);
  ASSERT_EQ(load_store_files(b)->size(), 3U);
  EXPECT_EQ(forward_of(*load_profile(b), 1), 0.2);
  EXPECT_EQ(merge_into_folder({a, b}, b)->added, 0);
  EXPECT_EQ(load_store_files(b)->size(), 3U);
  // The older session's row is there still: it counts when the newer one goes.
  ASSERT_TRUE(remove_session(b, "two"));
  EXPECT_EQ(forward_of(*load_profile(b), 1), 0.1);
}

TEST_F(ProfileMerge, RemovingASessionDeletesItsFileOrRewritesIt) {
  ASSERT_TRUE(save_profile(
      merge_profiles({one_block("day1-x", "2026-01-01", 1, 0.1), one_block("day2-x", "2026-01-02", 2, 0.2)}),
      file("both.h5")));
  ASSERT_TRUE(save_profile(one_block("day3", "2026-01-03", 3, 0.3), file("third.h5")));
  auto error = [&](const std::string& id) { return remove_session(folder_, id).error().message(); };
  const std::string store = "profile store '" + folder_.string() + "'";
  EXPECT_EQ(error("night"), store + " has no session 'night'; there: day1-x, day2-x, day3");
  EXPECT_EQ(error(""), store + " has no session ''; there: day1-x, day2-x, day3");
  EXPECT_EQ(error("day"), "3 sessions of " + store + " begin with 'day'; they are: day1-x, day2-x, day3");
  auto removed = remove_session(folder_, "day1");
  ASSERT_TRUE(removed) << removed.error().message();
  EXPECT_EQ(removed->id, "day1-x");
  EXPECT_EQ(removed->rows, 1U);
  EXPECT_EQ(removed->rewritten_files, std::vector{file("both.h5")});
  removed = remove_session(folder_, "day3");
  ASSERT_TRUE(removed);
  EXPECT_EQ(removed->removed_files, std::vector{file("third.h5")});
  EXPECT_FALSE(fs::exists(file("third.h5")));
  const auto rest = load_profile(folder_);
  ASSERT_TRUE(rest);
  ASSERT_EQ(rest->sessions.size(), 1U);
  EXPECT_EQ(rest->sessions[0].id, "day2-x");
  EXPECT_EQ(forward_of(*rest, 2), 0.2);
  EXPECT_EQ(forward_of(*rest, 1), -1.0);
}

TEST_F(ProfileMerge, NeverReplacesARun) {
  ASSERT_TRUE(save_profile(one_block("s", "2026-01-01", 1, 0.1), file("a.h5")));
  RunRecord run;
  run.plan_toml = "a plan";
  ASSERT_TRUE(save_run(run, file("run.h5")));
  const auto merged = merge_into_file({file("a.h5")}, file("run.h5"));
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().message(),
            "'" + file("run.h5").string() + "' holds a run of sailor-train and would be replaced; name another file");
  EXPECT_EQ(load_run(file("run.h5"))->plan_toml, "a plan");
}

TEST_F(ProfileMerge, AnExactIdIsNoPrefix) {
  ASSERT_TRUE(add_to_store(folder_, one_block("day1", "2026-01-01", 1, 0.1)));
  ASSERT_TRUE(add_to_store(folder_, one_block("day10", "2026-01-02", 2, 0.2)));
  EXPECT_EQ(remove_session(folder_, "day1")->id, "day1");
}

TEST_F(ProfileMerge, AnEditedTextReplacesAnEntryAsASessionOfItsOwn) {
  ASSERT_TRUE(add_to_store(folder_, one_block("measured", "2026-01-01T00:00:00.000Z", 1, 0.125)));
  ASSERT_TRUE(add_to_store(folder_, one_block("other", "2026-01-01T00:00:00.000Z", 2, 0.5)));
  // Export, edit, import: as sailor-profile does.
  std::string text = to_toml(*load_profile(folder_));
  auto replace = [&](const std::string& before, const std::string& after) {
    for (std::size_t at = 0; (at = text.find(before, at)) != std::string::npos; at += after.size())
      text.replace(at, before.size(), after);
  };
  replace("0.125", "0.25");
  auto edited = parse_profile_toml(text, "edited.toml");
  ASSERT_TRUE(edited) << edited.error().message();
  const ProfileData same_session =
      only_sessions(*edited, [](const Session& session) { return session.id == "measured"; });
  auto refused = add_to_store(folder_, same_session);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "session 'measured' is in '" + file("measured.h5").string() +
                "' already, with other values of 1 rows; give the new values an id and a date of their own, or remove "
                "the session first (sailor-profile remove)");
  replace("\"measured\"", "\"edited\"");
  replace("2026-01-01", "2026-02-01");
  edited = parse_profile_toml(text, "edited.toml");
  ASSERT_TRUE(edited) << edited.error().message();
  ASSERT_TRUE(add_to_store(folder_, only_sessions(*edited, [](const Session& s) { return s.id == "edited"; })));
  EXPECT_EQ(forward_of(*load_profile(folder_), 1), 0.25);
  EXPECT_EQ(forward_of(*load_profile(folder_), 2), 0.5);
}

TEST_F(ProfileMerge, TemporaryFilesAreStaleAfterADayUnlessTheirWriterLives) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string mine = "." + std::string(host.data()) + "." + std::to_string(::getpid()) + ".tmp";
  for (const std::string& name :
       std::vector<std::string>{".old.h5.elsewhere.12.tmp", ".young.h5.elsewhere.12.tmp", ".living.h5" + mine})
    put(file(name), "half a file");
  put(file(".notes.tmp"), "of another program");
  for (const std::string& name : std::vector<std::string>{".old.h5.elsewhere.12.tmp", ".living.h5" + mine})
    fs::last_write_time(file(name), fs::file_time_type::clock::now() - std::chrono::hours(25));
  std::vector<std::string> stale;
  const auto found = temporary_files(folder_);
  EXPECT_EQ(found.size(), 3U);
  for (const TemporaryFile& temporary : found)
    if (temporary.stale) stale.push_back(temporary.path.filename().string());
  EXPECT_EQ(stale, std::vector<std::string>{".old.h5.elsewhere.12.tmp"});
}

}  // namespace
}  // namespace sailor::profile_merge_test
