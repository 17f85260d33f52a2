#include "planner/templates.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

/// Boundaries after every stage but the last; std::nullopt if a link is missing. Pipelines are assumed to start on a
/// new node.
std::optional<std::vector<BoundaryCost>> boundaries_of(StagePrices& prices, const std::vector<TemplateStage>& stages,
                                                       int micro_batch) {
  std::vector<BoundaryCost> costs;
  int filled = 0;  // devices used on the node that the previous stage ends on
  int devices = 0;
  for (const TemplateStage& stage : stages) devices += stage.tensor_parallel;
  for (std::size_t i = 0; i + 1 < stages.size(); ++i) {
    const TemplateStage& a = stages[i];
    const TemplateStage& b = stages[i + 1];
    const int node = prices.space().pools[a.pool].largest_node();
    filled = (filled + a.tensor_parallel) % node;
    const bool aligned = node % devices == 0 || devices % node == 0;
    const bool one_node = a.pool == b.pool && aligned && filled != 0 && filled + b.tensor_parallel <= node;
    costs.push_back(prices.boundary(a.pool, a.tensor_parallel, b.pool, b.tensor_parallel, micro_batch, one_node));
    if (costs.back().forward == infinity) return std::nullopt;
    if (a.pool != b.pool) filled = 0;
  }
  return costs;
}

/// Sharing among the replicas of a pipeline of this many devices.
Sharing sharing_of(const StagePrices& prices, const TemplateRules& rules, int devices, int micro_batch) {
  if (rules.share_of_pipelines <= 0.0) return rules.sharing;
  const Request& request = prices.request();
  const SearchSpace& space = prices.space();
  const int all = std::min(space.devices(), space.max_gpus.value_or(space.devices()));
  const int most = std::min(all / devices, request.job.global_batch / micro_batch);
  const double pipelines = request.pins.data_parallel.value_or(most) * rules.share_of_pipelines;
  return {rules.sharing.sharding, std::max(1.0, std::floor(pipelines))};
}

/// Stages of a template while the layers are divided among them.
class Balancer {
 public:
  Balancer(StagePrices& prices, const TemplateRules& rules, const std::vector<Segment>& segments, int micro_batch)
      : prices_(prices), rules_(rules), micro_batch_(micro_batch) {
    int devices = 0;
    for (const Segment& segment : segments) {
      for (int i = 0; i < segment.stages; ++i) stages_.push_back({segment.pool, segment.tensor_parallel});
      devices += segment.stages * segment.tensor_parallel;
    }
    sharing_ = sharing_of(prices, rules, devices, micro_batch);
  }

  std::optional<std::vector<TemplateStage>> run() {
    const int layers = prices_.layers();
    if (static_cast<int>(stages_.size()) > layers || !find_tables() || !find_boundaries()) return std::nullopt;
    for (const bool limit : {false, true}) {
      limited_ = limit;
      if (!divide(infinity)) continue;
      double high = slowest();
      std::vector<TemplateStage> best = stages_;
      double low = 0.0;
      for (int step = 0; step < 40 && low < high * (1.0 - 1e-9); ++step) {
        const double middle = step == 0 ? lower_bound() : 0.5 * (low + high);
        if (middle >= high) break;
        if (divide(middle)) {
          high = slowest();
          best = stages_;
        } else {
          low = next_;
        }
      }
      return best;
    }
    return std::nullopt;
  }

 private:
  bool find_tables() {
    const SearchSpace& space = prices_.space();
    for (const TemplateStage& stage : stages_) {
      auto& row = tables_.emplace_back();
      for (const StageChoice& choice : space.choices)
        if (const StageTable* table =
                prices_.table(space.pools[stage.pool].type, stage.tensor_parallel, micro_batch_, choice))
          row.emplace_back(choice, table);
      if (row.empty()) return false;
    }
    return true;
  }

  bool find_boundaries() {
    const auto costs = boundaries_of(prices_, stages_, micro_batch_);
    if (!costs) return false;
    outside_.assign(stages_.size(), 0.0);
    for (std::size_t i = 0; i < costs->size() && blocks(); ++i) {
      outside_[i] += (*costs)[i].both();
      outside_[i + 1] += (*costs)[i].both();
    }
    return true;
  }

  bool blocks() const { return !prices_.env().framework.overlaps_transfers; }

  /// Time of the stage for these layers, by the quickest choice that fits; infinite when none does.
  double time(std::size_t stage, int first, int last, StageChoice& how) const {
    const auto stages = static_cast<int>(stages_.size());
    const int index = static_cast<int>(stage);
    const int neighbours = (index > 0 ? 1 : 0) + (index + 1 < stages ? 1 : 0);
    const int wanted = limited_ ? 1 : stages - index;
    const DevicePool& pool = prices_.space().pools[stages_[stage].pool];
    for (const auto& [choice, table] : tables_[stage])
      if (prices_.max_in_flight(*table, pool, first, last, micro_batch_, neighbours, sharing_, rules_.copies_gradients,
                                wanted) >= wanted) {
        how = choice;
        return table->time(first, last) + outside_[stage];
      }
    return infinity;
  }

  /// From the last stage on, each gets as many layers as it can take; those before it keep at least one each. Up to
  /// next_ seconds the division is the same.
  bool divide(double most) {
    next_ = infinity;
    int last = prices_.layers();
    for (std::size_t i = stages_.size(); i-- > 0;) {
      const int before = static_cast<int>(i);
      StageChoice how;
      StageChoice found;
      const auto takes = [&](int from) {
        const double taken = time(i, from, last, how);
        if (taken > most || taken == infinity) {
          next_ = std::min(next_, taken);
          return false;
        }
        found = how;
        return true;
      };
      // More layers take longer and need more memory; only the first stage of a pipeline keeps no input.
      int first = last;
      int low = std::max(before, 1) - 1;  // what it does not take, as far as is known
      while (first - low > 1) {
        const int middle = (first + low) / 2;
        (takes(middle) ? first : low) = middle;
      }
      if (i == 0 && first == 1 && takes(0)) first = 0;
      if (first == last || (i == 0 && first != 0)) return false;
      stages_[i].first = first;
      stages_[i].last = last;
      stages_[i].choice = found;
      last = first;
    }
    return true;
  }

  double slowest() const {
    double longest = 0.0;
    StageChoice how;
    for (std::size_t i = 0; i < stages_.size(); ++i)
      longest = std::max(longest, time(i, stages_[i].first, stages_[i].last, how));
    return longest;
  }

  /// Lower bound for any division: the work of all layers at the fastest stage's rate, spread evenly.
  double lower_bound() const {
    double least = 0.0;
    for (int layer = 0; layer < prices_.layers(); ++layer) {
      double quickest = infinity;
      for (const auto& row : tables_) quickest = std::min(quickest, row.front().second->time(layer, layer + 1));
      least += quickest;
    }
    return least / static_cast<double>(stages_.size()) * (1.0 - 1e-12);
  }

  StagePrices& prices_;
  const TemplateRules& rules_;
  int micro_batch_;
  Sharing sharing_;
  std::vector<TemplateStage> stages_;
  std::vector<std::vector<std::pair<StageChoice, const StageTable*>>> tables_;
  std::vector<double> outside_;  // time of a stage in messages, per micro-batch
  bool limited_ = false;         // only one micro-batch in flight
  double next_ = infinity;       // of the last division: min time of a stage with a layer more
};

}  // namespace

TemplateRules rules_for(const SearchSpace& space, Schedule schedule, OptimizerSharding sharding) {
  const double replicas = sharding == OptimizerSharding::none ? 1.0 : std::clamp(space.devices() / 16.0, 2.0, 64.0);
  return {.schedule = schedule,
          .sharing = {sharding, replicas},
          .share_of_pipelines = sharding == OptimizerSharding::none ? 0.0 : 1.0,
          .copies_gradients = true};
}

int PipelineTemplate::micro_batches_by(double deadline) const {
  if (deadline < through) return 0;
  const double more = round > 0.0 ? std::floor((deadline - through) / round * (1.0 + 1e-12)) : max_micro_batches;
  return static_cast<int>(std::min({more + 1.0, static_cast<double>(max_micro_batches), 1e9}));
}

int PipelineTemplate::sequences_by(double deadline) const {
  return static_cast<int>(std::min(static_cast<double>(micro_batches_by(deadline)) * micro_batch, 1e9));
}

int PipelineTemplate::uses(std::size_t pool) const {
  int sum = 0;
  for (const TemplateStage& stage : stages)
    if (stage.pool == pool) sum += stage.tensor_parallel;
  return sum;
}

bool PipelineTemplate::in_one_pool() const {
  return std::all_of(stages.begin(), stages.end(),
                     [&](const TemplateStage& stage) { return stage.pool == stages.front().pool; });
}

std::optional<PipelineTemplate> finish_template(StagePrices& prices, const TemplateRules& rules,
                                                std::vector<TemplateStage> stages, int micro_batch) {
  const SearchSpace& space = prices.space();
  PipelineTemplate column{.stages = std::move(stages), .micro_batch = micro_batch};
  const auto count = static_cast<int>(column.stages.size());
  std::vector<simulator::PassTimes> passes;
  const auto costs = boundaries_of(prices, column.stages, micro_batch);
  if (!costs) return std::nullopt;
  std::vector<simulator::BoundaryTimes> boundaries;
  for (const BoundaryCost& cost : *costs) boundaries.push_back({Seconds(cost.forward), Seconds(cost.backward)});
  column.degrees_multiple = 1;
  for (const TemplateStage& stage : column.stages) {
    column.devices += stage.tensor_parallel;
    column.degrees_multiple = std::lcm(column.degrees_multiple, stage.tensor_parallel);
  }
  const Sharing sharing = sharing_of(prices, rules, column.devices, micro_batch);
  for (int i = 0; i < count; ++i) {
    TemplateStage& stage = column.stages[static_cast<std::size_t>(i)];
    const DevicePool& pool = space.pools[stage.pool];
    const int neighbours = (i > 0 ? 1 : 0) + (i + 1 < count ? 1 : 0);
    const int depth = rules.schedule == Schedule::gpipe ? prices.request().job.global_batch / micro_batch : count - i;
    const StageTable* chosen = nullptr;
    int most = 0;
    for (const StageChoice& choice : space.choices) {
      const StageTable* table = prices.table(pool.type, stage.tensor_parallel, micro_batch, choice);
      if (table == nullptr) continue;
      const int in_flight = prices.max_in_flight(*table, pool, stage.first, stage.last, micro_batch, neighbours,
                                                 sharing, rules.copies_gradients, depth);
      if (in_flight <= most) continue;
      most = in_flight;
      chosen = table;
      stage.choice = choice;
      if (in_flight >= depth) break;
    }
    if (chosen == nullptr) return std::nullopt;
    if (most < depth) column.max_micro_batches = std::min(column.max_micro_batches, most);
    const auto& first = chosen->times[static_cast<std::size_t>(stage.first)];
    const auto& last = chosen->times[static_cast<std::size_t>(stage.last)];
    passes.push_back({last.forward - first.forward, last.backward - first.backward});
    column.gradients = std::max(column.gradients, prices.gradients(*chosen, stage.first, stage.last));
  }
  simulator::PipelineTimes times{
      .schedule = rules.schedule == Schedule::gpipe ? Schedule::gpipe : Schedule::one_f_one_b,
      .overlaps_transfers = prices.env().framework.overlaps_transfers,
      .stages = count,
      .chunks = 1,
      .micro_batches = 1,
      .passes = passes,
      .boundaries = boundaries};
  column.through = simulator::closed_form(times).value();
  times.micro_batches = 2;
  column.round = simulator::closed_form(times).value() - column.through;
  return column;
}

std::optional<PipelineTemplate> balanced_template(StagePrices& prices, const TemplateRules& rules,
                                                  const std::vector<Segment>& segments, int micro_batch) {
  auto stages = Balancer(prices, rules, segments, micro_batch).run();
  if (!stages) return std::nullopt;
  return finish_template(prices, rules, std::move(*stages), micro_batch);
}

namespace {

/// 1, 2, 3, 4, 6, 8, 12, 16, ...
bool is_usual(int stages) {
  while (stages % 2 == 0) stages /= 2;
  return stages == 1 || stages == 3;
}

void add_templates(StagePrices& prices, const TemplateRules& rules, const Segment& segment, int micro_batch,
                   std::vector<PipelineTemplate>& columns) {
  auto column = balanced_template(prices, rules, {segment}, micro_batch);
  if (!column) return;
  columns.push_back(*std::move(column));
  if (rules.share_of_pipelines <= 0.0 || prices.request().pins.data_parallel) return;
  TemplateRules fewer = rules;
  const auto replicas = [&] {
    return sharing_of(prices, fewer, segment.stages * segment.tensor_parallel, micro_batch).replicas;
  };
  // Where the division for two replicas is the same, it is the same for every number in between.
  TemplateRules two = rules;
  two.share_of_pipelines = 0.0;
  two.sharing.replicas = 2.0;
  auto least = balanced_template(prices, two, {segment}, micro_batch);
  if (least && least->stages == columns.back().stages) return;
  for (fewer.share_of_pipelines /= 2.0; replicas() > 2.0; fewer.share_of_pipelines /= 2.0) {
    column = balanced_template(prices, fewer, {segment}, micro_batch);
    if (!column) return;
    if (column->stages != columns.back().stages) columns.push_back(*std::move(column));
  }
  if (least && least->stages != columns.back().stages) columns.push_back(*std::move(least));
}

}  // namespace

std::vector<PipelineTemplate> single_pool_templates(StagePrices& prices, const TemplateRules& rules,
                                                    const StopCheck& stop) {
  const SearchSpace& space = prices.space();
  const Pins& pins = prices.request().pins;
  std::vector<PipelineTemplate> columns;
  for (std::size_t type = 0; type < space.types.size(); ++type) {
    std::size_t pool = 0;
    int max_devices = 0;
    for (std::size_t i = space.pools.size(); i-- > 0;)
      if (space.pools[i].type == type) {
        pool = i;
        max_devices = std::max(max_devices, space.pools[i].devices());
      }
    for (const auto& [tensor_parallel, sizes] : space.micro_batches_of[type])
      for (const int micro_batch : sizes)
        for (int stages = pins.pipeline_parallel.value_or(1);
             stages <= std::min(pins.pipeline_parallel.value_or(prices.layers()), max_devices / tensor_parallel);
             ++stages) {
          if (stop()) return columns;
          if (prices.request().effort.brief && !is_usual(stages) && !pins.pipeline_parallel) continue;
          add_templates(prices, rules, {pool, tensor_parallel, stages}, micro_batch, columns);
        }
  }
  return columns;
}

}  // namespace sailor::planner
