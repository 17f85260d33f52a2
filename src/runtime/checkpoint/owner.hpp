// Ownership of a folder of checkpoints: one training at a time writes to it, on any nodes.
//
// FOLDER/owner.json names the owner: host, process, job, and a random token. The file is created or replaced in one
// step and never modified; its owner touches it every few seconds, so that its modification time is a heartbeat by the
// file server's clock. Another training gets the folder when there is no owner; when the owner is known to be dead (a
// process of this machine that no longer exists) or is an earlier start of the same Slurm job; and when the heartbeat
// has been silent for `free_after` by the server's clock, and while it was watched. There are no locks: on network file
// systems they are not reliable.
//
// A training that finds a token other than its own has lost the folder, and no longer writes, seals or removes
// anything. What happens between this check and the action that follows it does no harm, since a training removes only
// checkpoints that are older than a complete one of its own (folder.hpp).
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

/// A training that writes checkpoints, as described by its owner file.
struct OwnerFacts {
  std::string token;  ///< 32 hexadecimal digits; unique
  std::string program = "sailor-train";
  std::string host;
  std::string user;
  std::int64_t process = 0;
  // A process id is valid only in one namespace and until the machine reboots, and is reused.
  std::string boot;
  std::string process_namespace;
  std::int64_t process_start = 0;           ///< clock ticks after the machine booted
  std::string job;                          ///< "cluster/1234"; empty outside of Slurm
  std::int64_t restart = 0;                 ///< number of times the job was requeued before
  std::vector<std::string> predecessors{};  ///< tokens of the previous owners of the folder, the latest first
  std::chrono::milliseconds beat_every{5000};
  std::chrono::milliseconds free_after{60000};

  /// "sailor-train of anna on gpu07 (process 4711, job alps/1234)"
  [[nodiscard]] std::string describe() const;
};

/// Facts of this process; the caller fills in `job`, `restart` and `user`.
OwnerFacts facts_of_this_process(std::string host);

std::string owner_text(const OwnerFacts& facts);
/// std::nullopt if the text is not an owner file.
std::optional<OwnerFacts> parse_owner(std::string_view text);

/// The right to write a folder's checkpoints. May be used by several threads.
class FolderOwner {
 public:
  /// Releases the folder: removes the file if it is still this owner's.
  ~FolderOwner();
  FolderOwner(const FolderOwner&) = delete;
  FolderOwner& operator=(const FolderOwner&) = delete;

  /// Checks that the folder is still this owner's; creates the file again if somebody has removed it. Errors:
  /// unavailable (another training has it, and who; lost for good), io.
  Result<void> confirm();
  /// Whether the heartbeat or confirm() found another owner.
  [[nodiscard]] bool is_lost() const noexcept { return lost_; }
  [[nodiscard]] const std::string& token() const { return facts_.token; }
  /// Whether `token` is this owner's, or that of a previous owner of the folder.
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
  std::mutex mutex_;  // guards the members below
  std::condition_variable stop_;
  bool stopped_ = false;
  std::string taken_by_;
  std::thread heart_;
};

/// Claims a folder, which is created if missing. look() is to be called repeatedly, several times a second, until it
/// returns true: it may have to watch an owner for a while.
class FolderClaim {
 public:
  FolderClaim(std::filesystem::path folder, OwnerFacts facts);

  /// Returns true when the claim is decided.
  bool look();
  /// The owner that is watched, and for how long; empty if none is.
  [[nodiscard]] const std::string& waits_for() const { return waits_for_; }
  /// The outcome, after look() has returned true. Errors: unavailable (another training has the folder, and who); io.
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
  // The watched owner, identified by the text of its file.
  std::optional<std::string> watched_;
  std::int64_t heartbeat_ = 0;                 // at the start of the watch; nanoseconds of the file server's clock
  std::chrono::milliseconds silent_before_{};  // before the watch, by that clock
  Clock::time_point since_{};
  std::string waits_for_;
  Result<std::unique_ptr<FolderOwner>> result_{nullptr};
};

}  // namespace sailor::runtime
