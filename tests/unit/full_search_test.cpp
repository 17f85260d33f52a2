// The search of the full space against brute force, and what must hold for any input.
#include "planner/full_search.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "planner/bound/bound.hpp"
#include "planner/bound/pricing.hpp"
#include "planner/search_space.hpp"
#include "planner/stage_prices.hpp"
#include "planner/template_mix.hpp"
#include "simulator/quick.hpp"
#include "tests/fakes/random_worlds.hpp"

namespace sailor::full_search_test {
namespace {

using planner::Objective;
using planner::Request;
using testing::PlannerWorld;
using testing::WorldSize;

constexpr double none = std::numeric_limits<double>::infinity();
constexpr std::uint64_t max_plans = 40'000;  // of a brute force

/// Every plan one after the other: all kinds of pipelines, all sequences of them whose groups find room, each in the
/// first node that has some, and all divisions of the batch. Shares nothing with the planner but the prices of a plan.
class BruteForce {
 public:
  BruteForce(const PlannerWorld& world, const Request& request)
      : world_(world), request_(request), profile_(world.data), env_(world.environment(profile_)), simulator_(env_) {}

  /// Of the best plan: USD, seconds or their product, smaller is better; infinite when there is none.
  double best(std::optional<Plan>* plan = nullptr) {
    wanted_ = plan;
    best_ = none;
    go(false);
    return best_;
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  /// No more than `max_plans` plans.
  bool is_small() {
    go(true);
    return !is_over();
  }

 private:
  struct DevicePool {
    std::string gpu;
    std::string zone;
    std::vector<int> nodes;  // devices, largest first
  };

  void go(bool count_only) {
    count_only_ = count_only;
    count_ = 0;
    tries_ = 0;
    find_places();
    const planner::Pins& pins = request_.pins;
    std::vector<OptimizerSharding> shardings{OptimizerSharding::none};
    for (const OptimizerSharding sharding : world_.framework.shardings) shardings.push_back(sharding);
    if (pins.optimizer_sharding) shardings = {*pins.optimizer_sharding};
    for (const OptimizerSharding sharding : shardings) {
      plan_ = {};
      plan_.job = request_.job;
      plan_.schedule = pins.schedule.value_or(Schedule::one_f_one_b);
      plan_.optimizer_sharding = sharding;
      find_kinds();
      std::vector<std::vector<int>> room;
      for (const DevicePool& place : pools_) room.push_back(place.nodes);
      add_pipeline(room, 0);
    }
  }

  bool is_over() const { return count_only_ && (count_ > max_plans || tries_ > 2 * max_plans); }

  void find_places() {
    pools_.clear();
    const planner::Pins& pins = request_.pins;
    const auto allowed = [](const std::vector<std::string>& list, const std::string& name) {
      return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
    };
    for (const NodeGroup& group : world_.cluster.groups) {
      if (!allowed(pins.gpus, group.gpu) || !allowed(pins.zones, group.zone)) continue;
      auto place = std::find_if(pools_.begin(), pools_.end(),
                                [&](const DevicePool& p) { return p.gpu == group.gpu && p.zone == group.zone; });
      if (place == pools_.end()) place = pools_.insert(place, {.gpu = group.gpu, .zone = group.zone, .nodes = {}});
      place->nodes.insert(place->nodes.end(), static_cast<std::size_t>(group.count), group.gpus_per_node);
      std::sort(place->nodes.rbegin(), place->nodes.rend());
    }
    devices_ = 0;
    for (const DevicePool& place : pools_) devices_ += std::accumulate(place.nodes.begin(), place.nodes.end(), 0);
    // On a single node, or on nodes of one device, the order of the pipelines makes no difference.
    any_order_ = std::all_of(pools_.begin(), pools_.end(),
                             [](const DevicePool& p) { return p.nodes.size() == 1 || p.nodes.front() == 1; });
  }

  void find_kinds() {
    kinds_.clear();
    for (const int micro_batch : world_.allowed_micro_batches()) {
      if (request_.pins.micro_batch && *request_.pins.micro_batch != micro_batch) continue;
      Pipeline pipeline{.count = 1, .micro_batches = 1, .micro_batch = micro_batch, .stages = {}};
      add_stage(pipeline, 0);
    }
  }

  void add_stage(Pipeline& pipeline, int first) {
    const planner::Pins& pins = request_.pins;
    const int layers = world_.model.layers();
    if (is_over()) return;
    if (first == layers) {
      if (!pins.pipeline_parallel || *pins.pipeline_parallel == static_cast<int>(pipeline.stages.size()))
        kinds_.push_back(pipeline);
      if (count_only_ && kinds_.size() > max_plans / 4) count_ = max_plans + 1;
      return;
    }
    std::vector<Recompute> ways{Recompute::none};
    if (world_.framework.supports_recompute) ways = {Recompute::none, Recompute::selective, Recompute::full};
    if (pins.recompute) ways = {*pins.recompute};
    for (const DevicePool& place : pools_)
      for (const int degree : world_.degrees)
        for (const Recompute how : ways)
          for (int last = first + 1; last <= layers; ++last) {
            if (degree > place.nodes.front() || (pins.tensor_parallel && *pins.tensor_parallel != degree) ||
                (pins.max_tensor_parallel && degree > *pins.max_tensor_parallel))
              continue;
            pipeline.stages.push_back({.layers = {first, last},
                                       .gpu = place.gpu,
                                       .tensor_parallel = degree,
                                       .zone = place.zone,
                                       .recompute = how});
            if (fits(pipeline)) add_stage(pipeline, last);
            pipeline.stages.pop_back();
          }
  }

  bool fits(const Pipeline& pipeline) const {
    for (const DevicePool& place : pools_) {
      int left = std::accumulate(place.nodes.begin(), place.nodes.end(), 0);
      for (const Stage& stage : pipeline.stages)
        if (stage.gpu == place.gpu && stage.zone == place.zone) left -= stage.tensor_parallel;
      if (left < 0) return false;
    }
    return true;
  }

  void add_pipeline(const std::vector<std::vector<int>>& room, std::size_t from) {
    const auto wanted = request_.pins.data_parallel;
    for (std::size_t k = from; k < kinds_.size() && !is_over(); ++k) {
      int sequences = kinds_[k].micro_batch;
      for (const Pipeline& pipeline : plan_.pipelines) sequences += pipeline.micro_batch;
      if (sequences > request_.job.global_batch || plan_.ranks() + kinds_[k].ranks() > devices_) continue;
      auto after = room;
      ++tries_;
      if (!place(kinds_[k], after)) continue;
      plan_.pipelines.push_back(kinds_[k]);
      if (request_.limits.gpus.value_or(plan_.ranks()) >= plan_.ranks()) {
        nodes_ = 0;
        for (std::size_t p = 0; p < pools_.size(); ++p)
          for (std::size_t i = 0; i < after[p].size(); ++i) nodes_ += after[p][i] < pools_[p].nodes[i] ? 1 : 0;
        if (!wanted || *wanted == plan_.data_parallel()) divide(0, request_.job.global_batch);
        add_pipeline(after, any_order_ ? k : 0);
      }
      plan_.pipelines.pop_back();
    }
  }

  bool place(const Pipeline& pipeline, std::vector<std::vector<int>>& room) const {
    for (const Stage& stage : pipeline.stages)
      for (std::size_t p = 0; p < pools_.size(); ++p) {
        if (pools_[p].gpu != stage.gpu || pools_[p].zone != stage.zone) continue;
        const auto node =
            std::find_if(room[p].begin(), room[p].end(), [&](int free) { return free >= stage.tensor_parallel; });
        if (node == room[p].end()) return false;
        *node -= stage.tensor_parallel;
      }
    return true;
  }

  void divide(std::size_t index, int left) {
    if (is_over()) return;
    Pipeline& pipeline = plan_.pipelines[index];
    if (index + 1 == plan_.pipelines.size()) {
      if (left <= 0 || left % pipeline.micro_batch != 0) return;
      pipeline.micro_batches = left / pipeline.micro_batch;
      ++count_;
      if (!count_only_) price();
      return;
    }
    for (int n = 1; n * pipeline.micro_batch < left; ++n) {
      plan_.pipelines[index].micro_batches = n;
      divide(index + 1, left - n * plan_.pipelines[index].micro_batch);
    }
  }

  void price() {
    if (!is_uniform(plan_, world_.framework.uniformity)) return;
    const auto prediction = simulator_.predict(plan_);
    if (!prediction || prediction->memory_headroom < request_.memory_margin) return;
    const double time = prediction->iteration_time.value();
    const double cost = prediction->cost_per_iteration.value();
    if (request_.limits.nodes && nodes_ > *request_.limits.nodes) return;
    if (planner::limits_time(request_)) {
      const Seconds printed = simulator_.event_driven_time();
      if (!planner::keeps_limits(request_, printed, simulator_.cost_of(printed), nodes_)) return;
    }
    const double score = request_.objective == Objective::throughput ? time
                         : request_.objective == Objective::cost     ? cost
                                                                     : time * cost;
    if (score >= best_) return;
    best_ = score;
    if (wanted_ != nullptr) *wanted_ = plan_;
  }

  const PlannerWorld& world_;
  const Request& request_;
  Profile profile_;
  simulator::Environment env_;
  simulator::QuickSimulator simulator_;
  std::vector<DevicePool> pools_;
  std::vector<Pipeline> kinds_;
  Plan plan_;
  int nodes_ = 0;
  bool any_order_ = false;
  bool count_only_ = false;
  std::uint64_t count_ = 0;
  std::uint64_t tries_ = 0;  // pipelines that were placed or not
  int devices_ = 0;
  double best_ = none;
  std::optional<Plan>* wanted_ = nullptr;
};

double value_of(Objective objective, double score) { return objective == Objective::cost ? score : 1.0 / score; }

bool is_close(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return a == b;
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

/// Fewer choices until brute force can go through them.
void make_small(PlannerWorld& world) {
  const auto is_small = [&] { return BruteForce(world, world.request).is_small(); };
  planner::Pins& pins = world.request.pins;
  if (!is_small()) {
    std::vector<OptimizerSharding> shardings = world.framework.shardings;
    shardings.push_back(OptimizerSharding::none);
    pins.optimizer_sharding = *rc::gen::elementOf(shardings);
  }
  if (!is_small() && world.framework.supports_recompute)
    pins.recompute = *rc::gen::element(Recompute::none, Recompute::selective);
  if (!is_small() && world.degrees.size() > 1) pins.tensor_parallel = *rc::gen::elementOf(world.degrees);
  if (!is_small() && world.allowed_micro_batches().size() > 1)
    pins.micro_batch = *rc::gen::elementOf(world.allowed_micro_batches());
  if (!is_small()) world.request.job.global_batch = std::min(world.request.job.global_batch, 4);
  if (pins.micro_batch && world.request.job.global_batch % *pins.micro_batch != 0) pins.micro_batch.reset();
  if (!is_small()) pins.pipeline_parallel = *rc::gen::inRange(1, 3);
  while (!is_small()) {
    NodeGroup& last = world.cluster.groups.back();
    if (last.count > 1)
      --last.count;
    else if (world.cluster.groups.size() > 1)
      world.cluster.groups.pop_back();
    else
      --last.gpus_per_node;
  }
}

/// Limits near the best that there is without them.
void add_limits(PlannerWorld& world) {
  Request free = world.request;
  const auto best_of = [&](Objective objective) {
    free.objective = objective;
    return BruteForce(world, free).best();
  };
  planner::Limits& limits = world.request.limits;
  world.request.iterations = 10.0;
  const double near = *rc::gen::element(0.95, 1.0001, 1.05, 1.3, 2.0);
  switch (*rc::gen::inRange(0, 9)) {
    case 0:
      limits.cost = Usd(best_of(Objective::cost) * near);
      break;
    case 1:
      limits.throughput = 1.0 / (best_of(Objective::throughput) * near);
      break;
    case 2:
      limits.gpus = *rc::gen::inRange(1, 5);
      break;
    case 3:
      limits.nodes = *rc::gen::inRange(1, 4);
      break;
    case 4:
      limits.wall_time = Seconds(best_of(Objective::throughput) * near * 10.0);
      break;
    case 5:
      limits.node_hours = best_of(Objective::throughput) * near * 10.0 / 3600.0 * *rc::gen::inRange(1, 3);
      break;
    default:
      break;
  }
  if (limits.cost && !std::isfinite(limits.cost->value())) limits.cost.reset();
  if (limits.throughput && !(*limits.throughput > 0.0)) limits.throughput.reset();
  if (limits.wall_time && !std::isfinite(limits.wall_time->value())) limits.wall_time.reset();
  if (limits.node_hours && !std::isfinite(*limits.node_hours)) limits.node_hours.reset();
}

PlannerWorld small_world(const WorldSize& size = {}) {
  PlannerWorld world(size);
  RC_PRE(!world.allowed_micro_batches().empty());
  make_small(world);
  return world;
}

/// Score of what the planner found; infinite when it says that there is nothing.
double score_of(const PlannerWorld& world, const Result<planner::SearchResult>& found) {
  if (!found) {
    RC_ASSERT(found.error().code == ErrorCode::infeasible || found.error().code == ErrorCode::not_found);
    return none;
  }
  return world.request.objective == Objective::cost ? found->bound.found : 1.0 / found->bound.found;
}

std::string text_of(const PlannerWorld& world) {
  std::string text = fmt::format("{} layers, batch {}, objective {}\n", world.model.layers(),
                                 world.request.job.global_batch, to_string(world.request.objective));
  for (const NodeGroup& group : world.cluster.groups)
    text += fmt::format("{} x {} {} in '{}'\n", group.count, group.gpus_per_node, group.gpu, group.zone);
  return text;
}

RC_GTEST_PROP(FullSearch, EqualsBruteForce, ()) {
  PlannerWorld world = small_world();
  add_limits(world);
  std::optional<Plan> best_plan;
  BruteForce brute(world, world.request);
  const double best = brute.best(&best_plan);
  const auto found = world.search(world.request);
  const double score = score_of(world, found);
  if (!is_close(score, best)) {
    RC_LOG() << text_of(world) << "brute force: " << best << ", planner: " << score << "\n";
    if (best_plan) RC_LOG() << plan_to_toml(*best_plan);
    if (found)
      RC_LOG() << plan_to_toml(found->plans.front().plan);
    else
      RC_LOG() << found.error().message();
  }
  RC_ASSERT(is_close(score, best));
  RC_CLASSIFY(best == none, "infeasible");
  RC_CLASSIFY(brute.count() > 1000, "over 1000 plans");
  RC_CLASSIFY(brute.count() > 10000, "over 10000 plans");
  if (!found) return;
  RC_ASSERT(found->bound.gap == 0.0);
  RC_ASSERT(is_close(found->bound.bound, value_of(world.request.objective, best)));
}

// What a framework of one grid of ranks cannot run is not offered; of the rest, on a single pool the best is found.
RC_GTEST_PROP(FullSearch, OffersOnlyPlansThatTheFrameworkCanRun, ()) {
  PlannerWorld world({.gpus = 4, .types = *rc::gen::element(1, 1, 2), .zones = 1});
  world.framework.uniformity = {.pipelines_alike = true, .one_tensor_parallel = true, .one_recompute = true};
  RC_PRE(!world.allowed_micro_batches().empty());
  make_small(world);
  std::optional<Plan> best_plan;
  const double best = BruteForce(world, world.request).best(&best_plan);
  const auto found = world.search(world.request);
  const double score = score_of(world, found);
  RC_CLASSIFY(best == none, "infeasible");
  RC_CLASSIFY(is_close(score, best), "the best");
  RC_ASSERT(score >= best * (1.0 - 1e-9));
  if (!found) return;
  for (const planner::Candidate& candidate : found->plans)
    RC_ASSERT(is_uniform(candidate.plan, world.framework.uniformity));
  const double bound = found->bound.bound;
  RC_ASSERT(
      (world.request.objective == Objective::cost ? bound <= best * (1.0 + 1e-9) : bound >= 1.0 / best * (1.0 - 1e-9)));
  RC_PRE(world.gpu_types.size() == 1 && world.cluster.groups.size() == 1);
  if (score > best * 1.02)
    RC_LOG() << text_of(world) << "brute force: " << best << ", planner: " << score << "\n"
             << plan_to_toml(*best_plan) << plan_to_toml(found->plans.front().plan);
  RC_ASSERT(score <= best * 1.02);
}

void check_bound(const PlannerWorld& world, std::size_t least_places) {
  std::optional<Plan> plan;
  const double best = BruteForce(world, world.request).best(&plan);
  RC_PRE(best < none);
  const Profile profile(world.data);
  simulator::Environment env = world.environment(profile);
  const LayerCosts costs = simulator::layer_costs_for(env);
  env.costs = &costs;
  const auto space = planner::make_search_space(world.request, env);
  RC_ASSERT(space.has_value());
  RC_PRE(space->pools.size() >= least_places);
  planner::StagePrices prices(world.request, *space, env);
  // What is claimed lies below the plan that was found; only with a worse one could it be wrong.
  const double found = best * *rc::gen::element(1.0, 1.003, 1.02, 1.1, 1.5, 3.0);
  const double bound = planner::relax(prices, found).min_score;
  if (bound > best * (1.0 + 1e-9))
    RC_LOG() << text_of(world) << "best: " << best << ", bound: " << bound << "\n" << plan_to_toml(*plan);
  RC_ASSERT(bound <= best * (1.0 + 1e-9));
}

RC_GTEST_PROP(FullSearch, BoundIsNeverBetterForTheUserThanWhatIsPossible, ()) {
  PlannerWorld world = small_world();
  add_limits(world);
  check_bound(world, 1);
}

// Where there are many places, the bound tells plans apart by the zones of their layers.
RC_GTEST_PROP(FullSearch, BoundOfManyPlacesIsNeverBetterForTheUserThanWhatIsPossible, ()) {
  PlannerWorld world({.gpus = 6, .types = 3, .layers = 3, .global_batch = 4});
  RC_PRE(world.cluster.zones.size() == 2 && world.gpu_types.size() == 3);
  NodeGroup device = world.cluster.groups.front();
  device.count = device.gpus_per_node = 1;
  world.cluster.groups.clear();
  for (const Zone& zone : world.cluster.zones)
    for (const std::string& gpu : world.gpu_types) {
      device.gpu = gpu;
      device.zone = zone.name;
      world.cluster.groups.push_back(device);
    }
  RC_PRE(!world.allowed_micro_batches().empty());
  make_small(world);
  check_bound(world, 5);
}

// Zones that are close to each other count as one in some relaxations.
RC_GTEST_PROP(FullSearch, BoundOfMergedZonesIsNeverBetterForTheUserThanWhatIsPossible, ()) {
  PlannerWorld world({.gpus = 6, .types = 1, .layers = 3, .zones = 3, .global_batch = 4});
  NodeGroup nodes = world.cluster.groups.front();
  nodes.gpus_per_node = *rc::gen::element(1, 2);
  nodes.count = 2 / nodes.gpus_per_node;
  world.cluster.groups.clear();
  for (const Zone& zone : world.cluster.zones) {
    nodes.zone = zone.name;
    world.cluster.groups.push_back(nodes);
  }
  RC_PRE(!world.allowed_micro_batches().empty());
  make_small(world);
  check_bound(world, 2);
}

/// The least score by the closed form of all interleaved plans of one pool whose pipelines are alike, with layers
/// divided in every way.
class InterleavedBruteForce {
 public:
  explicit InterleavedBruteForce(const PlannerWorld& world)
      : world_(world), profile_(world.data), env_(world.environment(profile_)), simulator_(env_) {}

  double best() {
    const NodeGroup& nodes = world_.cluster.groups.front();
    std::vector<OptimizerSharding> shardings{OptimizerSharding::none};
    shardings.insert(shardings.end(), world_.framework.shardings.begin(), world_.framework.shardings.end());
    for (const OptimizerSharding sharding : shardings)
      for (const int degree : world_.degrees)
        for (const int micro_batch : world_.allowed_micro_batches())
          for (int stages = 2; stages * degree <= nodes.count * nodes.gpus_per_node; ++stages)
            for (int chunks = 2; chunks * stages <= world_.model.layers(); ++chunks)
              for (int count = 1; count * stages * degree <= nodes.count * nodes.gpus_per_node; ++count) {
                const int all = world_.request.job.global_batch / micro_batch;
                if (world_.request.job.global_batch % micro_batch != 0 || all % count != 0 || all / count % stages != 0)
                  continue;
                plan_ = {};
                plan_.job = world_.request.job;
                plan_.schedule = Schedule::interleaved_1f1b;
                plan_.optimizer_sharding = sharding;
                plan_.micro_batch = micro_batch;
                Pipeline pipeline{.count = count, .micro_batches = all / count};
                pipeline.stages.assign(static_cast<std::size_t>(stages), {.layers = {0, 0},
                                                                          .gpu = nodes.gpu,
                                                                          .tensor_parallel = degree,
                                                                          .zone = nodes.zone,
                                                                          .recompute = Recompute::none});
                plan_.pipelines = {pipeline};
                divide(0, 0, chunks);
              }
    return best_;
  }

 private:
  void divide(int virtual_stage, int first, int chunks) {
    std::vector<Stage>& stages = plan_.pipelines.front().stages;
    const int all = chunks * static_cast<int>(stages.size());
    if (virtual_stage == all) {
      if (first != world_.model.layers()) return;
      const auto prediction = simulator_.predict(plan_);
      if (!prediction || prediction->memory_headroom < world_.request.memory_margin) return;
      const double time = prediction->iteration_time.value();
      const double cost = prediction->cost_per_iteration.value();
      const Objective objective = world_.request.objective;
      best_ = std::min(best_, objective == Objective::throughput ? time
                              : objective == Objective::cost     ? cost
                                                                 : time * cost);
      return;
    }
    Stage& stage = stages[static_cast<std::size_t>(virtual_stage) % stages.size()];
    for (int last = first + 1; last <= world_.model.layers() - (all - virtual_stage - 1); ++last) {
      if (virtual_stage < static_cast<int>(stages.size())) {
        stage.layers = {first, last};
        divide(virtual_stage + 1, last, chunks);
        continue;
      }
      stage.later_chunks.push_back({first, last});
      divide(virtual_stage + 1, last, chunks);
      stage.later_chunks.pop_back();
    }
  }

  const PlannerWorld& world_;
  Profile profile_;
  simulator::Environment env_;
  simulator::QuickSimulator simulator_;
  Plan plan_;
  double best_ = none;
};

RC_GTEST_PROP(FullSearch, BoundOfInterleavedPipelinesIsNeverBetterThanWhatIsPossible, ()) {
  PlannerWorld world({.gpus = 8, .types = 1, .layers = 7, .zones = 1, .global_batch = 12});
  RC_PRE(!world.allowed_micro_batches().empty());
  world.cluster.groups.resize(1);
  world.framework.uniformity = {.pipelines_alike = true, .one_tensor_parallel = true, .one_recompute = true};
  world.framework.schedules = {Schedule::interleaved_1f1b};
  world.request.pins.schedule = Schedule::interleaved_1f1b;
  const double best = InterleavedBruteForce(world).best();
  RC_PRE(best < none);
  const Profile profile(world.data);
  simulator::Environment env = world.environment(profile);
  const LayerCosts costs = simulator::layer_costs_for(env);
  env.costs = &costs;
  const auto space = planner::make_search_space(world.request, env);
  RC_ASSERT(space.has_value());
  planner::StagePrices prices(world.request, *space, env);
  const double bound = planner::relax(prices, best * *rc::gen::element(1.0, 1.02, 1.1, 1.5, 3.0)).min_score;
  RC_CLASSIFY(bound > best * 0.9, "less than 10 % away");
  RC_CLASSIFY(bound > best * 0.7, "less than 30 % away");
  RC_ASSERT(bound <= best * (1.0 + 1e-9));
}

RC_GTEST_PROP(FullSearch, EveryPlanIsValidAndFitsWithTheMargin, ()) {
  PlannerWorld world = small_world();
  const auto found = world.search(world.request);
  if (!found) return;
  const Profile profile(world.data);
  const simulator::Environment env = world.environment(profile);
  for (const planner::Candidate& candidate : found->plans) {
    RC_ASSERT(check_plan(candidate.plan, world.model).has_value());
    const auto again = simulator::simulate(candidate.plan, env);
    RC_ASSERT(again.has_value());
    RC_ASSERT(again->iteration_time == candidate.prediction.iteration_time);
    RC_ASSERT(!simulator::memory_problem(candidate.plan, *again, env));
    for (const simulator::StagePrediction& stage : again->stages)
      RC_ASSERT(!stage.capacity ||
                stage.memory.total() <= *stage.capacity * (1.0 - world.request.memory_margin + 1e-12));
  }
}

RC_GTEST_PROP(FullSearch, MoreDevicesMoreBudgetAndFasterLinksAreNeverWorse, ()) {
  PlannerWorld world = small_world({.gpus = 5});
  add_limits(world);
  const double before = score_of(world, world.search(world.request));
  switch (*rc::gen::inRange(0, 3)) {
    case 0: {
      auto smallest =
          std::min_element(world.cluster.groups.begin(), world.cluster.groups.end(),
                           [](const NodeGroup& a, const NodeGroup& b) { return a.gpus_per_node < b.gpus_per_node; });
      ++smallest->count;
      break;
    }
    case 1:
      if (world.request.limits.cost) world.request.limits.cost = *world.request.limits.cost * 1.3;
      if (world.request.limits.throughput) world.request.limits.throughput = *world.request.limits.throughput / 1.3;
      if (world.request.limits.gpus) ++*world.request.limits.gpus;
      if (world.request.limits.nodes) ++*world.request.limits.nodes;
      if (world.request.limits.wall_time) world.request.limits.wall_time = *world.request.limits.wall_time * 1.3;
      if (world.request.limits.node_hours) *world.request.limits.node_hours *= 1.3;
      break;
    default:
      for (LinkMeasurement& row : world.data.links) row.time = testing::exactly(row.time.median.value() * 0.5);
      for (ZoneLink& link : world.cluster.links) {
        link.bandwidth = *link.bandwidth * 2.0;
        link.latency = link.latency * 0.5;
      }
  }
  const double after = score_of(world, world.search(world.request));
  if (after > before * (1.0 + 1e-9)) RC_LOG() << text_of(world) << before << " -> " << after << "\n";
  RC_ASSERT(after <= before * (1.0 + 1e-9));
}

RC_GTEST_PROP(FullSearch, NamesMakeNoDifference, ()) {
  PlannerWorld world = small_world();
  const double before = score_of(world, world.search(world.request));
  const std::vector<std::string> names{"Zeta", "Eta", "Delta"};
  world.rename_types({names.begin(), names.begin() + static_cast<std::ptrdiff_t>(world.gpu_types.size())});
  world.rename_zones("west", "east");
  RC_ASSERT(is_close(score_of(world, world.search(world.request)), before));
}

RC_GTEST_PROP(FullSearch, APinnedWinnerIsFoundAgain, ()) {
  PlannerWorld world = small_world();
  const auto found = world.search(world.request);
  if (!found) return;
  const double before = score_of(world, found);
  // The winner by the closed form: candidates are ordered by the event-driven one.
  const Plan* winner = nullptr;
  for (const planner::Candidate& candidate : found->plans) {
    const double time = candidate.prediction.closed_form_time.value();
    simulator::Prediction closed = candidate.prediction;
    closed.cost_per_iteration =
        closed.gpu_cost_per_iteration * (time / closed.iteration_time.value()) + closed.egress_cost_per_iteration;
    closed.iteration_time = Seconds(time);
    if (is_close(planner::objective_value(world.request.objective, closed), found->bound.found))
      winner = &candidate.plan;
  }
  const bool is_listed = winner != nullptr;
  RC_PRE(is_listed);
  planner::Pins& pins = world.request.pins;
  pins = {};
  pins.data_parallel = winner->data_parallel();
  pins.schedule = winner->schedule;
  pins.optimizer_sharding = winner->optimizer_sharding;
  std::set<std::size_t> depths;
  std::set<int> sizes;
  std::set<int> degrees;
  std::set<Recompute> ways;
  std::set<std::string> types;
  std::set<std::string> zones;
  for (const Pipeline& pipeline : winner->pipelines) {
    depths.insert(pipeline.stages.size());
    sizes.insert(winner->micro_batch_of(pipeline));
    for (const Stage& stage : pipeline.stages) {
      degrees.insert(stage.tensor_parallel);
      ways.insert(stage.recompute);
      types.insert(stage.gpu);
      zones.insert(stage.zone);
    }
  }
  pins.gpus.assign(types.begin(), types.end());
  pins.zones.assign(zones.begin(), zones.end());
  if (depths.size() == 1) pins.pipeline_parallel = static_cast<int>(*depths.begin());
  if (sizes.size() == 1) pins.micro_batch = *sizes.begin();
  if (degrees.size() == 1) pins.tensor_parallel = *degrees.begin();
  if (ways.size() == 1) pins.recompute = *ways.begin();
  const auto again = world.search(world.request);
  if (!again) RC_LOG() << again.error().message();
  RC_ASSERT(again.has_value());
  RC_ASSERT(score_of(world, again) <= before * (1.0 + 1e-9));
}

RC_GTEST_PROP(FullSearch, NumberOfThreadsAndRepetitionMakeNoDifference, ()) {
  PlannerWorld world = small_world();
  const auto first = world.search(world.request);
  world.request.effort.threads = *rc::gen::inRange(1, 4);
  const auto second = world.search(world.request);
  RC_ASSERT(first.has_value() == second.has_value());
  if (!first) return;
  RC_ASSERT(first->plans.size() == second->plans.size());
  for (std::size_t i = 0; i < first->plans.size(); ++i)
    RC_ASSERT(plan_fingerprint(first->plans[i].plan) == plan_fingerprint(second->plans[i].plan));
  RC_ASSERT(first->bound.bound == second->bound.bound);
}

// The search sizes stages by its own prices: of any stage of equal pipelines they are the simulator's, under every
// sharding; passes take no less there.
RC_GTEST_PROP(FullSearch, StagesNeedTheMemoryThatTheSimulatorSays, ()) {
  PlannerWorld world({.gpus = 8, .types = 1, .zones = 1});
  world.framework.supports_sharding_degree = true;
  world.framework.shardings = {OptimizerSharding::zero1, OptimizerSharding::zero2, OptimizerSharding::zero3};
  const Profile profile(world.data);
  simulator::Environment env = world.environment(profile);
  const LayerCosts costs = simulator::layer_costs_for(env);
  env.costs = &costs;
  Request request = world.request;
  auto space = planner::make_search_space(request, env);
  RC_PRE(space.has_value());
  const OptimizerSharding sharding = *rc::gen::elementOf(space->sharding);
  if (sharding != OptimizerSharding::none) space->sharding_degree = *rc::gen::element(0, 0, 1, 2, 3);
  planner::StagePrices prices(request, *space, env);
  const planner::DevicePool& pool = space->pools.front();
  const int layers = prices.layers();
  const int micro_batch = *rc::gen::elementOf(space->micro_batches);
  const int degree = *rc::gen::elementOf(pool.tensor_parallel);
  const int stages = *rc::gen::inRange(1, std::min(layers, std::max(1, pool.groups(degree))) + 1);
  const int group = std::max(1, space->sharding_degree);
  const int count = group * *rc::gen::inRange(1, std::max(1, pool.groups(degree) / stages / group) + 1);
  planner::TemplateMix mix{.sharding = sharding, .groups = {{.column = {.micro_batch = micro_batch}, .count = count}}};
  for (int i = 0; i < stages; ++i)
    mix.groups[0].column.stages.push_back(
        {.tensor_parallel = degree, .first = layers * i / stages, .last = layers * (i + 1) / stages});
  request.job.global_batch = count * micro_batch;
  const Plan plan = planner::make_plan(request, *space, mix, std::vector<planner::Share>{{0, count, 1}});
  const auto prediction = simulator::simulate(plan, env);
  RC_PRE(prediction.has_value());
  for (const simulator::StagePrediction& row : prediction->stages) {
    const planner::TemplateStage& stage = mix.groups[0].column.stages[static_cast<std::size_t>(row.stage)];
    const planner::StageTable* table =
        prices.table(0, degree, micro_batch, planner::StageChoice{}, pool.largest_node());
    RC_ASSERT(table != nullptr);
    const planner::Sharing sharing{sharding, sharding == OptimizerSharding::none ? 1.0 : count};
    double states = prices.states(*table, stage.first, stage.last, sharing);
    // What reductions copy depends on the other stages, and is left out here.
    const bool copies = world.framework.copies_reduced_gradients && !shards_gradients(sharding);
    if (copies) states = row.memory.states().value();
    if (!is_close(states, row.memory.states().value()))
      RC_LOG() << to_string(sharding) << ", stage " << row.stage << " of " << stages << ", replicas " << count << ": "
               << states << " instead of " << row.memory.states().value() << "\n";
    RC_ASSERT(is_close(states, row.memory.states().value()));
    RC_ASSERT(is_close(
        prices.kept(*table, stage.first, stage.last),
        (row.memory.activations + row.memory.logits).value() - (stage.last == layers ? table->extra_logits : 0.0)));
    // In a node on its own a stage is never slower.
    const planner::StageTable* quickest = prices.table(0, degree, micro_batch, planner::StageChoice{}, degree);
    RC_ASSERT(quickest == nullptr ||
              quickest->time(stage.first, stage.last) <= (row.forward + row.backward).value() * (1.0 + 1e-9));
    // With as many replicas as there are, the search says that exactly this much memory is enough.
    planner::DevicePool enough = pool;
    enough.memory = row.memory.total() * (1.0 + 1e-9);
    const int neighbours = (row.stage > 0 ? 1 : 0) + (row.stage + 1 < stages ? 1 : 0);
    const auto in_flight = [&](bool copies_gradients = false) {
      return prices.max_in_flight(*table, enough, stage.first, stage.last, micro_batch, neighbours, sharing,
                                  copies_gradients, 1);
    };
    RC_ASSERT(in_flight() == 1);
    // Nor more for copies of what is reduced: of tensor-parallel ranks it counts a little more, what all of them hold.
    RC_ASSERT(count == 1 || degree > 1 || in_flight(true) == 1);
    enough.memory = row.memory.total() * (1.0 - 1e-6);
    RC_ASSERT(copies || in_flight() == 0);
  }
  RC_CLASSIFY(sharding == OptimizerSharding::zero2 && count > 1, "ZeRO-2");
  RC_CLASSIFY(sharding == OptimizerSharding::zero3 && count > 1, "ZeRO-3");
  RC_CLASSIFY(space->sharding_degree > 1 && count > space->sharding_degree, "sharding groups");
}

/// The batch divided in every possible way.
void for_each_division(const std::vector<planner::GroupTime>& groups, std::size_t index, int left, double end,
                       double& best) {
  if (index == groups.size()) {
    if (left == 0) best = std::min(best, end);
    return;
  }
  const planner::GroupTime& group = groups[index];
  for (int n = 1; n <= std::min(group.max_micro_batches, left / group.micro_batch); ++n)
    for_each_division(groups, index + 1, left - n * group.micro_batch,
                      std::max(end, group.fixed + group.round * (n - 1)), best);
}

/// A plan of equal pipelines, done by some time of the closed form, is a solution of the pricing problem at that
/// deadline: nothing may be priced below it, whatever the labels of ready_labels.hpp leave out. And labels only price
/// lower, where there is but one time and no limit. In a range around its own time it counts as often as it could be
/// done until the longest. Nor does a limit that it keeps event by event leave it out.
void prices_are_possible(bool across) {
  PlannerWorld world({.gpus = 16, .types = across ? 2 : 1, .zones = across ? 2 : 1});
  const Profile profile(world.data);
  simulator::Environment env = world.environment(profile);
  const LayerCosts costs = simulator::layer_costs_for(env);
  env.costs = &costs;
  Request request = world.request;
  request.memory_margin = 0.0;
  auto space = planner::make_search_space(request, env);
  RC_PRE(space.has_value());
  space->schedules = {Schedule::one_f_one_b};
  planner::StagePrices prices(request, *space, env);
  const std::size_t pools = space->pools.size();
  RC_PRE(across == (pools > 1));
  const int layers = prices.layers();
  RC_PRE(layers > 1);
  const int micro_batch = *rc::gen::elementOf(space->micro_batches);
  const int stages = *rc::gen::inRange(2, std::min(layers, 5) + 1);
  planner::PipelineTemplate column{.micro_batch = micro_batch};
  std::vector<int> uses(pools, 0);
  std::vector<double> device_price;
  for (std::size_t p = 0; p < pools; ++p) device_price.push_back(*rc::gen::inRange(1, 5));
  double price = 0.0;
  int first = 0;
  for (int i = 0; i < stages; ++i) {
    const int last = i + 1 == stages ? layers : *rc::gen::inRange(first + 1, layers - (stages - i - 1) + 1);
    const std::size_t p = *rc::gen::inRange<std::size_t>(0, pools);
    const planner::DevicePool& pool = space->pools[p];
    const int degree = *rc::gen::elementOf(pool.tensor_parallel);
    RC_PRE(space->allows(pool.type, degree, micro_batch));
    column.stages.push_back({.pool = p, .tensor_parallel = degree, .first = first, .last = last});
    column.devices += degree;
    uses[p] += degree;
    price += degree * (across ? device_price[p] : 1.0);
    first = last;
  }
  int most = request.job.global_batch;
  for (std::size_t p = 0; p < pools; ++p)
    if (uses[p] > 0) most = std::min(most, space->pools[p].devices() / uses[p]);
  RC_PRE(most > 0);
  const int count = *rc::gen::inRange(1, most + 1);
  const int each = *rc::gen::inRange(1, 5);
  request.job.global_batch = count * each * micro_batch;
  const OptimizerSharding sharding = *rc::gen::elementOf(space->sharding);
  RC_PRE(sharding != OptimizerSharding::zero3);
  const planner::TemplateMix mix{.sharding = sharding, .groups = {{.column = column, .count = count}}};
  const Plan plan = planner::make_plan(request, *space, mix, std::vector<planner::Share>{{0, count, each}});
  const auto prediction = simulator::simulate(plan, env);
  RC_PRE(prediction.has_value() && prediction->fits);

  const double done = prediction->closed_form_time.value() * (1.0 + 1e-9);
  const planner::TimeRange times{.shortest = done * *rc::gen::element(0.0, 0.5, 1.0, 1.0),
                                 .longest = done * *rc::gen::element(1.0, 1.0, 1.2, 2.0)};
  const double worth = static_cast<double>(each) * micro_batch / price * (times.longest / done) * (1.0 - 1e-9);
  const bool is_limited = *rc::gen::arbitrary<bool>();
  if (is_limited) request.limits.throughput = 1.0 / prediction->iteration_time.value();
  planner::Branch branch{.min_pipelines = count, .max_pipelines = count};
  if (!across) branch.pure = {0};
  branch.one_pool = !across;
  const std::function<bool()> no_stop;
  planner::PricingProblem pricing(prices, no_stop);
  const auto max_worth = [&](planner::PricingProblem& problem) {
    planner::ViolatedColumn violated;
    return across ? problem.across(device_price, times, branch, 0.0, 0.0, violated)
                  : problem.inside(0, times, branch, 0.0, 0.0, violated);
  };
  const double plain = max_worth(pricing);
  RC_LOG() << describe(plan) << " of " << count << " pipelines, " << each << " micro-batches each, done by " << done
           << ", counted from " << times.shortest << " to " << times.longest << ", event-driven "
           << prediction->iteration_time.value() << ", reductions overlap " << env.framework.overlaps_reduction
           << ", messages " << env.framework.overlaps_transfers << "\n"
           << plan_to_toml(plan) << "\n";
  RC_ASSERT(plain >= worth * (1.0 - 1e-9));
  planner::PricingProblem labelled(prices, no_stop);
  labelled.use_labels(std::numeric_limits<std::uint64_t>::max());
  const double tight = max_worth(labelled);
  RC_CLASSIFY(is_limited && prediction->iteration_time.value() < 0.98 * done, "limited, and quicker event by event");
  RC_TAG(tight < plain * (1.0 - 1e-9) ? "labels price lower" : "the same");
  RC_ASSERT(tight >= worth * (1.0 - 1e-9));
  RC_ASSERT(is_limited || times.shortest < times.longest || tight <= plain * (1.0 + 1e-9));
  // However long it takes.
  if (across) RC_ASSERT(pricing.min_price_per_sequence(device_price) * worth <= times.longest * (1.0 + 1e-9));
}

RC_GTEST_PROP(FullSearch, PricesArePossibleForEveryPlanInAPool, ()) { prices_are_possible(false); }

RC_GTEST_PROP(FullSearch, PricesArePossibleForEveryPlanAcrossPools, ()) { prices_are_possible(true); }

RC_GTEST_PROP(ShareBatch, EndsAsEarlyAsPossible, ()) {
  std::vector<planner::GroupTime> groups;
  std::vector<planner::GroupTime> pipelines;
  for (int i = *rc::gen::inRange(1, 4); i > 0; --i) {
    groups.push_back({.fixed = *rc::gen::inRange(1, 30) * 0.1,
                      .round = *rc::gen::inRange(1, 20) * 0.1,
                      .micro_batch = *rc::gen::element(1, 1, 2, 3, 4),
                      .max_micro_batches = *rc::gen::element(2, 5, 1000, 1000),
                      .count = *rc::gen::inRange(1, 3)});
    pipelines.insert(pipelines.end(), static_cast<std::size_t>(groups.back().count), groups.back());
  }
  const int batch = *rc::gen::inRange(1, 17);
  double best = none;
  for_each_division(pipelines, 0, batch, 0.0, best);
  const auto shares = planner::share_batch(groups, batch);
  RC_ASSERT(shares.has_value() == (best < none));
  if (!shares) return;
  double end = 0.0;
  int sequences = 0;
  std::vector<int> counts(groups.size(), 0);
  for (const planner::Share& share : *shares) {
    const planner::GroupTime& group = groups[share.group];
    RC_ASSERT(share.count > 0);
    RC_ASSERT(share.micro_batches > 0);
    RC_ASSERT(share.micro_batches <= group.max_micro_batches);
    counts[share.group] += share.count;
    sequences += share.count * share.micro_batches * group.micro_batch;
    end = std::max(end, group.fixed + group.round * (share.micro_batches - 1));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) RC_ASSERT(counts[g] == groups[g].count);
  RC_ASSERT(sequences == batch);
  RC_ASSERT(is_close(end, best));
}

}  // namespace
}  // namespace sailor::full_search_test
