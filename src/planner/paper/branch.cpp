// Branch and bound over the plans of a triple.
#include <algorithm>

#include "planner/index.hpp"
#include "planner/paper/triple.hpp"

namespace sailor::planner {

double TripleSolver::mixed_tail(std::size_t stage, std::size_t one, std::size_t other) const {
  const std::size_t count = triple_.stages->candidates().size();
  double& tail = mixed_[(stage * count + one) * count + other];
  if (tail == -infinity) tail = triple_.stages->mixed_tail(stage, one, other, triple_.pipelines);
  return tail;
}

double TripleSolver::alike_tail(std::size_t stage, std::size_t candidate) const {
  double& tail = alike_[stage * triple_.stages->candidates().size() + candidate];
  if (tail == -infinity) tail = triple_.stages->alike_tail(stage, candidate, triple_.pipelines);
  return tail;
}

/// Items that can be part of a better plan of these items: a stage with one pool left has all replicas there.
TripleSolver::Items TripleSolver::promising_items(const Items& items) const {
  const auto& candidates = triple_.stages->candidates();
  std::vector<std::size_t> alike;  // stages
  for (std::size_t s = 0; s < at(triple_.stages->kind().stages) && !items.empty(); ++s) {
    const auto pool = [&](std::size_t i) { return candidates[columns_[items_[i].column].candidates[s]].pool; };
    if (std::all_of(items.begin(), items.end(), [&](std::size_t i) { return pool(i) == pool(items.front()); }))
      alike.push_back(s);
  }
  Items kept;
  for (const std::size_t i : items) {
    const PaperTemplate& column = columns_[items_[i].column];
    double tail = column.tail;
    for (const std::size_t s : alike) tail = std::max(tail, alike_tail(s, column.candidates[s]));
    if (promising(items_[i].passes + tail, column.price + (triple_.pipelines - 1) * min_price_)) kept.push_back(i);
  }
  return kept;
}

/// Tries every plan of these items. Branches on two candidates of a stage that no better plan has both of (they are
/// different degrees of a type, or an all-reduce over both pools takes too long), as long as there are devices enough
/// for fractions of pipelines.
bool TripleSolver::branch(const Items& items, PaperBudget& budget) {
  const Items kept = promising_items(items);
  if (budget.nodes == 0 || budget.plans == 0) return false;
  --budget.nodes;
  if (kept.empty() || !enough_devices(kept)) return true;
  const auto& candidates = triple_.stages->candidates();
  std::vector<std::size_t> counts(candidates.size());
  std::vector<double> passes(candidates.size());  // min of each candidate
  std::size_t most = 0;
  std::size_t stage = 0;
  std::size_t pair[] = {0, 0};
  for (std::size_t s = 0; s < at(triple_.stages->kind().stages); ++s) {
    std::fill(counts.begin(), counts.end(), 0);
    std::fill(passes.begin(), passes.end(), infinity);
    for (const std::size_t i : kept) {
      const std::size_t candidate = columns_[items_[i].column].candidates[s];
      ++counts[candidate];
      passes[candidate] = std::min(passes[candidate], items_[i].passes);
    }
    for (std::size_t a = 0; a < candidates.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) {
        const std::size_t fewer = std::min(counts[a], counts[b]);
        if (fewer <= most) continue;
        const bool one_type = space_.pools[candidates[a].pool].type == space_.pools[candidates[b].pool].type;
        const bool degrees = one_type && candidates[a].tensor_parallel != candidates[b].tensor_parallel;
        const bool too_long =
            !degrees && candidates[a].pool != candidates[b].pool &&
            !promising(std::max(passes[a], passes[b]) + mixed_tail(s, a, b), triple_.pipelines * min_price_);
        if (!degrees && !too_long) continue;
        most = fewer;
        stage = s;
        pair[0] = a;
        pair[1] = b;
      }
  }
  if (most == 0) {
    start(kept);
    return descend(0, triple_.longer, triple_.pipelines - triple_.longer, 0.0, 0.0, 0.0, false, budget);
  }
  bool all = true;
  for (const std::size_t without : pair) {
    Items rest;
    for (const std::size_t i : kept)
      if (columns_[items_[i].column].candidates[stage] != without) rest.push_back(i);
    all = branch(rest, budget) && all;
  }
  return all;
}

/// Lower bound of the tail of the plan put together.
double TripleSolver::tail_of_all() const {
  const auto& candidates = triple_.stages->candidates();
  double tail = 0.0;
  for (std::size_t s = 0; s < at(triple_.stages->kind().stages); ++s) {
    const std::size_t first = columns_[items_[parts_.front().item].column].candidates[s];
    const bool alike = std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
      return candidates[columns_[items_[part.item].column].candidates[s]].pool == candidates[first].pool;
    });
    if (alike) tail = std::max(tail, alike_tail(s, first));
  }
  return tail;
}

void TripleSolver::start(const Items& items) {
  used_items_ = items;
  left_ = devices_;
  degrees_.assign(at(triple_.stages->kind().stages) * space_.types.size(), 0);
  uses_.assign(degrees_.size(), 0);
  parts_.clear();
  std::vector<double> prices(devices_.size(), 0.0);
  static_cast<void>(enough_devices(items, &prices));
  weights_.clear();
  for (const std::size_t i : items) {
    double weight = 0.0;
    for (std::size_t p = 0; p < prices.size(); ++p) weight += prices[p] * columns_[items_[i].column].devices[p];
    weights_.push_back(weight);
  }
  for (std::vector<double>& least : min_weight_) least.assign(items.size() + 1, infinity);
  for (std::size_t i = items.size(); i-- > 0;)
    for (const int longer : {0, 1})
      min_weight_[longer][i] =
          std::min(min_weight_[longer][i + 1], items_[items[i]].longer == (longer == 1) ? weights_[i] : infinity);
  weight_left_ = 0.0;
  for (std::size_t p = 0; p < prices.size(); ++p) weight_left_ += prices[p] * devices_[p];
}

/// Adds pipelines of the items from `from` on; still missing are `longer` with one micro-batch more and `others`.
bool TripleSolver::descend(std::size_t from, int longer, int others, double passes, double tail, double price_so_far,
                           bool greedy, PaperBudget& budget) {
  if (longer + others == 0)
    return !promising(passes + std::max(tail, tail_of_all()), price_so_far) || try_orders(parts_, budget);
  bool all = true;
  for (std::size_t u = from; u < used_items_.size(); ++u) {
    const double min_weight =
        (longer > 0 ? longer * min_weight_[1][u] : 0.0) + (others > 0 ? others * min_weight_[0][u] : 0.0);
    if (min_weight > weight_left_ + 1e-9) break;
    const Item& item = items_[used_items_[u]];
    const PaperTemplate& column = columns_[item.column];
    const double min_price = price_so_far + (longer + others) * min_price_;
    if (!promising(std::max(item.time, passes + tail), min_price)) break;  // later items are not either
    int& missing = item.longer ? longer : others;
    if (missing == 0) continue;
    const double later = std::max(passes, item.passes);
    double longest_tail = std::max(tail, column.tail);
    for (const Part& part : parts_) {
      const PaperTemplate& other = columns_[items_[part.item].column];
      for (std::size_t s = 0; s < column.candidates.size(); ++s)
        if (triple_.stages->candidates()[column.candidates[s]].pool !=
            triple_.stages->candidates()[other.candidates[s]].pool)
          longest_tail = std::max(longest_tail, mixed_tail(s, column.candidates[s], other.candidates[s]));
    }
    if (!promising(later + longest_tail, min_price)) continue;
    for (int count = missing; count > 0; --count) {
      for (std::size_t p = 0; p < left_.size(); ++p)
        if (column.devices[p] > 0) count = std::min(count, left_[p] / column.devices[p]);
      if (count == 0) break;
      if (budget.nodes == 0 || budget.plans == 0) return false;
      if (--budget.nodes % 1024 == 0 && stop_()) return false;
      const double price_then = price_so_far + column.price * count;
      if (!promising(later + longest_tail, price_then + (longer + others - count) * min_price_)) continue;
      if (!take(column, count)) break;  // degrees disagree
      missing -= count;
      weight_left_ -= weights_[u] * count;
      parts_.push_back({used_items_[u], count});
      all = descend(u + 1, longer, others, later, longest_tail, price_then, greedy, budget) && all;
      parts_.pop_back();
      weight_left_ += weights_[u] * count;
      missing += count;
      give_back(column, count);
      if (budget.nodes == 0 || budget.plans == 0) return false;
      if (greedy) break;
    }
  }
  return all;
}

}  // namespace sailor::planner
