// One triple of the paper's space (search.hpp): number of stages, micro-batch size, number of pipelines.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/full_search.hpp"
#include "planner/paper/templates.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

struct PaperTriple {
  PaperStages* stages = nullptr;
  int pipelines = 1;
  int micro_batches = 1;  ///< of each pipeline
  int longer = 0;         ///< number of pipelines with one micro-batch more
  double least = 0.0;     ///< lower bound of the score of its plans; infinite: none keeps the limits
  [[nodiscard]] int max_micro_batches() const { return micro_batches + (longer > 0 ? 1 : 0); }
};

/// Max seconds and USD of an iteration.
struct PaperCaps {
  double time = infinity;
  double money = infinity;
};

/// Max numbers of nodes of the branch-and-bound tree (`nodes`) and of priced plans (`plans`) of a search.
struct PaperBudget {
  std::uint64_t nodes = 0;
  std::uint64_t plans = 0;
};

/// The templates of a triple as the items that plans are made of: item 2i is template i, item 2i + 1 the same with one
/// micro-batch more.
class TripleSolver {
 public:
  /// `dominance`, `max_templates` and `work`: as for PaperStages::columns(). `improve`: only plans better than the best
  /// so far.
  TripleSolver(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop, const PaperTriple& triple,
               const PaperCaps& caps, bool dominance, std::size_t max_templates, std::uint64_t& work,
               bool improve = true);

  /// Whether all templates that a plan better than the best so far may have are known, except dominated ones.
  [[nodiscard]] bool has_all_templates() const { return has_all_; }
  /// Lower bound of the score of a plan that keeps the caps; infinite if there is none. Only with all templates.
  [[nodiscard]] double bound() const;
  /// Tries plans of one template.
  void try_singles();
  /// Tries those, plans of two templates, and those that a greedy choice leads to.
  void try_some();
  /// Tries every plan that may be better than the best so far. False if the budget is used up before.
  bool try_all(PaperBudget& budget);

 private:
  struct Item {
    std::size_t column = 0;
    bool longer = false;
    double passes = 0.0;  ///< min seconds until the last pass
    double time = 0.0;    ///< with the template's tail
  };
  struct Part {
    std::size_t item = 0;
    int count = 0;
  };
  using Items = std::vector<std::size_t>;  // sorted by time
  [[nodiscard]] bool enough_devices(const Items& items, std::vector<double>* prices = nullptr) const;
  [[nodiscard]] Items promising_items(const Items& items) const;
  [[nodiscard]] double mixed_tail(std::size_t stage, std::size_t one, std::size_t other) const;
  [[nodiscard]] double alike_tail(std::size_t stage, std::size_t candidate) const;
  [[nodiscard]] double tail_of_all() const;
  [[nodiscard]] bool branch(const Items& items, PaperBudget& budget);
  void start(const Items& items);
  [[nodiscard]] bool compatible(const PaperTemplate& a, const PaperTemplate& b) const;
  [[nodiscard]] int max_pipelines(const PaperTemplate& column) const;
  [[nodiscard]] bool promising(double time, double price) const;
  void try_pairs();
  /// Tries `counts` pipelines of these templates, with the additional micro-batches on those that end first.
  void try_templates(const std::vector<std::pair<std::size_t, int>>& counts);
  bool try_orders(std::vector<Part> parts, PaperBudget& budget);
  double price(const std::vector<Part>& parts);
  bool descend(std::size_t from, int longer, int others, double passes, double tail, double price, bool greedy,
               PaperBudget& budget);
  bool take(const PaperTemplate& column, int count);
  void give_back(const PaperTemplate& column, int count);

  StagePrices& prices_;
  const SearchSpace& space_;
  SolutionPool& solutions_;
  const StopCheck& stop_;
  const PaperTriple& triple_;
  PaperCaps caps_;
  bool improve_;
  Objective objective_;
  bool has_all_ = true;
  std::vector<PaperTemplate> columns_;
  std::vector<Item> items_;  // sorted by time
  Items all_items_;
  double min_price_ = infinity;
  mutable std::vector<double> mixed_;  // by stage, candidate and candidate; negative: not known
  mutable std::vector<double> alike_;  // by stage and candidate
  std::vector<int> devices_;           // by pool, then how many of all may be used
  // State while plans are put together.
  Items used_items_;
  std::vector<double> weights_;        // of used_items_: their devices at some prices
  std::vector<double> min_weight_[2];  // of used_items_ from here on, [1]: with one micro-batch more
  double weight_left_ = 0.0;
  std::vector<int> left_;
  std::vector<int> degrees_;  // by stage and type; 0: not chosen
  std::vector<int> uses_;     // how many templates chose it
  std::vector<Part> parts_;
};

}  // namespace sailor::planner
