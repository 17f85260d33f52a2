// Ranks that find each other over sockets, as threads or as processes that can be killed.
#pragma once

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/stopwatch.hpp"
#include "runtime/sockets/coordinator.hpp"
#include "runtime/sockets/member.hpp"

namespace sailor::runtime::test {

using Clock = std::chrono::steady_clock;

inline std::unique_ptr<Coordinator> coordinator_for(int members, int least = 1, Seconds silence = Seconds(30.0)) {
  auto started = Coordinator::start({.members = members, .least = least, .silence = silence});
  if (!started) throw std::runtime_error(started.error().message());
  return *std::move(started);
}

inline std::unique_ptr<Member> member_of(const Addresses& coordinator, MemberSettings settings = {}) {
  settings.timeout = Seconds(30.0);
  auto joined = Member::join(coordinator, settings);
  if (!joined) throw std::runtime_error(joined.error().message());
  return *std::move(joined);
}

inline void begin(Member& member) {
  if (auto begun = member.begin_epoch(); !begun) throw std::runtime_error(begun.error().message());
}

/// A rank in a process of its own, which ends when `body` does.
class Process {
 public:
  explicit Process(const std::function<void()>& body) : id_(::fork()) {
    if (id_ != 0) return;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(2);
    }
    std::_Exit(0);
  }
  ~Process() {
    if (id_ > 0) {
      ::kill(id_, SIGKILL);
      (void)status();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  void signal(int number) const { ::kill(id_, number); }
  int status() {
    int status = -1;
    if (id_ > 0) ::waitpid(std::exchange(id_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  [[nodiscard]] bool has_ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == id_;
  }

 private:
  pid_t id_;
};

/// A pipe between this process and those that it forks: short texts, each received once.
class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void send(const std::string& text) const {
    Message message{};
    text.copy(message.data(), message.size() - 1);
    if (::write(ends_[1], message.data(), message.size()) != std::ssize(message))
      throw std::system_error(errno, std::generic_category(), "write to a pipe");
  }
  /// Waits for a text so long.
  [[nodiscard]] bool is_readable(Seconds patience) const {
    pollfd end{.fd = ends_[0], .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, static_cast<int>(patience.value() * 1e3)) == 1;
  }
  [[nodiscard]] std::string receive() const {
    Message message{};
    if (::read(ends_[0], message.data(), message.size()) != std::ssize(message))
      throw std::system_error(errno, std::generic_category(), "read from a pipe");
    return message.data();
  }

 private:
  using Message = std::array<char, 512>;  // shorter than PIPE_BUF: written and read whole
  int ends_[2] = {-1, -1};
};

/// Ranks in processes of their own, and their coordinator in this one: its thread would not survive a fork, so it
/// starts after them and they are told where it is.
class ForkedRanks {
 public:
  /// `body` gets the rank and the coordinator's address.
  ForkedRanks(int count, CoordinatorSettings settings, const std::function<void(int, const Addresses&)>& body) {
    const Pipe address;
    for (int rank = 0; rank < count; ++rank)
      ranks_.push_back(std::make_unique<Process>([&, rank] { body(rank, address.receive()); }));
    auto started = Coordinator::start(settings);
    if (!started) throw std::runtime_error(started.error().message());
    coordinator_ = *std::move(started);
    for (int rank = 0; rank < count; ++rank) address.send(coordinator_->addresses());
  }
  Process& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

 private:
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

}  // namespace sailor::runtime::test
