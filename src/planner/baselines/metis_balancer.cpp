#include "planner/baselines/metis_balancer.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace sailor::planner::baselines::metis_detail {

namespace {

/// Number of pieces of every layer, which are assigned one by one ("hallucination").
constexpr int pieces_per_layer = 7;
constexpr int max_adjustments = 3;

class Balancer {
 public:
  Balancer(const std::vector<double>& shares, const std::vector<double>& costs)
      : shares_(shares),
        costs_(costs),
        stages_(static_cast<int>(shares.size())),
        pieces_(static_cast<int>(costs.size()) * pieces_per_layer),
        capacity_(shares),
        held_(shares.size()) {}

  std::vector<int> run() {
    assign_forward();
    assign_backward();
    assign_the_rest();
    join_pieces();
    adjust();
    std::vector<int> boundaries{0};
    for (const std::vector<int>& layers : held_)
      boundaries.push_back(boundaries.back() + static_cast<int>(layers.size()));
    return boundaries;
  }

 private:
  [[nodiscard]] double cost(int piece) const { return costs_[piece / pieces_per_layer] / pieces_per_layer; }

  void assign(int stage, int piece) {
    capacity_[stage] -= cost(piece);
    held_[stage].push_back(piece);
  }

  /// Assigns consecutive pieces to each stage but the last; a piece that is too large for a stage stays open.
  void assign_forward() {
    int piece = 0;
    for (int stage = 0; stage + 1 < stages_; ++stage)
      while (piece < pieces_ - 1 - pieces_per_layer) {
        const int current = piece++;
        if (capacity_[stage] > cost(current)) {
          assign(stage, current);
        } else {
          open_.push_back(current);
          break;
        }
      }
    for (; piece < pieces_; ++piece) open_.push_back(piece);
  }

  /// Assigns a layer's worth of pieces to the last stage in any case, then consecutive ones.
  void assign_backward() {
    const int last = stages_ - 1;
    std::vector<int> left;
    int earliest = pieces_;
    for (auto piece = open_.rbegin(); piece != open_.rend(); ++piece) {
      const bool is_needed = static_cast<int>(held_[last].size()) < pieces_per_layer;
      if (is_needed || (*piece + 1 == earliest && capacity_[last] > cost(*piece))) {
        assign(last, *piece);
        earliest = std::min(earliest, *piece);
      } else {
        left.push_back(*piece);
      }
    }
    open_.assign(left.rbegin(), left.rend());
  }

  /// Assigns each open piece to the stage with the most capacity of those between its neighbours.
  void assign_the_rest() {
    for (const int piece : open_) {
      int first = 0;
      int last = stages_ - 1;
      int below = std::numeric_limits<int>::min();
      int above = std::numeric_limits<int>::max();
      for (int stage = 0; stage < stages_; ++stage) {
        if (held_[stage].empty()) continue;
        const auto [smallest, largest] = std::minmax_element(held_[stage].begin(), held_[stage].end());
        if (piece > *largest && *largest > below) {
          first = stage;
          below = *largest;
        }
        if (piece < *smallest && *smallest < above) {
          last = stage;
          above = *smallest;
        }
      }
      int best = first;
      for (int stage = first; stage <= last; ++stage)
        if (capacity_[stage] > capacity_[best]) best = stage;
      assign(best, piece);
    }
  }

  /// A stage holds the layers of which it has more than half of the pieces.
  void join_pieces() {
    for (int stage = 0; stage < stages_; ++stage) {
      std::vector<int> count(costs_.size(), 0);
      for (const int piece : held_[stage]) ++count[piece / pieces_per_layer];
      held_[stage].clear();
      for (int layer = 0; layer < static_cast<int>(count.size()); ++layer)
        if (2 * count[layer] > pieces_per_layer) held_[stage].push_back(layer);
      capacity_[stage] = shares_[stage];
      if (!held_[stage].empty())
        capacity_[stage] -=
            std::accumulate(costs_.begin() + held_[stage].front(), costs_.begin() + held_[stage].back() + 1, 0.0);
    }
  }

  /// The stage with the most capacity takes a layer from the busier of its neighbours.
  void adjust() {
    for (int i = 0; i < max_adjustments; ++i) {
      const double before = *std::max_element(capacity_.begin(), capacity_.end());
      std::vector<double> capacity = capacity_;
      std::vector<std::vector<int>> held = held_;
      const int stage = static_cast<int>(std::max_element(capacity.begin(), capacity.end()) - capacity.begin());
      int from = -1;
      if (stage > 0) from = stage - 1;
      if (stage + 1 < stages_ && (from < 0 || capacity[stage + 1] < capacity[from])) from = stage + 1;
      if (from < 0 || held[from].size() <= 1) return;
      const auto moved = from < stage ? held[from].end() - 1 : held[from].begin();
      const double demand = costs_[*moved];
      held[stage].push_back(*moved);
      std::sort(held[stage].begin(), held[stage].end());
      held[from].erase(moved);
      capacity[stage] -= demand;
      capacity[from] += demand;
      if (*std::max_element(capacity.begin(), capacity.end()) > before) return;
      capacity_ = std::move(capacity);
      held_ = std::move(held);
    }
  }

  const std::vector<double>& shares_;
  const std::vector<double>& costs_;
  int stages_;
  int pieces_;
  std::vector<double> capacity_;
  std::vector<std::vector<int>> held_;  // by stage: pieces, then layers
  std::vector<int> open_;               // ascending
};

}  // namespace

std::vector<int> balance_layers(const std::vector<double>& shares, const std::vector<double>& costs) {
  return Balancer(shares, costs).run();
}

std::vector<double> shifted_shares(const std::vector<double>& shares, const std::vector<double>& capacity,
                                   const std::vector<double>& demand) {
  constexpr double negligible = 0.01;
  constexpr double full = 0.001;
  std::vector<double> room;
  std::vector<double> result;
  double missing = 0.0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (capacity[i] > demand[i]) {
      result.push_back(shares[i]);
      room.push_back(shares[i] * capacity[i] / demand[i] - shares[i]);
    } else {
      room.push_back(0.0);
      result.push_back(shares[i] * (capacity[i] / demand[i]) * 0.9);
      missing += shares[i] - result.back();
    }
  }
  if (std::accumulate(room.begin(), room.end(), 0.0) < missing) return {};
  while (missing > negligible) {
    double total = 0.0;
    for (std::size_t i = 0; i < shares.size(); ++i)
      if (room[i] > full) total += shares[i];
    if (total <= 0.0) return {};  // all remaining room is too small to count
    std::vector<double> ratio;
    for (std::size_t i = 0; i < shares.size(); ++i) ratio.push_back(room[i] > full ? shares[i] / total : 0.0);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double moved = std::min(room[i], missing * ratio[i]);
      result[i] += moved;
      room[i] -= moved;
      missing -= moved;
    }
  }
  return result;
}

}  // namespace sailor::planner::baselines::metis_detail
