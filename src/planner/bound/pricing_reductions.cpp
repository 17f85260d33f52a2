// Lower bounds of the times of reductions in a branch: the part of the pricing problem that asks the links.
#include <algorithm>

#include "planner/bound/pricing.hpp"
#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr std::size_t max_reductions = 400;  // numbers of pipelines for which they are cached

}  // namespace

KnownReductions::Times::Times(std::size_t of_times, std::size_t of_linked) : times(of_times), linked(of_linked) {
  for (auto* const all : {&times, &linked})
    for (std::atomic<double>& time : *all) time.store(-1.0, std::memory_order_relaxed);
}

std::shared_ptr<KnownReductions::Times> KnownReductions::of(const Branch& branch) {
  const std::scoped_lock lock(mutex_);
  if (known_.size() > max_reductions) known_.clear();
  std::shared_ptr<Times>& times = known_[{branch.min_pipelines, branch.pure, branch.one_pool}];
  if (!times) times = std::make_shared<Times>(times_, linked_);
  return times;
}

void PricingProblem::number_amounts(const std::vector<double>& amounts) {
  const std::size_t width = amounts.size();
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t first = 0; first < width; ++first)
    for (std::size_t last = first + 1; last < width; ++last)
      order.emplace_back(amounts[last] - amounts[first], first * width + last);
  std::sort(order.begin(), order.end());
  amount_numbers_.assign(width * width, 0);
  for (const auto& [amount, range] : order) {
    if (distinct_amounts_.empty() || amount > distinct_amounts_.back() * (1.0 + 1e-9))
      distinct_amounts_.push_back(amount);
    amount_numbers_[range] = distinct_amounts_.size() - 1;
  }
}

/// Max layers of the first stage of a pipeline of the branch.
int PricingProblem::longest_first_stage(const Branch& branch) {
  int max_layers = 1;
  for (std::size_t p = 0; p < space_.pools.size(); ++p)
    for (const int degree : space_.pools[p].tensor_parallel)
      while (max_layers < prices_.layers() &&
             reduction(p, degree, 0, max_layers + 1, 0, branch) <= branch.reduction_up_to)
        ++max_layers;
  return max_layers;
}

double PricingProblem::longest_reduction(const Branch& branch) {
  double longest = 0.0;
  Branch any = branch;
  any.holders.clear();
  enter(any, {.shortest = shortest_, .longest = deadline_});
  const bool known = !branch.pure.empty() || !branch.holders.empty();
  for (std::size_t p = 0; known && p < space_.pools.size(); ++p) {
    if (branch.holders.empty() && std::find(branch.pure.begin(), branch.pure.end(), p) == branch.pure.end()) continue;
    if (!branch.holders.empty() && branch.holders[0] != static_cast<int>(zone_[p])) continue;
    for (const int degree : space_.pools[p].tensor_parallel) {
      if (const double time = reduction(p, degree, 0, prices_.layers(), 0, any); time < infinity)
        longest = std::max(longest, time);
    }
  }
  return longest;
}

/// Min time of the reductions of a stage. `way`: MinPrices.
double PricingProblem::reduction(std::size_t pool, int tensor_parallel, int first, int last, std::size_t way,
                                 const Branch& branch) {
  if (!branch.holders.empty() && alone_until_[zone_[pool] * at(prices_.layers()) + at(first)] < last) return infinity;
  if (branch.min_pipelines < 2 || interleaves_ || !counts_reductions()) return 0.0;
  double linked = 0.0;
  if (!several_before_.empty()) {
    const double held_elsewhere = several_before_[at(last)] - several_before_[at(first)];
    const auto more =
        std::upper_bound(distinct_amounts_.begin(), distinct_amounts_.end(), held_elsewhere * (1.0 + 1e-9));
    if (more != distinct_amounts_.begin())
      linked = linked_reduction(pool, tensor_parallel, static_cast<std::size_t>(more - distinct_amounts_.begin()) - 1,
                                branch);
  }
  // On the stage's node so many of its ranks take part in a sum of its layers at most; every other rank makes one more
  // sum that goes through the network beside it.
  const int node = space_.pools[pool].largest_node();
  const int min_degree = degrees_.front();
  int rings = 1;
  if (const int taken = static_cast<int>(way); taken > tensor_parallel) {
    rings = node;
    for (int busy = taken; busy <= node; ++busy) {
      const int here = 1 + (busy - taken) / min_degree;
      rings = std::min(rings, (busy + here - 1) / here);
    }
  }
  const auto degree =
      static_cast<std::size_t>(std::lower_bound(degrees_.begin(), degrees_.end(), tensor_parallel) - degrees_.begin());
  const std::size_t amount = amount_numbers_[at(first) * at(prices_.layers() + 1) + at(last)];
  std::atomic<double>& known =
      reductions_here_
          ->times[((pool * degrees_.size() + degree) * distinct_amounts_.size() + amount) * at(largest_node_ + 1) +
                  at(rings)];
  double time = known.load(std::memory_order_relaxed);
  if (time < 0.0) {
    const std::scoped_lock lock(prices_mutex_);
    time = known.load(std::memory_order_relaxed);
    if (time < 0.0) time = reduction_of(pool, tensor_parallel, rings, distinct_amounts_[amount], branch);
    known.store(time, std::memory_order_relaxed);
  }
  return std::max(time, linked);
}

// An all-reduce over several zones is as slow as over the slowest pair, thus at least as over the quickest pair with
// this zone.
double PricingProblem::linked_reduction(std::size_t pool, int tensor_parallel, std::size_t amount,
                                        const Branch& branch) {
  const auto index =
      static_cast<std::size_t>(std::lower_bound(degrees_.begin(), degrees_.end(), tensor_parallel) - degrees_.begin());
  std::atomic<double>& known =
      reductions_here_->linked[(pool * degrees_.size() + index) * distinct_amounts_.size() + amount];
  double time = known.load(std::memory_order_relaxed);
  if (time >= 0.0) return time;
  const std::scoped_lock lock(prices_mutex_);
  time = known.load(std::memory_order_relaxed);
  if (time >= 0.0) return time;
  const int node = space_.pools[pool].largest_node();
  time = infinity;
  for (const int degree : degrees_) {
    if (degree > tensor_parallel) break;
    const double share = distinct_amounts_[amount] / degree;
    for (std::size_t other = 0; other < space_.pools.size(); ++other)
      if (zone_[other] != zone_[pool])
        time = std::min(time, std::max(over_link(pool, other, node, degree, degree, branch.min_pipelines, share),
                                       over_link(other, pool, node, degree, degree, branch.min_pipelines, share)));
  }
  known.store(time, std::memory_order_relaxed);
  return time;
}

// The ranks of a tensor-parallel group of degree m share the gradients; in an all-reduce over several degrees the min
// counts. A node with h groups that hold a layer has at least h m busy ranks, so m all-reduces go through its network
// at once.
double PricingProblem::reduction_of(std::size_t pool, int tensor_parallel, int rings, double amount,
                                    const Branch& branch) {
  const int node = space_.pools[pool].largest_node();
  const int replicas = branch.min_pipelines;
  // Pools of whole pipelines hold every layer, so that they take part in the stage's reductions.
  std::vector<std::size_t> holding = branch.pure;
  if (!holding.empty() && std::find(holding.begin(), holding.end(), pool) == holding.end()) holding.push_back(pool);
  double min_time = infinity;
  for (const int degree : degrees_) {
    if (degree > tensor_parallel) break;
    const double share = amount / degree;
    const int together = std::max(rings, degree);
    double time = 0.0;
    if (holding.size() > 1) {  // an all-reduce is as slow as between the slowest pair
      for (const std::size_t a : holding)
        for (const std::size_t b : holding)
          if (a != b) time = std::max(time, over_link(a, b, node, degree, together, replicas, share));
    } else if (branch.one_pool) {
      time = over_link(pool, pool, node, degree, together, replicas, share);
    } else {
      time = infinity;
      for (std::size_t other = 0; other < space_.pools.size(); ++other)
        time = std::min({time, over_link(pool, other, node, degree, together, replicas, share),
                         over_link(other, pool, node, degree, together, replicas, share)});
    }
    min_time = std::min(min_time, time);
  }
  return min_time;
}

double PricingProblem::over_link(std::size_t a, std::size_t b, int node, int degree, int rings, int replicas,
                                 double amount) {
  double min_time = infinity;
  // Several smaller all-reduces take no less, or nearly so; but some links are quicker for buckets.
  std::vector<double> branches{1.0, 0.05};
  const double bucket = order_.overlaps ? prices_.env().framework.reduction_bucket.value() : 0.0;
  if (bucket > 0.0 && bucket < amount) {
    for (double share = 0.5; share > bucket / amount; share *= 0.5) branches.push_back(share);
    branches.insert(branches.end(), {bucket / amount, 0.5 * bucket / amount});  // buckets are equal, half full at least
  }
  for (const double branch : branches) {
    const int max_ranks = std::max(1, node / degree);
    for (int ranks = 1; ranks <= max_ranks; ranks = ranks < max_ranks ? std::min(2 * ranks, max_ranks) : max_ranks + 1)
      // On published links more all-reduces at once may take less time.
      for (int all = rings; all <= std::max(rings, (node + ranks - 1) / ranks); ++all)
        min_time = std::min(min_time, prices_.reduction(a, b, ranks, all, replicas, false, amount * branch) / branch);
    if (a == b && replicas <= node / degree)
      min_time = std::min(min_time, prices_.reduction(a, a, replicas, 1, replicas, true, amount * branch) / branch);
  }
  return min_time;
}

}  // namespace sailor::planner
