// Ranks that find each other over sockets, as threads or as processes that can be killed.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>

#include "runtime/sockets/coordinator.hpp"
#include "runtime/sockets/member.hpp"

namespace sailor::runtime::test {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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

 private:
  pid_t id_;
};

/// A port of this machine at which nobody listens.
inline int free_port() {
  Result<Socket> port = listen_on();
  EXPECT_TRUE(port);
  return port_of(*port);
}

}  // namespace sailor::runtime::test
