#include "planner/exhaustive.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "planner/index.hpp"
#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

constexpr double max_kinds = 4000;
constexpr std::uint64_t max_visited = 2'000'000;  // partial plans
constexpr std::uint64_t max_priced = 60'000;
constexpr double rounding = 1.0 + 1e-12;  // factor, of sums in another order

/// A kind of pipeline. Times are lower bounds: without any other pipeline, over the cheaper of the links inside and
/// between nodes.
struct Kind {
  PipelineTemplate column;
  std::vector<std::size_t> pools;    // used by it, ascending
  double price = 0.0;                // USD per second
  double egress_per_sequence = 0.0;  // USD
};

/// Free devices of the nodes of every pool, in the order in which they are filled.
using Room = std::vector<std::vector<int>>;

class Exhaustive {
 public:
  Exhaustive(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop)
      : prices_(prices),
        request_(prices.request()),
        space_(prices.space()),
        env_(prices.env()),
        solutions_(solutions),
        stop_(stop),
        simulator_(prices.env()) {}

  bool run() {
    if (request_.pareto || too_large()) return false;
    for (const Schedule schedule : space_.schedules)
      if (schedule == Schedule::interleaved_1f1b) return false;
    find_order();
    for (const Schedule schedule : space_.schedules)
      for (const OptimizerSharding sharding : space_.sharding) {
        schedule_ = schedule;
        sharding_ = sharding;
        make_kinds();
        if (static_cast<double>(kinds_.size()) > max_kinds) return false;
        rates_.clear();
        Room room;
        for (const DevicePool& pool : space_.pools) {
          auto& nodes = room.emplace_back();
          for (const NodeSize& size : pool.nodes) nodes.insert(nodes.end(), at(size.nodes), size.devices);
        }
        extend(room, 0);
        if (stopped_) return false;
      }
    return true;
  }

 private:
  /// Whether there are more kinds than can be listed, fitting or not.
  bool too_large() const {
    const int layers = prices_.layers();
    const int devices = std::min(space_.devices(), space_.max_gpus.value_or(space_.devices()));
    double all = 0.0;
    for (const int micro_batch : space_.micro_batches) {
      double candidates = 0.0;
      for (const DevicePool& pool : space_.pools)
        for (const int degree : pool.tensor_parallel)
          if (space_.allows(pool.type, degree, micro_batch)) candidates += 1.0;
      double cuts = 1.0;  // ways to divide the layers into this many stages
      double pools = 1.0;
      for (int stages = 1; stages <= std::min(layers, devices); ++stages) {
        pools *= candidates;
        if (allows_stages(stages)) all += cuts * pools;
        cuts *= static_cast<double>(layers - stages) / stages;
        if (all > max_kinds) return true;
      }
    }
    return false;
  }

  bool allows_stages(int stages) const {
    return !request_.pins.pipeline_parallel || *request_.pins.pipeline_parallel == stages;
  }

  /// A pool with one node, or with nodes of one device, looks the same in whatever order it is filled. So do the
  /// all-reduces over zones when there are at most three: a ring through them has one shape.
  void find_order() {
    std::set<std::string> zones;
    for (const DevicePool& pool : space_.pools) zones.insert(pool.zone);
    ordered_.clear();
    for (const DevicePool& pool : space_.pools) {
      int nodes = 0;
      for (const NodeSize& size : pool.nodes) nodes += size.nodes;
      ordered_.push_back(zones.size() > 3 || (nodes > 1 && pool.largest_node() > 1));
    }
    any_order_ = zones.size() <= 3;
  }

  void make_kinds() {
    kinds_.clear();
    for (const int micro_batch : space_.micro_batches) {
      micro_batch_ = micro_batch;
      stages_.clear();
      std::vector<int> groups(space_.pools.size(), 0);
      add_stages(0, 0);
    }
  }

  void add_stages(int first, int devices) {
    if (static_cast<double>(kinds_.size()) > max_kinds) return;
    const int layers = prices_.layers();
    if (first == layers) {
      if (allows_stages(static_cast<int>(stages_.size()))) choose_for_stage(0);
      return;
    }
    const auto max_stages = at(request_.pins.pipeline_parallel.value_or(layers));
    if (stages_.size() == max_stages) return;
    for (std::size_t pool = 0; pool < space_.pools.size(); ++pool)
      for (const int degree : space_.pools[pool].tensor_parallel) {
        if (!space_.allows(space_.pools[pool].type, degree, micro_batch_)) continue;
        if (space_.max_gpus && devices + degree > *space_.max_gpus) continue;
        int here = degree;
        for (const TemplateStage& stage : stages_)
          if (stage.pool == pool) here += stage.tensor_parallel;
        if (here > space_.pools[pool].devices()) continue;
        for (int last = first + 1; last <= layers; ++last) {
          stages_.push_back({.pool = pool, .tensor_parallel = degree, .first = first, .last = last});
          add_stages(last, devices + degree);
          stages_.pop_back();
        }
      }
  }

  /// Chooses for the stages from `index` on.
  void choose_for_stage(std::size_t index) {
    if (index == stages_.size()) {
      add_kind();
      return;
    }
    TemplateStage& stage = stages_[index];
    const DevicePool& pool = space_.pools[stage.pool];
    const auto count = static_cast<int>(stages_.size());
    const auto number = static_cast<int>(index);
    const int neighbours = (number > 0 ? 1 : 0) + (number + 1 < count ? 1 : 0);
    const int most = request_.job.global_batch / micro_batch_;
    const int depth = schedule_ == Schedule::gpipe ? most : std::min(most, count - number);
    const StageTable* quicker = nullptr;  // fits in any plan
    for (const StageChoice& choice : space_.choices) {
      const StageTable* table = prices_.table(pool.type, stage.tensor_parallel, micro_batch_, choice);
      if (table == nullptr) continue;
      // No plan needs less memory than with one micro-batch in flight, no copy of gradients, and what is sharded shared
      // by a pipeline on every device.
      const Sharing most_shared{sharding_, sharding_ == OptimizerSharding::none ? 1.0 : std::max(1, space_.devices())};
      if (prices_.max_in_flight(*table, with_memory(pool, 1e-9, 0.0), stage.first, stage.last, micro_batch_, neighbours,
                                most_shared, false, 1) < 1)
        continue;
      // A choice changes nothing but the times and the memory of its stage. A quicker way that always fits is
      // never worse: the end of every stage grows with every pass.
      if (quicker != nullptr && never_slower(*quicker, *table, stage)) continue;
      stage.choice = choice;
      choose_for_stage(index + 1);
      // No plan needs more memory than with all in flight, and a copy of what a rank without tensor parallelism would
      // reduce.
      const double gradients = prices_.gradients(*table, stage.first, stage.last);
      const double parameters = table->parameters[at(stage.last)] - table->parameters[at(stage.first)];
      const double copies = parameters > 0.0
                                ? gradients / parameters * (parameters + table->tied_parameters) * stage.tensor_parallel
                                : infinity;
      if (quicker == nullptr &&
          prices_.max_in_flight(*table, with_memory(pool, -1e-9, copies), stage.first, stage.last, micro_batch_,
                                neighbours, {sharding_, 1.0}, false, depth) >= depth)
        quicker = table;
    }
    stage.choice = {};
  }

  static DevicePool with_memory(DevicePool pool, double more, double less) {
    pool.memory = pool.memory * (1.0 + more) - Bytes(less);
    return pool;
  }

  bool never_slower(const StageTable& a, const StageTable& b, const TemplateStage& stage) const {
    for (int layer = stage.first; layer < stage.last; ++layer) {
      const simulator::PassTimes& a0 = a.times[at(layer)];
      const simulator::PassTimes& a1 = a.times[at(layer + 1)];
      const simulator::PassTimes& b0 = b.times[at(layer)];
      const simulator::PassTimes& b1 = b.times[at(layer + 1)];
      if ((a1.forward - a0.forward) > (b1.forward - b0.forward) * rounding ||
          (a1.backward - a0.backward) > (b1.backward - b0.backward) * rounding)
        return false;
    }
    return true;
  }

  void add_kind() {
    Kind kind;
    kind.column.stages = stages_;
    kind.column.micro_batch = micro_batch_;
    std::vector<simulator::PassTimes> passes;
    std::vector<simulator::BoundaryTimes> boundaries;
    std::set<std::size_t> pools;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const TemplateStage& stage = stages_[i];
      const DevicePool& pool = space_.pools[stage.pool];
      simulator::PassTimes least{Seconds(infinity), Seconds(infinity)};
      for (int busy = 1; busy <= pool.largest_node(); ++busy) {
        const StageTable* table = prices_.table(pool.type, stage.tensor_parallel, micro_batch_, stage.choice, busy);
        if (table == nullptr) continue;
        const auto& first = table->times[at(stage.first)];
        const auto& last = table->times[at(stage.last)];
        least.forward = std::min(least.forward, last.forward - first.forward);
        least.backward = std::min(least.backward, last.backward - first.backward);
      }
      passes.push_back(least);
      pools.insert(stage.pool);
      kind.column.devices += stage.tensor_parallel;
      kind.price += pool.price.value() / 3600.0 * stage.tensor_parallel;
      if (i + 1 == stages_.size()) break;
      const TemplateStage& next = stages_[i + 1];
      simulator::BoundaryTimes boundary{Seconds(infinity), Seconds(infinity)};
      for (const bool one_node : {false, true}) {
        if (one_node && stage.pool != next.pool) continue;
        const BoundaryCost cost = prices_.boundary(stage.pool, stage.tensor_parallel, next.pool, next.tensor_parallel,
                                                   micro_batch_, one_node);
        boundary.forward = std::min(boundary.forward, Seconds(cost.forward));
        boundary.backward = std::min(boundary.backward, Seconds(cost.backward));
      }
      if (boundary.forward.value() == infinity) return;  // no link
      boundaries.push_back(boundary);
      kind.egress_per_sequence += egress(stage, next);
    }
    simulator::PipelineTimes times{.schedule = schedule_,
                                   .overlaps_transfers = env_.framework.overlaps_transfers,
                                   .stages = static_cast<int>(stages_.size()),
                                   .chunks = 1,
                                   .micro_batches = 1,
                                   .passes = passes,
                                   .boundaries = boundaries};
    kind.column.through = simulator::closed_form(times).value();
    times.micro_batches = 2;
    kind.column.round = simulator::closed_form(times).value() - kind.column.through;
    kind.pools.assign(pools.begin(), pools.end());
    kinds_.push_back(std::move(kind));
  }

  /// USD for what one sequence sends over the boundary, up to a factor that all boundaries have in common.
  double egress(const TemplateStage& from, const TemplateStage& to) const {
    const std::string& a = space_.pools[from.pool].zone;
    const std::string& b = space_.pools[to.pool].zone;
    if (a == b) return 0.0;
    const simulator::StageMessages how = env_.framework.stage_messages;
    for (const ZoneLink& link : env_.cluster->links)
      if ((link.from == a && link.to == b) || (link.from == b && link.to == a))
        return link.egress_usd_per_byte * (simulator::crossing_copies(how, from.tensor_parallel, to.tensor_parallel) +
                                           simulator::crossing_copies(how, to.tensor_parallel, from.tensor_parallel));
    return 0.0;
  }

  /// Max time of a plan with devices of this price (USD per second) that is allowed and better. Falls as the price
  /// grows: devices are paid for the whole iteration, whatever else a plan costs.
  double longest(double price, int nodes) const {
    const Limits& limits = request_.limits;
    double time = infinity;
    const double best = solutions_.best_score();
    if (best < infinity) {
      if (request_.objective == Objective::throughput) time = best;
      if (request_.objective == Objective::cost && price > 0.0) time = best / price;
      if (request_.objective == Objective::throughput_per_usd && price > 0.0) time = std::sqrt(best / price);
    }
    // The limits apply to the event-driven time.
    const auto limit = [&](double longest) { time = std::min(time, longest * simulator::most_above_event_driven); };
    if (limits.throughput) limit(1.0 / *limits.throughput);
    if (limits.wall_time) limit(limits.wall_time->value() / *request_.iterations);
    if (limits.cost && price > 0.0) limit(limits.cost->value() / price);
    if (limits.node_hours && nodes > 0) limit(*limits.node_hours * 3600.0 / *request_.iterations / nodes);
    return time * rounding;
  }

  /// Sequences of a pipeline by a deadline, at most the batch.
  int sequences_by(const Kind& kind, double deadline) const {
    const int batch = request_.job.global_batch;
    if (deadline == infinity) return batch;
    return std::min(batch, kind.column.sequences_by(deadline));
  }

  /// Max sequences per device by a deadline, over all kinds; rounded up.
  double rate(double deadline) {
    if (deadline == infinity) return request_.job.global_batch;
    const int step = static_cast<int>(std::ceil(std::log(std::max(deadline, 1e-30)) / std::log(1.01)));
    const auto [entry, is_new] = rates_.try_emplace(step, 0.0);
    if (is_new)
      for (const Kind& kind : kinds_)
        entry->second =
            std::max(entry->second,
                     static_cast<double>(sequences_by(kind, std::pow(1.01, step) * rounding)) / kind.column.devices);
    return entry->second;
  }

  /// Places each group on the first node that has room, as in plan/placement.hpp. False if there is none: the previous
  /// groups stay where they are, so no longer plan fits either.
  bool assign_pools(const PipelineTemplate& column, Room& room) const {
    for (const TemplateStage& stage : column.stages) {
      std::vector<int>& nodes = room[stage.pool];
      const auto node =
          std::find_if(nodes.begin(), nodes.end(), [&](int free) { return free >= stage.tensor_parallel; });
      if (node == nodes.end()) return false;
      *node -= stage.tensor_parallel;
    }
    return true;
  }

  int nodes_used(const Room& room) const {
    int used = 0;
    for (std::size_t p = 0; p < room.size(); ++p) {
      std::size_t i = 0;
      for (const NodeSize& size : space_.pools[p].nodes)
        for (int n = 0; n < size.nodes; ++n, ++i) used += room[p][i] < size.devices ? 1 : 0;
    }
    return used;
  }

  /// Whether the plan is the same whichever of two neighbouring pipelines comes first.
  bool commute(const Kind& a, const Kind& b) const {
    if (!any_order_) return false;
    for (const std::size_t pool : a.pools)
      if (ordered_[pool] && std::binary_search(b.pools.begin(), b.pools.end(), pool)) return false;
    return true;
  }

  /// Visits all plans that begin with the pipelines of plan_.
  void extend(const Room& room, int devices) {
    const int batch = request_.job.global_batch;
    const auto wanted = request_.pins.data_parallel;
    if (wanted && static_cast<int>(plan_.size()) == *wanted) return;
    const int all = std::min(space_.devices(), space_.max_gpus.value_or(space_.devices()));
    for (std::size_t k = 0; k < kinds_.size() && !stopped_; ++k) {
      // Of the orders that are the same plan, the lexicographically smallest has no pair of neighbours that could be
      // exchanged to get a smaller one: only such orders are visited.
      if (!plan_.empty() && k < plan_.back() && commute(kinds_[plan_.back()], kinds_[k])) continue;
      const Kind& kind = kinds_[k];
      if (devices + kind.column.devices > all || min_sequences_ + kind.column.micro_batch > batch) continue;
      if (++visited_ > max_visited || (visited_ % 1024 == 0 && stop_())) stopped_ = true;
      const double deadline = longest(price_ + kind.price, 0);
      if (kind.column.through > deadline) continue;
      // Max sequences of the pipelines by the deadline, and of the devices that are left; more pipelines only bring the
      // deadline nearer.
      std::int64_t most = sequences_by(kind, deadline);
      bool late = false;
      for (const std::size_t other : plan_) {
        const int here = sequences_by(kinds_[other], deadline);
        late = late || here == 0;
        most += here;
      }
      const int left = all - devices - kind.column.devices;
      if (late || static_cast<double>(most) + rate(deadline) * left < batch) continue;
      Room after = room;
      if (!assign_pools(kind.column, after)) continue;
      const int nodes = nodes_used(after);
      if (space_.max_nodes && nodes > *space_.max_nodes) continue;
      plan_.push_back(k);
      price_ += kind.price;
      min_sequences_ += kind.column.micro_batch;
      if (most >= batch && (!wanted || static_cast<int>(plan_.size()) == *wanted)) price(longest(price_, nodes));
      extend(after, devices + kind.column.devices);
      min_sequences_ -= kind.column.micro_batch;
      price_ -= kind.price;
      plan_.pop_back();
    }
  }

  /// Prices the pipelines of plan_ with the best numbers of micro-batches. Times after `deadline` are of no use.
  void price(double deadline) {
    if (++priced_ > max_priced || (priced_ % 64 == 0 && stop_())) stopped_ = true;
    TemplateMix mix{.schedule = schedule_, .sharding = sharding_, .groups = {}};
    std::vector<Share> shares;
    for (const std::size_t k : plan_) {
      shares.push_back({.group = mix.groups.size(), .count = 1, .micro_batches = 1});
      mix.groups.push_back({.column = kinds_[k].column, .count = 1});
    }
    // With one micro-batch each, a plan takes the min memory, and its prices are those with any other number.
    Plan plan = make_plan(request_, space_, mix, shares);
    plan.job.global_batch = min_sequences_;
    const auto least = simulator_.predict(plan);
    if (!least || least->memory_headroom < request_.memory_margin) return;
    std::vector<GroupTime> times;
    const bool exact = !env_.framework.overlaps_reduction;
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      const PipelineTemplate& column = mix.groups[i].column;
      GroupTime time{.fixed = column.through, .round = column.round, .micro_batch = column.micro_batch, .count = 1};
      if (exact) {
        const simulator::EntryTimes& entry = simulator_.entries()[i];
        time.fixed = (entry.fixed + entry.per_micro_batch + entry.tail).value();
        time.round = entry.per_micro_batch.value();
      }
      times.push_back(time);
    }
    // The quickest division, regardless of memory: if it is too slow, so are all others.
    const auto quickest = share_batch(times, request_.job.global_batch);
    if (!quickest) return;
    double end = 0.0;
    for (const Share& share : *quickest)
      end = std::max(end, times[share.group].fixed + times[share.group].round * (share.micro_batches - 1));
    if (end > deadline) return;
    if (exact && alike_in_egress()) {
      plan = make_plan(request_, space_, mix, *quickest);
      const auto prediction = simulator_.predict(plan);
      if (prediction && prediction->memory_headroom >= request_.memory_margin) {
        add(mix, *quickest);
        return;
      }
    }
    divide(mix, times, shares, 0, request_.job.global_batch, deadline);
  }

  /// Whether a plan's egress cost does not depend on which pipeline computes which sequence.
  bool alike_in_egress() const {
    if (request_.objective == Objective::throughput && !request_.limits.cost) return true;
    const double first = kinds_[plan_.front()].egress_per_sequence;
    return std::all_of(plan_.begin(), plan_.end(),
                       [&](std::size_t k) { return std::abs(kinds_[k].egress_per_sequence - first) <= 1e-12 * first; });
  }

  /// Tries every division of `left` sequences among the pipelines from `index` on that are done by the deadline.
  void divide(const TemplateMix& mix, const std::vector<GroupTime>& times, std::vector<Share>& shares,
              std::size_t index, int left, double deadline) {
    if (stopped_) return;
    const GroupTime& time = times[index];
    const auto end = [&](int micro_batches) { return time.fixed + time.round * (micro_batches - 1); };
    if (index + 1 == times.size()) {
      const int rest = left / time.micro_batch;
      if (left % time.micro_batch != 0 || end(rest) > deadline) return;
      shares[index].micro_batches = rest;
      if (++priced_ > max_priced || (priced_ % 64 == 0 && stop_())) stopped_ = true;
      add(mix, shares);
      return;
    }
    int others = 0;
    for (std::size_t i = index + 1; i < times.size(); ++i) others += times[i].micro_batch;
    for (int n = 1; n * time.micro_batch + others <= left && end(n) <= deadline; ++n) {
      shares[index].micro_batches = n;
      divide(mix, times, shares, index + 1, left - n * time.micro_batch, deadline);
    }
  }

  /// Adds the plan, also with equal neighbours as copies of one, unless that costs something: where copies differ, the
  /// simulator takes the worst.
  void add(const TemplateMix& mix, const std::vector<Share>& shares) {
    const double score = solutions_.add(mix, shares).closed_form;
    if (score == infinity || score > solutions_.best_score() * rounding) return;
    TemplateMix folded{.schedule = mix.schedule, .sharding = mix.sharding, .groups = {}};
    std::vector<Share> counts;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const PipelineTemplate& column = mix.groups[i].column;
      if (!counts.empty() && counts.back().micro_batches == shares[i].micro_batches &&
          folded.groups.back().column.micro_batch == column.micro_batch &&
          folded.groups.back().column.stages == column.stages) {
        ++folded.groups.back().count;
        ++counts.back().count;
        continue;
      }
      counts.push_back({.group = folded.groups.size(), .count = 1, .micro_batches = shares[i].micro_batches});
      folded.groups.push_back({.column = column, .count = 1});
    }
    if (folded.groups.size() < mix.groups.size()) solutions_.add(folded, counts);
  }

  StagePrices& prices_;
  const Request& request_;
  const SearchSpace& space_;
  const simulator::Environment& env_;
  SolutionPool& solutions_;
  const StopCheck& stop_;
  simulator::QuickSimulator simulator_;
  Schedule schedule_ = Schedule::one_f_one_b;
  OptimizerSharding sharding_ = OptimizerSharding::none;
  std::vector<bool> ordered_;  // by pool: whether the order in which it is filled counts
  bool any_order_ = true;
  std::vector<Kind> kinds_;
  std::vector<TemplateStage> stages_;  // of the kind that is being built
  int micro_batch_ = 1;
  std::map<int, double> rates_;
  std::vector<std::size_t> plan_;  // kinds, in order
  double price_ = 0.0;             // of plan_, USD per second
  int min_sequences_ = 0;          // of plan_
  std::uint64_t visited_ = 0;
  std::uint64_t priced_ = 0;
  bool stopped_ = false;
};

}  // namespace

bool search_exhaustively(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop) {
  solutions.begin({Step::all_plans});
  return Exhaustive(prices, solutions, stop).run();
}

}  // namespace sailor::planner
