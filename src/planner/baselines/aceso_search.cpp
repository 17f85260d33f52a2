#include "planner/baselines/aceso_search.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace sailor::planner::baselines::aceso_detail {

namespace {

constexpr int max_hops = 7;
constexpr int max_trials = 100;
constexpr int max_restarts = 5;  // of an explored configuration
constexpr std::size_t max_saved = 5;
/// Configurations that are slower by more than this factor are not explored later.
constexpr double unexplored_tolerance = 1.2;

/// Configurations that fit come first, then faster ones; among those that do not fit, the one with less memory.
bool is_better(const CostModel& model, const Rated& a, const Rated& b) {
  const bool a_fits = model.fits(a.predicted);
  if (a_fits != model.fits(b.predicted)) return a_fits;
  return a_fits ? a.predicted.time < b.predicted.time : a.predicted.memory < b.predicted.memory;
}

class StageSearch {
 public:
  StageSearch(const CostModel& model, bool use_idle, const SearchLimits& limits)
      : model_(model), use_idle_(use_idle), limits_(limits) {}

  std::vector<Rated> run(Config initial) {
    Rated current = rate(std::move(initial));
    current_time_ = time_or_infinity(current);
    save(current);
    for (int trial = 0; trial < max_trials && !is_over(); ++trial) {
      const std::optional<Rated> found = try_to_improve(current);
      if (found && is_accepted(*found, current)) {
        current = *found;
        current_time_ = time_or_infinity(current);
        save(current);
      } else if (auto next = next_unexplored()) {
        adaptive_ = false;
        current = std::move(*next);
      } else if (auto again = next_explored()) {
        adaptive_ = true;
        current = std::move(*again);
      } else {
        break;
      }
    }
    return saved_;
  }

 private:
  [[nodiscard]] Rated rate(Config config) {
    ++ratings_;
    Predicted predicted = model_.predict(config);
    return {std::move(config), std::move(predicted)};
  }
  [[nodiscard]] bool is_over() const { return ratings_ >= limits_.ratings || limits_.is_over(); }
  [[nodiscard]] double time_or_infinity(const Rated& rated) const {
    return model_.fits(rated.predicted) ? rated.predicted.time : std::numeric_limits<double>::infinity();
  }
  [[nodiscard]] bool is_accepted(const Rated& found, const Rated& current) const {
    if (model_.fits(found.predicted)) return found.predicted.time < current_time_;
    return !model_.fits(current.predicted) && found.predicted.memory < current.predicted.memory;
  }
  void save(const Rated& rated) {
    const auto place =
        std::find_if(saved_.begin(), saved_.end(), [&](const Rated& other) { return is_better(model_, rated, other); });
    saved_.insert(place, rated);
    if (saved_.size() > max_saved) saved_.pop_back();
  }

  /// One trial: hops with every stage as the bottleneck until one leads to an improvement.
  std::optional<Rated> try_to_improve(const Rated& start) {
    std::optional<Rated> best;
    for (std::size_t attempt = 0; attempt < start.config.stages.size() && !is_over(); ++attempt) {
      auto found = hop(start, start, 0);
      if (!found) continue;
      const bool improved = improves(*found, start);
      if (!best || is_better(model_, *found, *best)) best = std::move(found);
      if (improved) break;
    }
    return best;
  }
  [[nodiscard]] bool improves(const Rated& found, const Rated& start) const {
    return model_.fits(found.predicted) && found.predicted.time < time_or_infinity(start);
  }

  /// The stage with the largest memory (if that is too much) or time that has not been the target of this configuration
  /// yet.
  [[nodiscard]] int next_target(const Rated& rated, const std::vector<int>& key) {
    const auto& values = model_.fits(rated.predicted) ? rated.predicted.stage_time : rated.predicted.stage_memory;
    std::set<int>& tried = targets_[key];
    int target = -1;
    for (int index = 0; index < static_cast<int>(values.size()); ++index)
      if ((adaptive_ || !tried.contains(index)) &&
          (target < 0 || values[static_cast<std::size_t>(index)] > values[static_cast<std::size_t>(target)]))
        target = index;
    tried.insert(target);
    return target;
  }

  std::optional<Rated> hop(const Rated& rated, const Rated& start, int hops) {
    if (hops == max_hops || is_over()) return std::nullopt;
    const std::vector<int> key = rated.config.key();
    visited_.insert(key);
    if (!adaptive_) {
      explored_.try_emplace(key, rated, 0);
      unexplored_.erase(key);
    }
    const int target = next_target(rated, key);
    if (target < 0) return std::nullopt;
    std::optional<Rated> best;
    for (const std::vector<Primitive>& group : action_groups(rated, target, model_)) {
      std::vector<Rated> reached;
      for (const Primitive primitive : group)
        for (Config& config : apply(primitive, rated, target, model_, use_idle_)) {
          if (is_over()) break;
          if (visited_.contains(config.key())) continue;
          Rated next = rate(std::move(config));
          if (next.predicted.time < unexplored_tolerance * current_time_)
            unexplored_.insert_or_assign(next.config.key(), next);
          if (!best || is_better(model_, next, *best)) best = next;
          reached.push_back(std::move(next));
        }
      std::stable_sort(reached.begin(), reached.end(),
                       [](const Rated& a, const Rated& b) { return a.predicted.time < b.predicted.time; });
      for (const Rated& next : reached)
        if (improves(next, start)) return next;
      for (const Rated& next : reached) {
        if (visited_.contains(next.config.key())) continue;  // visited by a hop from another
        auto found = hop(next, start, hops + 1);
        if (!found) continue;
        if (improves(*found, start)) return found;
        if (!best || is_better(model_, *found, *best)) best = std::move(found);
      }
    }
    return best;
  }

  std::optional<Rated> next_unexplored() {
    const auto found = std::min_element(unexplored_.begin(), unexplored_.end(), [&](const auto& a, const auto& b) {
      return is_better(model_, a.second, b.second);
    });
    if (found == unexplored_.end()) return std::nullopt;
    Rated rated = std::move(found->second);
    unexplored_.erase(found);
    return rated;
  }
  std::optional<Rated> next_explored() {
    std::pair<Rated, int>* best = nullptr;
    for (auto& [key, entry] : explored_)
      if (model_.fits(entry.first.predicted) && entry.second < max_restarts &&
          (best == nullptr || is_better(model_, entry.first, best->first)))
        best = &entry;
    if (best == nullptr) return std::nullopt;
    ++best->second;
    return best->first;
  }

  const CostModel& model_;
  bool use_idle_;
  const SearchLimits& limits_;
  std::uint64_t ratings_ = 0;
  bool adaptive_ = false;
  double current_time_ = 0.0;
  std::set<std::vector<int>> visited_;
  std::map<std::vector<int>, std::set<int>> targets_;
  std::map<std::vector<int>, Rated> unexplored_;
  std::map<std::vector<int>, std::pair<Rated, int>> explored_;  // with the number of restarts
  std::vector<Rated> saved_;
};

}  // namespace

Config initial_config(const CostModel& model, int stages) {
  const Site& site = model.operators().site();
  std::vector<int> gpus(static_cast<std::size_t>(stages), 1);
  int total = stages;
  for (bool changed = true; changed;) {
    changed = false;
    for (int& of_stage : gpus)
      if (of_stage < site.largest_group() && total + of_stage <= site.gpus) {
        total += of_stage;
        of_stage *= 2;
        changed = true;
      }
  }
  Config config;
  const int operators = model.operators().count();
  for (int index = 0; index < stages; ++index) {
    const int first = operators / stages * index;
    config.stages.push_back({.operators = {first, index + 1 == stages ? operators : first + operators / stages},
                             .tensor_parallel = gpus[static_cast<std::size_t>(index)]});
  }
  return config;
}

std::vector<Rated> alleviate(const CostModel& model, int stages, bool use_idle, const SearchLimits& limits) {
  return StageSearch(model, use_idle, limits).run(initial_config(model, stages));
}

}  // namespace sailor::planner::baselines::aceso_detail
