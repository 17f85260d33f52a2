// The search of the paper space against all plans in it, enumerated one by one.
#include <gtest/gtest.h>

#include "planner/paper/search.hpp"

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "simulator/quick.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor::planner::paper_search_test {
namespace {

constexpr std::size_t max_plans = 20'000;  // of an instance; larger ones are left out
constexpr std::size_t most_steps = 200'000;
constexpr int max_devices = 12;

/// From [low, high), evenly from the first instance on.
int pick(int low, int high) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high)); }

/// tiny-gpt (6 layers, 4 heads) on up to 12 devices of up to 3 types in up to 2 zones, all times, sizes, prices and
/// what the framework hides at random.
struct SmallWorld {
  SmallWorld() {
    framework.overlaps_transfers = *rc::gen::arbitrary<bool>();
    framework.overlaps_reduction = *rc::gen::element(false, false, true);
    framework.reduction_bucket = Bytes(*rc::gen::element(0.0, 1e5));
    framework.transfer_overhead = Seconds(*rc::gen::element(0.0, 0.25));
    framework.reduction_rate = BytesPerSecond(*rc::gen::element(0.0, 1e6));
    framework.copies_reduced_gradients = *rc::gen::arbitrary<bool>();
    framework.base = Bytes(1e6);
    const int type_count = pick(1, 4);
    types = {"A100-40", "V100-16", "GH200-96"};
    types.resize(static_cast<std::size_t>(type_count));
    zones = *rc::gen::element(1, 1, 2) == 1 ? std::vector<std::string>{"a"} : std::vector<std::string>{"a", "b"};
    add_measurements();
    add_nodes();
    request.job = {.model = "tiny-gpt",
                   .global_batch = *rc::gen::element(1, 2, 3, 4, 5, 6, 7, 8, 12),
                   .sequence_length = 64,
                   .precision = Precision::fp32,
                   .optimizer = Optimizer::adamw};
    request.space = Space::paper;
    request.objective = *rc::gen::element(Objective::throughput, Objective::cost, Objective::throughput_per_usd);
    request.memory_margin = *rc::gen::element(0.0, 0.1);
    add_pins();
  }

  [[nodiscard]] simulator::Environment environment(const Profile& profile) const {
    return {.model = model, .profile = profile, .gpus = gpus, .framework = framework, .cluster = &cluster};
  }

  Model model = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
  GpuCatalogue gpus = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  simulator::Framework framework =
      simulator::load_framework(SAILOR_SOURCE_DIR "/profiles/frameworks/sailor.toml").value();
  Cluster cluster{.name = "small", .origin = {}, .groups = {}, .partitions = {}, .zones = {}, .links = {}};
  ProfileData data;
  Request request;
  std::vector<std::string> types;
  std::vector<std::string> zones;
  std::vector<int> degrees{1};

 private:
  static double any(double low, double high) { return low + (high - low) * pick(0, 101) / 100.0; }

  void add_nodes() {
    int left = max_devices;
    for (const std::string& zone : zones) {
      Zone row{.name = zone, .region = {}, .prices = {}};
      for (const std::string& gpu : types) {
        const int size = *rc::gen::element(1, 2, 4);
        const bool only = cluster.groups.empty() && zone == zones.back() && gpu == types.back();
        const int count = std::max(std::min(pick(0, 4), left / size), only ? 1 : 0);
        row.prices.emplace_back(gpu, UsdPerHour(any(0.5, 8.0)));
        if (count == 0) continue;
        left -= size * count;
        cluster.groups.push_back({.nodes = {},
                                  .count = count,
                                  .gpu = gpu,
                                  .gpus_per_node = size,
                                  .cpus_per_node = 8,
                                  .memory_per_node = Bytes(size * 16e9),
                                  .state = NodeState::idle,
                                  .state_reason = {},
                                  .zone = zone,
                                  .partitions = {}});
      }
      cluster.zones.push_back(std::move(row));
    }
    if (zones.size() > 1)
      cluster.links.push_back({.from = "a",
                               .to = "b",
                               .bandwidth = BytesPerSecond(any(1e5, 1e7)),
                               .latency = Seconds(any(0.0, 0.5)),
                               .egress_usd_per_byte = *rc::gen::element(0.0, 1e-9)});
  }

  void add_measurements() {
    const ProfileData base = testing::round_numbers_profile();
    data.sessions = base.sessions;
    if (*rc::gen::arbitrary<bool>()) degrees.push_back(2);
    if (degrees.size() > 1 && *rc::gen::arbitrary<bool>()) degrees.push_back(4);
    const double activation = *rc::gen::element(1.0, 1e7, 4e7);  // of these some do not fit
    for (const std::string& gpu : types) {
      for (const int degree : degrees)
        for (std::size_t i = 0; i < base.layer_times.size(); ++i) {
          LayerTime time = base.layer_times[i];
          LayerMemory memory = base.layer_memory[i];
          time.key.gpu = memory.key.gpu = gpu;
          time.key.tensor_parallel = memory.key.tensor_parallel = degree;
          const double factor = any(0.2, 2.0) / (degree == 1 ? 1.0 : 0.6 * degree);
          time.forward = testing::exactly(time.forward.median.value() * factor);
          time.backward = testing::exactly(time.backward.median.value() * factor);
          time.update = testing::exactly(time.update.median.value() * factor);
          memory.parameters /= degree;
          memory.activation *= activation / degree;
          data.layer_times.push_back(time);
          time.key.busy_ranks = 4;
          time.forward = testing::exactly(time.forward.median.value() * 1.25);
          data.layer_times.push_back(time);
          data.layer_memory.push_back(memory);
        }
      for (const std::string& to : types)
        for (const LinkScope scope : {LinkScope::intra_node, LinkScope::inter_node}) {
          const double slow = scope == LinkScope::intra_node ? any(0.0, 0.3) : any(0.1, 1.0);
          for (const double bytes : {1.0, 1e4, 1e6, 1e8})
            data.links.push_back({.key = {.from = {.gpu = gpu}, .to = {.gpu = to}, .scope = scope},
                                  .message = Bytes(bytes),
                                  .time = testing::exactly(slow * (1.0 + bytes / 1e5))});
        }
    }
  }

  void add_pins() {
    Pins& pins = request.pins;
    if (pick(0, 6) == 0) pins.pipeline_parallel = pick(1, 5);
    if (pick(0, 6) == 0) pins.data_parallel = pick(1, 1 + std::min(4, request.job.global_batch));
    if (pick(0, 8) == 0) pins.tensor_parallel = *rc::gen::elementOf(degrees);
    if (pick(0, 8) == 0) pins.max_tensor_parallel = 2;
    if (pick(0, 8) == 0) pins.micro_batch = 1;
    if (pick(0, 8) == 0) pins.gpus = {types.front()};
    if (pick(0, 6) == 0) request.limits.gpus = pick(1, 9);
    if (pick(0, 6) == 0) request.limits.nodes = pick(1, 4);
  }
};

struct Priced {
  double time = 0.0;
  double cost = 0.0;
  int nodes = 0;
  double printed_time = 0.0;  // event-driven, by which limits are judged
  double printed_cost = 0.0;
};

/// All plans of the space that fit, whatever the limits on time and money. Nothing when they are too many.
class BruteForce {
 public:
  BruteForce(const SmallWorld& world, const Profile& profile)
      : world_(world), request_(world.request), environment_(world.environment(profile)), simulator_(environment_) {}

  std::optional<std::vector<Priced>> run() {
    for (const NodeGroup& group : world_.cluster.groups) {
      if (!request_.pins.gpus.empty() && group.gpu != request_.pins.gpus.front()) continue;
      pools_.push_back(group);
    }
    const Pins& pins = request_.pins;
    for (stages_ = 1; stages_ <= world_.model.layers(); ++stages_) {
      if (pins.pipeline_parallel && stages_ != *pins.pipeline_parallel) continue;
      for (micro_batch_ = 1; micro_batch_ <= 2; ++micro_batch_) {
        if (request_.job.global_batch % micro_batch_ != 0 || (pins.micro_batch && micro_batch_ != *pins.micro_batch))
          continue;
        for (int pipelines = 1; pipelines <= request_.job.global_batch / micro_batch_; ++pipelines) {
          if (pins.data_parallel && pipelines != *pins.data_parallel) continue;
          if (pipelines * stages_ > max_devices) break;
          add_triple(pipelines);
          if (too_many_) return std::nullopt;
        }
      }
    }
    return found_;
  }

 private:
  using Kind = std::vector<Stage>;

  void add_kinds(Kind& kind) {
    const int index = static_cast<int>(kind.size());
    too_many_ = too_many_ || ++steps_ > most_steps;
    if (too_many_) return;
    if (index == stages_) {
      kinds_.push_back(kind);
      return;
    }
    // Layers divided evenly by number, the last stages take one more.
    const int layers = world_.model.layers();
    const int first = kind.empty() ? 0 : kind.back().layers.last;
    const int size = layers / stages_ + (index >= stages_ - layers % stages_ ? 1 : 0);
    for (const NodeGroup& place : pools_)
      for (const int degree : world_.degrees) {
        const Pins& pins = request_.pins;
        if (degree > place.gpus_per_node || (pins.tensor_parallel && degree != *pins.tensor_parallel) ||
            (pins.max_tensor_parallel && degree > *pins.max_tensor_parallel))
          continue;
        kind.push_back(
            {.layers = {first, first + size}, .gpu = place.gpu, .tensor_parallel = degree, .zone = place.zone});
        if (room({{&kind, 1}})) add_kinds(kind);
        kind.pop_back();
      }
  }

  void add_triple(int pipelines) {
    kinds_.clear();
    Kind kind;
    add_kinds(kind);
    const int all = request_.job.global_batch / micro_batch_;
    entries_.clear();
    // Every pipeline: a kind and whether it has one micro-batch more, in ascending order; so every set of them once.
    const std::function<void(std::size_t, int, int)> choose = [&](std::size_t from, int longer, int others) {
      too_many_ = too_many_ || ++steps_ > most_steps;
      if (too_many_) return;
      if (longer + others == 0) {
        add_orders(all / pipelines);
        return;
      }
      for (std::size_t choice = from; choice < 2 * kinds_.size(); ++choice) {
        const bool is_longer = choice % 2 == 1;
        if ((is_longer ? longer : others) == 0) continue;
        ++entries_[choice];
        if (agrees() && room(groups())) choose(choice, longer - (is_longer ? 1 : 0), others - (is_longer ? 0 : 1));
        if (--entries_[choice] == 0) entries_.erase(choice);
      }
    };
    choose(0, all % pipelines, pipelines - all % pipelines);
  }

  std::vector<std::pair<const Kind*, int>> groups() const {
    std::vector<std::pair<const Kind*, int>> list;
    for (const auto& [choice, count] : entries_) list.emplace_back(&kinds_[choice / 2], count);
    return list;
  }

  /// Degrees depend on stage and type alone.
  bool agrees() const {
    std::map<std::pair<std::size_t, std::string>, int> degrees;
    for (const auto& [choice, count] : entries_)
      for (std::size_t s = 0; s < kinds_[choice / 2].size(); ++s) {
        const Stage& stage = kinds_[choice / 2][s];
        if (degrees.emplace(std::pair(s, stage.gpu), stage.tensor_parallel).first->second != stage.tensor_parallel)
          return false;
      }
    return true;
  }

  /// Nodes that are taken; nothing when there are not so many. Degrees of 1, 2, 4 fill nodes of 1, 2, 4 without gaps.
  std::optional<int> room(const std::vector<std::pair<const Kind*, int>>& list) const {
    int nodes = 0;
    int total = 0;
    for (const NodeGroup& place : pools_) {
      int devices = 0;
      for (const auto& [kind, count] : list)
        for (const Stage& stage : *kind)
          if (stage.gpu == place.gpu && stage.zone == place.zone) devices += stage.tensor_parallel * count;
      const int here = (devices + place.gpus_per_node - 1) / place.gpus_per_node;
      if (here > place.count) return std::nullopt;
      nodes += here;
      total += devices;
    }
    if (total > request_.limits.gpus.value_or(total) || nodes > request_.limits.nodes.value_or(nodes))
      return std::nullopt;
    return nodes;
  }

  void add_orders(int micro_batches) {
    const int nodes = *room(groups());
    std::vector<std::size_t> order;
    for (const auto& [choice, count] : entries_) order.push_back(choice);
    do {
      Plan plan;
      plan.job = request_.job;
      plan.micro_batch = micro_batch_;
      for (const std::size_t choice : order)
        plan.pipelines.push_back({.count = entries_[choice],
                                  .micro_batches = micro_batches + static_cast<int>(choice % 2),
                                  .micro_batch = 0,
                                  .stages = kinds_[choice / 2]});
      too_many_ = too_many_ || ++tried_ > max_plans;
      const auto quick = simulator_.predict(plan);
      if (!quick) continue;  // zones or types without a link
      if (quick->memory_headroom < request_.memory_margin) continue;
      const Seconds printed = simulator_.event_driven_time();
      found_.push_back({.time = quick->iteration_time.value(),
                        .cost = quick->cost_per_iteration.value(),
                        .nodes = nodes,
                        .printed_time = printed.value(),
                        .printed_cost = simulator_.cost_of(printed).value()});
    } while (!too_many_ && std::next_permutation(order.begin(), order.end()));
  }

  const SmallWorld& world_;
  const Request& request_;
  simulator::Environment environment_;
  simulator::QuickSimulator simulator_;
  std::vector<NodeGroup> pools_;
  int stages_ = 1;
  int micro_batch_ = 1;
  std::vector<Kind> kinds_;
  std::map<std::size_t, int> entries_;  // 2 x kind + (one micro-batch more): how many pipelines
  std::vector<Priced> found_;
  std::size_t tried_ = 0;
  std::size_t steps_ = 0;
  bool too_many_ = false;
};

double value_of(const Request& request, const Priced& plan) {
  return score_of(request.objective, Seconds(plan.time), Usd(plan.cost));
}

struct Answer {
  double score = infinity;
  double least = infinity;
};

Answer search(const SmallWorld& world) {
  const Profile profile(world.data);
  simulator::Environment environment = world.environment(profile);
  const LayerCosts costs(world.model, profile, world.gpus, false);
  environment.costs = &costs;
  const auto space = make_search_space(world.request, environment);
  if (!space) return {};
  StagePrices prices(world.request, *space, environment);
  SolutionPool archive(world.request, *space, environment, 3);
  const double least = search_paper(prices, archive, {}, PaperEffort::thorough);
  return {archive.best_score(), least};
}

/// Limits that some plans keep and others do not.
void add_limits(Request& request, const std::vector<Priced>& plans) {
  if (plans.empty()) return;
  const Priced& some = plans[static_cast<std::size_t>(pick(0, static_cast<int>(plans.size())))];
  Limits& limits = request.limits;
  request.iterations = 1000.0;
  switch (pick(0, 10)) {
    case 0:
      limits.cost = Usd(some.printed_cost * 1.0001);
      break;
    case 1:
      limits.throughput = 0.9999 / some.printed_time;
      break;
    case 2:
      limits.wall_time = Seconds(some.printed_time * 1000.1);
      break;
    case 3:
      limits.node_hours = some.nodes * some.printed_time / 3600.0 * 1000.1;
      break;
    case 4:
      limits.cost = Usd(some.printed_cost * 1.0001);
      limits.throughput = 0.9999 / some.printed_time;
      break;
    default:
      break;
  }
}

TEST(PaperSearch, FindsTheBestOfAllPlans) {
  int found = 0;
  int unproven = 0;  // the search's effort ended before it knew that nothing is better
  EXPECT_TRUE(rc::check([&] {
    SmallWorld world;
    const Profile profile(world.data);
    const auto plans = BruteForce(world, profile).run();
    RC_PRE(plans.has_value());
    add_limits(world.request, *plans);
    double best = infinity;
    for (const Priced& plan : *plans)
      if (keeps_limits(world.request, Seconds(plan.printed_time), Usd(plan.printed_cost), plan.nodes))
        best = std::min(best, value_of(world.request, plan));
    RC_TAG(best < infinity ? "feasible" : "infeasible");
    const Answer answer = search(world);
    if (best == infinity) {
      RC_ASSERT(answer.score == infinity);
    } else {
      RC_ASSERT(answer.score < infinity);
      RC_ASSERT(std::abs(answer.score / best - 1.0) < 1e-9);
      RC_ASSERT(answer.least <= best * (1.0 + 1e-9));
      ++found;
      if (answer.least < best * (1.0 - 1e-9)) ++unproven;
    }
  }));
  EXPECT_LE(unproven, 1 + found / 20);
}

TEST(PaperSearch, NamesOfZonesAndTheOrderOfNodesDoNotMatter) {
  EXPECT_TRUE(rc::check([] {
    SmallWorld world;
    world.request.limits = {};
    const Answer before = search(world);
    // The zones change names, and with them the order in which everything is looked at.
    for (NodeGroup& group : world.cluster.groups) group.zone = group.zone == "a" ? "z" : "c";
    for (Zone& zone : world.cluster.zones) zone.name = zone.name == "a" ? "z" : "c";
    for (ZoneLink& link : world.cluster.links) {
      link.from = "z";
      link.to = "c";
    }
    std::reverse(world.cluster.groups.begin(), world.cluster.groups.end());
    const Answer after = search(world);
    RC_ASSERT(before.score == after.score || std::abs(before.score / after.score - 1.0) < 1e-9);
  }));
}

TEST(PaperSearch, MoreDevicesAreNeverWorse) {
  EXPECT_TRUE(rc::check([] {
    SmallWorld world;
    const Answer before = search(world);
    NodeGroup& group =
        world.cluster.groups[static_cast<std::size_t>(pick(0, static_cast<int>(world.cluster.groups.size())))];
    ++group.count;
    const Answer after = search(world);
    RC_ASSERT(before.score == infinity || after.score <= before.score * (1.0 + 1e-9));
  }));
}

}  // namespace
}  // namespace sailor::planner::paper_search_test
#endif
