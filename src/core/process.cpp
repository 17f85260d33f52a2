#include "core/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

extern char** environ;  // POSIX

namespace sailor {

namespace {

using Clock = std::chrono::steady_clock;

std::string system_message(int number) { return std::generic_category().message(number); }

tl::unexpected<Error> system_error(std::string_view call, int number) {
  return fail(ErrorCode::io, fmt::format("cannot start a process: {}: {}", call, system_message(number)));
}

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  void close() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] bool open() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

struct Channel {
  Descriptor ours;
  Descriptor theirs;
};

/// A socket pair rather than a pipe: writing to a child that has closed its end must not raise SIGPIPE here.
Result<Channel> make_channel() {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return system_error("socketpair", errno);
  Channel channel{Descriptor(ends[0]), Descriptor(ends[1])};
  // Only our end: O_NONBLOCK would surprise the program at the other.
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

/// Reads what is there; closes the descriptor at the end of the stream.
void drain(Descriptor& from, std::string& to) {
  std::array<char, 65536> buffer{};
  while (from.open()) {
    const ssize_t count = ::read(from.get(), buffer.data(), buffer.size());
    if (count > 0) {
      to.append(buffer.data(), static_cast<std::size_t>(count));
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    from.close();  // the end, or ECONNRESET: it ended without reading all of its input
  }
}

/// Feeds and reads a child until it has ended, or kills it at the deadline.
ProcessOutcome attend(pid_t child, Streams streams, std::string_view input, Seconds limit) {
  ProcessOutcome outcome;
  outcome.deadline = limit;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit.value()));
  for (Channel* channel : {&streams.input, &streams.output, &streams.errors}) channel->theirs.close();
  if (input.empty()) streams.input.ours.close();
  int status = 0;
  bool ended = false;
  while (!ended) {
    // A grandchild may hold the streams open for long: the end of the child itself counts. Its last words are in
    // the sockets by then, so look for its end first.
    const pid_t reaped = ::waitpid(child, &status, WNOHANG);
    ended = reaped == child || (reaped < 0 && errno != EINTR);
    if (!ended && Clock::now() >= deadline) {
      outcome.timed_out = true;
      ::kill(child, SIGKILL);
      while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
      }
      ended = true;
    }
    if (!ended) {
      std::array<pollfd, 3> waits{{{.fd = streams.input.ours.get(), .events = POLLOUT, .revents = 0},
                                   {.fd = streams.output.ours.get(), .events = POLLIN, .revents = 0},
                                   {.fd = streams.errors.ours.get(), .events = POLLIN, .revents = 0}}};
      // poll() ignores negative descriptors. 5 ms once both streams have ended: the child is about to.
      const bool silent = !streams.output.ours.open() && !streams.errors.ours.open();
      ::poll(waits.data(), waits.size(), silent ? 5 : 50);
      if (waits[0].revents != 0) {
        const ssize_t count = ::send(streams.input.ours.get(), input.data(), input.size(), MSG_NOSIGNAL);
        if (count > 0) input.remove_prefix(static_cast<std::size_t>(count));
        const bool again = count < 0 && (errno == EAGAIN || errno == EINTR);
        if (input.empty() || (count < 0 && !again)) streams.input.ours.close();
      }
    }
    drain(streams.output.ours, outcome.output);
    drain(streams.errors.ours, outcome.errors);
  }
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  if (WIFEXITED(status)) outcome.exit_status = WEXITSTATUS(status);
  return outcome;
}

/// posix_spawn's attributes and file actions with their destructors.
class SpawnSetup {
 public:
  SpawnSetup() {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
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

/// The child's side of run_in_child. Never returns, whatever `body` or libslurm do.
[[noreturn]] void live_as_child(const Streams& streams, pid_t parent, const std::function<std::string()>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
  ::dup2(streams.input.theirs.get(), STDIN_FILENO);
  ::dup2(streams.errors.theirs.get(), STDOUT_FILENO);  // libraries talk on both
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

std::string ProcessOutcome::how_it_ended() const {
  if (timed_out) return fmt::format("no answer within {:g} s", deadline.value());
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
  SpawnSetup setup;
  setup.connect(*streams);
  pid_t child = -1;
  const int problem =
      ::posix_spawnp(&child, arguments.front(), setup.actions(), setup.attributes(), arguments.data(), environ);
  if (problem == ENOENT)
    return fail(ErrorCode::not_found, fmt::format("there is no program '{}' in PATH", command.arguments.front()));
  if (problem != 0)
    return fail(ErrorCode::io, fmt::format("cannot run '{}': {}", command.arguments.front(), system_message(problem)));
  return attend(child, *std::move(streams), command.input, command.deadline);
}

Result<ProcessOutcome> run_in_child(const std::function<std::string()>& body, Seconds deadline) {
  auto streams = make_streams();
  if (!streams) return fail(streams.error());
  std::fflush(nullptr);  // or the child would write what is in our buffers a second time
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return system_error("fork", errno);
  if (child == 0) live_as_child(*streams, parent, body);
  return attend(child, *std::move(streams), {}, deadline);
}

}  // namespace sailor
