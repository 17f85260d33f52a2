// Ownership of a checkpoint folder: two trainings in one folder cannot harm each other.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "core/files.hpp"
#include "runtime/checkpoint/owner.hpp"

namespace sailor::runtime::test::checkpoint_owner_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

Result<std::unique_ptr<FolderOwner>> claim(const fs::path& folder, const OwnerFacts& who) {
  FolderClaim claim(folder, who);
  while (!claim.look()) std::this_thread::sleep_for(5ms);
  return claim.result();
}

std::string message_of(const Result<std::unique_ptr<FolderOwner>>& result) {
  return result ? "no error" : result.error().message();
}

class CheckpointOwner : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sailor-owner-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    top_ = pattern;
    folder_ = top_ / "checkpoints";
  }
  void TearDown() override { fs::remove_all(top_); }

  /// A training of job `job` that beats and is given up quickly.
  static OwnerFacts training(const std::string& job = {}, std::int64_t restart = 0) {
    OwnerFacts facts = facts_of_this_process("gpu07");
    facts.user = "anna";
    facts.job = job;
    facts.restart = restart;
    facts.beat_every = 50ms;
    facts.free_after = 400ms;
    return facts;
  }
  /// The same on a machine of which this one knows nothing.
  static OwnerFacts far_away(const std::string& job = {}, std::int64_t restart = 0) {
    OwnerFacts facts = training(job, restart);
    facts.boot = "of another machine";
    return facts;
  }
  /// Runs in a child; its process id. The child ends with the status that `body` returns.
  static pid_t in_child(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    return child;
  }
  static int status_of(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  [[nodiscard]] bool is_owned() const { return fs::exists(folder_ / owner_name); }

  fs::path top_;
  fs::path folder_;
};

TEST_F(CheckpointOwner, HasAFolderUntilItGivesItUp) {
  auto owner = claim(folder_, training());
  ASSERT_TRUE(owner) << message_of(owner);
  EXPECT_TRUE(is_owned());
  EXPECT_TRUE((*owner)->confirm());
  EXPECT_TRUE((*owner)->has_inherited((*owner)->token()));
  owner->reset();
  EXPECT_FALSE(is_owned());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 0);
  EXPECT_TRUE(claim(folder_, training()));
}

TEST_F(CheckpointOwner, IsNamedToThoseWhoAreRefused) {
  const auto owner = claim(folder_, training("alps/1234", 2));
  ASSERT_TRUE(owner);
  const auto second = claim(folder_, training("alps/1235"));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::unavailable);
  const std::string expected = fmt::format(
      "another training writes its checkpoints to '{}': sailor-train of anna on gpu07 (process {}, job alps/1234, "
      "requeued 2 times), heard of 0 s ago; wait for its end, or name another folder",
      folder_.string(), ::getpid());
  EXPECT_EQ(message_of(second).substr(0, expected.size()), expected);
  EXPECT_TRUE((*owner)->confirm());
}

TEST_F(CheckpointOwner, OfAnotherMachineIsRefusedAfterItsNextHeartbeat) {
  const auto owner = claim(folder_, far_away());
  ASSERT_TRUE(owner);
  const auto second = claim(folder_, training());
  ASSERT_FALSE(second);
  EXPECT_NE(message_of(second).find("heard of 0 s ago"), std::string::npos) << message_of(second);
  EXPECT_FALSE((*owner)->is_lost());
}

TEST_F(CheckpointOwner, OfAnotherMachineIsReplacedAfterALongSilence) {
  const pid_t child = in_child([&] {
    const auto owner = claim(folder_, far_away());
    ::raise(SIGKILL);
    return 0;
  });
  status_of(child);
  ASSERT_TRUE(is_owned());
  const auto start = std::chrono::steady_clock::now();
  FolderClaim watching(folder_, training());
  std::string waited;
  while (!watching.look()) {
    if (waited.empty()) waited = watching.waits_for();
    std::this_thread::sleep_for(5ms);
  }
  const auto owner = watching.result();
  ASSERT_TRUE(owner) << message_of(owner);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 100ms);  // two heartbeats are watched in any case
  EXPECT_NE(waited.find("sailor-train of anna on gpu07"), std::string::npos) << waited;
}

TEST_F(CheckpointOwner, WithAClockAheadIsWatchedForTheWholeTime) {
  status_of(in_child([&] {
    const auto owner = claim(folder_, far_away());
    ::raise(SIGKILL);
    return 0;
  }));
  fs::last_write_time(folder_ / owner_name, fs::file_time_type::clock::now() + 1h);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(claim(folder_, training()));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 400ms);
}

TEST_F(CheckpointOwner, ThatIsKnownToBeDeadIsReplacedAtOnce) {
  status_of(in_child([&] {
    OwnerFacts facts = training();
    facts.free_after = 10min;
    const auto owner = claim(folder_, facts);
    ::raise(SIGKILL);
    return 0;
  }));
  ASSERT_TRUE(is_owned());
  const auto owner = claim(folder_, training());
  ASSERT_TRUE(owner) << message_of(owner);
}

TEST_F(CheckpointOwner, OfAnEarlierStartOfTheSameJobIsReplacedAtOnceAndFindsOut) {
  OwnerFacts facts = far_away("alps/1234", 0);
  facts.free_after = 10min;
  const auto first = claim(folder_, facts);
  ASSERT_TRUE(first);
  facts.restart = 1;
  auto second = claim(folder_, facts);
  ASSERT_TRUE(second) << message_of(second);
  const auto confirmed = (*first)->confirm();
  ASSERT_FALSE(confirmed);
  EXPECT_EQ(confirmed.error().what,
            fmt::format("another training has taken over the folder '{}': sailor-train of anna on gpu07 (process {}, "
                        "job alps/1234, requeued 1 time)",
                        folder_.string(), ::getpid()));
  EXPECT_TRUE((*first)->is_lost());
  EXPECT_TRUE((*second)->confirm());
  EXPECT_TRUE((*second)->has_inherited((*first)->token()));
  EXPECT_FALSE((*first)->has_inherited((*second)->token()));
  // Neither an earlier start nor another job takes over from it.
  facts.restart = 0;
  EXPECT_FALSE(claim(folder_, facts));
  facts.restart = 2;
  facts.job = "daint/1234";
  EXPECT_FALSE(claim(folder_, facts));
  second->reset();
  EXPECT_FALSE(is_owned());
}

TEST_F(CheckpointOwner, FindsOutByItsHeartbeatToo) {
  const auto first = claim(folder_, training("1", 0));
  ASSERT_TRUE(first);
  const auto second = claim(folder_, training("1", 1));
  ASSERT_TRUE(second);
  for (int i = 0; i < 400 && !(*first)->is_lost(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE((*first)->is_lost());
  EXPECT_FALSE((*second)->is_lost());
}

TEST_F(CheckpointOwner, MakesItsFileAgainWhenSomebodyRemovedIt) {
  const auto first = claim(folder_, far_away());
  ASSERT_TRUE(first);
  fs::remove(folder_ / owner_name);
  EXPECT_TRUE((*first)->confirm());
  EXPECT_TRUE(is_owned());
  // Unless another training is faster.
  std::unique_ptr<FolderOwner> second;
  for (int i = 0; i < 100 && second == nullptr; ++i) {
    fs::remove(folder_ / owner_name);
    auto claimed = claim(folder_, far_away());
    if (claimed) second = *std::move(claimed);
  }
  ASSERT_NE(second, nullptr);
  EXPECT_FALSE((*first)->confirm());
  EXPECT_TRUE(second->confirm());
}

TEST_F(CheckpointOwner, OfADamagedFileIsGivenUpAfterItsSilence) {
  fs::create_directories(folder_);
  for (const char* text : {"", "{", "[1, 2]", "{\"format\": \"sailor checkpoint owner\", \"token\": 7}", "\xff\xfe"}) {
    std::ofstream(folder_ / owner_name) << text;
    fs::last_write_time(folder_ / owner_name, fs::file_time_type::clock::now() - 1h);
    FolderClaim watching(folder_, training());
    EXPECT_FALSE(watching.look()) << text << ": " << message_of(watching.result());
    EXPECT_NE(watching.waits_for().find("a training, which was the last to write"), std::string::npos)
        << watching.waits_for();
    fs::remove(folder_ / owner_name);
  }
  fs::create_directory(folder_ / owner_name);
  EXPECT_NE(message_of(claim(folder_, training())).find("owner.json"), std::string::npos);
}

TEST_F(CheckpointOwner, IsOneOfManyThatClaimAtOnce) {
  for (const bool dead_before : {false, true}) {
    fs::remove_all(folder_);
    if (dead_before)
      status_of(in_child([&] {
        const auto owner = claim(folder_, training());
        ::raise(SIGKILL);
        return 0;
      }));
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i)
      children.push_back(in_child([&] {
        ::close(ends[1]);
        const auto owner = claim(folder_, training());
        char c = 0;
        while (::read(ends[0], &c, 1) > 0) {  // until all have tried
        }
        return owner && (*owner)->confirm() ? 1 : 0;
      }));
    ::close(ends[0]);
    std::this_thread::sleep_for(1500ms);
    ::close(ends[1]);
    int owners = 0;
    for (const pid_t child : children) owners += status_of(child);
    EXPECT_EQ(owners, 1);
  }
}

TEST_F(CheckpointOwner, FolderThatCannotBeWrittenIsSaid) {
  std::ofstream(top_ / "file") << "x";
  EXPECT_NE(message_of(claim(top_ / "file", training())).find("'" + (top_ / "file").string() + "'"), std::string::npos);
}

TEST(CheckpointOwnerFile, IsReadAsItWasWritten) {
  OwnerFacts facts = facts_of_this_process(
      "gpu\x1b"
      "07");
  facts.token = random_digits(32);
  facts.job = "alps/7";
  facts.restart = 3;
  facts.predecessors = {"a", "b"};
  const auto read = parse_owner(owner_text(facts));
  ASSERT_TRUE(read);
  EXPECT_EQ(owner_text(*read), owner_text(facts));
  EXPECT_NE(facts.process_start, 0);
  EXPECT_FALSE(facts.boot.empty());
  EXPECT_FALSE(facts.process_namespace.empty());
}

}  // namespace
}  // namespace sailor::runtime::test::checkpoint_owner_test
