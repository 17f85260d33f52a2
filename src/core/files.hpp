// Files read whole, and written so that a reader never sees half of one.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace sailor {

/// Errors: not_found, io (not a regular file, over `limit` bytes, unreadable); each names the path.
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t limit = std::size_t{64} << 20);

/// Whether write_file_atomically could write to `path`, as far as one can tell before: for programs that work for long
/// before they write. Errors: io.
Result<void> check_can_write(const std::filesystem::path& path);

/// Writes to a temporary neighbour, fsyncs, renames into place and fsyncs the folder: whoever opens
/// `path` finds the old content or the new one, also after SIGKILL at any moment. Missing folders are
/// not created; devices and pipes are refused, links are followed. SIGINT, SIGTERM and SIGHUP, where nobody else
/// catches them, remove the temporary file before they end the process.
Result<void> write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// The same for libraries that want a path to write to: `writer` fills the temporary file it is given.
/// A failed writer leaves `path` as it was. Temporary names are `.<name>.<host>.<pid>.tmp`.
Result<void> write_file_atomically(const std::filesystem::path& path,
                                   const std::function<Result<void>(const std::filesystem::path&)>& writer);

/// The same where there is no file yet; false, and nothing changed, when there is one, also one that another process
/// makes at the same moment.
Result<bool> create_file_atomically(const std::filesystem::path& path, std::string_view content);
Result<bool> create_file_atomically(const std::filesystem::path& path,
                                    const std::function<Result<void>(const std::filesystem::path&)>& writer);

/// A 64-bit FNV-1a hash of the content as 16 hexadecimal digits: recognises a changed file, nothing more.
std::string content_hash(std::string_view content);

}  // namespace sailor
