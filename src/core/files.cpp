#include "core/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <system_error>

namespace sailor {

namespace fs = std::filesystem;

namespace {

std::string system_message(int number) { return std::generic_category().message(number); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

Result<void> sync_path(const fs::path& path, int flags) {
  const FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC));
  if (file.get() < 0)
    return fail(ErrorCode::io, fmt::format("cannot open '{}': {}", path.string(), system_message(errno)));
  // Some network file systems refuse fsync of a folder with EINVAL; the rename is then as safe as they make it.
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != EROFS)
    return fail(ErrorCode::io, fmt::format("cannot flush '{}' to disk: {}", path.string(), system_message(errno)));
  return {};
}

}  // namespace

Result<std::string> read_text_file(const fs::path& path, std::size_t limit) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (!fs::exists(status)) return fail(ErrorCode::not_found, fmt::format("file '{}' does not exist", path.string()));
  if (!fs::is_regular_file(status))
    return fail(ErrorCode::io, fmt::format("'{}' is not a regular file", path.string()));
  const std::uintmax_t size = fs::file_size(path, code);
  if (!code && size > limit)
    return fail(ErrorCode::io, fmt::format("file '{}' has {} bytes; the limit is {}", path.string(), size, limit),
                "is it the right file?");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", path.string(), system_message(errno)));
  std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (stream.bad()) return fail(ErrorCode::io, fmt::format("reading '{}' failed", path.string()));
  return content;
}

Result<void> write_file_atomically(const fs::path& path, const std::function<Result<void>(const fs::path&)>& writer) {
  if (path.filename().empty())
    return fail(ErrorCode::io, fmt::format("cannot write '{}': it names no file", path.string()));
  std::error_code code;
  if (fs::is_directory(path, code))
    return fail(ErrorCode::io, fmt::format("cannot write '{}': it is a directory", path.string()));
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, code))
    return fail(ErrorCode::io,
                fmt::format("cannot write '{}': there is no folder '{}'", path.string(), folder.string()),
                "create the folder first");
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const fs::path temporary = folder / fmt::format(".{}.{}.{}.tmp", path.filename().string(), host.data(), ::getpid());
  auto clean_up = [&](Error error) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    return fail(std::move(error));
  };
  if (auto written = writer(temporary); !written) return clean_up(written.error());
  if (auto synced = sync_path(temporary, O_RDONLY); !synced) return clean_up(synced.error());
  fs::rename(temporary, path, code);
  if (code)
    return clean_up(
        Error{ErrorCode::io, fmt::format("cannot rename into '{}': {}", path.string(), code.message()), {}});
  return sync_path(folder, O_RDONLY | O_DIRECTORY);
}

Result<void> write_file_atomically(const fs::path& path, std::string_view content) {
  return write_file_atomically(path, [&](const fs::path& temporary) -> Result<void> {
    const FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (file.get() < 0)
      return fail(ErrorCode::io, fmt::format("cannot write '{}': {}", path.string(), system_message(errno)));
    std::size_t done = 0;
    while (done < content.size()) {
      const ssize_t count = ::write(file.get(), content.data() + done, content.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0)
        return fail(ErrorCode::io, fmt::format("cannot write '{}': {}", path.string(), system_message(errno)));
      done += static_cast<std::size_t>(count);
    }
    return {};
  });
}

std::string content_hash(std::string_view content) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : content) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return fmt::format("{:016x}", hash);
}

}  // namespace sailor
