// Files of checkpoints: file descriptors with errors as values, and the folders that hold checkpoints.
//
// Checkpoints of a folder have one order, the same for every process: by sequence, then by name. A training that has
// written a checkpoint, and finds it complete, may remove older ones, and nobody removes the newest. So a complete
// checkpoint exists at every moment, even when two trainings write to one folder at once (owner.hpp says when they do).
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace sailor::runtime {

std::int64_t nanoseconds_of(const timespec& time);

/// An open file. Errors name the path and the system's message.
class File {
 public:
  static Result<File> open(const std::filesystem::path& path);
  /// Creates a file; the name must not exist yet.
  static Result<File> create(const std::filesystem::path& path);
  /// Opens and truncates an existing file, such as write_file_atomically() provides.
  static Result<File> rewrite(const std::filesystem::path& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] Result<std::int64_t> size() const;
  Result<void> read(std::int64_t offset, void* data, std::size_t bytes) const;
  Result<void> append(const void* data, std::size_t bytes);
  /// Flushes to disk, and closes.
  Result<void> finish();
  /// Drops the file from this machine's page cache as far as possible, so that later reads see what is stored.
  void forget_cached() const;

 private:
  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view doing, int number) const;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

Result<void> sync_folder(const std::filesystem::path& folder);

/// Current time of a folder's file server, in nanoseconds: the time of a file that is created there now. Errors: io.
Result<std::int64_t> server_time(const std::filesystem::path& folder);

/// "iteration-00000100", or "iteration-00000100.2".
std::string checkpoint_folder_name(std::int64_t iteration, int attempt);
bool is_checkpoint_folder_name(std::string_view name);
/// "rank-00003.bin"
std::string shard_name(int rank);

/// Checks that the files of a manifest exist in the right size.
Result<void> check_files(const std::filesystem::path& checkpoint, const Manifest& manifest);
/// The manifest of a folder whose files exist in the right size. Errors: those of parse_manifest(), and not_found.
Result<Manifest> read_manifest(const std::filesystem::path& checkpoint);

/// Removes a checkpoint, complete or not: it is renamed out of sight in one step, then its files are removed. Files
/// that do not belong to a checkpoint stay in its folder, and are an error.
Result<void> remove_checkpoint(const std::filesystem::path& checkpoint);
/// Removes the remains of interrupted checkpoints, which are folders without a manifest: at once if `is_own` is true of
/// their writer's token, else only if they belong to this user and nothing in them has changed for a day.
Result<void> remove_interrupted(const std::filesystem::path& folder,
                                const std::function<bool(std::string_view token)>& is_own);
/// Creates a folder if it is missing, and syncs its parent, so that it persists.
Result<void> make_folder(const std::filesystem::path& folder);
/// Creates `folder` and, in it, a new folder for a checkpoint, which names its writer until it is complete. Errors: io.
Result<std::filesystem::path> make_checkpoint_folder(const std::filesystem::path& folder, std::int64_t iteration,
                                                     const std::string& token);
/// Removes the name of the writer from a checkpoint that is complete, or never will be.
void forget_writer(const std::filesystem::path& checkpoint);
/// A sequence number larger than that of any checkpoint in the folder.
Result<std::int64_t> next_sequence(const std::filesystem::path& folder);
/// Keeps the newest `keep` (0: all) of `newest`, which must be complete, and the older checkpoints, and removes the
/// others. Newer checkpoints are not touched. `may_remove` is called before each removal.
Result<void> remove_old_checkpoints(const std::filesystem::path& folder, const std::filesystem::path& newest, int keep,
                                    const std::function<Result<void>()>& may_remove);

}  // namespace sailor::runtime
