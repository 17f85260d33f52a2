// The profile store under writers that are killed, write concurrently, or hold locks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <random>
#include <set>

#include "tests/unit/profile_samples.hpp"

namespace sailor::profile_durability_test {
namespace {

using ProfileDurability = ProfileStore;

ProfileData numbered(const std::string& writer, int number) {
  ProfileData data = sample();
  data.sessions[0].id = writer + "-" + std::to_string(number);
  data.processes[0].base_memory = Bytes(number);
  return data;
}

/// In the child: writes until it is killed, and reports every file that is safe: "<number>\n" each.
[[noreturn]] void write_forever(const fs::path& store, const std::string& writer, int report) {
  const fs::path fixed = store / "fixed.h5";
  for (int number = 1;; ++number) {
    const bool safe = number % 2 == 0 ? save_profile(numbered("fixed", number), fixed).has_value()
                                      : add_to_store(store, numbered(writer, number)).has_value();
    const std::string line = std::to_string(number) + "\n";
    if (!safe || ::write(report, line.data(), line.size()) < 0) ::_exit(1);
  }
}

TEST_F(ProfileDurability, LinksThatOthersHavePlacedAreNotFollowed) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string by_0_1 = ".fixed.h5." + std::string(host.data()).substr(0, 64) + "." + std::to_string(::getpid());
  put(file("victim"), "mine");
  fs::create_symlink(file("victim"), file(by_0_1 + ".tmp"));
  ASSERT_TRUE(save_profile(sample(), file("fixed.h5")));
  EXPECT_EQ(read_text_file(file("victim")).value_or(""), "mine");
  EXPECT_TRUE(load_profile(file("fixed.h5")));
}

// More often with SAILOR_KILLED_WRITERS=500 (tests/long.sh).
TEST_F(ProfileDurability, WhatWasAcknowledgedSurvivesKilledWriters) {
  std::mt19937 random(20260101);  // NOLINT: the same pauses in every run
  const char* const wanted = std::getenv("SAILOR_KILLED_WRITERS");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 50;
  int acknowledged = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const fs::path store = folder_ / std::to_string(kill / 20);  // small stores: they are read after every kill
    const std::string writer = "writer" + std::to_string(kill);
    fs::create_directories(store);
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(ends[0]);
      write_forever(store, writer, ends[1]);
    }
    ::close(ends[1]);
    ::usleep(static_cast<useconds_t>(random() % 40000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed";
    std::string report;
    for (char c = 0; ::read(ends[0], &c, 1) == 1;) report += c;
    ::close(ends[0]);

    std::set<std::string> sessions;
    double fixed = 0.0;
    int last = 0;
    if (!report.empty()) last = std::stoi(report.substr(report.rfind('\n', report.size() - 2) + 1));
    if (const auto data = load_profile(store)) {
      for (const Session& session : data->sessions) sessions.insert(session.id);
    } else {
      ASSERT_EQ(last, 0) << data.error().message();  // killed before it wrote anything
      ASSERT_EQ(data.error().code, ErrorCode::not_found) << data.error().message();
      continue;
    }
    if (const auto data = load_profile(store / "fixed.h5")) fixed = data->processes[0].base_memory.value();
    for (int number = 1; number <= last; number += 2)
      EXPECT_TRUE(sessions.contains(writer + "-" + std::to_string(number))) << "after kill " << kill;
    // The one file holds the last version that was acknowledged, or the one after.
    const int safe = last - last % 2;
    EXPECT_TRUE(safe == 0 || fixed == safe || fixed == safe + 2) << safe << ": " << fixed;
    acknowledged += last;
  }
  EXPECT_GT(acknowledged, 0);
}

class Writers : public ProfileDurability, public testing::WithParamInterface<int> {};

TEST_P(Writers, AtOnceLoseNothing) {
  constexpr int sessions_each = 5;
  std::vector<pid_t> children;
  for (int writer = 0; writer < GetParam(); ++writer) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool good = true;
      for (int i = 0; i < sessions_each; ++i) {
        good = good && add_to_store(folder_ / "store", numbered("w" + std::to_string(writer), i));
        // All of them add the same session, and replace the same file.
        good = good && add_to_store(folder_ / "store", numbered("common", 0));
        good = good && save_profile(numbered("fixed", i), file("fixed.h5"));
      }
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const auto data = load_profile(folder_ / "store");
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(data->sessions.size(), static_cast<std::size_t>(sessions_each * GetParam() + 1));
  EXPECT_TRUE(load_profile(file("fixed.h5")));
  for (const auto& entry : fs::directory_iterator(folder_ / "store"))
    EXPECT_EQ(entry.path().extension(), ".h5") << entry.path();
}
INSTANTIATE_TEST_SUITE_P(TwoAndEight, Writers, testing::Values(2, 8));

TEST_F(ProfileDurability, DifferentRowsOfOneSessionFromTwoWritersAreBothKept) {
  ProfileData first = sample();
  first.layer_times = {layer(1, LayerKind::block, 0.1)};
  ProfileData second = sample();
  second.layer_times = {layer(32, LayerKind::block, 0.2)};
  for (int round = 0; round < 10; ++round) {
    const fs::path store = folder_ / std::to_string(round);
    std::vector<pid_t> children;
    for (const ProfileData* data : {&first, &second}) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) ::_exit(add_to_store(store, *data) ? 0 : 1);
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
    const auto data = load_profile(store);
    ASSERT_TRUE(data) << data.error().message();
    EXPECT_EQ(data->layer_times.size(), 2U);
    EXPECT_EQ(data->sessions.size(), 1U);
  }
}

TEST_F(ProfileDurability, LocksOfOtherProcessesDoNotStopReaders) {
  ASSERT_TRUE(save_profile(sample(), file("a.h5")));
  int locked[2];
  ASSERT_EQ(::pipe(locked), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int descriptor = ::open(file("a.h5").c_str(), O_RDWR);
    struct flock range {};
    range.l_type = F_WRLCK;
    const bool both = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && ::fcntl(descriptor, F_SETLK, &range) == 0;
    const char answer = both ? 'y' : 'n';
    (void)!::write(locked[1], &answer, 1);
    ::pause();
    ::_exit(0);
  }
  char answer = 0;
  ASSERT_EQ(::read(locked[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  const auto read = load_profile(folder_);
  const auto added = add_to_store(folder_, numbered("more", 1));
  const auto replaced = save_profile(sample(), file("a.h5"));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(locked[0]);
  ::close(locked[1]);
  EXPECT_TRUE(read) << read.error().message();
  EXPECT_TRUE(added) << added.error().message();
  EXPECT_TRUE(replaced) << replaced.error().message();
}

}  // namespace
}  // namespace sailor::profile_durability_test
