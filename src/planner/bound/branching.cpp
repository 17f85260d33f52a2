#include "planner/bound/branching.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sailor::planner {

namespace {

constexpr std::size_t max_exhaustive_pools = 4;  // up to here plans are told apart by the pools of whole pipelines
constexpr double narrow_deadlines = 1.002;
constexpr double narrow_pipelines = 1.01;
constexpr double narrow_reductions = 0.002;  // of the deadline
constexpr double narrow_reductions_of_zones = 0.05;
constexpr std::size_t first_split_layers = 3;  // told apart by their holders before all else

}  // namespace

Branching::Branching(const PricingProblem& pricing, const SearchSpace& space, bool by_money)
    : pools_(space.pools.size()),
      zones_(pricing.zones()),
      layers_(space.layers()),
      by_money_(by_money),
      interleaves_(pricing.interleaves()) {
  order_layers();
  make_families(pricing, space);
}

/// Pools that hold every layer.
std::vector<std::size_t> Branching::linked(const Family& family) const {
  return family.is_any || family.by_holders || interleaves_ ? std::vector<std::size_t>{} : family.pure;
}

bool Branching::enter(std::size_t family, OpenBranch& branch) const {
  branch.family = family;
  branch.plans.pure = linked(families_[family]);
  branch.plans.one_pool = families_[family].one_pool;
  branch.plans.all_cross = families_[family].all_cross;
  branch.plans.max_pipelines = std::min(branch.plans.max_pipelines, families_[family].max_pipelines);
  return branch.plans.min_pipelines <= branch.plans.max_pipelines;
}

void Branching::make_families(const PricingProblem& pricing, const SearchSpace& space) {
  const std::size_t count = pools_;
  const bool across = pricing.any_across();
  std::vector<std::size_t> all;
  for (std::size_t p = 0; p < count; ++p) all.push_back(p);
  if (interleaves_) {
    families_.push_back({.pure = all, .across = across});
    return;
  }
  if (count > max_exhaustive_pools) {
    for (std::size_t zone = 0; zone < pricing.zones(); ++zone) {
      std::vector<std::size_t> here;
      for (const std::size_t p : all)
        if (pricing.zone(p) == zone) here.push_back(p);
      if (here.size() == 1)
        families_.push_back({.pure = here, .one_pool = true});
      else
        families_.push_back({.pure = here, .across = across, .by_holders = true, .zone = static_cast<int>(zone)});
    }
    families_.push_back({.pure = all, .across = across, .by_holders = true});
    return;
  }
  if (count > 1) families_.push_back({.pure = all, .across = across, .is_any = true});
  for (std::size_t bits = across ? 0 : 1; bits < std::size_t{1} << count; ++bits) {
    Family family{.pure = {}, .across = across, .one_pool = !across && std::has_single_bit(bits)};
    for (std::size_t p = 0; p < count; ++p)
      if (bits >> p & 1) family.pure.push_back(p);
    family.all_cross = family.pure.empty();
    if (family.all_cross)  // each pipeline has a device outside every pool
      for (const DevicePool& pool : space.pools)
        family.max_pipelines = std::min(family.max_pipelines, space.devices() - pool.devices());
    families_.push_back(std::move(family));
  }
}

std::vector<OpenBranch> Branching::all(int max_count, std::optional<int> pinned, double shortest,
                                       double longest) const {
  std::vector<OpenBranch> open;
  for (std::size_t f = 0; f < families_.size(); ++f) {
    if (f > 0 && families_.front().is_any) break;
    for (int min_count = 1; min_count <= max_count; min_count *= 2) {
      const int zone = families_[f].zone;
      OpenBranch branch{.plans = {.pure = {},
                                  .holders = std::vector<int>(zone < 0 ? 0 : static_cast<std::size_t>(layers_), zone),
                                  .min_pipelines = pinned.value_or(min_count),
                                  .max_pipelines = pinned.value_or(std::min(max_count, 2 * min_count - 1))},
                        .shortest = shortest,
                        .longest = longest};
      if (branch.plans.max_pipelines <= max_count && enter(f, branch)) open.push_back(std::move(branch));
      if (pinned) break;
    }
  }
  return open;
}

/// Splits by the zones that hold the layer.
void Branching::split_by_holder(const OpenBranch& branch, int layer, std::vector<OpenBranch>& open) const {
  for (int holder = Branch::several; holder < static_cast<int>(zones_); ++holder) {
    OpenBranch child = branch;
    child.plans.holders.resize(static_cast<std::size_t>(layers_), Branch::unknown);
    child.plans.holders[static_cast<std::size_t>(layer)] = holder;
    // Plans of one zone are a family of their own.
    if (holder >= 0 &&
        std::all_of(child.plans.holders.begin(), child.plans.holders.end(), [&](int other) { return other == holder; }))
      continue;
    open.push_back(std::move(child));
  }
}

/// The first and last layer, then middles of what lies between.
void Branching::order_layers() {
  split_layers_ = {0};
  if (layers_ > 1) split_layers_.push_back(layers_ - 1);
  for (int branches = 2; branches < 2 * layers_; branches *= 2)
    for (int i = 1; i < branches; i += 2)
      if (const int layer = (layers_ - 1) * i / branches;
          std::find(split_layers_.begin(), split_layers_.end(), layer) == split_layers_.end())
        split_layers_.push_back(layer);
}

void Branching::split(PricingProblem& pricing, const OpenBranch& branch, std::vector<OpenBranch>& open) const {
  const Branch& plans = branch.plans;
  if (families_[branch.family].is_any) {
    for (std::size_t f = branch.family + 1; f < families_.size(); ++f) {
      OpenBranch child = branch;
      if (enter(f, child)) open.push_back(std::move(child));
    }
    return;
  }
  std::size_t told = 0;
  if (families_[branch.family].by_holders) {
    while (told < split_layers_.size() && !plans.holders.empty() &&
           plans.holders[static_cast<std::size_t>(split_layers_[told])] != Branch::unknown)
      ++told;
    if (told < first_split_layers) {
      split_by_holder(branch, split_layers_[told], open);
      return;
    }
  }
  OpenBranch low = branch;
  OpenBranch high = branch;
  const double deadlines = by_money_ ? branch.longest / branch.shortest : 1.0;
  const double pipelines = (plans.max_pipelines + 1.0) / plans.min_pipelines;
  const double largest = pricing.longest_reduction(plans);
  const double up_to = std::min(plans.reduction_up_to, std::max(largest, plans.reduction_over));
  const double reductions =
      plans.max_pipelines < 2 || up_to <= plans.reduction_over ? 0.0 : (up_to - plans.reduction_over) / branch.longest;
  const double by_deadlines = deadlines > narrow_deadlines ? std::log(deadlines) / 1.0 : 0.0;
  const double by_pipelines =
      plans.max_pipelines > plans.min_pipelines && pipelines > narrow_pipelines ? std::log(pipelines) / 3.0 : 0.0;
  const double narrow = families_[branch.family].by_holders ? narrow_reductions_of_zones : narrow_reductions;
  const double by_reductions = reductions > narrow ? reductions / 1.5 : 0.0;
  if (by_deadlines <= 0.0 && by_pipelines <= 0.0 && by_reductions <= 0.0) {
    if (families_[branch.family].by_holders && told < split_layers_.size())
      split_by_holder(branch, split_layers_[told], open);
    return;
  }
  if (by_deadlines >= by_pipelines && by_deadlines >= by_reductions) {
    low.longest = high.shortest = std::sqrt(branch.longest * branch.shortest);
  } else if (by_pipelines >= by_reductions) {
    const int middle =
        std::clamp(static_cast<int>(std::sqrt(static_cast<double>(plans.min_pipelines) * plans.max_pipelines)),
                   plans.min_pipelines, plans.max_pipelines - 1);
    low.plans.max_pipelines = middle;
    high.plans.min_pipelines = middle + 1;
  } else {
    low.plans.reduction_up_to = high.plans.reduction_over = 0.5 * (plans.reduction_over + up_to);
  }
  open.push_back(low);
  open.push_back(high);
}

}  // namespace sailor::planner
