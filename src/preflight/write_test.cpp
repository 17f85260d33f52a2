#include "preflight/write_test.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkostemp is POSIX
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/stopwatch.hpp"
#include "core/terminal.hpp"

namespace sailor::preflight {

namespace {

namespace fs = std::filesystem;

tl::unexpected<Error> problem(const fs::path& folder, const char* what, int code) {
  return fail(ErrorCode::io, fmt::format("cannot {} '{}': {}", what, folder.string(), std::strerror(code)));
}

/// A file that disappears when it is closed.
class NamelessFile {
 public:
  NamelessFile(const fs::path& folder, bool with_name) {
#ifdef O_TMPFILE
    if (!with_name) file_ = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (file_ >= 0) return;
#endif
    std::string name = folder / ".sailor-check.XXXXXX";
    file_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0)
      error_ = errno;
    else
      ::unlink(name.c_str());
  }
  ~NamelessFile() {
    if (file_ >= 0) ::close(file_);
  }
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  [[nodiscard]] int error() const { return error_; }
  /// 0, or errno.
  int write(const char* data, std::size_t size) const {
    while (size > 0) {
      const ssize_t written = ::write(file_, data, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return errno;
      data += written;
      size -= static_cast<std::size_t>(written);
    }
    return 0;
  }
  [[nodiscard]] int sync() const { return ::fsync(file_) == 0 ? 0 : errno; }

 private:
  int file_ = -1;
  int error_ = 0;
};

/// Bytes without a pattern (xorshift).
std::vector<char> noise(std::size_t size) {
  std::vector<char> bytes(size);
  std::uint64_t state = 0x9E3779B97F4A7C15U;
  for (char& byte : bytes) {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    byte = static_cast<char>(state >> 32U);
  }
  return bytes;
}

}  // namespace

Result<Seconds> write_and_sync(const fs::path& folder, Bytes amount, bool with_name) {
  constexpr std::size_t block = std::size_t{4} << 20U;
  std::error_code code;
  const fs::space_info space = fs::space(folder, code);
  if (code) return problem(folder, "write to", code.value());
  if (const Bytes free(static_cast<double>(space.available)); free < amount * 2.0)
    return fail(ErrorCode::io, fmt::format("only {} are free in '{}', too little for a test with {}",
                                           format_bytes(free), folder.string(), format_bytes(amount)));
  const NamelessFile file(folder, with_name);
  if (file.error() != 0) return problem(folder, "write to", file.error());
  auto left = static_cast<std::size_t>(amount.value());
  const std::vector<char> bytes = noise(std::min(left, block));
  const auto start = std::chrono::steady_clock::now();
  while (left > 0) {
    const std::size_t now = std::min(left, bytes.size());
    if (const int error = file.write(bytes.data(), now); error != 0) return problem(folder, "write to", error);
    left -= now;
  }
  if (const int error = file.sync(); error != 0) return problem(folder, "store what is written to", error);
  return Seconds(seconds_since(start));
}

Seconds longest_writing(Bytes amount) {
  constexpr Seconds start(60.0);
  constexpr BytesPerSecond slowest(20e6);
  return start + amount / slowest;
}

}  // namespace sailor::preflight
