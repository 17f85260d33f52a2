#include "planner/full_search.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "planner/alike_pipelines.hpp"
#include "planner/interleaved.hpp"
#include "planner/multi_pool_templates.hpp"
#include "planner/refine.hpp"
#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

constexpr std::size_t max_levels = 10;           // of gradients per rank
constexpr std::size_t max_exhaustive_pools = 5;  // up to here every set of pools is tried
constexpr double deadline_step = 1.08;
constexpr int max_deadlines = 90;

class FullSearch {
 public:
  FullSearch(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop)
      : prices_(prices),
        request_(prices.request()),
        space_(prices.space()),
        solutions_(solutions),
        stop_(stop),
        maker_(space_),
        refinement_(prices, solutions, stop) {
    if (request_.limits.throughput) latest_ = simulator::most_above_event_driven / *request_.limits.throughput;
  }

  void run() {
    make_pool_sets();
    for (const Schedule schedule : space_.schedules)
      for (const OptimizerSharding sharding : space_.sharding) {
        if (schedule == Schedule::interleaved_1f1b) {
          set_rules(Schedule::one_f_one_b, sharding);
          search_interleaved(prices_, single_pool_templates(prices_, rules_, stop_), sharding, solutions_, stop_);
        } else {
          search(schedule, sharding);
        }
      }
  }

  void with_hints(const std::vector<Hint>& hints) {
    if (space_.schedules.front() == Schedule::interleaved_1f1b) return;
    make_pool_sets();
    solutions_.begin({Step::hints});
    for (const OptimizerSharding sharding : space_.sharding) {
      set_rules(space_.schedules.front(), sharding);
      columns_ = single_pool_templates(prices_, rules_, stop_);
      for (const Hint& hint : hints) {
        if (stop_()) return;
        if (const auto column = finish_template(prices_, rules_, hint.stages, hint.micro_batch)) try_given(*column);
      }
    }
  }

 private:
  bool by_time() const {
    return request_.objective == Objective::throughput && !request_.limits.cost && !request_.pareto;
  }

  void search(Schedule schedule, OptimizerSharding sharding) {
    set_rules(schedule, sharding);
    columns_ = single_pool_templates(prices_, rules_, stop_);
    if (sharding == OptimizerSharding::none && prices_.env().framework.copies_reduced_gradients &&
        request_.effort.uses(Heuristic::single_pipeline)) {
      // A single pipeline all-reduces no gradients.
      TemplateRules alone = rules_;
      alone.copies_gradients = false;
      for (PipelineTemplate& column : single_pool_templates(prices_, alone, stop_))
        columns_.push_back(std::move(column));
    }
    if (request_.effort.uses(Heuristic::one_kind)) try_one_kind();
    make_levels();
    solutions_.begin({Step::many_templates});
    for (const auto& pools : pool_sets_)
      for (const double level : levels_) {
        if (stop_()) return;
        try_mixes(request_of(pools, level));
      }
    if (request_.effort.brief && (request_.effort.gives_up || !solutions_.best().empty())) return;
    try_filled();
    try_mixed();
    if (stop_()) return;
    refinement_.run(rules_, columns_, RefineBy::closed_form);
    const double before = solutions_.best_score();
    if (request_.effort.uses(Heuristic::alike)) try_alike();
    if (stop_()) return;
    if (solutions_.best_score() < before) refinement_.run(rules_, columns_, RefineBy::closed_form);
    if (request_.effort.uses(Heuristic::refine_printed)) refinement_.run(rules_, columns_, RefineBy::events);
  }

  void set_rules(Schedule schedule, OptimizerSharding sharding) {
    schedule_ = schedule;
    sharding_ = sharding;
    rules_ = rules_for(space_, schedule, sharding);
  }

  /// Tries every template mix of one kind of pipeline: for each number of micro-batches the min number of pipelines,
  /// unless the lower bound of its time is too long.
  void try_one_kind() {
    solutions_.begin({Step::one_template});
    // The likely best come first: the others are then seen to be worse without being priced.
    struct Kind {
      const PipelineTemplate* column;
      std::size_t pool;
      int most;
      double likely;
    };
    std::vector<Kind> kinds;
    for (std::size_t p = 0; p < space_.pools.size(); ++p) {
      const DevicePool& pool = space_.pools[p];
      for (const PipelineTemplate& column : columns_) {
        if (space_.pools[column.stages.front().pool].type != pool.type) continue;
        const int all = request_.job.global_batch / column.micro_batch;
        const int most = std::min(all, max_copies(column, pool, space_));
        if (most < 1 || (request_.pins.data_parallel && most < *request_.pins.data_parallel)) continue;
        kinds.push_back({&column, p, most, min_score(column, p, request_.pins.data_parallel.value_or(most))});
      }
    }
    std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.likely < b.likely; });
    for (const Kind& kind : kinds) {
      if (stop_()) return;
      const PipelineTemplate& column = *kind.column;
      TemplateMix mix{.schedule = schedule_, .sharding = sharding_, .groups = {{.column = column, .count = 0}}};
      for (TemplateStage& stage : mix.groups.front().column.stages) stage.pool = kind.pool;
      if (request_.pins.data_parallel) {
        mix.groups.front().count = *request_.pins.data_parallel;
        solutions_.add(mix);
        continue;
      }
      const auto bar = [&] { return solutions_.bar(); };
      for_each_count(column, kind.most, bar, [&](int count) {
        if (min_score(column, kind.pool, count) >= bar() && !request_.pareto) return;
        mix.groups.front().count = count;
        solutions_.add(mix);
      });
    }
  }

  /// Visits the fewest pipelines for each number of micro-batches, from `most` pipelines on down, as long as their
  /// passes alone may stay below `bar()`, a score.
  template <class Bar, class Visit>
  void for_each_count(const PipelineTemplate& column, int most, Bar bar, Visit visit) {
    const int all = request_.job.global_batch / column.micro_batch;
    for (int count = most; count >= 1 && !stop_();) {
      const int rounds = (all + count - 1) / count;
      if (by_time() && column.through + column.round * (rounds - 1) >= bar()) return;  // fewer take longer
      const int least = (all + rounds - 1) / rounds;  // pipelines with no more micro-batches than this
      visit(least);
      count = least - 1;
    }
  }

  /// Min score of `count` of these pipelines in a pool: the passes, and the reduction of the first stage.
  double min_score(const PipelineTemplate& column, std::size_t pool, int count) {
    const int all = request_.job.global_batch / column.micro_batch;
    const int rounds = (all + count - 1) / count;
    const double time = column.through + column.round * (rounds - 1) + min_reduction(prices_, column, count);
    const double cost = time / 3600.0 * space_.pools[pool].price.value() * column.devices * count;
    return score_of(request_.objective, Seconds(time), Usd(cost));
  }

  void make_levels() {
    std::set<double> values;
    for (const PipelineTemplate& column : columns_) values.insert(column.gradients);
    const std::vector<double> all(values.begin(), values.end());
    levels_.clear();
    if (!request_.effort.uses(Heuristic::gradient_levels)) {
      if (!all.empty()) levels_.push_back(all.back());
      return;
    }
    for (std::size_t i = 1; i <= max_levels && !all.empty(); ++i) {
      const double level = all[(all.size() * i - 1) / max_levels];
      if (levels_.empty() || level > levels_.back()) levels_.push_back(level);
    }
    std::reverse(levels_.begin(), levels_.end());
  }

  /// Every set of few pools; of many pools, those whose links are all faster than some limit, grown from each pool.
  void make_pool_sets() {
    const std::size_t count = space_.pools.size();
    std::set<std::vector<std::size_t>> sets;
    if (count <= max_exhaustive_pools) {
      for (std::size_t bits = 1; bits < std::size_t{1} << count; ++bits) {
        std::vector<std::size_t> pools;
        for (std::size_t i = 0; i < count; ++i)
          if (bits >> i & 1) pools.push_back(i);
        sets.insert(pools);
      }
    } else {
      const double amount = 64e6;
      const auto distance = [&](std::size_t a, std::size_t b) {
        return std::max(prices_.reduction(a, b, 1, 1, 16, false, amount),
                        prices_.reduction(b, a, 1, 1, 16, false, amount));
      };
      for (std::size_t seed = 0; seed < count; ++seed) {
        std::vector<std::size_t> pools{seed};
        std::vector<bool> used(count, false);
        used[seed] = true;
        sets.insert(pools);
        while (pools.size() < count) {  // next: the pool nearest to all of them
          std::size_t next = count;
          double nearest = infinity;
          for (std::size_t i = 0; i < count; ++i) {
            if (used[i]) continue;
            double farthest = distance(i, i);
            for (const std::size_t other : pools) farthest = std::max(farthest, distance(i, other));
            if (farthest < nearest || next == count) {
              nearest = farthest;
              next = i;
            }
          }
          if (nearest == infinity) break;
          used[next] = true;
          pools.push_back(next);
          std::vector<std::size_t> sorted = pools;
          std::sort(sorted.begin(), sorted.end());
          sets.insert(std::move(sorted));
        }
      }
      // The pools of one zone, of one type, and both in pairs of types.
      for (std::size_t type = 0; type < space_.types.size(); ++type)
        for (std::size_t other = type; other < space_.types.size(); ++other) {
          std::vector<std::size_t> pools;
          for (std::size_t i = 0; i < count; ++i)
            if (space_.pools[i].type == type || space_.pools[i].type == other) pools.push_back(i);
          sets.insert(pools);
        }
      for (std::size_t seed = 0; seed < count; ++seed)
        for (std::size_t type = 0; type <= space_.types.size(); ++type) {
          std::vector<std::size_t> pools;
          for (std::size_t i = 0; i < count; ++i)
            if (space_.pools[i].zone == space_.pools[seed].zone &&
                (type == space_.types.size() || space_.pools[i].type == type ||
                 space_.pools[i].type == space_.pools[seed].type))
              pools.push_back(i);
          sets.insert(pools);
        }
    }
    if (!request_.effort.uses(Heuristic::pool_sets))
      std::erase_if(sets, [&](const auto& set) { return set.size() > 1 && set.size() < count; });
    pool_sets_.assign(sets.begin(), sets.end());
    std::stable_sort(pool_sets_.begin(), pool_sets_.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
  }

  MixRequest request_of(const std::vector<std::size_t>& pools, double level) const {
    MixRequest wanted{.pools = pools, .columns = {}, .given = {}, .batch = request_.job.global_batch};
    wanted.columns.resize(space_.types.size());
    for (const PipelineTemplate& column : columns_)
      if (column.gradients <= level) wanted.columns[space_.pools[column.stages.front().pool].type].push_back(&column);
    return wanted;
  }

  void add(std::optional<TemplateMix> mix) {
    if (!mix || mix->groups.empty()) return;
    mix->schedule = schedule_;
    mix->sharding = sharding_;
    solutions_.add(*mix);
  }

  void try_mixes(const MixRequest& wanted) {
    const double least = maker_.min_deadline(wanted);
    if (least == infinity) return;
    if (request_.pins.data_parallel) {
      if (!by_time() || least < solutions_.best_score()) add(maker_.of_size(wanted, *request_.pins.data_parallel));
      return;
    }
    if (by_time()) {
      if (least < solutions_.best_score()) add(maker_.fastest(wanted));
      return;
    }
    if (least <= latest_) add(maker_.fastest(wanted));
    double deadline = least;
    for (int i = 0; i < max_deadlines; ++i, deadline *= deadline_step) {
      if (stop_()) return;
      if (deadline > latest_) break;
      const auto mix = maker_.cheapest(wanted, deadline, true);
      add(mix);
      if (request_.pareto) add(maker_.cheapest(wanted, deadline, false));
      if (mix && mix->groups.size() == 1 && mix->groups.front().count == 1) break;  // there is no smaller one
    }
  }

  /// Tries plans of one kind of pipeline whose stages fill several pools of one type one after the other: all replicas
  /// of the first stage, then those of the next, so that few of the replicas of a stage are in different pools and few
  /// messages cross them (as the planner of the paper places them, section 4.2).
  void try_filled() {
    if (!request_.effort.uses(Heuristic::mixed) || request_.pins.data_parallel) return;
    solutions_.begin({Step::filled_pools});
    for (const auto& pools : pool_sets_) {
      const std::size_t type = space_.pools[pools.front()].type;
      if (pools.size() < 2 ||
          std::any_of(pools.begin(), pools.end(), [&](std::size_t p) { return space_.pools[p].type != type; }))
        continue;
      for (const PipelineTemplate& column : columns_) {
        if (stop_()) return;
        if (column.stages.size() < 2 || space_.pools[column.stages.front().pool].type != type) continue;
        int groups = 0;
        for (const std::size_t p : pools) groups += space_.pools[p].groups(column.stages.front().tensor_parallel);
        const int most =
            std::min(request_.job.global_batch / column.micro_batch, groups / static_cast<int>(column.stages.size()));
        const auto bar = [&] { return solutions_.best_score(); };
        for_each_count(column, most, bar, [&](int count) {
          if (min_score(column, pools.front(), count) >= bar()) return;
          if (auto mix = filled(column, pools, count)) solutions_.add(*mix);
        });
      }
    }
  }

  std::optional<TemplateMix> filled(const PipelineTemplate& column, const std::vector<std::size_t>& pools, int count) {
    std::vector<int> left;  // free groups, by position in `pools`
    for (const std::size_t p : pools) left.push_back(space_.pools[p].groups(column.stages.front().tensor_parallel));
    std::vector<std::vector<std::size_t>> pool_of(static_cast<std::size_t>(count));  // by pipeline and stage
    std::size_t next = 0;
    for (std::size_t s = 0; s < column.stages.size(); ++s)
      for (auto& of_pipeline : pool_of) {
        while (next < pools.size() && left[next] == 0) ++next;
        if (next == pools.size()) return std::nullopt;
        --left[next];
        of_pipeline.push_back(pools[next]);
      }
    TemplateMix mix{.schedule = schedule_, .sharding = sharding_, .groups = {}};
    for (std::size_t first = 0, last = 0; first < pool_of.size(); first = last) {
      while (last < pool_of.size() && pool_of[last] == pool_of[first]) ++last;
      std::vector<TemplateStage> stages = column.stages;
      for (std::size_t s = 0; s < stages.size(); ++s) stages[s].pool = pool_of[first][s];
      auto finished = finish_template(prices_, rules_, std::move(stages), column.micro_batch);
      if (!finished) return std::nullopt;
      mix.groups.push_back({.column = *std::move(finished), .count = static_cast<int>(last - first)});
    }
    return mix;
  }

  void try_mixed() {
    if (space_.pools.size() < 2) return;
    solutions_.begin({Step::spanning_pools});
    if (solutions_.best().empty()) {  // nothing fits into one pool, or keeps the limits there
      if (request_.effort.uses(Heuristic::spanning))
        for (const PipelineTemplate& column : spanning_templates(prices_, rules_, pool_sets_, stop_)) try_given(column);
      if (solutions_.best().empty()) return;
    }
    if (!request_.effort.uses(Heuristic::mixed)) return;
    solutions_.begin({Step::two_pools});
    const double deadline = longest_pipeline(solutions_.best().front());
    MixRequest all = request_of({}, infinity);
    std::vector<double> worth;
    for (const DevicePool& pool : space_.pools) worth.push_back(maker_.best_rate(all, pool.type, deadline));
    const std::vector<PipelineTemplate> mixed = two_pool_templates(prices_, rules_, worth, deadline, stop_);
    for (const PipelineTemplate& column : mixed) try_given(column);
  }

  /// Tries template mixes of one kind of pipeline whose stages are anywhere.
  void try_alike() {
    if (space_.layers() > SearchSpace::max_layers) return;
    solutions_.begin({Step::alike});
    const bool is_brief = request_.effort.brief;
    if (solutions_.best_score() == infinity) {  // nothing can be passed over then
      add_alike(true);
      if (is_brief && solutions_.best_score() == infinity) return;
    }
    add_alike(is_brief);
  }
  void add_alike(bool is_brief) {
    const double bar = solutions_.best_score();
    for (const Group& group : alike_pipelines(prices_, rules_, sharding_, bar, is_brief, stop_)) {
      if (stop_()) return;
      solutions_.add({.schedule = schedule_, .sharding = sharding_, .groups = {group}});
    }
  }

  /// Tries template mixes of this kind of pipeline and others in one pool each.
  void try_given(const PipelineTemplate& column) {
    int most = INT_MAX;
    for (const TemplateStage& stage : column.stages)
      most = std::min(most, space_.pools[stage.pool].devices() / column.uses(stage.pool));
    most = std::min(most, request_.job.global_batch / column.micro_batch);
    std::set<int> counts;
    for (int part = 1; part <= 4; ++part) counts.insert(most * part / 4);
    for (const auto& pools : pool_sets_) {
      if (stop_()) return;
      const bool within = std::all_of(column.stages.begin(), column.stages.end(), [&](const TemplateStage& stage) {
        return std::find(pools.begin(), pools.end(), stage.pool) != pools.end();
      });
      if (!within || (pool_sets_.size() > 64 && pools.size() > 2 && pools.size() < space_.pools.size())) continue;
      for (const int count : counts) {
        if (count < 1) continue;
        MixRequest wanted = request_of(pools, infinity);
        wanted.given.push_back({.column = column, .count = count});
        try_mixes(wanted);
      }
    }
    TemplateMix alone{.schedule = schedule_, .sharding = sharding_, .groups = {}};
    for (int count = most; count >= 1; count = std::min(count - 1, count * 9 / 10)) {
      alone.groups = {{.column = column, .count = count}};
      if (solutions_.add(alone).closed_form > solutions_.best_score() * 1.3 && by_time()) break;
    }
  }

  static double longest_pipeline(const Solution& found) {
    double longest = 0.0;
    for (const Pipeline& pipeline : found.plan.pipelines)
      for (const Group& group : found.mix.groups)
        if (group.column.stages.size() == pipeline.stages.size())
          longest = std::max(longest, group.column.through + group.column.round * (pipeline.micro_batches - 1));
    return std::min(longest, found.time.value());
  }

  StagePrices& prices_;
  const Request& request_;
  const SearchSpace& space_;
  SolutionPool& solutions_;
  const StopCheck& stop_;
  MixBuilder maker_;
  Refinement refinement_;
  double latest_ = infinity;  // no plan that ends later by the closed form keeps the limits
  Schedule schedule_ = Schedule::one_f_one_b;
  OptimizerSharding sharding_ = OptimizerSharding::none;
  TemplateRules rules_;
  std::vector<PipelineTemplate> columns_;
  std::vector<double> levels_;
  std::vector<std::vector<std::size_t>> pool_sets_;
};

/// Plans of one kind of pipeline with a power of two of stages, in three numbers.
void search_coarsely_by(const TemplateRules& rules, StagePrices& prices, SolutionPool& solutions,
                        const StopCheck& stop) {
  const SearchSpace& space = prices.space();
  const Request& request = prices.request();
  const Pins& pins = request.pins;
  for (std::size_t p = 0; p < space.pools.size(); ++p) {
    const DevicePool& pool = space.pools[p];
    for (const auto& [degree, sizes] : space.micro_batches_of[pool.type]) {
      const int max_stages = std::min(pool.groups(degree), prices.layers());
      for (int stages = pins.pipeline_parallel.value_or(1); stages <= pins.pipeline_parallel.value_or(max_stages);
           stages *= 2)
        for (std::size_t i = 0; i < sizes.size(); i = 2 * i + 1) {
          if (stop()) return;
          auto column = balanced_template(prices, rules, {{p, degree, stages}}, sizes[i]);
          const int most = column ? std::min(request.job.global_batch / sizes[i], max_copies(*column, pool, space)) : 0;
          for (const int count : {most, most / 2, 1}) {
            const int copies = pins.data_parallel.value_or(count);
            if (copies < 1 || copies > most) continue;
            solutions.add({.schedule = rules.schedule,
                           .sharding = rules.sharing.sharding,
                           .groups = {{.column = *column, .count = copies}}});
          }
        }
    }
  }
}

}  // namespace

void search_with(StagePrices& prices, SolutionPool& solutions, const std::vector<Hint>& hints, const StopCheck& stop) {
  FullSearch(prices, solutions, stop).with_hints(hints);
}

void search_full(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop) {
  FullSearch(prices, solutions, stop).run();
}

void search_coarsely(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop) {
  const SearchSpace& space = prices.space();
  const Schedule schedule = space.schedules.front();
  if (schedule == Schedule::interleaved_1f1b) return;
  const OptimizerSharding sharding = space.sharding.front();
  solutions.begin({Step::coarse});
  TemplateRules rules = rules_for(space, schedule, sharding);
  if (!shards_gradients(sharding)) rules.sharing.replicas = 1.0;
  search_coarsely_by(rules, prices, solutions, stop);
  if (!shards_gradients(sharding) && shards_gradients(space.sharding.back()))
    search_coarsely_by(rules_for(space, schedule, space.sharding.back()), prices, solutions, stop);
}

}  // namespace sailor::planner
