// Who writes the checkpoints of a folder: one training at a time, on whatever nodes it runs.
//
// FOLDER/owner.json says who: host, process, job, and a random token. The file is made or replaced in one step and
// never changed; its owner touches it every few seconds, so that its time of change is a heartbeat by the file server's
// clock. Who wants the folder gets it when there is no owner; when the owner is known to be dead (a process of this
// machine that is no more) or is an earlier start of the same Slurm job; and when the heartbeat has been silent for
// `free_after`, by the server's clock and while one watched. No locks: on network file systems they are not to be
// relied on.
//
// A training that finds another token than its own has lost the folder, and writes, seals and removes nothing any more.
// Between its look and what it does then there is a moment; what can happen in it does no harm, since a training
// removes only checkpoints that are older than a complete one of its own (folder.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace sailor::runtime {

inline constexpr const char* owner_name = "owner.json";

/// A training that writes checkpoints, as its owner file tells of it.
struct OwnerFacts {
  std::string token;  ///< 32 hexadecimal digits; unique
  std::string program = "sailor-train";
  std::string host;
  std::string user;
  std::int64_t process = 0;
  // A number of a process means something in one namespace until the machine is started anew, and is used again.
  std::string boot;
  std::string process_namespace;
  std::int64_t process_start = 0;           ///< clock ticks after the start of the machine
  std::string job;                          ///< "cluster/1234"; empty outside of Slurm
  std::int64_t restart = 0;                 ///< how often the job was requeued before
  std::vector<std::string> predecessors{};  ///< tokens of those from whom the folder was taken, the last one first
  std::chrono::milliseconds beat_every{5000};
  std::chrono::milliseconds free_after{60000};

  /// "sailor-train of anna on gpu07 (process 4711, job alps/1234)"
  [[nodiscard]] std::string describe() const;
};

/// This process; `job`, `restart` and `user` are the caller's to fill in.
OwnerFacts facts_of_this_process(std::string host);

std::string owner_text(const OwnerFacts& facts);
/// Nothing when the text is no owner file.
std::optional<OwnerFacts> parse_owner(std::string_view text);

/// The right to write a folder's checkpoints. May be used by several threads.
class FolderOwner {
 public:
  /// Gives the folder up: the file goes, if it still is this owner's.
  ~FolderOwner();
  FolderOwner(const FolderOwner&) = delete;
  FolderOwner& operator=(const FolderOwner&) = delete;

  /// Looks whether the folder still is this owner's; makes the file again where somebody has removed it. Errors:
  /// unavailable (another training has it, and who; lost for good), io.
  Result<void> confirm();
  /// Whether the heartbeat or confirm() found another owner.
  [[nodiscard]] bool is_lost() const noexcept { return lost_; }
  [[nodiscard]] const std::string& token() const { return facts_.token; }
  /// Whether what has this token is this owner's, or of one from whom it took the folder.
  [[nodiscard]] bool has_inherited(std::string_view token) const;

 private:
  friend class FolderClaim;
  FolderOwner(std::filesystem::path folder, OwnerFacts facts);
  void beat_until_stopped();
  Result<void> look(bool touch);

  std::filesystem::path folder_;
  std::filesystem::path path_;
  OwnerFacts facts_;
  std::string text_;
  std::atomic<bool> lost_{false};
  std::mutex mutex_;  // of what follows
  std::condition_variable stop_;
  bool stopped_ = false;
  std::string taken_by_;
  std::thread heart_;
};

/// Claims a folder, which is made where it is missing. look() is to be called again and again, some times in a second,
/// until it returns true: it may have to watch an owner for a while.
class FolderClaim {
 public:
  FolderClaim(std::filesystem::path folder, OwnerFacts facts);

  /// True: it is decided.
  bool look();
  /// Whom it watches, and for how long; empty while it does not.
  [[nodiscard]] const std::string& waits_for() const { return waits_for_; }
  /// After look() has returned true. Errors: unavailable (another training has the folder, and who); io.
  Result<std::unique_ptr<FolderOwner>> result() { return std::move(result_); }

 private:
  using Clock = std::chrono::steady_clock;
  bool decide(Result<std::unique_ptr<FolderOwner>> result);
  bool make();
  bool take_over(const std::string& judged);
  bool settle();
  bool watch(const std::string& text, std::int64_t heartbeat, const OwnerFacts& owner);
  bool refuse(const OwnerFacts& owner, std::chrono::milliseconds silent);

  std::filesystem::path folder_;
  std::filesystem::path path_;
  OwnerFacts facts_;
  bool prepared_ = false;
  std::optional<Clock::time_point> took_over_;
  // The owner that is watched, by the text of its file.
  std::optional<std::string> watched_;
  std::int64_t heartbeat_ = 0;                 // when it was first seen; nanoseconds of the file server's clock
  std::chrono::milliseconds silent_before_{};  // by that clock, before the watch
  Clock::time_point since_{};
  std::string waits_for_;
  Result<std::unique_ptr<FolderOwner>> result_{nullptr};
};

}  // namespace sailor::runtime
