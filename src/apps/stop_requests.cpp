#include "apps/stop_requests.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>

namespace sailor::apps {

namespace {

constexpr std::int64_t same_request_ns = 5'000'000'000;

// State of the signal handler.
std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_time{0};  // time of the first SIGINT or SIGTERM
std::array<char, 256> last_words{};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

extern "C" void note_stop_request(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (signal != SIGINT && signal != SIGTERM) return;
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  const std::int64_t now = std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  std::int64_t before = 0;
  if (first_time.compare_exchange_strong(before, now) || now - before <= same_request_ns) return;
  (void)!::write(STDERR_FILENO, last_words.data(), std::strlen(last_words.data()));
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void catch_stop_requests(std::string_view program, std::initializer_list<int> signals) {
  const std::string words = fmt::format("{}: error: ended by a second signal before it had come to its end\n", program);
  std::strncpy(last_words.data(), words.c_str(), last_words.size() - 1);
  struct sigaction action {};
  action.sa_handler = note_stop_request;
  action.sa_flags = SA_RESTART;
  for (const int signal : signals) {
    struct sigaction before {};
    // Shells make background programs ignore Ctrl-C, which is meant for others.
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
}

int stop_request() { return first_signal; }

}  // namespace sailor::apps
