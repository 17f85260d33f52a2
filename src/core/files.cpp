#include "core/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "core/text.hpp"

namespace sailor {

namespace fs = std::filesystem;

namespace {

tl::unexpected<Error> failed(std::string_view doing, const fs::path& path, int number) {
  return fail(ErrorCode::io, fmt::format("cannot {} '{}': {}", doing, path.string(), system_message(number)));
}

Result<void> sync_folder_of(const fs::path& path) {
  const fs::path folder = path.parent_path();
  const Descriptor file(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.open()) return failed("open", folder, errno);
  // Some network file systems refuse fsync of a folder with EINVAL; the rename is then as durable as they make it.
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != EROFS) return failed("flush to disk", folder, errno);
  return {};
}

/// The file that writing to `path` creates or replaces: links are followed, so that they stay.
Result<fs::path> target_of(const fs::path& path) {
  const auto refuse = [&](const std::string& why, std::string hint = {}) {
    return fail(ErrorCode::io, fmt::format("cannot write '{}': {}", path.string(), why), std::move(hint));
  };
  if (path.filename().empty()) return refuse("it names no file");
  std::error_code code;
  const fs::file_status status = fs::status(path, code);  // before links: those in /proc have no valid path
  if (fs::is_directory(status)) return refuse("it is a directory");
  if (fs::exists(status) && !fs::is_regular_file(status))
    return refuse("it is a device, pipe or socket", "name a file");
  fs::path target = fs::absolute(path, code);
  if (code) return refuse(code.message());
  constexpr int most_links = 40;  // as in Linux
  for (int links = 0; fs::is_symlink(fs::symlink_status(target, code)); ++links) {
    if (links == most_links) return refuse(system_message(ELOOP));
    const fs::path next = fs::read_symlink(target, code);
    if (code) return refuse(code.message());
    target = target.parent_path() / next;
  }
  const fs::path folder = target.parent_path();
  if (!fs::is_directory(folder, code)) {
    const fs::path named = path.has_parent_path() ? path.parent_path() : folder;
    if (fs::exists(folder, code))
      return refuse(fmt::format("'{}' is no folder", named.string()), "write somewhere else");
    return refuse(fmt::format("there is no folder '{}'", named.string()), "create the folder first");
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return refuse(fmt::format("folder '{}': {}", folder.string(), system_message(errno)), "write somewhere else");
  return target;
}

// Temporary names: ".<name>.<random digits>.tmp". Names have at most 255 bytes.
constexpr std::size_t name_digits = 16;
constexpr std::string_view name_end = ".tmp";

std::string temporary_prefix(const fs::path& target) {
  return fmt::format(".{}.", target.filename().native().substr(0, 200));
}

/// What follows the prefix of a temporary name.
bool is_temporary_rest(std::string_view rest) {
  return rest.size() == name_digits + name_end.size() && rest.ends_with(name_end) &&
         rest.find_first_not_of("0123456789abcdef") == name_digits;
}

// Path that the signal handler removes: one file of the process at a time; a second one at the same time is not
// removed.
std::array<char, 4096> doomed_path{};
std::atomic<bool> doomed{false};

extern "C" void remove_and_die(int signal) {
  ::unlink(doomed_path.data());
  ::raise(signal);  // SA_RESETHAND: the default action is restored, and ends the process
}

/// While it lives, signals that end the process remove a file first; signals that are caught or ignored stay so.
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

/// The temporary file beside a target, which is to replace it. Removed unless it did.
class TemporaryFile {
 public:
  /// `path` is the user's name of the target, for messages.
  static Result<TemporaryFile> create(const fs::path& path) {
    auto target = target_of(path);
    if (!target) return fail(target.error());
    constexpr int most_attempts = 8;
    for (int attempt = 0;; ++attempt) {
      const fs::path name = target->parent_path() /
                            fmt::format("{}{}{}", temporary_prefix(*target), random_digits(name_digits), name_end);
      auto guard = std::make_unique<RemovedOnSignal>(name);
      Descriptor file(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
      if (!file.open() && errno == EEXIST && attempt < most_attempts) continue;
      if (!file.open()) return failed("write", path, errno);
      // While this process lives, nobody regards the file as a leftover. File systems without locks refuse.
      static_cast<void>(::flock(file.get(), LOCK_EX | LOCK_NB));
      TemporaryFile made(path, *std::move(target), name, std::move(file), std::move(guard));
      made.remove_left_overs();
      return made;
    }
  }
  TemporaryFile(TemporaryFile&& other) noexcept
      : path_(std::move(other.path_)),
        target_(std::move(other.target_)),
        name_(std::exchange(other.name_, {})),
        file_(std::move(other.file_)),
        guard_(std::move(other.guard_)) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }

  Result<void> fill(std::string_view content) { return write_content(file_.get(), path_, content); }
  Result<void> fill(const std::function<Result<void>(const fs::path&)>& writer) {
    const std::string given = fmt::format("/proc/self/fd/{}", file_.get());
    auto written = writer(given);
    if (written) return {};
    Error error = written.error();
    for (std::string* text : {&error.what, &error.hint})
      for (std::size_t at = 0; (at = text->find(given, at)) != std::string::npos; at += path_.native().size())
        text->replace(at, given.size(), path_.native());
    return fail(std::move(error));
  }

  /// Replaces the target.
  Result<void> replace() {
    SAILOR_CHECK(sync());
    if (::rename(name_.c_str(), target_.c_str()) != 0) return failed("rename into", path_, errno);
    name_.clear();
    return sync_folder_of(target_);
  }
  /// Becomes the target if there is none: a link is created or refused in one step.
  Result<bool> settle() {
    SAILOR_CHECK(sync());
    int problem = ::link(name_.c_str(), target_.c_str()) == 0 ? 0 : errno;
    if (problem != 0 && problem != EEXIST) {  // a file system without hard links
      problem = ::renameat2(AT_FDCWD, name_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
      if (problem == EINVAL) problem = ::rename(name_.c_str(), target_.c_str()) == 0 ? 0 : errno;
      if (problem == 0) name_.clear();
    }
    if (problem == EEXIST) return false;
    if (problem != 0) return failed("rename into", path_, problem);
    SAILOR_CHECK(sync_folder_of(target_));
    return true;
  }

 private:
  TemporaryFile(fs::path path, fs::path target, fs::path name, Descriptor file, std::unique_ptr<RemovedOnSignal> guard)
      : path_(std::move(path)),
        target_(std::move(target)),
        name_(std::move(name)),
        file_(std::move(file)),
        guard_(std::move(guard)) {}

  Result<void> sync() {
    if (::fsync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) return failed("flush to disk", path_, errno);
    return {};
  }

  /// Removes leftovers of killed writers of the same target. Best effort.
  void remove_left_overs() const {
    struct stat mine {};
    if (::fstat(file_.get(), &mine) != 0) return;
    const std::string prefix = temporary_prefix(target_);
    std::error_code code;
    for (fs::directory_iterator entry(target_.parent_path(), code), end; !code && entry != end; entry.increment(code)) {
      const std::string name = entry->path().filename().string();
      if (name.starts_with(prefix) && is_temporary_rest(std::string_view(name).substr(prefix.size())) &&
          is_left_over(entry->path(), mine.st_mtime))
        ::unlink(entry->path().c_str());
    }
  }

  fs::path path_;
  fs::path target_;
  fs::path name_;  // empty: it has become the target
  Descriptor file_;
  std::unique_ptr<RemovedOnSignal> guard_;
};

/// `from_kernel`: files of /proc are accepted.
Result<Descriptor> open_regular(const fs::path& path, bool from_kernel) {
  struct stat status {};
  // Checked before opening: opening a pipe waits for its writer, and opening a device may have an effect.
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return fail(ErrorCode::not_found, fmt::format("file '{}' does not exist", path.string()));
    return failed("read", path, errno);
  }
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::io, fmt::format("'{}' is not a regular file", path.string()));
  Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.open()) return failed("read", path, errno);
  struct statfs system {};
  if (::fstat(file.get(), &status) != 0) return failed("read", path, errno);
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::io, fmt::format("'{}' is not a regular file", path.string()));
  if (!from_kernel && ::fstatfs(file.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC)
    return fail(ErrorCode::io, fmt::format("'{}' is not a regular file but an answer of the kernel", path.string()),
                "name a file with a content of its own");
  return file;
}

Result<std::string> read_whole(const fs::path& path, std::size_t limit, bool from_kernel) {
  const auto file = open_regular(path, from_kernel);
  if (!file) return fail(file.error());
  const auto too_large = [&](std::uintmax_t size, std::string_view more) {
    return fail(ErrorCode::io,
                fmt::format("file '{}' has {}{} bytes; the limit is {}", path.string(), more, size, limit),
                "is it the right file?");
  };
  struct stat status {};
  if (::fstat(file->get(), &status) != 0) return failed("read", path, errno);
  const auto size = static_cast<std::uintmax_t>(status.st_size);
  if (size > limit) return too_large(size, "");
  std::string content;
  content.reserve(static_cast<std::size_t>(size) + 1);
  while (true) {
    constexpr std::size_t part = std::size_t{1} << 16;
    const std::size_t before = content.size();
    content.resize(std::max(content.capacity(), before + part));
    const ssize_t count = ::read(file->get(), content.data() + before, content.size() - before);
    content.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("read", path, errno);
    if (count == 0) return content;
    if (content.size() > limit) return too_large(content.size(), "more than ");
  }
}

}  // namespace

Result<void> write_content(int file, const fs::path& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t count = ::write(file, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed("write", path, count < 0 ? errno : ENOSPC);
    content.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Result<Descriptor> open_to_read(const fs::path& path) { return open_regular(path, false); }

Result<std::string> read_text_file(const fs::path& path, std::size_t limit) { return read_whole(path, limit, false); }

Result<std::string> read_kernel_file(const fs::path& path, std::size_t limit) { return read_whole(path, limit, true); }

Result<bool> create_folders(const fs::path& folder, const std::string& hint) {
  std::error_code code;
  const bool created = fs::create_directories(folder, code);
  if (!code && fs::is_directory(folder, code)) return created;
  return fail(ErrorCode::io,
              fmt::format("cannot make the folder '{}': {}", folder.string(), code ? code.message() : "it is a file"),
              hint);
}

Result<void> check_can_write(const fs::path& path) {
  auto target = target_of(path);
  if (!target) return fail(target.error());
  return {};
}

namespace {

template <class Content>
Result<void> replace_file(const fs::path& path, const Content& content) {
  auto temporary = TemporaryFile::create(path);
  if (!temporary) return fail(temporary.error());
  SAILOR_CHECK(temporary->fill(content));
  return temporary->replace();
}

template <class Content>
Result<bool> create_file(const fs::path& path, const Content& content) {
  std::error_code code;
  if (fs::exists(fs::symlink_status(path, code))) return false;
  auto temporary = TemporaryFile::create(path);
  if (!temporary) return fail(temporary.error());
  SAILOR_CHECK(temporary->fill(content));
  return temporary->settle();
}

}  // namespace

Result<void> write_file_atomically(const fs::path& path, const std::function<Result<void>(const fs::path&)>& writer) {
  return replace_file(path, writer);
}
Result<void> write_file_atomically(const fs::path& path, std::string_view content) {
  return replace_file(path, content);
}

Result<bool> create_file_atomically(const fs::path& path, const std::function<Result<void>(const fs::path&)>& writer) {
  return create_file(path, writer);
}
Result<bool> create_file_atomically(const fs::path& path, std::string_view content) {
  return create_file(path, content);
}

bool is_temporary_name(std::string_view name) {
  constexpr std::size_t rest = name_digits + name_end.size();
  return name.size() > rest + 2 && name.front() == '.' && name[name.size() - rest - 1] == '.' &&
         is_temporary_rest(name.substr(name.size() - rest));
}

bool is_left_over(const fs::path& temporary, std::int64_t now) {
  constexpr std::int64_t day = std::int64_t{24} * 60 * 60;
  if (!is_temporary_name(temporary.filename().native())) return false;
  struct stat status {};
  const auto is_old = [&] {
    return S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && now - status.st_mtime > day;
  };
  if (::lstat(temporary.c_str(), &status) != 0 || !is_old()) return false;
  // Opened for writing: NFS gives no exclusive lock on a file that is open for reading only.
  const Descriptor file(::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  return file.open() && ::fstat(file.get(), &status) == 0 && is_old() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

std::string random_digits(std::size_t count) {
  std::string digits;
  while (digits.size() < count) {
    std::uint64_t number = 0;
    std::size_t filled = 0;
    while (filled < sizeof(number)) {
      const ssize_t part = ::getrandom(reinterpret_cast<char*>(&number) + filled, sizeof(number) - filled, 0);
      if (part > 0) filled += static_cast<std::size_t>(part);
      if (part < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
    }
    digits += fmt::format("{:016x}", number);
  }
  digits.resize(count);
  return digits;
}

std::string content_hash(std::string_view content) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : content) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return fmt::format("{:016x}", hash);
}

}  // namespace sailor
