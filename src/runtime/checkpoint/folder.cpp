#include "runtime/checkpoint/folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <optional>
#include <system_error>

#include "core/descriptor.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view folder_prefix = "iteration-";
constexpr std::size_t iteration_digits = 8;
constexpr std::size_t largest_manifest = std::size_t{1} << 28;
// File in an incomplete checkpoint with the token of the training that writes it.
constexpr const char* writer_name = "writer";
// Prefix of the names of checkpoints that are being removed.
constexpr std::string_view removed_prefix = ".removed-";

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Whether a writer makes this file in a checkpoint's folder; temporary files of killed writers are included.
bool is_own_file(const std::string& name) {
  if (name == manifest_name || name == plan_name || name == writer_name) return true;
  if (name.starts_with(std::string(".") + manifest_name + ".")) return true;
  return name.starts_with("rank-") && name.ends_with(".bin") &&
         all_digits(std::string_view(name).substr(5, name.size() - 9));
}

bool has_manifest(const fs::path& checkpoint) {
  std::error_code code;
  return fs::exists(fs::symlink_status(checkpoint / manifest_name, code));
}

/// Folders in `folder` that are named like checkpoints.
Result<std::vector<fs::path>> checkpoint_folders(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code code;
  const fs::file_status status = fs::status(folder, code);
  if (status.type() == fs::file_type::not_found) return found;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    std::error_code ignored;
    if (is_checkpoint_folder_name(entry->path().filename().native()) &&
        fs::is_directory(entry->symlink_status(ignored)))
      found.push_back(entry->path());
  }
  if (code)
    return fail(ErrorCode::io, fmt::format("cannot look for checkpoints in '{}': {}", folder.string(), code.message()));
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Result<File> File::open(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
  File file(path, descriptor);
  if (descriptor < 0) {
    const int number = errno;
    Error error = file.refuse("read", number).value();
    if (number == ENOENT) error.code = ErrorCode::not_found;
    return fail(std::move(error));
  }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return file.refuse("read", errno);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::io, fmt::format("cannot read '{}': it is not a regular file", path.string()));
  return file;
}

Result<File> File::create(const fs::path& path) {
  File file(path, ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (file.descriptor_ < 0) return file.refuse("write", errno);
  return file;
}

Result<File> File::rewrite(const fs::path& path) {
  File file(path, ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (file.descriptor_ < 0) return file.refuse("write", errno);
  return file;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

tl::unexpected<Error> File::refuse(std::string_view doing, int number) const {
  return fail(ErrorCode::io, fmt::format("cannot {} '{}': {}", doing, path_.string(), system_message(number)));
}

Result<std::int64_t> File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return refuse("read", errno);
  return status.st_size;
}

Result<void> File::read(std::int64_t offset, void* data, std::size_t bytes) const {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor_, at, bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return refuse("read", errno);
    if (count == 0)
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}' is truncated: it ends at byte {}", path_.string(), offset));
    at += count;
    offset += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return {};
}

Result<void> File::append(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(descriptor_, at, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return refuse("write", count < 0 ? errno : ENOSPC);
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return {};
}

Result<void> File::finish() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS) return refuse("flush to disk", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) return refuse("write", errno);  // network file systems report here
  return {};
}

void File::forget_cached() const { static_cast<void>(::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED)); }

Result<void> sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Some network file systems refuse fsync of a folder with EINVAL; names are then as safe as they make them.
  const bool done = descriptor >= 0 && (::fsync(descriptor) == 0 || errno == EINVAL || errno == EROFS);
  const int number = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (done) return {};
  return fail(ErrorCode::io, fmt::format("cannot flush '{}' to disk: {}", folder.string(), system_message(number)));
}

std::int64_t nanoseconds_of(const timespec& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

Result<std::int64_t> server_time(const fs::path& folder) {
  const fs::path probe = folder / fmt::format(".clock.{}.tmp", random_digits(16));
  const Descriptor file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  struct stat status {};
  const bool known = file.open() && ::fstat(file.get(), &status) == 0;
  const int number = errno;
  if (file.open()) ::unlink(probe.c_str());
  if (known) return nanoseconds_of(status.st_mtim);
  return fail(ErrorCode::io,
              fmt::format("cannot write into the folder '{}': {}", folder.string(), system_message(number)),
              "name another folder for the checkpoints, or make room in it");
}

std::string checkpoint_folder_name(std::int64_t iteration, int attempt) {
  const std::string name = fmt::format("{}{:0{}}", folder_prefix, iteration, iteration_digits);
  return attempt == 1 ? name : fmt::format("{}.{}", name, attempt);
}

bool is_checkpoint_folder_name(std::string_view name) {
  if (!name.starts_with(folder_prefix)) return false;
  name.remove_prefix(folder_prefix.size());
  const std::string_view iteration = name.substr(0, name.find('.'));
  return iteration.size() >= iteration_digits && all_digits(iteration) &&
         (iteration.size() == name.size() || all_digits(name.substr(iteration.size() + 1)));
}

std::string shard_name(int rank) { return fmt::format("rank-{:05}.bin", rank); }

Result<Manifest> read_manifest(const fs::path& checkpoint) {
  std::error_code code;
  if (!has_manifest(checkpoint)) {
    if (!fs::exists(checkpoint, code))
      return fail(ErrorCode::not_found, fmt::format("there is no checkpoint '{}'", checkpoint.string()));
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' is no checkpoint: it has no {}", checkpoint.string(), manifest_name),
                "its writing was interrupted, or it is another folder; sailor-checkpoint list shows what is there");
  }
  const fs::path path = checkpoint / manifest_name;
  const auto text = read_text_file(path, largest_manifest);
  if (!text) return fail(text.error());
  auto manifest = parse_manifest(*text, path.string());
  if (!manifest) return manifest;
  SAILOR_CHECK(check_files(checkpoint, *manifest));
  return manifest;
}

Result<void> check_files(const fs::path& checkpoint, const Manifest& manifest) {
  for (const StoredFile& stored : manifest.files) {
    const auto file = File::open(checkpoint / stored.name);
    if (!file) return fail(file.error(), fmt::format("checkpoint '{}' is incomplete", checkpoint.string()));
    const auto size = file->size();
    if (!size) return fail(size.error());
    if (*size != stored.bytes)
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}' is {}: it has {} bytes instead of {}", file->path().string(),
                              *size < stored.bytes ? "truncated" : "damaged", *size, stored.bytes));
  }
  return {};
}

namespace {

tl::unexpected<Error> cannot_remove(const fs::path& path, const std::error_code& code) {
  return fail(ErrorCode::io, fmt::format("cannot remove '{}': {}", path.string(), code.message()));
}

struct Contents {
  std::vector<fs::path> own;
  bool has_others = false;
  std::int64_t changed = 0;  // time of the last change in the folder, seconds
};

Result<Contents> contents_of(const fs::path& checkpoint) {
  Contents contents;
  struct stat status {};
  if (::lstat(checkpoint.c_str(), &status) == 0) contents.changed = status.st_mtime;
  std::error_code code;
  for (fs::directory_iterator entry(checkpoint, code), end; !code && entry != end; entry.increment(code)) {
    if (::lstat(entry->path().c_str(), &status) == 0)
      contents.changed = std::max<std::int64_t>(contents.changed, status.st_mtime);
    if (is_own_file(entry->path().filename().native()))
      contents.own.push_back(entry->path());
    else
      contents.has_others = true;
  }
  if (code && code != std::errc::no_such_file_or_directory) return cannot_remove(checkpoint, code);
  return contents;
}

/// Removes the files that a writer makes, the manifest first, then the folder.
Result<void> remove_files(const fs::path& checkpoint) {
  auto contents = contents_of(checkpoint);
  if (!contents) return fail(contents.error());
  std::error_code code;
  std::stable_partition(contents->own.begin(), contents->own.end(),
                        [](const fs::path& path) { return path.filename() == manifest_name; });
  for (const fs::path& path : contents->own) {
    fs::remove(path, code);
    if (code) return cannot_remove(path, code);
  }
  fs::remove(checkpoint, code);
  if (code) return cannot_remove(checkpoint, code);
  return {};
}

/// Renames a checkpoint out of sight in one step: others see all of it or nothing. Returns its new name; empty if it is
/// gone already.
Result<fs::path> put_aside(const fs::path& checkpoint) {
  const fs::path aside = checkpoint.parent_path() / fmt::format("{}{}", removed_prefix, random_digits(16));
  if (::rename(checkpoint.c_str(), aside.c_str()) == 0) return aside;
  if (errno == ENOENT) return fs::path();
  return cannot_remove(checkpoint, std::error_code(errno, std::generic_category()));
}

bool is_removed_name(std::string_view name) {
  return name.starts_with(removed_prefix) && name.size() == removed_prefix.size() + 16;
}

}  // namespace

Result<void> remove_checkpoint(const fs::path& checkpoint) {
  const auto contents = contents_of(checkpoint);
  if (!contents) return fail(contents.error());
  if (contents->has_others) return remove_files(checkpoint);  // what stays must keep its name
  const auto aside = put_aside(checkpoint);
  if (!aside) return fail(aside.error());
  return aside->empty() ? Result<void>() : remove_files(*aside);
}

Result<void> remove_interrupted(const fs::path& folder, const std::function<bool(std::string_view token)>& is_own) {
  constexpr std::int64_t day = std::int64_t{24} * 60 * 60;
  std::vector<fs::path> found;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if ((is_checkpoint_folder_name(name) || is_removed_name(name)) && fs::is_directory(entry->symlink_status(ignored)))
      found.push_back(entry->path());
  }
  Result<void> done;
  std::optional<std::int64_t> now;  // by the file server's clock; read when first needed
  for (const fs::path& path : found) {
    const bool is_removed = is_removed_name(path.filename().native());
    if (!is_removed && has_manifest(path)) continue;
    const auto token = read_text_file(path / writer_name, 4096);
    if (!token || !is_own(std::string_view(*token).substr(0, token->find('\n')))) {
      struct stat status {};
      const auto contents = contents_of(path);
      if (!contents || ::lstat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid()) continue;
      if (!now) {
        const auto time = server_time(folder);
        if (!time) return fail(time.error());
        now = *time / 1'000'000'000;
      }
      if (*now - contents->changed <= day) continue;
    }
    if (is_removed) {
      if (auto removed = remove_files(path); !removed) done = std::move(removed);
      continue;
    }
    const auto contents = contents_of(path);
    if (contents && contents->has_others) {
      if (auto removed = remove_files(path); !removed) done = std::move(removed);
      continue;
    }
    const auto aside = put_aside(path);
    if (!aside) {
      done = fail(aside.error());
      continue;
    }
    if (aside->empty()) continue;
    // It was completed in the meantime after all: restore its name.
    if (has_manifest(*aside) && ::rename(aside->c_str(), path.c_str()) == 0) continue;
    if (auto removed = remove_files(*aside); !removed) done = std::move(removed);
  }
  return done;
}

Result<void> make_folder(const fs::path& folder) {
  const auto made = create_folders(folder, "name another folder for the checkpoints, or make room in it");
  if (!made) return fail(made.error());
  std::error_code code;
  if (*made)
    if (const fs::path parent = fs::absolute(folder, code).parent_path(); !code) SAILOR_CHECK(sync_folder(parent));
  return {};
}

Result<fs::path> make_checkpoint_folder(const fs::path& folder, std::int64_t iteration, const std::string& token) {
  SAILOR_CHECK(make_folder(folder));
  for (int attempt = 1;; ++attempt) {
    fs::path path = folder / checkpoint_folder_name(iteration, attempt);
    if (::mkdir(path.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      return fail(ErrorCode::io, fmt::format("cannot make the folder '{}': {}", path.string(), system_message(errno)),
                  "make room for checkpoints, or name another folder");
    }
    if (token.empty()) return path;
    auto file = File::create(path / writer_name);
    if (!file) return fail(file.error());
    SAILOR_CHECK(file->append(token.data(), token.size()));
    SAILOR_CHECK(file->finish());
    return path;
  }
}

void forget_writer(const fs::path& checkpoint) { ::unlink((checkpoint / writer_name).c_str()); }

Result<std::int64_t> next_sequence(const fs::path& folder) {
  const auto entries = list_checkpoints(folder);
  if (!entries) return fail(entries.error());
  return entries->empty() ? 1 : entries->front().sequence + 1;  // entries that are not valid have 0
}

Result<void> remove_old_checkpoints(const fs::path& folder, const fs::path& newest, int keep,
                                    const std::function<Result<void>()>& may_remove) {
  if (keep <= 0) return {};
  const auto entries = list_checkpoints(folder);
  if (!entries) return fail(entries.error());
  const auto mine = std::find_if(entries->begin(), entries->end(), [&](const CheckpointEntry& entry) {
    return entry.path.filename() == newest.filename();
  });
  if (mine == entries->end() || !mine->is_valid())
    return fail(ErrorCode::failure,
                fmt::format("checkpoint '{}' is no longer complete: no older one was removed", newest.string()),
                mine == entries->end() ? "does another training write there?" : mine->problem);
  int kept = 1;  // `newest`
  Result<void> done;
  for (auto entry = mine + 1; entry != entries->end(); ++entry) {  // from the next older one on
    if (!entry->is_valid() || kept++ < keep) continue;
    SAILOR_CHECK(may_remove());
    if (auto removed = remove_checkpoint(entry->path); !removed) done = std::move(removed);
  }
  return done;
}

namespace {

/// Sorted entries of those folders that still exist.
std::vector<CheckpointEntry> entries_of(const std::vector<fs::path>& folders) {
  std::vector<CheckpointEntry> entries;
  for (const fs::path& path : folders) {
    CheckpointEntry entry{.path = path};
    std::error_code code;
    if (const auto manifest = read_manifest(path); !manifest) {
      if (!fs::exists(path, code)) continue;
      entry.problem = manifest.error().what;
      entry.has_manifest = has_manifest(path);
    } else {
      entry.has_manifest = true;
      entry.iteration = manifest->iteration;
      entry.sequence = manifest->sequence;
      entry.model = manifest->model;
      entry.source = manifest->source;
      entry.bytes = Bytes(static_cast<double>(manifest->bytes()));
    }
    entries.push_back(std::move(entry));
  }
  // If concurrent trainings have used the same sequence, by name: the order must only be the same for every process.
  std::stable_sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return std::pair(a.is_valid(), a.sequence) > std::pair(b.is_valid(), b.sequence);
  });
  return entries;
}

}  // namespace

Result<std::vector<CheckpointEntry>> list_checkpoints(const fs::path& folder) {
  auto folders = checkpoint_folders(folder);
  while (true) {
    if (!folders) return fail(folders.error());
    std::vector<CheckpointEntry> entries = entries_of(*folders);
    if (!entries.empty() && entries.front().is_valid()) return entries;
    // After the names were read, a newer checkpoint may have been added and an older one removed.
    auto again = checkpoint_folders(folder);
    if (again && *again == *folders) return entries;
    folders = std::move(again);
  }
}

const CheckpointEntry* newest_valid(const std::vector<CheckpointEntry>& entries) {
  return entries.empty() || !entries.front().is_valid() ? nullptr : &entries.front();
}

void warn_of_damaged(const std::vector<CheckpointEntry>& entries) {
  for (const CheckpointEntry& entry : entries)
    if (entry.is_damaged()) log_warning("'{}' is damaged and left aside: {}", entry.path.string(), entry.problem);
}

Result<std::optional<CheckpointEntry>> find_latest(const fs::path& folder) {
  const auto entries = list_checkpoints(folder);
  if (!entries) return fail(entries.error());
  const CheckpointEntry* const newest = newest_valid(*entries);
  return newest == nullptr ? std::nullopt : std::optional(*newest);
}

Result<fs::path> resolve_checkpoint(const fs::path& path) {
  if (has_manifest(path) || is_checkpoint_folder_name(path.filename().native())) return path;
  std::error_code code;
  if (!fs::is_directory(path, code))
    return fail(ErrorCode::not_found, fmt::format("there is no checkpoint '{}'", path.string()),
                "name the folder of a checkpoint (it has a manifest.json), or a folder of checkpoints");
  const auto entries = list_checkpoints(path);
  if (!entries) return fail(entries.error());
  const CheckpointEntry* const newest = newest_valid(*entries);
  if (newest == nullptr)
    return fail(ErrorCode::not_found, fmt::format("'{}' has no valid checkpoint", path.string()),
                "sailor-checkpoint list shows what is there");
  warn_of_damaged(*entries);
  return newest->path;
}

}  // namespace sailor::runtime
