#include "planner/bound/stages.hpp"

#include <algorithm>
#include <cmath>

#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr int deepest = 4;            // max number of micro-batches in flight that is told apart
constexpr double level_step = 1.004;  // between limits on the slowest stage
constexpr double weight_share[StageProgram::weights] = {0.0, 0.6, 1.2, 3.0};
constexpr std::size_t max_caches = 16;
constexpr std::size_t max_cached = 4'000'000;  // bytes, of each program

}  // namespace

// Memory: a stage keeps as many micro-batches in flight as there are stages from it to the end, or as its pipeline has
// when that is less; under GPipe more. ZeRO may share what it shards among any number of replicas, and a pipeline alone
// copies no gradients. A stage is never slower on a node with fewer busy ranks, of which it is `degree`
// itself.
std::vector<StageCandidate> stage_candidates(StagePrices& prices, std::size_t p, int micro_batch) {
  const SearchSpace& space = prices.space();
  const DevicePool& pool = space.pools[p];
  const int layers = prices.layers();
  const auto width = at(layers + 1);
  std::vector<StageCandidate> candidates;
  for (const int degree : pool.tensor_parallel) {
    if (!space.allows(pool.type, degree, micro_batch)) continue;
    StageCandidate candidate{.pool = p, .tensor_parallel = degree, .node = pool.largest_node()};
    std::vector<double> forward(at(layers), infinity);
    int max_fit = 0;
    for (const StageChoice& choice : space.choices) {
      const StageTable* table = prices.table(pool.type, degree, micro_batch, choice);
      if (table == nullptr) continue;
      const StageTable* light = prices.table(pool.type, degree, micro_batch, choice, degree);
      candidate.layer.resize(at(layers), infinity);
      for (const StageTable* each : {table, light})
        for (int layer = 0; layer < layers && each != nullptr; ++layer)
          forward[at(layer)] = std::min(forward[at(layer)],
                                        (each->times[at(layer) + 1].forward - each->times[at(layer)].forward).value());
      if (candidate.time.empty()) candidate.time.assign(at(deepest), std::vector<double>(width * width, infinity));
      for (int first = 0; first < layers; ++first)
        for (int last = first + 1; last <= layers; ++last) {
          if (last == first + 1) {
            double& min_time = candidate.layer[at(first)];
            min_time = std::min(min_time, table->time(first, last));
            if (light != nullptr) min_time = std::min(min_time, light->time(first, last));
          }
          const int neighbours = (first > 0 ? 1 : 0) + (last < layers ? 1 : 0);
          const int fit = prices.max_in_flight_of_any(*table, pool, first, last, micro_batch, neighbours, deepest);
          if (fit < 1) continue;  // the last stage has one neighbour less, and may fit where a shorter one does not
          max_fit = std::max(max_fit, fit);
          double quickest = table->time(first, last);
          if (light != nullptr) quickest = std::min(quickest, light->time(first, last));
          for (int depth = 0; depth < std::min(fit, deepest); ++depth) {
            double& time = candidate.time[at(depth)][at(first) * width + at(last)];
            time = std::min(time, quickest);
          }
        }
    }
    if (max_fit == 0) continue;
    candidate.forward.assign(1, 0.0);
    for (const double time : forward) candidate.forward.push_back(candidate.forward.back() + time);
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

void find_boundaries(StagePrices& prices, std::vector<StageCandidate>& candidates, int micro_batch) {
  const auto min_of = [&](const StageCandidate& a, const StageCandidate& b, bool one_node) {
    return std::min(
        prices.boundary(a.pool, a.tensor_parallel, b.pool, b.tensor_parallel, micro_batch, one_node).both(),
        prices.boundary(b.pool, b.tensor_parallel, a.pool, a.tensor_parallel, micro_batch, one_node).both());
  };
  for (StageCandidate& candidate : candidates) {
    std::vector<double> far_to(prices.space().pools.size(), infinity);
    for (const StageCandidate& other : candidates) {
      const bool same = candidate.pool == other.pool;
      const double far = min_of(candidate, other, false);
      candidate.far = std::min(candidate.far, far);
      far_to[other.pool] = std::min(far_to[other.pool], far);
      if (!same) continue;
      candidate.far_inside = std::min(candidate.far_inside, far);
      if (candidate.tensor_parallel + other.tensor_parallel > candidate.node) continue;
      candidate.near = std::min(candidate.near, min_of(candidate, other, true));
    }
    for (std::size_t p = 0; p < far_to.size(); ++p)
      if (far_to[p] < infinity) candidate.far_to.emplace_back(far_to[p], p);
    std::sort(candidate.far_to.begin(), candidate.far_to.end());
  }
}

StageProgram::StageProgram(StagePrices& prices, std::vector<StageCandidate> candidates, int micro_batch, bool inside)
    : prices_(prices),
      micro_batch_(micro_batch),
      inside_(inside),
      blocks_(!prices.env().framework.overlaps_transfers),
      layers_(prices.layers()),
      pools_(inside ? 1 : prices.space().pools.size()) {
  choose_candidates(std::move(candidates));
  if (layers_ < 2 || candidates_->empty()) return;
  double slowest_layer = 0.0;
  for (int layer = 0; layer < layers_; ++layer) {
    double quickest = infinity;
    for (const StageCandidate& candidate : *candidates_) quickest = std::min(quickest, candidate.layer[at(layer)]);
    if (quickest == infinity) return;
    through_ += quickest;
    slowest_layer = std::max(slowest_layer, quickest);
  }
  matters_from_.assign(at(deepest), infinity);
  double longest = 0.0;
  double link = infinity;
  for (const StageCandidate& candidate : *candidates_) {
    largest_node_ = std::max(largest_node_, candidate.node);
    const double min_link = std::min(candidate.far, candidate.near);
    const double max_link =
        std::max(candidate.far < infinity ? candidate.far : 0.0, candidate.near < infinity ? candidate.near : 0.0);
    link = std::min(link, min_link);
    double sum = 0.0;
    for (int layer = 0; layer < layers_; ++layer)
      if (const double time = candidate.layer[at(layer)]; time < infinity) sum += time;
    longest = std::max(longest, sum + 2.0 * max_link);
    for (std::size_t depth = 1; depth < at(deepest); ++depth)
      for (std::size_t i = 0; i < candidate.time[0].size(); ++i)
        if (candidate.time[depth][i] != candidate.time[depth - 1][i]) {
          matters_from_[depth] = std::min(matters_from_[depth], candidate.time[0][i]);
          max_in_flight_ = std::max(max_in_flight_, static_cast<int>(depth) + 1);
        }
  }
  through_ += link;
  find_passes();
  find_backward();
  first_level_ = std::max(slowest_layer, 1e-9);
  levels_ = static_cast<int>(std::ceil(std::log(longest / first_level_) / std::log(level_step))) + 2;
  // Interleaved stages hold several ranges of layers: only what holds for any layers of a stage is used (see
  // bound.cpp).
  possible_ = true;
  if (inside) set_prices({});
}

void StageProgram::choose_candidates(std::vector<StageCandidate> candidates) {
  if (inside_)
    for (StageCandidate& candidate : candidates) {
      candidate.far = candidate.far_inside;
      candidate.far_to = {{candidate.far_inside, 0}};
    }
  else  // what stays in a node is not told apart: that would take too long
    for (StageCandidate& candidate : candidates) {
      if (candidate.near < candidate.far_inside) {
        std::erase_if(candidate.far_to, [&](const auto& to) { return to.second == candidate.pool; });
        candidate.far_to.emplace_back(candidate.near, candidate.pool);
      }
      std::sort(candidate.far_to.begin(), candidate.far_to.end());
      candidate.far = std::min(candidate.far, candidate.near);
      candidate.near = infinity;
    }
  std::erase_if(candidates, [](const StageCandidate& candidate) {
    return candidate.far == infinity && candidate.near == infinity;
  });
  candidates_ = std::make_shared<const std::vector<StageCandidate>>(std::move(candidates));
}

StageProgram StageProgram::another() const {
  StageProgram other = *this;
  other.caches_.clear();
  other.cache_ = nullptr;
  other.cached_ = 0;
  other.work_done_ = 0;
  if (inside_) other.set_prices({});
  return other;
}

double StageProgram::level(int index) const { return first_level_ * std::pow(level_step, index); }

int StageProgram::level_below(double time) const {
  if (time <= first_level_) return 0;
  const double index = std::log(time / first_level_) / std::log(level_step) - 1e-9;
  return std::clamp(static_cast<int>(std::min(index, 1e9)), 0, levels_);
}

void StageProgram::set_prices(const std::vector<double>& device_price) {
  device_price_ = device_price;
  if ((caches_.size() > max_caches && !caches_.contains(device_price)) ||
      cached_ * candidates_->size() * at(layers_ + 1) * at(largest_node_ + 1) * sizeof(double) > max_cached) {
    caches_.clear();
    cached_ = 0;
  }
  cache_ = &caches_[device_price];
  if (cache_->limits.empty()) remember(StageLimits(candidates_->size() * at(layers_), layers_));
  find_work();
}

std::size_t StageProgram::remember(const StageLimits& limits) {
  const auto [entry, is_new] = cache_->numbers.try_emplace(limits, cache_->limits.size());
  if (is_new) cache_->limits.push_back(&entry->first);
  return entry->second;
}

void StageProgram::find_passes() {
  std::vector<double> forward(at(layers_), infinity);
  std::vector<double> pass(at(layers_), infinity);
  for (const StageCandidate& candidate : *candidates_)
    for_each_table(prices_, candidate, micro_batch_, [&](const StageTable& table) {
      for (int layer = 0; layer < layers_; ++layer) {
        const double both = table.time(layer, layer + 1);
        pass[at(layer)] = std::min(pass[at(layer)], both);
        forward[at(layer)] =
            std::min(forward[at(layer)], both - (table.backward[at(layer) + 1] - table.backward[at(layer)]));
      }
    });
  pass_before_.assign(1, 0.0);
  forward_before_.assign(1, 0.0);
  for (int layer = 0; layer < layers_; ++layer) {
    pass_before_.push_back(pass_before_.back() + pass[at(layer)]);
    forward_before_.push_back(forward_before_.back() + forward[at(layer)]);
  }
}

void StageProgram::find_backward() {
  const auto each_layer = [&](int begin, int end, auto visit) {
    for (const StageCandidate& candidate : *candidates_)
      for_each_table(prices_, candidate, micro_batch_, [&](const StageTable& table) {
        for (int layer = begin; layer < end; ++layer)
          visit(layer, table.time(layer, layer + 1), table.backward[at(layer) + 1] - table.backward[at(layer)]);
      });
  };
  backward_ = 0.5;
  each_layer(1, layers_ - 1, [&](int, double time, double backward) {
    if (time > 0.0) backward_ = std::max(backward_, std::min(1.0, backward / time));
  });
  for (const StageCandidate& candidate : *candidates_)
    for (const StageCandidate& other : *candidates_)
      for (const bool one_node : {false, true}) {
        if (one_node && candidate.pool != other.pool) continue;
        const BoundaryCost cost = prices_.boundary(candidate.pool, candidate.tensor_parallel, other.pool,
                                                   other.tensor_parallel, micro_batch_, one_node);
        if (cost.both() < infinity && cost.both() > 0.0) backward_ = std::max(backward_, cost.backward / cost.both());
      }
  double first = 0.0;
  double last = 0.0;
  each_layer(0, layers_, [&](int layer, double time, double backward) {
    const double more = backward - backward_ * time;
    if (layer == 0) first = std::max(first, more);
    if (layer == layers_ - 1) last = std::max(last, more);
  });
  backward_more_ = first + last;
}

void StageProgram::find_work() {
  work_ = 0.0;
  for (int layer = 0; layer < layers_; ++layer) {
    double min_work = infinity;
    for (const StageCandidate& candidate : *candidates_)
      min_work =
          std::min(min_work, device_price(candidate.pool) * candidate.tensor_parallel * candidate.layer[at(layer)]);
    work_ += min_work;
  }
}

/// Min prices of the stages from a first layer on. Depth: number of stages from there to the end.
struct StageProgram::Tables {
  std::vector<double> far;   // at (pool x layers + first) x depths + depth: their first boundary is between nodes
  std::vector<double> near;  // at ((pool x layers + first) x devices + c) x depths + depth: it is inside a node, of
                             // which they may take c devices
  MinPrices* result = nullptr;
};

void StageProgram::fill(Tables& tables, double level, double weight, int cap, const StageLimits& limits) {
  const auto width = at(layers_ + 1);
  const auto depths = at(cap);
  const std::size_t devices = inside_ ? at(largest_node_ + 1) : 1;
  MinPrices& result = *tables.result;
  result.weight = weight;
  result.width = width;
  result.ways = devices;
  result.price.assign(candidates_->size() * width * devices, infinity);
  tables.far.assign(pools_ * width * depths, infinity);
  tables.near.assign(pools_ * width * devices * depths, infinity);
  const double limit = level * (1.0 + 1e-12);
  if (inside_)
    fill_inside(tables, limit, weight, cap, limits);
  else
    fill_across(tables, limit, weight, limits);
  for (const double price : result.price) result.min = std::min(result.min, price);
}

/// Neither nodes nor micro-batches in flight are told apart.
void StageProgram::fill_across(Tables& tables, double limit, double weight, const StageLimits& limits) {
  const auto width = at(layers_ + 1);
  MinPrices& result = *tables.result;
  // Element k is the min price over the first k pools of a candidate's far_to.
  const std::size_t nexts = pools_ + 1;
  next_price_.resize(candidates_->size() * width * nexts);
  for (int first = layers_ - 1; first >= 0; --first) {
    for (std::size_t o = 0; o < candidates_->size(); ++o) {
      const StageCandidate& candidate = (*candidates_)[o];
      const double cost = device_price(candidate.pool) * candidate.tensor_parallel;
      const double in = first == 0 || !blocks_ ? 0.0 : candidate.far;
      double& here = tables.far[candidate.pool * width + at(first)];
      const int furthest = limits[o * at(layers_) + at(first)];
      for (int last = first + 1; last <= furthest; ++last) {
        const double time = candidate.time[0][at(first) * width + at(last)];
        if (time == infinity) continue;
        const double taken = time + in;
        if (taken > limit) break;
        ++work_done_;
        if (last == layers_) {
          if (first > 0 && candidate.far < infinity) here = std::min(here, cost + weight * time);
          break;
        }
        work_done_ += 1 + candidate.far_to.size();
        if (first > 0 && candidate.far == infinity) continue;
        std::size_t next = candidate.far_to.size();
        while (next > 0 && (candidate.far_to[next - 1].first == infinity ||
                            taken + (blocks_ ? candidate.far_to[next - 1].first : 0.0) > limit))
          --next;
        const double price = cost + weight * time + next_price_[(o * width + at(last)) * nexts + next];
        double& min_price = first == 0 ? result.price[o * width + at(last)] : here;
        min_price = std::min(min_price, price);
      }
    }
    if (first == 0) break;
    for (std::size_t o = 0; o < candidates_->size(); ++o) {
      double* const next_price = &next_price_[(o * width + at(first)) * nexts];
      next_price[0] = infinity;
      for (std::size_t k = 0; k < (*candidates_)[o].far_to.size(); ++k) {
        const auto& [far, pool] = (*candidates_)[o].far_to[k];
        next_price[k + 1] = std::min(next_price[k], weight * far + tables.far[pool * width + at(first)]);
      }
    }
  }
}

void StageProgram::fill_inside(Tables& tables, double limit, double weight, int cap, const StageLimits& limits) {
  const auto width = at(layers_ + 1);
  const auto depths = at(cap);
  const std::size_t devices = at(largest_node_ + 1);
  MinPrices& result = *tables.result;
  for (int first = layers_ - 1; first >= 0; --first)
    for (std::size_t o = 0; o < candidates_->size(); ++o) {
      const StageCandidate& candidate = (*candidates_)[o];
      const double cost = device_price(candidate.pool) * candidate.tensor_parallel;
      const double min_in = first == 0 || !blocks_ ? 0.0 : std::min(candidate.far, candidate.near);
      const double far_in = first == 0 ? infinity : candidate.far;
      const double near_in = first == 0 ? infinity : candidate.near;
      const double near_taken = blocks_ ? candidate.near : 0.0;
      const auto group = at(candidate.tensor_parallel);
      double* const near_here = &tables.near[at(first) * devices * depths];
      double* const far_here = &tables.far[at(first) * depths];
      const int furthest = limits[o * at(layers_) + at(first)];
      for (int last = first + 1; last <= furthest; ++last) {
        const std::size_t range = at(first) * width + at(last);
        if (candidate.time[0][range] == infinity) continue;
        if (candidate.time[0][range] + min_in > limit) break;
        ++work_done_;
        if (last == layers_) {
          if (first == 0) break;
          const double time = candidate.time[0][range];
          const double price = cost + weight * time;
          if (far_in < infinity && time + (blocks_ ? far_in : 0.0) <= limit) far_here[0] = std::min(far_here[0], price);
          if (near_in < infinity && time + (blocks_ ? near_in : 0.0) <= limit)
            for (std::size_t c = group; c < devices; ++c)
              near_here[c * depths] = std::min(near_here[c * depths], price);
          break;
        }
        const double* const near_next = &tables.near[at(last) * devices * depths];
        for (std::size_t depth = depths == 1 ? 0 : 1; depth < depths; ++depth) {
          const double time = candidate.time[depth][range];
          if (time + min_in > limit) break;
          work_done_ += devices + candidate.far_to.size();
          const double here = cost + weight * time;
          const bool is_last = depth + 1 == depths;
          const std::size_t low = depth == 0 ? 0 : depth - 1;
          const auto price_far_next = [&](double taken) {
            if (candidate.far == infinity || taken + (blocks_ ? candidate.far : 0.0) > limit) return infinity;
            const double* const next = &tables.far[at(last) * depths];
            return here + (weight * candidate.far + std::min(next[low], is_last ? next[depth] : infinity));
          };
          const auto price_near_next = [&](std::size_t c) {
            const double* const next = near_next + c * depths;
            return here + weight * candidate.near + std::min(next[low], is_last ? next[depth] : infinity);
          };
          const bool near_ok = candidate.near < infinity && at(candidate.node) > group;
          if (first == 0) {
            double* const price = &result.price[(o * width + at(last)) * devices];
            price[0] = std::min(price[0], price_far_next(time));
            if (near_ok && time + near_taken <= limit)
              for (std::size_t c = group + 1; c <= at(candidate.node); ++c)
                price[c] = std::min(price[c], price_near_next(c - group));
            continue;
          }
          if (far_in < infinity) {
            const double taken = time + (blocks_ ? far_in : 0.0);
            far_here[depth] = std::min(far_here[depth], price_far_next(taken));
            if (near_ok && taken + near_taken <= limit)
              far_here[depth] = std::min(far_here[depth], price_near_next(at(candidate.node) - group));
          }
          if (near_in < infinity) {
            const double taken = time + (blocks_ ? near_in : 0.0);
            const double far = price_far_next(taken);
            const bool near_fits = near_ok && taken + near_taken <= limit;
            for (std::size_t c = group; c <= at(candidate.node); ++c) {
              double& best = near_here[c * depths + depth];
              best = std::min(best, far);
              if (near_fits && c > group) best = std::min(best, price_near_next(c - group));
            }
          }
        }
      }
    }
}

int StageProgram::in_flight_at(int index, int in_flight) const {
  const double limit = level(index) * (1.0 + 1e-12);
  int cap = std::clamp(in_flight, 1, max_in_flight_);
  while (cap > 1 && matters_from_[at(cap) - 1] > limit) --cap;
  return cap;
}

std::shared_ptr<const MinPrices> StageProgram::solve(int index, std::size_t weight, int in_flight, std::size_t limits) {
  const int cap = inside_ ? in_flight_at(index, in_flight) : 1;  // across pools more would take too long to tell apart
  const std::uint64_t key = ((limits * at(levels_ + 1) + at(index)) * weights + weight) * at(deepest) + at(cap) - 1;
  auto& entry = cache_->solved[key];
  if (entry) return entry;
  double seconds = 0.0;
  if (weight > 0) {
    // The weight makes the time from end to end count about as much as the devices.
    const double min_price = solve(index, 0, in_flight, limits)->min;
    seconds =
        min_price < infinity ? weight_share[weight] * min_price / std::min(8.0 * level(index), 3.0 * through_) : 0.0;
  }
  auto result = std::make_shared<MinPrices>();
  Tables tables{.far = {}, .near = {}, .result = result.get()};
  fill(tables, level(index), seconds, cap, *cache_->limits[limits]);
  ++cached_;
  cache_->solved[key] = result;
  return result;
}

// Without a weight, the next stages cost less the further a stage goes: the furthest possible end is best.
const MinPrices& StageProgram::estimate(int index, const StageLimits& limits) {
  const auto width = at(layers_ + 1);
  const double limit = level(index) * (1.0 + 1e-12);
  estimate_.width = width;
  estimate_.min = infinity;
  estimate_.price.assign(candidates_->size() * width, infinity);
  estimates_.assign(width, infinity);
  for (int first = layers_ - 1; first >= 0; --first) {
    double best = infinity;
    for (std::size_t o = 0; o < candidates_->size(); ++o) {
      const StageCandidate& candidate = (*candidates_)[o];
      const double cost = device_price(candidate.pool) * candidate.tensor_parallel;
      const double boundary = blocks_ ? std::min(candidate.far, candidate.near) : 0.0;
      const double in = first == 0 ? 0.0 : boundary;
      const double* const time = &candidate.time[0][at(first) * width];
      const int furthest = limits[o * at(layers_) + at(first)];
      if (first > 0 && furthest == layers_ && time[layers_] + in <= limit) {
        best = std::min(best, cost);
        continue;
      }
      const double max_time = limit - in - boundary;
      int low = first;
      int high = std::min(furthest, layers_ - 1) + 1;  // the first that is too far
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (time[middle] <= max_time ? low : high) = middle;
      }
      if (first > 0) {
        if (low > first) best = std::min(best, cost + estimates_[at(low)]);
        continue;
      }
      for (int last = 1; last <= low; ++last) {
        const double price = cost + estimates_[at(last)];
        estimate_.price[o * width + at(last)] = price;
        estimate_.min = std::min(estimate_.min, price);
      }
    }
    estimates_[at(first)] = best;
  }
  work_done_ += 4 * candidates_->size() * at(layers_);
  return estimate_;
}

std::vector<TemplateStage> StageProgram::stages_of(int index, std::size_t weight, int in_flight, std::size_t limits,
                                                   std::size_t start, int start_last) {
  const double seconds = solve(index, weight, in_flight, limits)->weight;
  const StageLimits& furthest = *cache_->limits[limits];
  MinPrices result;
  Tables tables{.far = {}, .near = {}, .result = &result};
  fill(tables, level(index), seconds, 1, furthest);
  const auto width = at(layers_ + 1);
  const double limit = level(index) * (1.0 + 1e-12);
  const auto next_price = [&](const StageCandidate& candidate, double so_far, int end) {
    double min_price = infinity;
    for (const auto& [far, next_pool] : candidate.far_to) {
      if (so_far + (blocks_ ? far : 0.0) > limit) break;
      min_price = std::min(min_price, seconds * far + tables.far[next_pool * width + at(end)]);
    }
    return min_price;
  };
  const auto between = [&](const StageCandidate& candidate, const StageCandidate& next) {
    for (const auto& [far, next_pool] : candidate.far_to)
      if (next_pool == next.pool) return far;
    return infinity;
  };
  // Every step takes the choice with the min price, that of the next stages included.
  std::vector<TemplateStage> stages;
  std::size_t candidate_at = start;
  int first = 0;
  int last = start_last;
  double taken = (*candidates_)[start].time[0][at(start_last)];
  while (true) {
    const StageCandidate& candidate = (*candidates_)[candidate_at];
    stages.push_back({.pool = candidate.pool,
                      .tensor_parallel = candidate.tensor_parallel,
                      .choice = prices_.space().choices.front(),
                      .first = first,
                      .last = last});
    if (last == layers_) return stages;
    double best = infinity;
    int best_last = 0;
    double best_taken = 0.0;
    for (std::size_t o = 0; o < candidates_->size(); ++o) {
      const StageCandidate& next = (*candidates_)[o];
      const double out = between(candidate, next);
      if (next.far == infinity || taken + (blocks_ ? out : 0.0) > limit) continue;
      for (int end = last + 1; end <= furthest[o * at(layers_) + at(last)]; ++end) {
        const double time = next.time[0][at(last) * width + at(end)];
        const double so_far = time + (blocks_ ? next.far : 0.0);
        if (so_far > limit) break;
        const double price = device_price(next.pool) * next.tensor_parallel + seconds * (time + out) +
                             (end < layers_ ? next_price(next, so_far, end) : 0.0);
        if (price >= best) continue;
        best = price;
        candidate_at = o;
        best_last = end;
        best_taken = so_far;
      }
    }
    if (best == infinity) return {};
    first = last;
    last = best_last;
    taken = best_taken;
  }
}

}  // namespace sailor::planner
