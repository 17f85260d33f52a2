// Files of checkpoints: descriptors with errors as values, and the folders of a folder of checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace sailor::runtime {

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

 private:
  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view doing, int number) const;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

Result<void> sync_folder(const std::filesystem::path& folder);

/// "iteration-00000100", or "iteration-00000100.2".
std::string checkpoint_folder_name(std::int64_t iteration, int attempt);
bool is_checkpoint_folder_name(std::string_view name);
/// "rank-00003.bin"
std::string shard_name(int rank);

/// The manifest of a folder whose files are there in the right size. Errors as parse_manifest(), and not_found.
Result<Manifest> read_manifest(const std::filesystem::path& checkpoint);

/// Removes a checkpoint, its manifest first, or what was to be one. Files that no checkpoint has stay, and are an
/// error.
Result<void> remove_checkpoint(const std::filesystem::path& checkpoint);
/// Removes the rests of interrupted checkpoints: folders without a manifest.
Result<void> remove_interrupted(const std::filesystem::path& folder);
/// Makes `folder` and a new folder in it for a checkpoint. Errors: io.
Result<std::filesystem::path> make_checkpoint_folder(const std::filesystem::path& folder, std::int64_t iteration);
/// Larger than that of any checkpoint in the folder.
Result<std::int64_t> next_sequence(const std::filesystem::path& folder);
/// Keeps the newest `keep`, among them `newest`.
Result<void> remove_old_checkpoints(const std::filesystem::path& folder, const std::filesystem::path& newest, int keep);

}  // namespace sailor::runtime
