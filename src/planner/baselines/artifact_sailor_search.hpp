// The recursion of the artifact's own planner: the first stage is laid out in every way, the stages behind it are
// solved with what is left, and every solution is kept by what it depends on (sailor_planner/cpp_src/planner.cpp,
// solve_dp).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "planner/baselines/artifact_sailor_tables.hpp"

namespace sailor::planner::baselines::artifact_sailor_detail {

/// The stages from one on. Money is rounded as the original keeps it: 32 bits, unless its faults are fixed.
struct Solution {
  bool is_feasible = false;
  StageTimes times;
  double communication_cost = 0.0;  ///< USD per iteration
  double device_price = 0.0;        ///< USD/s
  std::vector<Run> runs;            ///< of the first stage
  const Solution* rest = nullptr;   ///< of the next one; belongs to the search

  [[nodiscard]] double cost() const { return communication_cost + device_price * times.iteration; }
};

/// What is the same for all stages of a plan.
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
  /// The search was ended before its end; what solve() says then is not complete.
  [[nodiscard]] bool is_over() const { return is_over_; }

 private:
  using Key = std::vector<int>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  /// USD per iteration; nothing: without limit.
  using Budget = std::optional<double>;

  struct State {
    const Shape& shape;
    std::size_t stage = 0;
    std::size_t region = 0;  ///< index into Shape::regions
    std::vector<int> free;   ///< as Supply::free
    Budget budget;
  };
  /// Replicas of a stage that are placed.
  struct Layout {
    std::vector<Run> runs;
    std::vector<int> free;        ///< what is left
    std::vector<int> first_zone;  ///< by GPU type, -1: not used
    std::vector<int> zones;       ///< in which there are replicas
    double price = 0.0;           ///< USD/s
  };

  /// A stage that is not the last.
  struct Inner {
    Layout layout;
    StageTimes times;
    double reduce_cost = 0.0;     ///< USD per iteration
    double cost = 0.0;            ///< USD per iteration, with its devices for its own time
    std::size_t next_region = 0;  ///< of the next stage
    Budget budget;                ///< of the next stage
  };
  /// The least that all stages from one on take, on the best devices for each.
  struct Floor {
    double price = 0.0;    ///< USD/s
    double slowest = 0.0;  ///< seconds of a micro-batch in the slowest stage
    double compute = 0.0;  ///< seconds of a micro-batch in all stages
  };

  const Solution& solve(const State& state);
  [[nodiscard]] Solution search(const State& state);
  [[nodiscard]] Key key_of(const State& state) const;
  /// Calls visit(number of replicas by GPU type) for all that place Shape::replicas.
  template <class Visit>
  void for_numbers(const State& state, Visit visit);
  [[nodiscard]] std::optional<Layout> lay_out(const State& state, const std::vector<int>& numbers) const;
  void try_last(const State& state, const Layout& layout, Solution& best) const;
  /// Nothing where the next stage has no room, or the budget does not allow it.
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
  double longest_time_ = 0.0;  ///< of an iteration, by the least throughput
  double budget_step_ = 0.0;   ///< USD between budgets that are told apart
  double message_ = 0.0;       ///< bytes between stages, of the present shape
  double micro_batches_ = 0.0;
  std::vector<Floor> floors_;  // of the present shape, by stage; zero behind the last
  std::unordered_map<Key, std::map<int, std::unique_ptr<Solution>>, KeyHash> known_;  // and by steps of the budget
  std::uint64_t states_ = 0;
  bool is_over_ = false;
};

}  // namespace sailor::planner::baselines::artifact_sailor_detail
