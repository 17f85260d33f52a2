// The recursion of the artifact's own planner: it tries every layout of the first stage, solves the later stages with
// the remaining devices, and caches every solution by what it depends on (sailor_planner/cpp_src/planner.cpp,
// solve_dp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "planner/baselines/artifact_sailor_tables.hpp"

namespace sailor::planner::baselines::artifact_sailor_detail {

/// Solution for a stage and all later ones. Money is rounded as the original keeps it: 32 bits, unless its faults are
/// fixed.
struct Solution {
  bool is_feasible = false;
  StageTimes times;
  double communication_cost = 0.0;  ///< USD per iteration
  double device_price = 0.0;        ///< USD/s
  std::vector<Run> runs;            ///< of the first stage
  const Solution* rest = nullptr;   ///< solution from the next stage on; belongs to the search

  [[nodiscard]] double cost() const { return communication_cost + device_price * times.iteration; }
};

/// Properties common to all stages of a plan.
struct Shape {
  int micro_batch = 1;
  int replicas = 1;
  std::vector<LayerRange> stages;
  std::vector<std::vector<int>> degrees;  ///< Tables::tensor_parallel()
  std::vector<int> regions;               ///< in the order in which stages may use them
};

class Search {
 public:
  Search(const Problem& problem, const Tables& tables);

  /// The best plan of a shape. It and its stages live as long as the search.
  const Solution& solve(const Shape& shape);
  /// Whether the search was stopped early; the answers of solve() are then incomplete.
  [[nodiscard]] bool is_over() const { return is_over_; }

 private:
  using Key = std::vector<int>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  /// USD per iteration; std::nullopt: no limit.
  using Budget = std::optional<double>;

  struct State {
    const Shape& shape;
    std::size_t stage = 0;
    std::size_t region = 0;  ///< index into Shape::regions
    std::vector<int> free;   ///< as Supply::free
    Budget budget;
  };
  /// A stage with all its replicas placed.
  struct Layout {
    std::vector<Run> runs;
    std::vector<int> free;        ///< remaining devices
    std::vector<int> first_zone;  ///< by GPU type, -1: not used
    std::vector<int> zones;       ///< zones with replicas
    double price = 0.0;           ///< USD/s
  };

  /// A stage other than the last.
  struct Inner {
    Layout layout;
    StageTimes times;
    double reduce_cost = 0.0;     ///< USD per iteration
    double cost = 0.0;            ///< USD per iteration, counting its devices for its own time only
    std::size_t next_region = 0;  ///< of the next stage
    Budget budget;                ///< of the next stage
  };
  /// Lower bounds of all stages from one on, with the best devices for each.
  struct Floor {
    double price = 0.0;    ///< USD/s
    double slowest = 0.0;  ///< seconds of a micro-batch in the slowest stage
    double compute = 0.0;  ///< seconds of a micro-batch in all stages
  };

  const Solution& solve(const State& state);
  [[nodiscard]] Solution search(const State& state);
  [[nodiscard]] Key key_of(const State& state) const;
  /// Calls visit(number of replicas by GPU type) for all numbers that place Shape::replicas.
  template <class Visit>
  void for_numbers(const State& state, Visit visit);
  [[nodiscard]] std::optional<Layout> lay_out(const State& state, const std::vector<int>& numbers) const;
  void try_last(const State& state, const Layout& layout, Solution& best) const;
  /// std::nullopt if the next stage has no room, or the budget does not allow it.
  [[nodiscard]] std::optional<Inner> inner_stage(const State& state, Layout layout) const;
  void set_floors(const Shape& shape);
  [[nodiscard]] bool cannot_win(const State& state, const Inner& inner, const Solution& best) const;
  void take_rest(const State& state, const Inner& inner, Solution& best);
  [[nodiscard]] const std::vector<int>& zones_of(const State& state) const;
  [[nodiscard]] int degree(const State& state, int gpu, std::size_t stage) const;
  [[nodiscard]] int& free_of(std::vector<int>& free, int zone, int gpu) const;
  [[nodiscard]] double money(double usd) const;
  [[nodiscard]] double in_steps(double usd) const;
  [[nodiscard]] bool allows(const Budget& budget, double cost) const { return !budget || cost <= *budget; }
  [[nodiscard]] bool is_better(const Solution& candidate, const Solution& best) const;

  const Problem& problem_;
  const Tables& tables_;
  double longest_time_ = 0.0;  ///< of an iteration, from the min throughput
  double budget_step_ = 0.0;   ///< USD between budgets that are distinguished
  double message_ = 0.0;       ///< bytes between stages, of the current shape
  double micro_batches_ = 0.0;
  std::vector<Floor> floors_;  // of the current shape, by stage; zero after the last
  std::unordered_map<Key, std::map<int, std::unique_ptr<Solution>>, KeyHash> known_;  // by key, budget steps
  std::uint64_t states_ = 0;
  bool is_over_ = false;
};

}  // namespace sailor::planner::baselines::artifact_sailor_detail
