#include "elastic/supervisor.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>

#include "core/log.hpp"

namespace sailor::elastic {

namespace {

volatile std::sig_atomic_t worker_process = 0;

void pass_on(int signal) {
  if (worker_process > 0) ::kill(static_cast<pid_t>(worker_process), signal);
}

/// Reads heartbeats until the worker closes its end of the pipe; false if they stop for too long.
bool listen_to(int beats, Seconds silence) {
  const int patience = static_cast<int>(silence.value() * 1e3);
  while (true) {
    pollfd look{.fd = beats, .events = POLLIN, .revents = 0};
    const int found = ::poll(&look, 1, patience);
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0) return false;
    std::array<char, 64> bytes{};
    const ssize_t count = ::read(beats, bytes.data(), bytes.size());
    if (count == 0 || (count < 0 && errno != EINTR)) return true;
  }
}

}  // namespace

int supervise(const SupervisorSettings& settings, const std::function<int(const std::function<void()>& beat)>& worker) {
  using Clock = std::chrono::steady_clock;
  std::deque<Clock::time_point> crashes;
  while (true) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return EXIT_FAILURE;
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) return EXIT_FAILURE;
    if (child == 0) {
      ::close(ends[0]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) std::_Exit(EXIT_FAILURE);
      std::signal(SIGTERM, SIG_DFL);
      std::signal(SIGINT, SIG_DFL);
      std::exit(worker([end = ends[1]] { (void)!::write(end, "", 1); }));
    }
    ::close(ends[1]);
    worker_process = child;
    std::signal(SIGTERM, pass_on);
    std::signal(SIGINT, pass_on);
    const bool ends_itself = listen_to(ends[0], settings.silence);
    if (!ends_itself) {
      log_warning("the controller has been silent for {:g} s and is started anew", settings.silence.value());
      ::kill(child, SIGKILL);
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    ::close(ends[0]);
    worker_process = 0;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    if (ends_itself) log_warning("the controller was ended by signal {} and is started anew", WTERMSIG(status));
    crashes.push_back(Clock::now());
    while (crashes.front() < Clock::now() - std::chrono::minutes(1)) crashes.pop_front();
    if (static_cast<int>(crashes.size()) > settings.max_crashes_per_minute) {
      log_error("the controller crashed {} times within a minute", crashes.size());
      return EXIT_FAILURE;
    }
  }
}

}  // namespace sailor::elastic
