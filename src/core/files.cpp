#include "core/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
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

/// The file that writing to `path` makes or replaces: links are followed, so that they stay.
Result<fs::path> target_of(const fs::path& path) {
  const auto refuse = [&](const std::string& why, std::string hint = {}) {
    return fail(ErrorCode::io, fmt::format("cannot write '{}': {}", path.string(), why), std::move(hint));
  };
  if (path.filename().empty()) return refuse("it names no file");
  std::error_code code;
  const fs::file_status status = fs::status(path, code);  // before links: those in /proc lead nowhere by name
  if (fs::is_directory(status)) return refuse("it is a directory");
  if (fs::exists(status) && !fs::is_regular_file(status))
    return refuse("it is a device, pipe or socket", "name a file");
  fs::path target = fs::absolute(path, code);
  if (code) return refuse(code.message());
  constexpr int most_links = 40;  // as Linux has it
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, code)); ++links) {
    if (links == most_links) return refuse(system_message(ELOOP));
    const fs::path next = fs::read_symlink(target, code);
    if (code) return refuse(code.message());
    target = target.parent_path() / next;
  }
  const fs::path folder = target.parent_path();
  if (!fs::is_directory(folder, code)) {
    const fs::path named = path.has_parent_path() ? path.parent_path() : folder;
    return refuse(fmt::format("there is no folder '{}'", named.string()), "create the folder first");
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return refuse(fmt::format("folder '{}': {}", folder.string(), system_message(errno)), "write somewhere else");
  return target;
}

/// A hidden name in the target's folder that no other process uses: ".<name>.<host>.<pid>.<suffix>".
fs::path neighbour_of(const fs::path& target, std::string_view suffix) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  // Names have at most 255 bytes.
  return target.parent_path() / fmt::format(".{}.{}.{}.{}", target.filename().string().substr(0, 128),
                                            std::string(host.data()).substr(0, 64), ::getpid(), suffix);
}

/// Errors name `path`, the temporary file; whoever made it knows the user's name for it.
Result<void> write_content(const fs::path& path, std::string_view content) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
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
}

// What the signal handler removes. One file of the process at a time; a second one at the same time goes without.
std::array<char, 4096> doomed_path{};
std::atomic<bool> doomed{false};

extern "C" void remove_and_die(int signal) {
  ::unlink(doomed_path.data());
  ::raise(signal);  // SA_RESETHAND: the default is back, and it ends the process
}

/// While it lives, signals that end the process remove a file first; those that are caught or ignored stay so.
class RemovedOnSignal {
 public:
  explicit RemovedOnSignal(const fs::path& path) {
    const std::string& text = path.native();
    if (text.size() >= doomed_path.size() || doomed.exchange(true)) return;
    active_ = true;
    std::copy_n(text.c_str(), text.size() + 1, doomed_path.begin());
    struct sigaction action {};
    action.sa_handler = remove_and_die;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
    for (std::size_t i = 0; i < signals.size(); ++i) {
      ::sigaction(signals[i], nullptr, &before_[i]);
      if (is_default(before_[i])) ::sigaction(signals[i], &action, nullptr);
    }
  }
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;
  ~RemovedOnSignal() {
    if (!active_) return;
    for (std::size_t i = 0; i < signals.size(); ++i)
      if (is_default(before_[i])) ::sigaction(signals[i], &before_[i], nullptr);
    doomed = false;
  }

 private:
  static constexpr std::array<int, 3> signals{SIGINT, SIGTERM, SIGHUP};
  static bool is_default(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  }
  std::array<struct sigaction, signals.size()> before_{};
  bool active_ = false;
};

}  // namespace

Result<std::string> read_text_file(const fs::path& path, std::size_t limit) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (status.type() == fs::file_type::not_found)
    return fail(ErrorCode::not_found, fmt::format("file '{}' does not exist", path.string()));
  if (!fs::exists(status))  // not known: a folder on the way is closed to us, links go round in a circle
    return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", path.string(), code.message()));
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

Result<void> check_can_write(const fs::path& path) {
  auto target = target_of(path);
  if (!target) return fail(target.error());
  return {};
}

Result<void> write_file_atomically(const fs::path& path, const std::function<Result<void>(const fs::path&)>& writer) {
  auto target = target_of(path);
  if (!target) return fail(target.error());
  const fs::path folder = target->parent_path();
  const fs::path temporary = neighbour_of(*target, "tmp");
  const RemovedOnSignal guard(temporary);
  std::error_code code;
  auto clean_up = [&](Error error) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    // The user knows the file, not its temporary.
    const std::string& name = temporary.native();
    for (std::size_t at = 0; (at = error.what.find(name, at)) != std::string::npos; at += path.native().size())
      error.what.replace(at, name.size(), path.native());
    return fail(std::move(error));
  };
  if (auto written = writer(temporary); !written) return clean_up(written.error());
  if (auto synced = sync_path(temporary, O_RDONLY); !synced) return clean_up(synced.error());
  fs::rename(temporary, *target, code);
  if (code)
    return clean_up(
        Error{ErrorCode::io, fmt::format("cannot rename into '{}': {}", path.string(), code.message()), {}});
  return sync_path(folder, O_RDONLY | O_DIRECTORY);
}

Result<void> write_file_atomically(const fs::path& path, std::string_view content) {
  return write_file_atomically(path, [&](const fs::path& temporary) { return write_content(temporary, content); });
}

Result<bool> create_file_atomically(const fs::path& path, const std::function<Result<void>(const fs::path&)>& writer) {
  std::error_code code;
  if (fs::exists(fs::symlink_status(path, code))) return false;
  // A link is made or refused in one step, where a rename would replace. The neighbour has a name of its own.
  auto target = target_of(path);
  if (!target) return fail(target.error());
  const fs::path neighbour = neighbour_of(*target, "new");
  SAILOR_CHECK(write_file_atomically(neighbour, writer));
  const int problem = ::link(neighbour.c_str(), target->c_str()) == 0 ? 0 : errno;
  if (problem == 0 || problem == EEXIST)
    fs::remove(neighbour, code);
  else if (fs::rename(neighbour, *target, code); code)  // a file system without hard links
    return fail(ErrorCode::io, fmt::format("cannot rename into '{}': {}", path.string(), code.message()));
  if (problem == EEXIST) return false;
  SAILOR_CHECK(sync_path(target->parent_path(), O_RDONLY | O_DIRECTORY));
  return true;
}

Result<bool> create_file_atomically(const fs::path& path, std::string_view content) {
  return create_file_atomically(path, [&](const fs::path& temporary) { return write_content(temporary, content); });
}

std::string content_hash(std::string_view content) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : content) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return fmt::format("{:016x}", hash);
}

}  // namespace sailor
