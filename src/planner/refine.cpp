#include "planner/refine.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <functional>
#include <mutex>

namespace sailor::planner {

namespace {

constexpr std::size_t max_starts = 12;             // from the best plans, and as many from plans that differ
constexpr std::size_t max_starts_in_one_pool = 6;  // twice as many gain 0.5 % on one of 108 inputs, in twice the time
constexpr std::size_t starts_at_once = 8;          // start from the same solution pool, whatever the number of threads
constexpr int max_rounds = 24;

class Refiner {
 public:
  Refiner(StagePrices& prices, const TemplateRules& rules, const std::vector<PipelineTemplate>& columns, RefineBy by,
          SolutionPool& solutions, const std::function<bool()>& stop)
      : prices_(prices),
        space_(prices.space()),
        rules_(rules),
        columns_(columns),
        by_events_(by == RefineBy::events),
        slack_(by_events_ ? usual_above_events : 1.0),
        solutions_(solutions),
        stop_(stop) {}

  void run(const Start& start) {
    best_ = start.mix;
    score_ = start.score;
    // Polishes on the same devices first: a group that is exchanged for another template is not polished any more.
    while (polish())
      if (stop_()) return;
    for (int round = 0; round < max_rounds && improve(round > 0); ++round)
      if (stop_()) return;
  }

 private:
  bool polish() {
    const double before = score_;
    for (std::size_t g = 0; g < best_.groups.size(); ++g) move_layers(g);
    return score_ < before * (1.0 - 1e-9);
  }

  bool improve(bool polish_first) {
    const double before = score_;
    if (polish_first) (void)polish();
    for (std::size_t g = 0; g < best_.groups.size(); ++g) {
      leave_out(g);
      if (g >= best_.groups.size()) break;
      change_count(g);
      exchange(g);
      move_layers(g);
      if (stop_()) return false;
    }
    add_group();
    change_sharding();
    return score_ < before * (1.0 - 1e-9);
  }

  [[nodiscard]] bool uses(Heuristic heuristic) const { return prices_.request().effort.uses(heuristic); }

  void attempt(const TemplateMix& mix) {
    if (stop_()) return;
    const double time = least_time(prices_, mix, prices_.request().job.global_batch);
    double usd_per_hour = 0.0;
    for (const Group& group : mix.groups)
      for (const TemplateStage& stage : group.column.stages)
        usd_per_hour += space_.pools[stage.pool].price.value() * stage.tensor_parallel * group.count;
    if (score_of(prices_.request().objective, Seconds(time), Usd(usd_per_hour * time / 3600.0)) >= score_ * slack_)
      return;
    const Scores scores = solutions_.add(mix);
    const double score = by_events_ ? scores.event_driven : scores.closed_form;
    if (score >= score_) return;
    score_ = score;
    next_ = mix;
    improved_ = true;
  }

  /// Whether the passes alone leave hope if group `g` (past the last: one more group) becomes `count` of these
  /// pipelines; cheaper than pricing.
  bool promising(std::size_t g, const PipelineTemplate& column, int count) {
    if (prices_.request().objective != Objective::throughput) return true;
    times_.clear();
    for (std::size_t i = 0; i < std::max(best_.groups.size(), g + 1); ++i) {
      const PipelineTemplate& of = i == g ? column : best_.groups[i].column;
      times_.push_back({.fixed = of.through,
                        .round = of.round,
                        .micro_batch = of.micro_batch,
                        .max_micro_batches = of.max_micro_batches,
                        .count = i == g ? count : best_.groups[i].count});
    }
    const int batch = prices_.request().job.global_batch;
    std::int64_t least = 0;  // too many pipelines for the batch: fewer of them may do
    for (const GroupTime& time : times_) least += std::int64_t{time.micro_batch} * time.count;
    return least > batch || min_deadline(times_, batch) < score_ * slack_;
  }

  void accept() {
    if (improved_) best_ = next_;
    improved_ = false;
  }

  /// Devices of a pool that no group but `except` takes.
  int free_devices(std::size_t pool, std::size_t except) const {
    int free = space_.pools[pool].devices();
    for (std::size_t g = 0; g < best_.groups.size(); ++g)
      if (g != except) free -= best_.groups[g].column.uses(pool) * best_.groups[g].count;
    return free;
  }

  void leave_out(std::size_t g) {
    if (!uses(Heuristic::leave_out)) return;
    if (best_.groups.size() < 2) return;
    TemplateMix mix = best_;
    mix.groups.erase(mix.groups.begin() + static_cast<std::ptrdiff_t>(g));
    attempt(mix);
    // More of another group instead: as many as there is room for, or the fewest with that number of micro-batches.
    for (Group& group : mix.groups) {
      const PipelineTemplate& column = group.column;
      const int before = group.count;
      int more = INT_MAX;
      for (const TemplateStage& stage : column.stages)
        more = std::min(more, free_devices(stage.pool, g) / column.uses(stage.pool));
      if (more < 1) continue;
      group.count = before + more;
      attempt(mix);
      const int all = prices_.request().job.global_batch / column.micro_batch;
      const int rounds = (all + group.count - 1) / group.count;
      group.count = std::max(before, (all + rounds - 1) / rounds);
      if (group.count < before + more) attempt(mix);
      group.count = before;
    }
    accept();
  }

  void change_sharding() {
    if (!uses(Heuristic::change_sharding)) return;
    TemplateMix mix = best_;
    for (const OptimizerSharding sharding : space_.sharding) {
      if (sharding == best_.sharding) continue;
      mix.sharding = sharding;
      attempt(mix);
    }
    accept();
  }

  void change_count(std::size_t g) {
    if (!uses(Heuristic::change_count)) return;
    for (const int step : {-1, 1, -2, 2, -4, 4, -16, 16}) {
      TemplateMix mix = best_;
      mix.groups[g].count += step;
      if (mix.groups[g].count < 1) continue;
      bool fits = true;
      for (const TemplateStage& stage : mix.groups[g].column.stages)
        fits = fits && mix.groups[g].column.uses(stage.pool) * mix.groups[g].count <= free_devices(stage.pool, g);
      if (fits) attempt(mix);
    }
    accept();
  }

  void exchange(std::size_t g) {
    if (!uses(Heuristic::exchange)) return;
    if (!best_.groups[g].column.in_one_pool()) return;
    const std::size_t pool = best_.groups[g].column.stages.front().pool;
    const int free = free_devices(pool, g);
    for (const PipelineTemplate& column : columns_) {
      if (space_.pools[column.stages.front().pool].type != space_.pools[pool].type) continue;
      if (prices_.request().objective == Objective::throughput && column.through >= score_ * slack_) continue;
      const int most = max_copies(column, space_.pools[pool], space_, free);
      if (most < 1 || !promising(g, column, most)) continue;
      TemplateMix mix = best_;
      Group& group = mix.groups[g];
      const int devices = group.column.devices * group.count;
      group.column = column;
      for (TemplateStage& stage : group.column.stages) stage.pool = pool;
      group.count = std::clamp(devices / column.devices, 1, most);
      attempt(mix);
      if (group.count != most) {
        group.count = most;
        attempt(mix);
      }
    }
    accept();
  }

  void add_group() {
    if (!uses(Heuristic::add_group)) return;
    for (std::size_t pool = 0; pool < space_.pools.size(); ++pool) {
      const int free = free_devices(pool, best_.groups.size());
      if (free < 1) continue;
      for (const PipelineTemplate& column : columns_) {
        if (space_.pools[column.stages.front().pool].type != space_.pools[pool].type) continue;
        if (prices_.request().objective == Objective::throughput && column.through >= score_ * slack_) continue;
        const int most = max_copies(column, space_.pools[pool], space_, free);
        if (most < 1 || !promising(best_.groups.size(), column, most)) continue;
        TemplateMix mix = best_;
        Group group{.column = column, .count = most};
        for (TemplateStage& stage : group.column.stages) stage.pool = pool;
        mix.groups.push_back(group);
        attempt(mix);
      }
      accept();
    }
  }

  /// Moves layers in one group alone, and in all groups with as many stages, which then divide the layers there alike:
  /// gradients that the same stages hold are all-reduced together.
  void move_layers(std::size_t g) {
    if (!uses(Heuristic::move_layers)) return;
    const std::size_t stages = best_.groups[g].column.stages.size();
    for (std::size_t s = 0; s + 1 < stages; ++s)
      for (const int step : {0, -1, 1}) {
        TemplateMix mix = best_;
        const int cut = best_.groups[g].column.stages[s].last + step;
        if (!cut_at(mix.groups[g].column, s, cut)) continue;
        attempt(mix);
        bool fits = true;
        bool changes = false;
        for (Group& group : mix.groups) {
          if (group.column.stages.size() != stages || group.column.stages[s].last == cut) continue;
          fits = fits && cut_at(group.column, s, cut);
          changes = true;
        }
        if (fits && changes) attempt(mix);
        accept();
      }
  }

  /// Under ZeRO-2 and ZeRO-3 the pipelines of the plan are the replicas.
  [[nodiscard]] TemplateRules rules_of_best() const {
    if (!shards_gradients(best_.sharding) && !shards_gradients(rules_.sharing.sharding)) return rules_;
    TemplateRules rules = rules_for(space_, rules_.schedule, best_.sharding);
    if (!shards_gradients(best_.sharding)) return rules;
    rules.share_of_pipelines = rules.sharing.replicas = 0.0;
    for (const Group& group : best_.groups) rules.sharing.replicas += group.count;
    return rules;
  }

  /// Lets the stage end before this layer. False when that leaves it or the next one empty, or does not fit.
  bool cut_at(PipelineTemplate& column, std::size_t stage, int layer) {
    if (column.stages[stage].last == layer) return true;
    if (layer <= column.stages[stage].first || layer >= column.stages[stage + 1].last) return false;
    std::vector<TemplateStage> stages = column.stages;
    stages[stage].last = stages[stage + 1].first = layer;
    auto moved = finish_template(prices_, rules_of_best(), std::move(stages), column.micro_batch);
    if (!moved) return false;
    column = std::move(*moved);
    return true;
  }

  StagePrices& prices_;
  const SearchSpace& space_;
  const TemplateRules& rules_;
  const std::vector<PipelineTemplate>& columns_;
  bool by_events_;
  double slack_;  // of scores by the closed form
  SolutionPool& solutions_;
  const std::function<bool()>& stop_;
  TemplateMix best_;
  TemplateMix next_;
  std::vector<GroupTime> times_;
  double score_ = infinity;
  bool improved_ = false;
};

Steps followed_by(Steps steps, RefineBy by) {
  const Step last = by == RefineBy::events ? Step::local_search_by_events : Step::local_search;
  if (steps.empty() || steps.back() != last) steps.push_back(last);
  return steps;
}

}  // namespace

struct Refinement::Worker {
  explicit Worker(const Refinement& all)
      : prices(all.prices_.request(), all.prices_.space(), all.prices_.env()),
        solutions(prices.request(), prices.space(), prices.env(), all.solutions_.most()) {}
  StagePrices prices;
  SolutionPool solutions;
};

Refinement::Refinement(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop)
    : prices_(prices), solutions_(solutions), stop_(stop), threads_(prices.request().effort.threads) {
  workers_.resize(threads_.size());
}

Refinement::~Refinement() = default;

Refinement::Worker& Refinement::worker(std::size_t thread) {
  if (workers_[thread] == nullptr) workers_[thread] = std::make_unique<Worker>(*this);
  return *workers_[thread];
}

std::vector<Start> Refinement::starts(Schedule schedule, RefineBy by) const {
  std::vector<Start> starts;
  const bool in_one_pool = prices_.space().pools.size() == 1;
  const bool by_events = by == RefineBy::events;
  const std::size_t most = in_one_pool ? max_starts_in_one_pool : max_starts;
  for (const Solution& found : by_events ? solutions_.printed() : solutions_.best()) {
    if (starts.size() == most) break;
    if (found.mix.schedule == schedule)
      starts.push_back(
          {.mix = found.mix, .score = by_events ? found.printed_score : found.score, .found_by = found.found_by});
  }
  if (by_events) return starts;
  const std::size_t best = starts.size();
  for (Start& start : solutions_.varied()) {
    if (starts.size() == best + max_starts) break;
    const auto is_same = [&](const Start& other) { return other.score == start.score; };
    if (start.mix.schedule == schedule && std::none_of(starts.begin(), starts.end(), is_same))
      starts.push_back(std::move(start));
  }
  return starts;
}

void Refinement::run(const TemplateRules& rules, const std::vector<PipelineTemplate>& columns, RefineBy by) {
  const std::vector<Start> all = starts(rules.schedule, by);
  for (std::size_t first = 0; first < all.size() && !stop_(); first += starts_at_once) {
    const std::size_t count = std::min(starts_at_once, all.size() - first);
    const std::uint64_t share = stop_.plans_left() / count;
    const Findings known = solutions_.findings();
    std::vector<Findings> found(count);
    std::mutex asking;
    bool is_over = false;
    threads_.for_each(count, [&](std::size_t i, std::size_t thread) {
      Worker& pool = worker(thread);
      pool.solutions.begin_from(known);
      pool.solutions.begin(followed_by(all[first + i].found_by, by));
      const std::function<bool()> stop = [&] {
        if (pool.solutions.considered() >= share) return true;
        const std::lock_guard lock(asking);
        is_over = is_over || stop_();
        return is_over;
      };
      Refiner(pool.prices, rules, columns, by, pool.solutions, stop).run(all[first + i]);
      found[i] = pool.solutions.findings();
    });
    for (const Findings& more : found) solutions_.merge(more);
  }
}

}  // namespace sailor::planner
