// DT-FM's local search: devices change places in cycles through the stages (cyclic partitioning, Moon and Kim 2000).
#include <algorithm>
#include <cstddef>
#include <limits>

#include "planner/baselines/dtfm_search.hpp"

namespace sailor::planner::baselines::dtfm_detail {

namespace {

constexpr double no_gain = -std::numeric_limits<double>::infinity();

/// The stage of every device, and the costs of moves; updated move by move.
class CycleState {
 public:
  CycleState(const Devices& devices, const Stages& stages, double activation)
      : devices_(devices), activation_(activation), count_(stages.size()), owner_(size(), 0), locked_(size(), 0) {
    for (std::size_t stage = 0; stage < count_; ++stage)
      for (const int device : stages[stage]) owner_[static_cast<std::size_t>(device)] = stage;
    sums_.assign(size() * count_, 0.0);
    sizes_.assign(count_, 0);
    for (std::size_t device = 0; device < size(); ++device) {
      ++sizes_[owner_[device]];
      for (std::size_t other = 0; other < size(); ++other)
        sums_[other * count_ + owner_[device]] += cost(other, device);
    }
  }

  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(devices_.count()); }
  [[nodiscard]] const std::vector<std::size_t>& owner() const { return owner_; }

  void move(std::size_t device, std::size_t stage) {
    for (std::size_t other = 0; other < size(); ++other) {
      const double seconds = cost(other, device);
      sums_[other * count_ + owner_[device]] -= seconds;
      sums_[other * count_ + stage] += seconds;
    }
    --sizes_[owner_[device]];
    ++sizes_[stage];
    owner_[device] = stage;
  }
  void lock(std::size_t device) { locked_[device] = 1; }

  /// The device of each stage that is nearest to another device of it, and the gain of moving it to each other stage.
  struct Leaving {
    bool any = false;
    std::size_t device = 0;
    std::vector<double> gain;  // by stage
    std::size_t target = 0;
    double best = no_gain;
  };
  [[nodiscard]] std::vector<Leaving> leaving() const {
    std::vector<Leaving> result(count_);
    std::vector<double> nearest(count_, std::numeric_limits<double>::infinity());
    for (std::size_t device = 0; device < size(); ++device) {
      if (locked_[device] != 0) continue;
      const std::size_t stage = owner_[device];
      double closest = std::numeric_limits<double>::infinity();
      for (std::size_t other = 0; other < size(); ++other)
        if (other != device && owner_[other] == stage) closest = std::min(closest, cost(device, other));
      if (result[stage].any && closest >= nearest[stage]) continue;
      nearest[stage] = closest;
      result[stage].any = true;
      result[stage].device = device;
    }
    for (std::size_t stage = 0; stage < count_; ++stage) {
      Leaving& entry = result[stage];
      entry.gain.assign(count_, 0.0);
      if (!entry.any) continue;
      for (std::size_t other = 0; other < count_; ++other) {
        if (other == stage || sizes_[other] == 0) continue;
        entry.gain[other] = sums_[entry.device * count_ + other] / static_cast<double>(sizes_[other]) - nearest[stage];
        if (entry.gain[other] > entry.best) {
          entry.best = entry.gain[other];
          entry.target = other;
        }
      }
    }
    return result;
  }

 private:
  [[nodiscard]] double cost(std::size_t from, std::size_t to) const {
    return from == to ? 0.0 : devices_.seconds_per_byte(static_cast<int>(from), static_cast<int>(to)) * activation_;
  }

  const Devices& devices_;
  double activation_;
  std::size_t count_;
  std::vector<std::size_t> owner_;
  std::vector<char> locked_;
  std::vector<double> sums_;  // sums of a device's costs to the members of a stage
  std::vector<std::size_t> sizes_;
};

struct Move {
  std::size_t device = 0;
  std::size_t from = 0;
  double gain = 0.0;      // of the move
  double to_start = 0.0;  // of moving to the first stage of the cycle instead
};

Stages stages_by_owner(const std::vector<std::size_t>& owner, std::size_t count) {
  Stages stages(count);
  for (std::size_t device = 0; device < owner.size(); ++device)
    stages[owner[device]].push_back(static_cast<int>(device));
  return stages;
}

}  // namespace

Stages improve_by_cycles(const Devices& devices, const Stages& stages, double activation, Faults faults) {
  const std::size_t count = stages.size();
  CycleState state(devices, stages, activation);
  std::vector<char> marked(count, 0);
  std::vector<std::vector<std::size_t>> states{state.owner()};
  std::vector<double> gains{0.0};
  for (std::size_t cycle = 0; cycle < count && std::count(marked.begin(), marked.end(), 0) > 0; ++cycle) {
    auto leaving = state.leaving();
    const auto best =
        std::max_element(leaving.begin(), leaving.end(), [](const auto& a, const auto& b) { return a.best < b.best; });
    if (!best->any) break;
    const auto start = static_cast<std::size_t>(best - leaving.begin());
    std::size_t stage = start;
    std::vector<Move> moves;
    while (moves.size() < state.size()) {
      // A stage whose devices have all moved passes on the device that came last.
      const auto& next = leaving[stage];
      Move move{.device = moves.empty() ? 0 : moves.back().device, .from = stage};
      std::size_t target = start;
      if (next.any) {
        move = {next.device, stage, next.best, next.gain[start]};
        target = next.target;
      }
      state.move(move.device, target);
      state.lock(move.device);
      marked[target] = 1;
      moves.push_back(move);
      stage = target;
      if (stage == start) break;
      leaving = state.leaving();
    }
    // The cycle is closed by the move after which going back to its start has the largest gain.
    std::size_t last = 0;
    double most = 0.0;
    double sum = 0.0;
    for (std::size_t i = 0; i < moves.size(); ++i) {
      if (i > 0 && sum + moves[i].to_start > most) {
        most = sum + moves[i].to_start;
        last = i;
      }
      sum += moves[i].gain;
    }
    for (std::size_t i = moves.size(); i-- > last + 1;) state.move(moves[i].device, moves[i].from);
    state.move(moves[last].device, start);
    states.push_back(state.owner());
    gains.push_back(most);
  }
  // The artifact never takes the last cycle (its index is one too low).
  std::size_t taken = 0;
  double most = 0.0;
  double sum = 0.0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (faults == Faults::fixed) sum += gains[i];
    if (sum > most) {
      most = sum;
      taken = faults == Faults::fixed ? i : i - 1;
    }
    if (faults == Faults::kept) sum += gains[i];
  }
  return stages_by_owner(states[taken], count);
}

}  // namespace sailor::planner::baselines::dtfm_detail
