#include "planner/artifact/space.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/worker_threads.hpp"
#include "planner/artifact/parts.hpp"
#include "planner/parts.hpp"

namespace sailor::planner::artifact {

namespace {

// Labels for each number of layers: in a first pass, which finds a good plan, in a second and in a third.
constexpr std::size_t narrow = 6;
constexpr std::size_t medium = 30;
constexpr std::size_t wide = 5'000;
// Labels for further orders of zones, which differ in stages over several zones only.
constexpr std::size_t further = 50;
// Stages priced in a quick search of a part of the cluster, and in the second and third pass of a thorough one for
// every pool but one, up to four.
constexpr std::uint64_t quick_work = 100'000;
constexpr std::uint64_t pass_work = 600'000;
constexpr std::uint64_t thorough_effort = 8'000'000;  // of all passes
constexpr std::size_t greedy = 2;                     // labels where many parts and orders of zones are searched
// Max gain of a thorough search of a part over the quick one. Measured: 11 %, on the random clusters of
// experiments/planner_laws.py --zones 5 --cost-model artifact.
constexpr double most_gained = 1.15;
// Number of searches after which the best plan is made known to all. Not the number of threads: that must not matter.
constexpr std::size_t round_size = 4;
constexpr std::uint64_t no_end = std::numeric_limits<std::uint64_t>::max();

/// Stages' GPU types and tensor parallelism, equal neighbours once.
std::vector<std::vector<std::pair<int, int>>> kind_of(const Pipelines& pipelines) {
  std::vector<std::vector<std::pair<int, int>>> kind;
  for (const StageRuns& stage : pipelines.stages) {
    std::vector<std::pair<int, int>> types;
    for (const Run& run : stage.runs)
      if (types.empty() || types.back() != std::pair(run.gpu, run.tensor_parallel))
        types.emplace_back(run.gpu, run.tensor_parallel);
    if (kind.empty() || kind.back() != types) kind.push_back(types);
  }
  return kind;
}

/// Smaller is better: value, then USD, then devices.
bool better(const Ranked& a, const Ranked& b) {
  if (a.value != b.value) return a.value < b.value;
  if (a.score.cost_per_iteration != b.score.cost_per_iteration)
    return a.score.cost_per_iteration < b.score.cost_per_iteration;
  return devices_of(a.pipelines) < devices_of(b.pipelines);
}

class Best {
 public:
  /// Only plans better than `to_beat` count.
  Best(const Inputs& inputs, double to_beat) : inputs_(inputs), value_(to_beat) {}

  /// Empty when the plan breaks a limit.
  [[nodiscard]] std::optional<Ranked> judge(const Pipelines& pipelines) const {
    const auto score = evaluate(pipelines, inputs_.tables);
    if (!score) return std::nullopt;
    const double time = score->iteration_time.value();
    const double cost = score->cost_per_iteration.value();
    if (time > inputs_.goal.max_time || cost > inputs_.goal.max_cost) return std::nullopt;
    return Ranked{pipelines, *score, inputs_.goal.value(time, cost)};
  }
  void add(Ranked ranked) {
    value_ = std::min(value_, ranked.value);
    const auto [place, is_new] = plans_.try_emplace(kind_of(ranked.pipelines), ranked);
    if (!is_new && better(ranked, place->second)) place->second = std::move(ranked);
  }
  /// The value that the next plan must beat.
  [[nodiscard]] double value() const { return value_; }
  [[nodiscard]] std::vector<Ranked> plans() const {
    std::vector<Ranked> plans;
    for (const auto& [kind, ranked] : plans_) plans.push_back(ranked);
    std::stable_sort(plans.begin(), plans.end(), better);
    return plans;
  }

 private:
  const Inputs& inputs_;
  double value_;
  std::map<std::vector<std::vector<std::pair<int, int>>>, Ranked> plans_;
};

/// Searches of all micro-batches and data-parallel degrees over some pools.
struct Task {
  double bound = 0.0;  // known before any search
  std::unique_ptr<StageSearch> search;
  std::vector<int> order;  // of the pools, in the last search
  bool complete = false;   // whether that search was complete
};

std::vector<Task> tasks_of(const Inputs& inputs, const std::vector<int>& micro_batches, int replicas) {
  // Of all degrees with the same number of micro-batches only the smallest can be best: fewer replicas of the same
  // stages take no longer, reduce no longer and cost less.
  std::int64_t devices = 0;
  for (const Pool& pool : inputs.pools) devices += pool.devices;
  devices = std::min(devices, inputs.goal.max_devices);
  std::vector<Task> tasks;
  for (const int micro_batch : micro_batches) {
    const auto kinds = std::make_shared<const Kinds>(inputs, micro_batch);
    if (kinds->candidates().empty()) continue;
    const int batches = inputs.tables.global_batch() / micro_batch;
    std::set<int> degrees;
    if (replicas > 0) {
      if (replicas <= batches) degrees.insert(replicas);
    } else {
      for (int count = 1; count <= batches; ++count) degrees.insert((batches + count - 1) / count);
    }
    for (const int degree : degrees) {
      if (degree > devices) continue;
      auto search = std::make_unique<StageSearch>(inputs, kinds, micro_batch, degree);
      if (const double bound = search->bound(); bound < unlimited)
        tasks.push_back({bound, std::move(search), {}, false});
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.bound < b.bound; });
  return tasks;
}

/// Shared by the searches of all parts of a cluster.
struct Shared {
  const std::vector<int>& micro_batches;
  int replicas = 0;
  std::function<Stop(const Counters&)> stopped;  ///< whether the whole search has to end, and why
  WorkerThreads threads;
  std::vector<Workspace> workspaces;  ///< by thread
  Counters counters;
  Stop stop = Stop::done;
};

/// The search of one part of the cluster.
class PartSearch {
 public:
  /// Only plans better than `to_beat` count.
  PartSearch(const Inputs& inputs, Shared& shared, double to_beat)
      : inputs_(inputs),
        shared_(shared),
        effort_end_(shared.counters.effort + thorough_effort),
        best_(inputs, to_beat),
        tasks_(tasks_of(inputs, shared.micro_batches, shared.replicas)),
        orders_(pool_orders(inputs.pools)) {}

  void run_quickly() { pass(greedy, orders_.front(), quick_work); }
  void run_thoroughly() {
    pass(narrow, orders_.front(), thorough_effort);
    for (std::size_t i = 1; i < orders_.size(); ++i) pass(greedy, orders_[i], thorough_effort);
    const std::uint64_t work = pass_work * std::clamp<std::size_t>(inputs_.pools.size() - 1, 1, 4);
    for (const auto& order : orders_) pass(medium, order, 2 * work / orders_.size());
    for (const auto& order : orders_)
      pass(&order == &orders_.front() ? wide : further, order, work / orders_.size() + 1);
  }
  /// Searches as long as there is anything to look at.
  void run_to_the_end() {
    effort_end_ = no_end;
    for (const auto& order : orders_) pass(wide, order, no_end);
  }

  [[nodiscard]] const Best& best() const { return best_; }
  /// Whether a pass ended before it was complete.
  [[nodiscard]] bool cut_short() const { return cut_short_; }
  /// No plan of this part has a smaller value, unless one was found that has. Complete searches count where there is
  /// one pool: where there are several, other orders of zones and other mixes of types could still be better.
  [[nodiscard]] double open_bound() const {
    double bound = unlimited;
    for (const Task& task : tasks_)
      if (!task.complete || inputs_.pools.size() > 1) bound = std::min(bound, task.search->bound());
    return bound;
  }

 private:
  /// `max_work`: stages priced in this pass.
  void pass(std::size_t width, const std::vector<int>& order, std::uint64_t max_work) {
    const std::uint64_t end = max_work == no_end ? no_end : shared_.counters.considered + max_work;
    std::vector<Task*> round;
    for (std::size_t next = 0; next < tasks_.size();) {
      round.clear();
      for (; next < tasks_.size() && round.size() < round_size; ++next) {
        Task& task = tasks_[next];
        if (task.bound >= best_.value()) next = tasks_.size() - 1;  // and all others
        if ((task.complete && task.order == order) || task.search->bound() >= best_.value()) continue;
        round.push_back(&task);
        if (best_.value() == unlimited) {
          ++next;
          break;  // the first plan makes the others quick
        }
      }
      if (round.empty()) return;
      if (is_over(shared_.counters, end)) break;
      look_at(round, width, order, end);
      if (shared_.stop != Stop::done) return;
    }
    cut_short_ = cut_short_ || is_over(shared_.counters, end);
  }

  void look_at(const std::vector<Task*>& round, std::size_t width, const std::vector<int>& order, std::uint64_t end) {
    struct Done {
      std::vector<Ranked> plans;
      Counters counters;
    };
    std::vector<Done> done(round.size());
    shared_.threads.for_each(round.size(), [&](std::size_t index, std::size_t thread) {
      Done& mine = done[index];
      mine.counters = shared_.counters;
      double value = best_.value();
      const Solution found = [&](const Pipelines& pipelines) {
        if (auto ranked = best_.judge(pipelines)) {
          value = std::min(value, ranked->value);
          mine.plans.push_back(*std::move(ranked));
        }
        return value;
      };
      const Interrupt interrupt = [&] { return is_over(mine.counters, end); };
      round[index]->complete =
          round[index]->search->run(value, width, order, found, interrupt, mine.counters, shared_.workspaces[thread]);
      round[index]->order = order;
    });
    const Counters before = shared_.counters;
    for (Done& one : done) {
      shared_.counters.considered += one.counters.considered - before.considered;
      shared_.counters.did_not_fit += one.counters.did_not_fit - before.did_not_fit;
      shared_.counters.effort += one.counters.effort - before.effort;
      for (Ranked& ranked : one.plans) best_.add(std::move(ranked));
    }
    shared_.stop = shared_.stopped(shared_.counters);
  }

  [[nodiscard]] bool is_over(const Counters& counters, std::uint64_t end) const {
    return counters.considered >= end || counters.effort >= effort_end_ || shared_.stopped(counters) != Stop::done;
  }

  const Inputs& inputs_;
  Shared& shared_;
  std::uint64_t effort_end_;
  Best best_;
  std::vector<Task> tasks_;
  std::vector<std::vector<int>> orders_;
  bool cut_short_ = false;
};

std::vector<PoolPlace> places_of(const std::vector<Pool>& pools) {
  std::vector<PoolPlace> places;
  for (const Pool& pool : pools)
    places.push_back({.zone = static_cast<std::size_t>(pool.zone), .gpu = static_cast<std::size_t>(pool.gpu)});
  return places;
}

/// The search of a cluster and of its parts, so that no cluster gets a worse plan than one of its parts: first quickly
/// in each of them, then thoroughly in those that may have a better plan than the best so far. The result for a part
/// depends on that part alone, as plans must beat only what was found quickly in parts of it; a part that is not
/// searched thoroughly has no better plan than the best, by its bound or by `most_gained`.
class SpaceSearch {
 public:
  SpaceSearch(const Inputs& inputs, Shared& shared, Best& best)
      : inputs_(inputs), shared_(shared), best_(best), parts_(parts_of(places_of(inputs.pools))) {}

  void run() {
    std::map<std::vector<double>, std::size_t> seen;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      // Parts that differ only in the names of their zones have equally good plans.
      const auto [same, is_new] = seen.try_emplace(signature(inputs_.tables, inputs_of(i).pools), i);
      found_.push_back(is_new ? search_quickly(i) : found_[same->second]);
      if (is_new) different_.push_back(i);
    }
    std::stable_sort(different_.begin(), different_.end(),
                     [&](std::size_t a, std::size_t b) { return found_[a].bound < found_[b].bound; });
    for (const std::size_t i : different_)
      if (found_[i].bound < best_.value() && found_[i].value <= most_gained * best_.value() &&
          shared_.stop == Stop::done)
        search_thoroughly(i);
  }
  void go_on_to_the_end() {
    const Inputs whole = inputs_of(parts_.size() - 1);
    PartSearch search(whole, shared_, best_.value());
    search.run_to_the_end();
    keep(search);
    open_bound_ = std::max(open_bound_, search.open_bound());
    cut_short_ = search.cut_short();
  }
  /// No plan of the whole has a smaller value, unless it was found.
  [[nodiscard]] double open_bound() const { return open_bound_; }
  [[nodiscard]] bool cut_short() const { return cut_short_; }

 private:
  struct Found {
    double value = unlimited;  ///< min that a quick search found in this part or in parts of it
    double bound = 0.0;        ///< no plan of this part has a smaller value, unless it was found
  };

  [[nodiscard]] Inputs inputs_of(std::size_t part) const {
    Inputs fewer = inputs_;
    fewer.pools.clear();
    for (const std::size_t p : parts_[part]) fewer.pools.push_back(inputs_.pools[p]);
    return fewer;
  }
  [[nodiscard]] bool is_whole(std::size_t part) const { return part + 1 == parts_.size(); }
  Found search_quickly(std::size_t part) {
    const auto& pools = parts_[part];
    double to_beat = unlimited;
    for (std::size_t j = 0; j < part; ++j)
      if (std::includes(pools.begin(), pools.end(), parts_[j].begin(), parts_[j].end()))
        to_beat = std::min(to_beat, found_[j].value);
    const Inputs inputs = inputs_of(part);
    PartSearch search(inputs, shared_, to_beat);
    if (shared_.stop == Stop::done) search.run_quickly();
    keep(search);
    if (is_whole(part)) open_bound_ = search.open_bound();
    return {.value = search.best().value(), .bound = search.open_bound()};
  }
  void search_thoroughly(std::size_t part) {
    const Inputs inputs = inputs_of(part);
    PartSearch search(inputs, shared_, found_[part].value);
    search.run_thoroughly();
    keep(search);
    if (!is_whole(part)) return;
    open_bound_ = std::max(open_bound_, search.open_bound());
    cut_short_ = search.cut_short();
  }
  void keep(const PartSearch& search) {
    for (Ranked& ranked : search.best().plans()) best_.add(std::move(ranked));
  }

  const Inputs& inputs_;
  Shared& shared_;
  Best& best_;
  std::vector<Part> parts_;
  std::vector<Found> found_;            // by part
  std::vector<std::size_t> different_;  // parts
  double open_bound_ = 0.0;
  bool cut_short_ = false;
};

}  // namespace

std::int64_t devices_of(const Pipelines& pipelines) {
  std::int64_t devices = 0;
  for (const StageRuns& stage : pipelines.stages)
    for (const Run& run : stage.runs) devices += std::int64_t{run.tensor_parallel} * run.count;
  return devices;
}

Outcome search_space(const Inputs& inputs, const std::vector<int>& micro_batches, int replicas,
                     const SearchLimits& limits) {
  const auto start = std::chrono::steady_clock::now();
  Shared shared{.micro_batches = micro_batches,
                .replicas = replicas,
                .stopped =
                    [&](const Counters& counters) {
                      if (limits.work && counters.considered >= *limits.work) return Stop::work_limit;
                      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
                      return limits.seconds && passed.count() >= *limits.seconds ? Stop::time_limit : Stop::done;
                    },
                .threads = WorkerThreads(limits.threads),
                .workspaces = {},
                .counters = {},
                .stop = Stop::done};
  shared.workspaces.resize(shared.threads.size());
  Best best(inputs, unlimited);
  SpaceSearch search(inputs, shared, best);
  search.run();
  if (!inputs.uniform) {  // the best plan of the paper's space is one of all plans
    Inputs paper = inputs;
    paper.uniform = true;
    SpaceSearch(paper, shared, best).run();
  }
  if (limits.work && shared.stop == Stop::done) search.go_on_to_the_end();
  Outcome outcome;
  outcome.plans = best.plans();
  outcome.bound = std::min(search.open_bound(), best.value());
  outcome.stop = shared.stop == Stop::done && search.cut_short() ? Stop::work_limit : shared.stop;
  outcome.counters = shared.counters;
  return outcome;
}

}  // namespace sailor::planner::artifact
