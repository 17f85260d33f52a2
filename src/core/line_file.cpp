#include "core/line_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/files.hpp"

namespace sailor {

namespace {

tl::unexpected<Error> failed(const std::string& what, const std::string& path) {
  return fail(ErrorCode::io, fmt::format("cannot {} '{}': {}", what, path, std::strerror(errno)));
}

/// Position of the last line end before `size`; -1: there is none.
Result<off_t> last_line_end(int descriptor, off_t size, const std::string& path) {
  std::array<char, 4096> block{};
  while (size > 0) {
    const off_t first = std::max<off_t>(0, size - static_cast<off_t>(block.size()));
    const ssize_t count = pread(descriptor, block.data(), static_cast<std::size_t>(size - first), first);
    if (count <= 0) return failed("read", path);
    const std::size_t at = std::string_view(block.data(), static_cast<std::size_t>(count)).rfind('\n');
    if (at != std::string_view::npos) return first + static_cast<off_t>(at);
    size = first;
  }
  return -1;
}

}  // namespace

Result<LineFile> LineFile::open(const std::filesystem::path& path, const std::string& content) {
  const std::string name = path.string();
  struct stat status {};
  if (stat(name.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    return fail(ErrorCode::io, fmt::format("cannot write '{}': it is not a regular file", name), "name another file");
  LineFile file(name, Descriptor(::open(name.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666)));
  const int descriptor = file.file_.get();
  if (descriptor < 0) return failed("write", name);
  if (fstat(descriptor, &status) != 0) return failed("read", name);
  if (status.st_size == 0) return file;
  char first = 0;
  if (pread(descriptor, &first, 1, 0) != 1) return failed("read", name);
  if (first != '{')
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' is there and has no {}: it does not begin with {{", name, content),
                "name another file");
  const auto end = last_line_end(descriptor, status.st_size, name);
  if (!end) return fail(end.error());
  if (*end + 1 < status.st_size && ftruncate(descriptor, *end + 1) != 0) return failed("write", name);
  if (*end < 0) return file;
  const auto before = last_line_end(descriptor, *end, name);
  if (!before) return fail(before.error());
  file.last_line_.resize(static_cast<std::size_t>(*end - *before - 1));
  const ssize_t count = pread(descriptor, file.last_line_.data(), file.last_line_.size(), *before + 1);
  if (count != static_cast<ssize_t>(file.last_line_.size())) return failed("read", name);
  return file;
}

Result<void> LineFile::add(std::string_view line, bool durable) {
  SAILOR_CHECK(write_content(file_.get(), path_, std::string(line) + "\n"));
  if (durable && ::fdatasync(file_.get()) != 0 && errno != EINVAL) return failed("write", path_);
  return {};
}

}  // namespace sailor
