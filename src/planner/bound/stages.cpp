#include "planner/bound/stages.hpp"

#include <algorithm>
#include <cmath>

#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr int deepest = 4;            // micro-batches in flight that are told apart at most
constexpr double level_step = 1.004;  // of the limits on the slowest stage
constexpr double weight_share[StageProgram::weights] = {0.0, 0.6, 1.2, 3.0};
constexpr std::size_t most_caches = 16;
constexpr std::size_t most_cached = 4'000'000;  // bytes, of each program

}  // namespace

// Memory: a stage keeps as many micro-batches in flight as stages follow, itself included, or as its pipeline has when
// that is less; under GPipe more. ZeRO-1 may share the optimizer's state among any number of replicas, and a pipeline
// alone copies no gradients. A stage is never slower on a node with fewer busy ranks, of which it is `degree` itself.
std::vector<StageOption> stage_options(StagePrices& prices, std::size_t p, int micro_batch) {
  const SearchSpace& space = prices.space();
  const Place& place = space.places[p];
  const int layers = prices.layers();
  const auto width = at(layers + 1);
  const bool zero1 =
      std::find(space.sharding.begin(), space.sharding.end(), OptimizerSharding::zero1) != space.sharding.end();
  std::vector<StageOption> options;
  for (const int degree : place.tensor_parallel) {
    if (!space.allows(place.type, degree, micro_batch)) continue;
    StageOption option{.place = p, .tensor_parallel = degree, .node = place.largest_node()};
    int most = 0;
    for (const Recompute recompute : space.recompute) {
      const StageTable* table = prices.table(place.type, degree, micro_batch, recompute);
      if (table == nullptr) continue;
      const StageTable* light = prices.table(place.type, degree, micro_batch, recompute, degree);
      option.layer.resize(at(layers), never);
      if (option.time.empty()) option.time.assign(at(deepest), std::vector<double>(width * width, never));
      for (int first = 0; first < layers; ++first)
        for (int last = first + 1; last <= layers; ++last) {
          if (last == first + 1) {
            double& least = option.layer[at(first)];
            least = std::min(least, table->time(first, last));
            if (light != nullptr) least = std::min(least, light->time(first, last));
          }
          const int neighbours = (first > 0 ? 1 : 0) + (last < layers ? 1 : 0);
          const int fit = prices.most_in_flight(*table, place, first, last, micro_batch, neighbours, zero1 ? 1e9 : 1.0,
                                                false, deepest);
          if (fit < 1) continue;  // the last stage has one neighbour less, and may fit where a shorter one does not
          most = std::max(most, fit);
          double quickest = table->time(first, last);
          if (light != nullptr) quickest = std::min(quickest, light->time(first, last));
          for (int depth = 0; depth < std::min(fit, deepest); ++depth) {
            double& time = option.time[at(depth)][at(first) * width + at(last)];
            time = std::min(time, quickest);
          }
        }
    }
    if (most > 0) options.push_back(std::move(option));
  }
  return options;
}

void find_boundaries(StagePrices& prices, std::vector<StageOption>& options, int micro_batch) {
  const auto both = [&](const StageOption& a, const StageOption& b, bool one_node) {
    return std::min(
        prices.boundary(a.place, a.tensor_parallel, b.place, b.tensor_parallel, micro_batch, one_node).both(),
        prices.boundary(b.place, b.tensor_parallel, a.place, a.tensor_parallel, micro_batch, one_node).both());
  };
  for (StageOption& option : options) {
    std::vector<double> far_to(prices.space().places.size(), never);
    for (const StageOption& other : options) {
      const bool same = option.place == other.place;
      const double far = both(option, other, false);
      option.far = std::min(option.far, far);
      far_to[other.place] = std::min(far_to[other.place], far);
      if (same) option.far_inside = std::min(option.far_inside, far);
      if (same && option.tensor_parallel + other.tensor_parallel <= option.node)
        option.near = std::min(option.near, both(option, other, true));
    }
    for (std::size_t p = 0; p < far_to.size(); ++p)
      if (far_to[p] < never) option.far_to.emplace_back(far_to[p], p);
    std::sort(option.far_to.begin(), option.far_to.end());
  }
}

StageProgram::StageProgram(StagePrices& prices, std::vector<StageOption> options, int micro_batch, bool inside)
    : prices_(prices),
      micro_batch_(micro_batch),
      inside_(inside),
      blocks_(!prices.env().framework.overlaps_transfers),
      layers_(prices.layers()),
      places_(inside ? 1 : prices.space().places.size()) {
  choose_options(std::move(options));
  if (layers_ < 2 || options_->empty()) return;
  double slowest_layer = 0.0;
  for (int layer = 0; layer < layers_; ++layer) {
    double quickest = never;
    for (const StageOption& option : *options_) quickest = std::min(quickest, option.layer[at(layer)]);
    if (quickest == never) return;
    through_ += quickest;
    slowest_layer = std::max(slowest_layer, quickest);
  }
  matters_from_.assign(at(deepest), never);
  double longest = 0.0;
  double link = never;
  for (const StageOption& option : *options_) {
    largest_node_ = std::max(largest_node_, option.node);
    const double least = std::min(option.far, option.near);
    const double most = std::max(option.far < never ? option.far : 0.0, option.near < never ? option.near : 0.0);
    link = std::min(link, least);
    double sum = 0.0;
    for (int layer = 0; layer < layers_; ++layer)
      if (const double time = option.layer[at(layer)]; time < never) sum += time;
    longest = std::max(longest, sum + 2.0 * most);
    for (std::size_t depth = 1; depth < at(deepest); ++depth)
      for (std::size_t i = 0; i < option.time[0].size(); ++i)
        if (option.time[depth][i] != option.time[depth - 1][i]) {
          matters_from_[depth] = std::min(matters_from_[depth], option.time[0][i]);
          most_in_flight_ = std::max(most_in_flight_, static_cast<int>(depth) + 1);
        }
  }
  through_ += link;
  find_through_to();
  if (!inside) most_in_flight_ = 1;  // one is the least that any keeps; more would take too long to tell apart
  find_backward();
  first_level_ = std::max(slowest_layer, 1e-9);
  levels_ = static_cast<int>(std::ceil(std::log(longest / first_level_) / std::log(level_step))) + 2;
  // Interleaved stages hold several ranges of layers: only what holds for any layers of a stage is used (see
  // bound.cpp).
  possible_ = true;
  if (inside) set_prices({});
}

void StageProgram::choose_options(std::vector<StageOption> options) {
  if (inside_)
    for (StageOption& option : options) {
      option.far = option.far_inside;
      option.far_to = {{option.far_inside, 0}};
    }
  else  // what stays in a node is not told apart: that would take too long
    for (StageOption& option : options) {
      if (option.near < option.far_inside) {
        std::erase_if(option.far_to, [&](const auto& to) { return to.second == option.place; });
        option.far_to.emplace_back(option.near, option.place);
      }
      std::sort(option.far_to.begin(), option.far_to.end());
      option.far = std::min(option.far, option.near);
      option.near = never;
    }
  std::erase_if(options, [](const StageOption& option) { return option.far == never && option.near == never; });
  options_ = std::make_shared<const std::vector<StageOption>>(std::move(options));
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
  if ((caches_.size() > most_caches && !caches_.contains(device_price)) ||
      cached_ * options_->size() * at(layers_ + 1) * at(largest_node_ + 1) * sizeof(double) > most_cached) {
    caches_.clear();
    cached_ = 0;
  }
  cache_ = &caches_[device_price];
  if (cache_->limits.empty()) remember(StageLimits(options_->size() * at(layers_), layers_));
  find_work();
}

std::size_t StageProgram::remember(const StageLimits& limits) {
  const auto [entry, is_new] = cache_->numbers.try_emplace(limits, cache_->limits.size());
  if (is_new) cache_->limits.push_back(&entry->first);
  return entry->second;
}

/// Layers behind `first` forward and backward, those before it forward.
void StageProgram::find_through_to() {
  const SearchSpace& space = prices_.space();
  through_to_.assign(at(layers_), 0.0);
  std::vector<double> forward(at(layers_), never);
  std::vector<double> pass(at(layers_), never);
  for (const StageOption& option : *options_)
    for (const Recompute recompute : space.recompute)
      for (const int busy_ranks : {0, option.tensor_parallel})
        if (const StageTable* table = prices_.table(space.places[option.place].type, option.tensor_parallel,
                                                    micro_batch_, recompute, busy_ranks))
          for (int layer = 0; layer < layers_; ++layer) {
            const double both = table->time(layer, layer + 1);
            pass[at(layer)] = std::min(pass[at(layer)], both);
            forward[at(layer)] =
                std::min(forward[at(layer)], both - (table->backward[at(layer) + 1] - table->backward[at(layer)]));
          }
  for (int layer = 0; layer < layers_; ++layer) through_to_[0] += pass[at(layer)];
  for (int layer = 1; layer < layers_; ++layer)
    through_to_[at(layer)] = through_to_[at(layer) - 1] - pass[at(layer) - 1] + forward[at(layer) - 1];
}

void StageProgram::find_backward() {
  const SearchSpace& space = prices_.space();
  const auto each_layer = [&](int begin, int end, auto visit) {
    for (const StageOption& option : *options_)
      for (const Recompute recompute : space.recompute)
        if (const StageTable* table =
                prices_.table(space.places[option.place].type, option.tensor_parallel, micro_batch_, recompute))
          for (int layer = begin; layer < end; ++layer)
            visit(layer, table->time(layer, layer + 1), table->backward[at(layer) + 1] - table->backward[at(layer)]);
  };
  backward_ = 0.5;
  each_layer(1, layers_ - 1, [&](int, double time, double backward) {
    if (time > 0.0) backward_ = std::max(backward_, std::min(1.0, backward / time));
  });
  for (const StageOption& option : *options_)
    for (const StageOption& other : *options_)
      for (const bool one_node : {false, true}) {
        if (one_node && option.place != other.place) continue;
        const BoundaryCost cost = prices_.boundary(option.place, option.tensor_parallel, other.place,
                                                   other.tensor_parallel, micro_batch_, one_node);
        if (cost.both() < never && cost.both() > 0.0) backward_ = std::max(backward_, cost.backward / cost.both());
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
    double least = never;
    for (const StageOption& option : *options_)
      least = std::min(least, device_price(option.place) * option.tensor_parallel * option.layer[at(layer)]);
    work_ += least;
  }
}

/// Of stages from a first layer on, by depth: stages from the end on, the first of them included.
struct StageProgram::Tables {
  std::vector<double> far;   // at (place x layers + first) x depths + depth: their first boundary is between nodes
  std::vector<double> near;  // at ((place x layers + first) x devices + c) x depths + depth: it is inside a node, of
                             // which they may take c devices
  LeastPrices* result = nullptr;
};

void StageProgram::fill(Tables& tables, double level, double weight, int cap, const StageLimits& limits) {
  const auto width = at(layers_ + 1);
  const auto depths = at(cap);
  const std::size_t devices = inside_ ? at(largest_node_ + 1) : 1;
  LeastPrices& result = *tables.result;
  result.weight = weight;
  result.width = width;
  result.ways = devices;
  result.price.assign(options_->size() * width * devices, never);
  tables.far.assign(places_ * width * depths, never);
  tables.near.assign(places_ * width * devices * depths, never);
  const double limit = level * (1.0 + 1e-12);
  if (inside_)
    fill_inside(tables, limit, weight, cap, limits);
  else
    fill_across(tables, limit, weight, limits);
  for (const double price : result.price) result.least = std::min(result.least, price);
}

/// Neither nodes nor micro-batches in flight are told apart.
void StageProgram::fill_across(Tables& tables, double limit, double weight, const StageLimits& limits) {
  const auto width = at(layers_ + 1);
  LeastPrices& result = *tables.result;
  // Of the first k places behind an option (far_to), element k has the least price.
  const std::size_t nexts = places_ + 1;
  behind_.resize(options_->size() * width * nexts);
  for (int first = layers_ - 1; first >= 0; --first) {
    for (std::size_t o = 0; o < options_->size(); ++o) {
      const StageOption& option = (*options_)[o];
      const double cost = device_price(option.place) * option.tensor_parallel;
      const double in = first == 0 || !blocks_ ? 0.0 : option.far;
      double& here = tables.far[option.place * width + at(first)];
      const int furthest = limits[o * at(layers_) + at(first)];
      for (int last = first + 1; last <= furthest; ++last) {
        const double time = option.time[0][at(first) * width + at(last)];
        if (time == never) continue;
        const double taken = time + in;
        if (taken > limit) break;
        ++work_done_;
        if (last == layers_) {
          if (first > 0 && option.far < never) here = std::min(here, cost + weight * time);
          break;
        }
        work_done_ += 1 + option.far_to.size();
        if (first > 0 && option.far == never) continue;
        std::size_t next = option.far_to.size();
        while (next > 0 && (option.far_to[next - 1].first == never ||
                            taken + (blocks_ ? option.far_to[next - 1].first : 0.0) > limit))
          --next;
        const double price = cost + weight * time + behind_[(o * width + at(last)) * nexts + next];
        double& least = first == 0 ? result.price[o * width + at(last)] : here;
        least = std::min(least, price);
      }
    }
    if (first == 0) break;
    for (std::size_t o = 0; o < options_->size(); ++o) {
      double* const behind = &behind_[(o * width + at(first)) * nexts];
      behind[0] = never;
      for (std::size_t k = 0; k < (*options_)[o].far_to.size(); ++k) {
        const auto& [far, place] = (*options_)[o].far_to[k];
        behind[k + 1] = std::min(behind[k], weight * far + tables.far[place * width + at(first)]);
      }
    }
  }
}

void StageProgram::fill_inside(Tables& tables, double limit, double weight, int cap, const StageLimits& limits) {
  const auto width = at(layers_ + 1);
  const auto depths = at(cap);
  const std::size_t devices = at(largest_node_ + 1);
  LeastPrices& result = *tables.result;
  for (int first = layers_ - 1; first >= 0; --first)
    for (std::size_t o = 0; o < options_->size(); ++o) {
      const StageOption& option = (*options_)[o];
      const double cost = device_price(option.place) * option.tensor_parallel;
      const double least_in = first == 0 || !blocks_ ? 0.0 : std::min(option.far, option.near);
      const double far_in = first == 0 ? never : option.far;
      const double near_in = first == 0 ? never : option.near;
      const double near_taken = blocks_ ? option.near : 0.0;
      const auto group = at(option.tensor_parallel);
      double* const near_here = &tables.near[at(first) * devices * depths];
      double* const far_here = &tables.far[at(first) * depths];
      const int furthest = limits[o * at(layers_) + at(first)];
      for (int last = first + 1; last <= furthest; ++last) {
        const std::size_t range = at(first) * width + at(last);
        if (option.time[0][range] == never) continue;
        if (option.time[0][range] + least_in > limit) break;
        ++work_done_;
        if (last == layers_) {
          if (first == 0) break;
          const double time = option.time[0][range];
          const double price = cost + weight * time;
          if (far_in < never && time + (blocks_ ? far_in : 0.0) <= limit) far_here[0] = std::min(far_here[0], price);
          if (near_in < never && time + (blocks_ ? near_in : 0.0) <= limit)
            for (std::size_t c = group; c < devices; ++c)
              near_here[c * depths] = std::min(near_here[c * depths], price);
          break;
        }
        const double* const near_next = &tables.near[at(last) * devices * depths];
        for (std::size_t depth = depths == 1 ? 0 : 1; depth < depths; ++depth) {
          const double time = option.time[depth][range];
          if (time + least_in > limit) break;
          work_done_ += devices + option.far_to.size();
          const double here = cost + weight * time;
          const bool is_last = depth + 1 == depths;
          const std::size_t low = depth == 0 ? 0 : depth - 1;
          const auto far_behind = [&](double taken) {
            if (option.far == never || taken + (blocks_ ? option.far : 0.0) > limit) return never;
            const double* const next = &tables.far[at(last) * depths];
            return here + (weight * option.far + std::min(next[low], is_last ? next[depth] : never));
          };
          const auto near_behind = [&](std::size_t c) {
            const double* const next = near_next + c * depths;
            return here + weight * option.near + std::min(next[low], is_last ? next[depth] : never);
          };
          const bool near_ok = option.near < never && at(option.node) > group;
          if (first == 0) {
            double* const price = &result.price[(o * width + at(last)) * devices];
            price[0] = std::min(price[0], far_behind(time));
            if (near_ok && time + near_taken <= limit)
              for (std::size_t c = group + 1; c <= at(option.node); ++c)
                price[c] = std::min(price[c], near_behind(c - group));
            continue;
          }
          if (far_in < never) {
            const double taken = time + (blocks_ ? far_in : 0.0);
            far_here[depth] = std::min(far_here[depth], far_behind(taken));
            if (near_ok && taken + near_taken <= limit)
              far_here[depth] = std::min(far_here[depth], near_behind(at(option.node) - group));
          }
          if (near_in < never) {
            const double taken = time + (blocks_ ? near_in : 0.0);
            const double far = far_behind(taken);
            const bool near_fits = near_ok && taken + near_taken <= limit;
            for (std::size_t c = group; c <= at(option.node); ++c) {
              double& best = near_here[c * depths + depth];
              best = std::min(best, far);
              if (near_fits && c > group) best = std::min(best, near_behind(c - group));
            }
          }
        }
      }
    }
}

/// Below the least time of a stage for which so many make a difference, fewer are told apart.
int StageProgram::in_flight_at(int index, int in_flight) const {
  const double limit = level(index) * (1.0 + 1e-12);
  int cap = std::clamp(in_flight, 1, most_in_flight_);
  while (cap > 1 && matters_from_[at(cap) - 1] > limit) --cap;
  return cap;
}

std::shared_ptr<const LeastPrices> StageProgram::solve(int index, std::size_t weight, int in_flight,
                                                       std::size_t limits) {
  const int cap = in_flight_at(index, in_flight);
  const std::uint64_t key = ((limits * at(levels_ + 1) + at(index)) * weights + weight) * at(deepest) + at(cap) - 1;
  auto& entry = cache_->solved[key];
  if (entry) return entry;
  double seconds = 0.0;
  if (weight > 0) {
    // A weight that makes the way through count about as much as the devices do.
    const double least = solve(index, 0, in_flight, limits)->least;
    seconds = least < never ? weight_share[weight] * least / std::min(8.0 * level(index), 3.0 * through_) : 0.0;
  }
  auto result = std::make_shared<LeastPrices>();
  Tables tables{.far = {}, .near = {}, .result = result.get()};
  fill(tables, level(index), seconds, cap, *cache_->limits[limits]);
  ++cached_;
  cache_->solved[key] = result;
  return result;
}

// Without a weight what follows a stage costs the less the further that stage goes: the furthest that it can is best.
const LeastPrices& StageProgram::estimate(int index, const StageLimits& limits) {
  const auto width = at(layers_ + 1);
  const double limit = level(index) * (1.0 + 1e-12);
  estimate_.width = width;
  estimate_.least = never;
  estimate_.price.assign(options_->size() * width, never);
  estimates_.assign(width, never);
  for (int first = layers_ - 1; first >= 0; --first) {
    double best = never;
    for (std::size_t o = 0; o < options_->size(); ++o) {
      const StageOption& option = (*options_)[o];
      const double cost = device_price(option.place) * option.tensor_parallel;
      const double boundary = blocks_ ? std::min(option.far, option.near) : 0.0;
      const double before = first == 0 ? 0.0 : boundary;
      const double* const time = &option.time[0][at(first) * width];
      const int furthest = limits[o * at(layers_) + at(first)];
      if (first > 0 && furthest == layers_ && time[layers_] + before <= limit) {
        best = std::min(best, cost);
        continue;
      }
      const double most = limit - before - boundary;
      int low = first;
      int high = std::min(furthest, layers_ - 1) + 1;  // the first that is too far
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (time[middle] <= most ? low : high) = middle;
      }
      if (first > 0) {
        if (low > first) best = std::min(best, cost + estimates_[at(low)]);
        continue;
      }
      for (int last = 1; last <= low; ++last) {
        const double price = cost + estimates_[at(last)];
        estimate_.price[o * width + at(last)] = price;
        estimate_.least = std::min(estimate_.least, price);
      }
    }
    estimates_[at(first)] = best;
  }
  work_done_ += 4 * options_->size() * at(layers_);
  return estimate_;
}

std::vector<ChainStage> StageProgram::stages_of(int index, std::size_t weight, int in_flight, std::size_t limits,
                                                std::size_t start, int start_last) {
  const double seconds = solve(index, weight, in_flight, limits)->weight;
  const StageLimits& furthest = *cache_->limits[limits];
  LeastPrices result;
  Tables tables{.far = {}, .near = {}, .result = &result};
  fill(tables, level(index), seconds, 1, furthest);
  const auto width = at(layers_ + 1);
  const double limit = level(index) * (1.0 + 1e-12);
  const auto behind = [&](const StageOption& option, double so_far, int end) {
    double least = never;
    for (const auto& [far, next_place] : option.far_to) {
      if (so_far + (blocks_ ? far : 0.0) > limit) break;
      least = std::min(least, seconds * far + tables.far[next_place * width + at(end)]);
    }
    return least;
  };
  const auto between = [&](const StageOption& option, const StageOption& next) {
    for (const auto& [far, next_place] : option.far_to)
      if (next_place == next.place) return far;
    return never;
  };
  // Every step takes the choice whose price with what is behind it is least.
  std::vector<ChainStage> stages;
  std::size_t option_at = start;
  int first = 0;
  int last = start_last;
  double taken = (*options_)[start].time[0][at(start_last)];
  while (true) {
    const StageOption& option = (*options_)[option_at];
    stages.push_back({.place = option.place,
                      .tensor_parallel = option.tensor_parallel,
                      .recompute = prices_.space().recompute.front(),
                      .first = first,
                      .last = last});
    if (last == layers_) return stages;
    double best = never;
    int best_last = 0;
    double best_taken = 0.0;
    for (std::size_t o = 0; o < options_->size(); ++o) {
      const StageOption& next = (*options_)[o];
      const double out = between(option, next);
      if (next.far == never || taken + (blocks_ ? out : 0.0) > limit) continue;
      for (int end = last + 1; end <= furthest[o * at(layers_) + at(last)]; ++end) {
        const double time = next.time[0][at(last) * width + at(end)];
        const double so_far = time + (blocks_ ? next.far : 0.0);
        if (so_far > limit) break;
        const double price = device_price(next.place) * next.tensor_parallel + seconds * (time + out) +
                             (end < layers_ ? behind(next, so_far, end) : 0.0);
        if (price >= best) continue;
        best = price;
        option_at = o;
        best_last = end;
        best_taken = so_far;
      }
    }
    if (best == never) return {};
    first = last;
    last = best_last;
    taken = best_taken;
  }
}

}  // namespace sailor::planner
