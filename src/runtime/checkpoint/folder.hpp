// Files of checkpoints: descriptors with errors as values, and the folders of a folder of checkpoints.
//
// Checkpoints of a folder have an order that all look at alike: by sequence, then by name. Who has written a
// checkpoint, and finds it complete, may remove older ones, and nobody removes the newest. So there is a complete one
// at every moment, also when two trainings write to one folder at once (owner.hpp says when they do).
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

/// An open file. Errors name the path and what the system said.
class File {
 public:
  static Result<File> open(const std::filesystem::path& path);
  /// A new file, under a name that nothing has yet.
  static Result<File> create(const std::filesystem::path& path);
  /// A file that is there, emptied: what write_file_atomically() gives.
  static Result<File> rewrite(const std::filesystem::path& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] Result<std::int64_t> size() const;
  Result<void> read(std::int64_t offset, void* data, std::size_t bytes) const;
  Result<void> append(const void* data, std::size_t bytes);
  /// To the disk, and closes.
  Result<void> finish();
  /// What this machine keeps of it in memory is forgotten, as far as that is possible: what is read then is stored.
  void forget_cached() const;

 private:
  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view doing, int number) const;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

Result<void> sync_folder(const std::filesystem::path& folder);

/// What the clock of a folder's file server says: when a file is made there now. Nanoseconds. Errors: io.
Result<std::int64_t> server_time(const std::filesystem::path& folder);

/// "iteration-00000100", or "iteration-00000100.2".
std::string checkpoint_folder_name(std::int64_t iteration, int attempt);
bool is_checkpoint_folder_name(std::string_view name);
/// "rank-00003.bin"
std::string shard_name(int rank);

/// Whether the files of a manifest are there in the right size.
Result<void> check_files(const std::filesystem::path& checkpoint, const Manifest& manifest);
/// The manifest of a folder whose files are there in the right size. Errors as parse_manifest(), and not_found.
Result<Manifest> read_manifest(const std::filesystem::path& checkpoint);

/// Removes a checkpoint, or what was to be one: first it goes out of sight, in one step, then its files go. Of a folder
/// that holds files that no checkpoint has, these stay, and are an error.
Result<void> remove_checkpoint(const std::filesystem::path& checkpoint);
/// Removes what is left of interrupted checkpoints, which are folders without a manifest: at once those whose writer's
/// token `is_own`, others only if they are the user's own and nothing in them has changed for a day.
Result<void> remove_interrupted(const std::filesystem::path& folder,
                                const std::function<bool(std::string_view token)>& is_own);
/// Makes a folder where it is missing, so that it stays.
Result<void> make_folder(const std::filesystem::path& folder);
/// Makes `folder` and a new folder in it for a checkpoint, which says whose it is until it is complete. Errors: io.
Result<std::filesystem::path> make_checkpoint_folder(const std::filesystem::path& folder, std::int64_t iteration,
                                                     const std::string& token);
/// Says no more whose it is: it is complete, or never will be.
void forget_writer(const std::filesystem::path& checkpoint);
/// Larger than that of any checkpoint in the folder.
Result<std::int64_t> next_sequence(const std::filesystem::path& folder);
/// Of `newest`, which must be complete, and the checkpoints that are older, the newest `keep` stay; 0: all. Nothing
/// that is newer is touched. `may_remove` is asked before each one goes.
Result<void> remove_old_checkpoints(const std::filesystem::path& folder, const std::filesystem::path& newest, int keep,
                                    const std::function<Result<void>()>& may_remove);

}  // namespace sailor::runtime
