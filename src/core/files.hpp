// Reads whole files, and writes them so that a reader never sees half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/descriptor.hpp"
#include "core/error.hpp"

namespace sailor {

/// Opens a file for reading, and never waits for a writer or a device. Errors: not_found, io (no regular file,
/// unreadable, one of /proc, some of which are regular files by name but answer only when the kernel has something to
/// tell); each names the path.
Result<Descriptor> open_to_read(const std::filesystem::path& path);

/// Errors: those of open_to_read(); io (over `limit` bytes).
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t limit = std::size_t{64} << 20);
/// The same for files of /proc that are known to have an end.
Result<std::string> read_kernel_file(const std::filesystem::path& path, std::size_t limit);

/// Writes all of `content` to an open file. Errors: io; they name `path`.
Result<void> write_content(int file, const std::filesystem::path& path, std::string_view content);

/// Whether write_file_atomically could write to `path`, as far as can be told in advance: for programs that work for
/// long before they write. Errors: io.
Result<void> check_can_write(const std::filesystem::path& path);

/// Creates a folder with all that lead to it; returns whether it was not there before. Errors: io, with `hint`.
Result<bool> create_folders(const std::filesystem::path& folder, const std::string& hint = "write somewhere else");

/// Writes to a temporary neighbour, fsyncs, renames into place and fsyncs the folder: whoever opens
/// `path` finds the old content or the new one, also after SIGKILL at any moment. Missing folders are
/// not created; devices and pipes are refused, links are followed. SIGINT, SIGTERM and SIGHUP, where nobody else
/// catches them, remove the temporary file before they end the process.
///
/// Temporary names are `.<name>.<16 random hexadecimal digits>.tmp`; no existing file under such a name is opened or
/// followed. The writer holds a lock on it (flock). Leftovers of killed writers are removed by the next writer of the
/// same file: is_left_over().
Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// The same for libraries that want a path to write to: `writer` opens and fills the file it is given (a link in
/// /proc/self/fd, so that nobody can put another file in its place). A failed writer leaves `path` as it was; if its
/// message names the file that it was given, the error names `path` instead.
Result<void> write_file_atomically(const std::filesystem::path& path,
                                   const std::function<Result<void>(const std::filesystem::path&)>& writer);

/// The same if there is no file yet; false, and nothing changed, if there is one, also one that another process creates
/// at the same moment.
Result<bool> create_file_atomically(const std::filesystem::path& path, std::string_view content);
Result<bool> create_file_atomically(const std::filesystem::path& path,
                                    const std::function<Result<void>(const std::filesystem::path&)>& writer);

/// Whether `name` is a temporary name of write_file_atomically().
bool is_temporary_name(std::string_view name);

/// Whether a file is the leftover of a killed writer: it has a temporary name, is the user's own, was last written more
/// than a day before `now` (seconds of the file system's clock), and nobody holds a lock on it. False if the file
/// system does not support locks.
bool is_left_over(const std::filesystem::path& temporary, std::int64_t now);

/// `count` random hexadecimal digits, from the kernel.
std::string random_digits(std::size_t count);

/// A 64-bit FNV-1a hash of the content as 16 hexadecimal digits: recognises a changed file, nothing more.
std::string content_hash(std::string_view content);

}  // namespace sailor
