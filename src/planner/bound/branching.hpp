// Branching of the bound: how its plans are divided by the pools or zones that hold their layers, the number of
// pipelines, the longest reduction of a first stage, and the time.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "planner/bound/pricing.hpp"
#include "planner/bound/restricted_master.hpp"

namespace sailor::planner {

/// Plans of one Branch that take between two times.
struct OpenBranch {
  std::size_t family = 0;  ///< of Branching
  Branch plans;
  double shortest = 0.0;
  double longest = 0.0;
  DualPrices prices{};  ///< valid prices of the branch that this one was split from; empty: not yet tried
};

/// Plans told apart by where whole pipelines and layers may be.
struct Family {
  std::vector<std::size_t> pure;  ///< pools of whole pipelines
  bool across = false;            ///< there are pipelines across pools, too
  bool one_pool = false;          ///< all devices are in the pure pool
  bool by_holders = false;        ///< branches say instead where some layers are held; `pure`: where they may be
  int zone = -1;                  ///< all devices are in this one
  bool is_any = false;            ///< holds the branches of all later families, as long as they are not told apart
  bool all_cross = false;         ///< every pipeline has devices of two pools or more
  int max_pipelines = std::numeric_limits<int>::max();
};

class Branching {
 public:
  /// `by_money`: money counts, so that branches differ in time, too. `pricing`: the problem or a copy of it is what
  /// split() gets.
  Branching(const PricingProblem& pricing, const SearchSpace& space, bool by_money);

  [[nodiscard]] const Family& family_of(const OpenBranch& branch) const { return families_[branch.family]; }
  /// All plans of up to `max_count` pipelines, or of the pinned number, that take between two times.
  [[nodiscard]] std::vector<OpenBranch> all(int max_count, std::optional<int> pinned, double shortest,
                                            double longest) const;
  /// Appends two parts or more of a branch, divided where it is widest for what that costs the bound; none when it is
  /// narrow.
  void split(PricingProblem& pricing, const OpenBranch& branch, std::vector<OpenBranch>& open) const;

 private:
  void make_families(const PricingProblem& pricing, const SearchSpace& space);
  /// Makes the branch one of the family. False if there is no plan in it.
  bool enter(std::size_t family, OpenBranch& branch) const;
  void order_layers();
  [[nodiscard]] std::vector<std::size_t> linked(const Family& family) const;
  void split_by_holder(const OpenBranch& branch, int layer, std::vector<OpenBranch>& open) const;

  std::size_t pools_;
  std::size_t zones_;
  int layers_;
  bool by_money_;
  bool interleaves_;
  std::vector<Family> families_;
  std::vector<int> split_layers_;  // in the order in which branches are split by their holders
};

}  // namespace sailor::planner
