#include "runtime/rank_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "core/log.hpp"
#include "core/text.hpp"

namespace sailor::runtime {

namespace {

using Clock = std::chrono::steady_clock;

std::chrono::duration<double> duration(Seconds time) { return std::chrono::duration<double>(time.value()); }

/// Time that ranks that are alive have to report: they broke off at about the same time.
Seconds grace(Seconds timeout) { return Seconds(std::clamp(timeout.value() / 2.0, 3.0, 15.0)); }

[[noreturn]] void end_process(const std::string& message) {
  if (!message.empty()) say(message + "\n");
  std::_Exit(1);
}

}  // namespace

RankWatch::RankWatch(std::string program, const World& world, Seconds timeout)
    : program_(std::move(program)), world_(world), timeout_(timeout) {
  thread_ = std::thread([this] { run(); });
}

RankWatch::~RankWatch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RankWatch::enter(const std::string& what, Seconds expected) {
  if (world_.rank() == 0) log_debug("{}", what);
  const std::lock_guard lock(mutex_);
  step_ = what;
  expected_ = expected;
  ++steps_;
  changed_.notify_all();
}

void RankWatch::run() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    const int step = steps_;
    const auto next = [&] { return ended_ || steps_ != step; };
    if (changed_.wait_for(lock, duration(timeout_ + expected_), next)) continue;
    world_.transport.abort();
    // name_missing_ranks() enters a step of its own, and ends the process in it.
    if (!changed_.wait_for(lock, duration(grace(timeout_)), next))
      end_process(
          fmt::format("{}: error: rank {} on {} cannot be got out of a call while {}: it hangs, or a rank that MPI "
                      "waits for has died or hangs (srun names tasks that died)",
                      program_, world_.rank(), world_.control.host(), step_));
  }
}

void RankWatch::name_missing_ranks(const std::vector<std::string>& nodes) {
  std::string step;
  {
    const std::lock_guard lock(mutex_);
    step = step_;
  }
  const double waited = (timeout_ + expected_).value();
  enter("reporting to rank 0", Seconds(1e6));
  const std::vector<int> missing = world_.control.roll_call(grace(timeout_));
  // Rank 0 ends the job; if it is rank 0 that hangs, nobody does.
  if (world_.rank() != 0)
    end_process(fmt::format("{}: error: rank {} on {}: rank 0 has died or hangs while {}", program_, world_.rank(),
                            world_.control.host(), step));
  if (missing.empty())
    world_.control.abort(
        fmt::format("{} took more than {:g} s, though all ranks are alive; raise --timeout", step, waited));
  std::vector<std::string> names;
  std::vector<std::string> exclude;
  for (const int rank : missing) {
    const auto index = static_cast<std::size_t>(rank);
    const std::string node = index < nodes.size() ? nodes[index] : "";
    names.push_back(node.empty() ? std::to_string(rank) : fmt::format("{} ({})", rank, node));
    if (!node.empty() && std::find(exclude.begin(), exclude.end(), node) == exclude.end()) exclude.push_back(node);
  }
  if (!exclude.empty() && exclude.size() < std::set<std::string>(nodes.begin(), nodes.end()).size()) {
    fmt::print("--exclude={}\n", join(exclude, ","));
    std::fflush(stdout);
  }
  world_.control.abort(fmt::format("no sign of life from rank{} {} for {:g} s while {}: died, or hangs",
                                   missing.size() == 1 ? "" : "s", join(names, ", "), waited, step));
  std::_Exit(1);
}

Deadline::Deadline(Seconds timeout, std::string message) {
  thread_ = std::thread([this, timeout, message = std::move(message)] {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, duration(timeout), [this] { return ended_; })) end_process(message);
  });
}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace sailor::runtime
