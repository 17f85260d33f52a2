#include "core/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "core/descriptor.hpp"
#include "core/text.hpp"

extern char** environ;  // POSIX

namespace sailor {

namespace {

using Clock = std::chrono::steady_clock;

tl::unexpected<Error> system_error(std::string_view call, int number) {
  return fail(ErrorCode::io, fmt::format("cannot start a process: {}: {}", call, system_message(number)));
}

struct Channel {
  Descriptor ours;
  Descriptor theirs;
};

/// A socket pair rather than a pipe: writing to a child that has closed its end must not raise SIGPIPE here.
Result<Channel> make_channel() {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return system_error("socketpair", errno);
  Channel channel{Descriptor(ends[0]), Descriptor(ends[1])};
  // Only this end: O_NONBLOCK would surprise the program at the other end.
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return system_error("fcntl", errno);
  return channel;
}

struct Streams {
  Channel input, output, errors;
};

Result<Streams> make_streams() {
  Streams streams;
  for (Channel* channel : {&streams.input, &streams.output, &streams.errors}) {
    auto made = make_channel();
    if (!made) return fail(made.error());
    *channel = *std::move(made);
  }
  return streams;
}

/// Reads what is available, but returns from an endless stream, so that the deadline is checked in between; keeps at
/// most one byte beyond `most`. Closes the descriptor at the end of the stream. Returns whether more may be available.
bool drain(Descriptor& from, std::string& to, std::size_t most) {
  constexpr int blocks = 16;
  std::array<char, 65536> buffer{};
  for (int i = 0; i < blocks; ++i) {
    if (!from.open() || to.size() > most) return false;
    const ssize_t count = ::read(from.get(), buffer.data(), std::min(buffer.size(), most + 1 - to.size()));
    if (count > 0) {
      to.append(buffer.data(), static_cast<std::size_t>(count));
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    from.close();  // the end, or ECONNRESET: the peer ended without reading all of its input
  }
  return from.open();
}

/// Passes signals that end this process to the program first: it has a process group of its own, so a terminal does not
/// signal it. Signals are blocked until pass_on() while this exists; other threads of this process should not take
/// them.
class SignalsForBoth {
 public:
  SignalsForBoth() {
    ::sigemptyset(&ours_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::sigaddset(&ours_, signal);
    ::pthread_sigmask(SIG_BLOCK, &ours_, &before_);
  }
  ~SignalsForBoth() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsForBoth(const SignalsForBoth&) = delete;
  SignalsForBoth& operator=(const SignalsForBoth&) = delete;

  /// The signal mask that the program gets.
  [[nodiscard]] const sigset_t& before() const { return before_; }

  /// Sends pending signals to the program's group, then to this process, which they may end.
  void pass_on(pid_t group) const {
    sigset_t pending;
    ::sigpending(&pending);
    bool some = false;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
      struct sigaction action {};
      if (::sigismember(&pending, signal) != 1 || ::sigismember(&before_, signal) == 1) continue;
      if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
      ::kill(-group, signal);
      some = true;
    }
    if (!some) return;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    ::pthread_sigmask(SIG_BLOCK, &ours_, nullptr);
  }

 private:
  sigset_t ours_{};
  sigset_t before_{};
};

/// A child that does not outlive this object.
class Child {
 public:
  Child(pid_t id, bool leads_group) : id_(id), leads_group_(leads_group) {}
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t id() const { return id_; }
  [[nodiscard]] int status() const { return status_; }
  /// Valid once it has ended.
  [[nodiscard]] const rusage& usage() const { return usage_; }
  [[nodiscard]] bool has_ended() {
    if (ended_) return true;
    const pid_t reaped = ::wait4(id_, &status_, WNOHANG, &usage_);
    ended_ = reaped == id_ || (reaped < 0 && errno != EINTR);
    return ended_;
  }
  /// Kills the child and its group, unless it has ended.
  void kill() {
    if (ended_) return;
    ::kill(leads_group_ ? -id_ : id_, SIGKILL);
    while (::wait4(id_, &status_, 0, &usage_) < 0 && errno == EINTR) {
    }
    ended_ = true;
  }

 private:
  pid_t id_;
  bool leads_group_;
  bool ended_ = false;
  int status_ = 0;
  rusage usage_{};
};

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

/// Feeds and reads a child until it has ended, or kills it: at the deadline, if `is_cancelled` (may be empty) returns
/// true, or if one of its streams has more than `most` bytes. `signals` are for its group; null if it has none.
ProcessOutcome attend(Child& child, Streams streams, std::string_view input, Seconds limit, std::size_t most,
                      const SignalsForBoth* signals, const std::function<bool()>& is_cancelled) {
  ProcessOutcome outcome;
  outcome.deadline = limit;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit.value()));
  for (Channel* channel : {&streams.input, &streams.output, &streams.errors}) channel->theirs.close();
  if (input.empty()) streams.input.ours.close();
  bool more = false;  // to be read at once
  while (true) {
    if (signals != nullptr) signals->pass_on(child.id());
    // A grandchild may hold the streams open for long, so the end of the child itself counts. Its last output is in the
    // sockets by then, so its end is checked first.
    const bool ended = child.has_ended();
    if (Clock::now() >= deadline) {
      outcome.timed_out = !ended;
      child.kill();
    }
    if (!ended && !outcome.timed_out && is_cancelled && is_cancelled()) {
      outcome.cancelled = true;
      child.kill();
    }
    if (!child.has_ended()) {
      std::array<pollfd, 3> waits{{{.fd = streams.input.ours.get(), .events = POLLOUT, .revents = 0},
                                   {.fd = streams.output.ours.get(), .events = POLLIN, .revents = 0},
                                   {.fd = streams.errors.ours.get(), .events = POLLIN, .revents = 0}}};
      // poll() ignores negative descriptors. 5 ms once both streams have ended: the child is about to end.
      const bool silent = !streams.output.ours.open() && !streams.errors.ours.open();
      ::poll(waits.data(), waits.size(), more ? 0 : silent ? 5 : 50);
      if (waits[0].revents != 0) {
        const ssize_t count = ::send(streams.input.ours.get(), input.data(), input.size(), MSG_NOSIGNAL);
        if (count > 0) input.remove_prefix(static_cast<std::size_t>(count));
        const bool again = count < 0 && (errno == EAGAIN || errno == EINTR);
        if (input.empty() || (count < 0 && !again)) streams.input.ours.close();
      }
    }
    const bool more_output = drain(streams.output.ours, outcome.output, most);
    const bool more_errors = drain(streams.errors.ours, outcome.errors, most);
    more = more_output || more_errors;
    if (outcome.output.size() > most || outcome.errors.size() > most) {
      outcome.too_long = !outcome.timed_out;
      child.kill();
      break;
    }
    if (outcome.timed_out || outcome.cancelled || (ended && !more)) break;
  }
  const int status = child.status();
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  if (WIFEXITED(status)) outcome.exit_status = WEXITSTATUS(status);
  outcome.processor_time = Seconds(seconds_of(child.usage().ru_utime) + seconds_of(child.usage().ru_stime));
  outcome.peak_resident_memory = static_cast<double>(child.usage().ru_maxrss) * kib;
  return outcome;
}

/// posix_spawn's attributes and file actions with their destructors.
class SpawnSetup {
 public:
  /// Sets a process group of its own, and this signal mask.
  explicit SpawnSetup(const sigset_t& mask) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    // Sailor's programs ignore it (run_program()); others get the default action.
    sigset_t ignored;
    ::sigemptyset(&ignored);
    ::sigaddset(&ignored, SIGXFSZ);
    ::posix_spawnattr_setsigdefault(&attributes_, &ignored);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setsigmask(&attributes_, &mask);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  void connect(const Streams& streams) {
    ::posix_spawn_file_actions_adddup2(&actions_, streams.input.theirs.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, streams.output.theirs.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, streams.errors.theirs.get(), STDERR_FILENO);
  }
  [[nodiscard]] const posix_spawn_file_actions_t* actions() const { return &actions_; }
  [[nodiscard]] const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// The child's side of run_in_child. Never returns, whatever `body` or libslurm does.
[[noreturn]] void live_as_child(const Streams& streams, pid_t parent, const std::function<std::string()>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
  ::dup2(streams.input.theirs.get(), STDIN_FILENO);
  ::dup2(streams.errors.theirs.get(), STDOUT_FILENO);  // libraries write to both
  ::dup2(streams.errors.theirs.get(), STDERR_FILENO);
  // libslurm's fatal() calls exit(): the last handler registered runs first and keeps the parent's from running.
  std::atexit([] { ::_exit(1); });
  int status = 1;
  try {
    const std::string text = body();
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t count = ::send(streams.output.theirs.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (count > 0)
        done += static_cast<std::size_t>(count);
      else if (errno != EINTR)
        break;
    }
    status = done == text.size() ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  } catch (...) {
    fmt::print(stderr, "exception of unknown type\n");
  }
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string ProcessOutcome::how_it_ended() const {
  if (timed_out) return fmt::format("no answer within {:g} s", deadline.value());
  if (cancelled) return "cancelled";
  if (too_long) return "its output exceeds the limit";
  if (signal != 0) return fmt::format("signal {} ({})", signal, ::strsignal(signal));
  return fmt::format("exit status {}", exit_status);
}

Result<ProcessOutcome> run_command(const Command& command) {
  if (command.arguments.empty() || command.arguments.front().empty())
    return fail(ErrorCode::invalid_input, "there is no program to run");
  auto streams = make_streams();
  if (!streams) return fail(streams.error());
  std::vector<std::string> words = command.arguments;
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const SignalsForBoth signals;
  SpawnSetup setup(signals.before());
  setup.connect(*streams);
  pid_t child = -1;
  const int problem =
      ::posix_spawnp(&child, arguments.front(), setup.actions(), setup.attributes(), arguments.data(), environ);
  if (problem == ENOENT)
    return fail(ErrorCode::not_found, fmt::format("there is no program '{}' in PATH", command.arguments.front()));
  if (problem != 0)
    return fail(ErrorCode::io, fmt::format("cannot run '{}': {}", command.arguments.front(), system_message(problem)));
  constexpr std::size_t most = std::size_t{16} << 20U;
  Child running(child, true);
  return attend(running, *std::move(streams), command.input, command.deadline, most, &signals, command.is_cancelled);
}

Result<ProcessOutcome> run_in_child(const std::function<std::string()>& body, Seconds deadline) {
  auto streams = make_streams();
  if (!streams) return fail(streams.error());
  std::fflush(nullptr);  // otherwise the child would write our buffered output a second time
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return system_error("fork", errno);
  if (child == 0) live_as_child(*streams, parent, body);
  constexpr std::size_t most = std::size_t{1} << 30U;  // the child holds it too
  Child running(child, false);
  return attend(running, *std::move(streams), {}, deadline, most, nullptr, {});
}

}  // namespace sailor
