#include "planner/search_space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "planner/considered_nodes.hpp"
#include "profile/advice.hpp"
#include "simulator/price_list.hpp"

namespace sailor::planner {

namespace {

constexpr int max_estimated_tensor_parallel = 8;  // on a device without measurements
constexpr int max_estimated_micro_batch = 128;
constexpr int max_nodes_of_pool = 1 << 20;  // no plan has more ranks

std::vector<int> powers_of_two(int most) {
  std::vector<int> values;
  for (int value = 1; value <= most; value *= 2) values.push_back(value);
  return values;
}

Result<void> check_pinned_gpus(const Request& request, const simulator::Environment& env) {
  for (const std::string& gpu : request.pins.gpus)
    if (const auto type = env.gpus.find(gpu); !type) return fail(type.error());
  return {};
}

/// Why a GPU type cannot be planned for.
struct Refusal {
  enum class Why { degree, division, size, pinned_size, precision, not_measured } why = Why::not_measured;
  std::string text;
};

class SpaceMaker {
 public:
  SpaceMaker(const Request& request, const simulator::Environment& env) : request_(request), env_(env) {}

  Result<SearchSpace> run() {
    SAILOR_CHECK(check_job());
    SAILOR_CHECK(choose_options());
    find_cuts();
    SAILOR_CHECK(check_where());
    const ConsideredNodes considered = considered_nodes(request_, *env_.cluster, env_.gpus);
    SAILOR_CHECK(find_pools(considered.groups));
    auto found = find_degrees();
    if (considered.without_gpus.empty()) {
      SAILOR_CHECK(found);
      return std::move(space_);
    }
    if (!found) {  // nodes without GPUs are better than nothing
      SAILOR_CHECK(find_pools(considered.without_gpus));
      SAILOR_CHECK(find_degrees());
      return std::move(space_);
    }
    std::set<std::string> names;
    int nodes = 0;
    for (const NodeGroup& group : considered.without_gpus) {
      nodes += group.count;
      names.insert("gpu=" + group.gpu);
    }
    space_.left_out.push_back(fmt::format("{} without GPUs beside those that have some (--pin {} plans for them)",
                                          plural(static_cast<std::size_t>(nodes), "node"), join(names, ",")));
    return std::move(space_);
  }

 private:
  /// Whether the framework can divide the job's layers so. `micro_batch`: 0 for any.
  Result<void> check_division(int tensor_parallel, int context_parallel, int micro_batch = 0) const {
    return env_.framework.check(env_.model, {.tensor_parallel = tensor_parallel,
                                             .context_parallel = context_parallel,
                                             .precision = request_.job.precision,
                                             .sequence_length = request_.job.sequence_length,
                                             .micro_batch = micro_batch});
  }

  Result<void> check_job() const {
    const TrainingJob& job = request_.job;
    if (job.global_batch < 1) return fail(ErrorCode::invalid_input, "the global batch has no sequences");
    if (job.sequence_length > env_.model.max_sequence_length)
      return fail(ErrorCode::invalid_input,
                  fmt::format("sequence length {} is over the {} that model {} allows", job.sequence_length,
                              env_.model.max_sequence_length, env_.model.name));
    const Pins& pins = request_.pins;
    if (pins.micro_batch && job.global_batch % *pins.micro_batch != 0)
      return fail(
          ErrorCode::usage,
          fmt::format("--pin micro_batch={} does not divide the global batch {}", *pins.micro_batch, job.global_batch),
          "pin a divisor of it");
    if (pins.pipeline_parallel && *pins.pipeline_parallel > env_.model.layers())
      return fail(ErrorCode::usage, fmt::format("--pin pipeline_parallel={} is more than the {} layers of {}",
                                                *pins.pipeline_parallel, env_.model.layers(), env_.model.name));
    if (pins.data_parallel && *pins.data_parallel > job.global_batch)
      return fail(ErrorCode::usage, fmt::format("--pin data_parallel={} is more than the {} sequences of an "
                                                "iteration",
                                                *pins.data_parallel, job.global_batch));
    if (const int micro_batch = pins.micro_batch.value_or(1);
        pins.data_parallel && env_.framework.uniformity.pipelines_alike &&
        job.global_batch % (std::int64_t{*pins.data_parallel} * micro_batch) != 0)
      return fail(
          ErrorCode::usage,
          fmt::format("--pin data_parallel={}{}: the {} sequences of an iteration cannot be divided evenly, as "
                      "framework {} needs",
                      *pins.data_parallel, pins.micro_batch ? fmt::format(" with micro_batch={}", micro_batch) : "",
                      job.global_batch, env_.framework.name),
          "pin numbers whose product divides the global batch, or plan with --framework sailor");
    if (pins.tensor_parallel)
      if (const auto possible = check_division(*pins.tensor_parallel, 1); !possible)
        return fail(ErrorCode::usage,
                    fmt::format("--pin tensor_parallel={}: {}", *pins.tensor_parallel, possible.error().what),
                    possible.error().hint);
    return {};
  }

  Result<void> choose_options() {
    const simulator::Framework& framework = env_.framework;
    const Pins& pins = request_.pins;
    const bool paper = request_.space == Space::paper;
    SAILOR_CHECK(choose_degrees());
    auto choices = stage_choices(request_, framework);
    if (!choices) return fail(choices.error());
    space_.choices = *std::move(choices);
    space_.sharding = {OptimizerSharding::none};
    if (!paper) space_.sharding.insert(space_.sharding.end(), framework.shardings.begin(), framework.shardings.end());
    if (pins.optimizer_sharding) {
      if (!framework.supports(*pins.optimizer_sharding))
        return refuse_pin("optimizer_sharding", to_string(*pins.optimizer_sharding), framework.name);
      space_.sharding = {*pins.optimizer_sharding};
    }
    if (space_.sharding_degree > 0) {
      std::erase(space_.sharding, OptimizerSharding::none);
      if (space_.sharding.empty())
        return fail(ErrorCode::usage,
                    fmt::format("--pin sharding_degree={}: nothing is sharded", space_.sharding_degree),
                    "pin an optimizer_sharding other than none, or leave the pin out");
    }
    space_.schedules = {Schedule::one_f_one_b};
    if (!paper && framework.supports(Schedule::interleaved_1f1b))
      space_.schedules.push_back(Schedule::interleaved_1f1b);
    if (pins.schedule) {
      if (!framework.supports(*pins.schedule)) return refuse_pin("schedule", to_string(*pins.schedule), framework.name);
      space_.schedules = {*pins.schedule};
    }
    if (paper && (space_.choices.front() != StageChoice{} || space_.schedules.front() != Schedule::one_f_one_b ||
                  space_.sharding.front() != OptimizerSharding::none))
      return fail(ErrorCode::usage,
                  "the paper's space has neither recomputation, other schedules than 1f1b nor a sharded optimizer",
                  "leave out --space paper or the pin");
    return {};
  }

  /// Degrees that are not pinned are 1, or all replicas: find_plans() pins those that it tries.
  Result<void> choose_degrees() {
    const Pins& pins = request_.pins;
    const simulator::Framework& framework = env_.framework;
    space_.context_parallel = pins.context_parallel.value_or(1);
    space_.expert_parallel = pins.expert_parallel.value_or(1);
    space_.sharding_degree = pins.sharding_degree.value_or(0);
    const auto check = [&](std::string_view key, bool is_chosen, int degree, bool supported,
                           std::string_view other) -> Result<void> {
      if (!is_chosen || (supported && request_.space != Space::paper)) return {};
      return fail(
          ErrorCode::usage,
          supported ? fmt::format("--pin {}={}: the paper's space does not have it", key, degree)
                    : fmt::format("--pin {}={}: framework {} does not have it", key, degree, framework.name),
          supported ? "leave out --space paper or the pin"
                    : fmt::format("choose another framework, for example --framework {}, or leave the pin out", other));
    };
    SAILOR_CHECK(check("context_parallel", space_.context_parallel > 1, space_.context_parallel,
                       framework.supports_context_parallel, "megatron-core"));
    SAILOR_CHECK(check("expert_parallel", space_.expert_parallel > 1, space_.expert_parallel,
                       framework.supports_expert_parallel, "megatron-core"));
    SAILOR_CHECK(check("sharding_degree", space_.sharding_degree > 0, space_.sharding_degree,
                       framework.supports_sharding_degree, "torch-fsdp"));
    if (const int degree = space_.sharding_degree; degree > 0) {
      if (degree % space_.expert_parallel != 0)
        return fail(ErrorCode::usage,
                    fmt::format("--pin sharding_degree={} is no multiple of expert_parallel {}", degree,
                                space_.expert_parallel),
                    "pin a multiple");
      if (pins.data_parallel && *pins.data_parallel * space_.context_parallel % degree != 0)
        return fail(ErrorCode::usage,
                    fmt::format("--pin sharding_degree={} does not divide the {} replicas of data_parallel {} x "
                                "context_parallel {}",
                                degree, *pins.data_parallel * space_.context_parallel, *pins.data_parallel,
                                space_.context_parallel),
                    "pin a divisor");
    }
    const int experts = env_.model.experts.count;
    if (space_.expert_parallel > 1 && (experts == 0 || experts % space_.expert_parallel != 0))
      return fail(
          ErrorCode::usage,
          fmt::format("--pin expert_parallel={}: {} has {}", space_.expert_parallel, env_.model.name,
                      experts == 0 ? "no experts" : fmt::format("{} experts, which it does not divide", experts)),
          experts == 0 ? "leave the pin out" : "pin a divisor of them");
    if (space_.context_parallel > 1 && request_.job.sequence_length % (2 * space_.context_parallel) != 0)
      return fail(ErrorCode::usage,
                  fmt::format("--pin context_parallel={}: sequences are divided into twice as many parts, and {} "
                              "tokens are no multiple of that",
                              space_.context_parallel, request_.job.sequence_length),
                  "pin another degree");
    return {};
  }

  /// Time and memory of the search grow with the square of the number of layers.
  void find_cuts() {
    const Model& model = env_.model;
    const int most = std::max(SearchSpace::max_layers, request_.pins.pipeline_parallel.value_or(1));
    const bool whole = model.layers() <= most || request_.space == Space::paper;
    const int groups = whole ? model.blocks : most - (model.layers() - model.blocks);
    if (!whole)
      space_.left_out.push_back(
          fmt::format("plans that divide {} between other layers than every {:.3g} blocks, as there are {}", model.name,
                      static_cast<double>(model.blocks) / groups, model.blocks));
    space_.cuts = {0};
    for (int group = 0; group < groups; ++group)
      space_.cuts.push_back(1 + static_cast<int>(std::int64_t{model.blocks} * group / groups));
    for (int layer = 1 + model.blocks; layer <= model.layers(); ++layer) space_.cuts.push_back(layer);
  }

  Result<void> check_where() {
    const Cluster& cluster = *env_.cluster;
    const auto partitions = partitions_of(request_, cluster);
    if (!partitions) return fail(partitions.error());
    SAILOR_CHECK(check_pinned_gpus(request_, env_));
    SAILOR_CHECK(check_places(request_, cluster));
    space_.max_nodes = max_nodes_of(*partitions);
    if (request_.limits.nodes)
      space_.max_nodes = std::min(*request_.limits.nodes, space_.max_nodes.value_or(*request_.limits.nodes));
    max_nodes_ = space_.max_nodes;
    if (cluster.usable(request_.partitions, request_.availability).empty()) return no_nodes(request_, cluster);
    return {};
  }

  Result<void> find_pools(const std::vector<NodeGroup>& groups) {
    space_.nodes = groups;
    space_.max_nodes = max_nodes_;
    space_.max_gpus = request_.limits.gpus;
    space_.pools.clear();
    space_.types.clear();
    space_.micro_batches_of.clear();
    NodesFound found;
    for (const NodeGroup& group : groups) {
      int& nodes = found[{group.gpu, group.zone}][group.gpus_per_node];
      nodes = std::min(nodes + group.count, max_nodes_of_pool / group.gpus_per_node);
    }
    if (found.empty())
      return fail(ErrorCode::infeasible, "the pins and excluded nodes leave no device to plan for",
                  "leave out a --pin gpu, --pin zone or --exclude");
    SAILOR_CHECK(check_room(found));
    SAILOR_CHECK(join_devices(found));
    for (auto& [key, sizes] : found) {
      DevicePool pool{.gpu = key.first, .zone = key.second};
      int left = space_.max_nodes.value_or(max_nodes_of_pool);
      for (const auto& [devices, nodes] : sizes) {  // largest first
        if (left <= 0) break;
        pool.nodes.push_back({.devices = devices, .nodes = std::min(nodes, left)});
        left -= pool.nodes.back().nodes;
      }
      if (!pool.nodes.empty()) space_.pools.push_back(std::move(pool));
    }
    return {};
  }

  using NodesFound = std::map<std::pair<std::string, std::string>, std::map<int, int, std::greater<>>>;

  /// Makes groups of devices (see SearchSpace::context_parallel). As many nodes are joined as leave most devices in
  /// use; of equal numbers the largest, which allows the largest tensor-parallel groups.
  Result<void> join_devices(NodesFound& found) {
    const int context = space_.context_parallel;
    if (context == 1) return {};
    int joined = 1;
    std::int64_t most = -1;
    for (int nodes = context; nodes >= 1; --nodes) {
      if (context % nodes != 0) continue;
      std::int64_t devices = 0;
      for (const auto& [key, sizes] : found)
        for (const auto& [size, count] : sizes)
          if (size * nodes % context == 0)
            devices += std::int64_t{size} * nodes * (std::min(count, space_.max_nodes.value_or(count)) / nodes);
      if (devices > most) joined = nodes;
      most = std::max(most, devices);
    }
    space_.joined_nodes = joined;
    NodesFound units;
    for (const auto& [key, sizes] : found)
      for (const auto& [devices, nodes] : sizes)
        if (nodes >= joined && devices * joined % context == 0)
          units[key][devices * joined / context] += nodes / joined;
    if (units.empty())
      return fail(ErrorCode::infeasible,
                  fmt::format("context_parallel {} takes {} together, more than there are of a kind", context,
                              plural(static_cast<std::size_t>(joined), "node")),
                  "use a smaller degree, or give more nodes");
    found = std::move(units);
    if (space_.max_nodes) space_.max_nodes = *space_.max_nodes / joined;
    if (space_.max_gpus) space_.max_gpus = *space_.max_gpus / context;
    return {};
  }

  /// Whether what is pinned can have as many devices as it takes, under the limits on nodes and devices.
  Result<void> check_room(const NodesFound& found) const {
    const Pins& pins = request_.pins;
    const std::int64_t needed = std::int64_t{pins.tensor_parallel.value_or(1)} * pins.pipeline_parallel.value_or(1) *
                                pins.data_parallel.value_or(1) * space_.context_parallel;
    std::map<int, std::int64_t, std::greater<>> nodes;  // of all pools, by devices
    for (const auto& [key, sizes] : found)
      for (const auto& [devices, count] : sizes) nodes[devices] += count;
    std::int64_t there = 0;
    std::int64_t left = space_.max_nodes.value_or(std::numeric_limits<int>::max());
    for (const auto& [devices, count] : nodes) {
      there += devices * std::min(count, left);
      left -= std::min(count, left);
    }
    there = std::min<std::int64_t>(there, space_.max_gpus.value_or(std::numeric_limits<int>::max()));
    if (needed <= there) return {};
    const auto context = space_.context_parallel > 1 ? pins.context_parallel : std::nullopt;
    std::vector<std::string> factors;
    for (const auto& [name, value] :
         {std::pair("pipeline_parallel", pins.pipeline_parallel), std::pair("tensor_parallel", pins.tensor_parallel),
          std::pair("data_parallel", pins.data_parallel), std::pair("context_parallel", context)})
      if (value) factors.push_back(fmt::format("{} {}", name, *value));
    const auto limits =
        fmt::format("{}{}", request_.limits.nodes ? fmt::format(" --max-nodes {}", *request_.limits.nodes) : "",
                    request_.limits.gpus ? fmt::format(" --max-gpus {}", *request_.limits.gpus) : "");
    return fail(ErrorCode::infeasible,
                fmt::format("what is pinned takes {} ({}), {} more than there are{}{}",
                            plural(static_cast<std::size_t>(needed), "device"), join(factors, " x "), needed - there,
                            limits.empty() ? "" : " under", limits),
                limits.empty() ? "pin less, or give more devices" : "pin less, or raise the limit");
  }

  /// Tensor parallel degrees to consider: those that were measured; where there are none, the usual ones that divide
  /// the attention heads, by estimates.
  std::vector<int> degrees_of(const DevicePool& pool) const {
    const TrainingJob& job = request_.job;
    const Pins& pins = request_.pins;
    const auto possible = [&](std::vector<int> degrees) {
      std::erase_if(degrees, [&](int degree) {
        return pool.groups(degree) < 1 || !check_division(degree, space_.context_parallel) ||
               (pins.tensor_parallel && degree != *pins.tensor_parallel) ||
               (pins.max_tensor_parallel && degree > *pins.max_tensor_parallel);
      });
      return degrees;
    };
    std::vector<int> measured =
        possible(env_.profile.tensor_parallel_degrees(env_.model.name, pool.gpu, job.precision, job.sequence_length));
    if (!measured.empty() || !env_.costs->can_estimate(pool.gpu, job.precision)) return measured;
    return possible(powers_of_two(std::min(pool.largest_node(), max_estimated_tensor_parallel)));
  }

  /// Micro-batches to consider: what was measured or lies between two that were; where that leaves none, the usual
  /// ones, by estimates.
  std::vector<int> sizes_of(const std::string& gpu, int tensor_parallel) const {
    const TrainingJob& job = request_.job;
    const Pins& pins = request_.pins;
    // A size that does not divide the batch could be mixed with others; those that do are enough.
    const auto possible = [&](std::vector<int> values) {
      std::erase_if(values, [&](int value) {
        return job.global_batch % value != 0 || (pins.micro_batch && value != *pins.micro_batch) ||
               !check_division(tensor_parallel, space_.context_parallel, value);
      });
      return values;
    };
    std::vector<int> measured =
        env_.profile.micro_batches(env_.model.name, gpu, job.precision, tensor_parallel, job.sequence_length);
    if (!env_.costs->measured_only() && !measured.empty()) {
      const std::pair range(measured.front(), std::min(measured.back(), job.global_batch));
      measured.clear();
      for (int value = range.first; value <= range.second; ++value) measured.push_back(value);
    }
    measured = possible(std::move(measured));
    if (!measured.empty() || !env_.costs->can_estimate(gpu, job.precision)) return measured;
    if (pins.micro_batch && *pins.micro_batch <= max_estimated_micro_batch) return possible({*pins.micro_batch});
    return possible(powers_of_two(std::min(job.global_batch, max_estimated_micro_batch)));
  }

  Result<void> find_degrees() {
    simulator::PriceList prices(env_);
    std::set<int> sizes;
    std::vector<DevicePool> kept;
    std::map<std::string, Refusal> refused;
    const auto leave_out = [&](const DevicePool& pool, Refusal why) { refused.emplace(pool.gpu, std::move(why)); };
    for (DevicePool& pool : space_.pools) {
      const auto known = env_.gpus.find(pool.gpu);
      if (const auto able = check_precision(request_.job.precision, !known || known->kind == DeviceKind::gpu); !able) {
        leave_out(pool, {Refusal::Why::precision, pool.gpu + ": " + able.error().what});
        continue;
      }
      pool.tensor_parallel = degrees_of(pool);
      if (pool.tensor_parallel.empty()) {
        leave_out(pool, why_no_degree(pool));
        continue;
      }
      const Stage stage{.layers = {0, env_.model.layers()}, .gpu = pool.gpu, .zone = pool.zone};
      const auto priced = prices.place_of(stage);
      if (!priced) {
        leave_out(pool, {Refusal::Why::not_measured, priced.error().message()});
        continue;
      }
      pool.price = prices.places[*priced].price * static_cast<double>(space_.context_parallel);
      pool.base = prices.places[*priced].base;
      const auto capacity = prices.places[*priced].capacity;
      pool.memory =
          capacity ? *capacity * (1.0 - request_.memory_margin) : Bytes(std::numeric_limits<double>::infinity());
      const auto type = std::find(space_.types.begin(), space_.types.end(), pool.gpu);
      pool.type = static_cast<std::size_t>(type - space_.types.begin());
      if (type == space_.types.end()) {
        space_.types.push_back(pool.gpu);
        auto& by_degree = space_.micro_batches_of.emplace_back();
        for (const DevicePool& other : space_.pools) {
          if (other.gpu != pool.gpu) continue;
          for (const int degree : degrees_of(other)) {
            if (std::any_of(by_degree.begin(), by_degree.end(), [&](const auto& e) { return e.first == degree; }))
              continue;
            by_degree.emplace_back(degree, sizes_of(pool.gpu, degree));
          }
        }
      }
      bool any = false;
      for (const auto& [degree, values] : space_.micro_batches_of[pool.type]) {
        any = any || !values.empty();
        sizes.insert(values.begin(), values.end());
      }
      if (!any) {
        leave_out(pool, why_no_size(pool));
        continue;
      }
      kept.push_back(pool);
    }
    for (const auto& [gpu, refusal] : refused)
      space_.left_out.push_back(refusal.text.starts_with(gpu) ? refusal.text
                                                              : fmt::format("{}: {}", gpu, refusal.text));
    if (kept.empty()) return nothing_left(refused);
    space_.pools = std::move(kept);
    space_.micro_batches.assign(sizes.begin(), sizes.end());
    return {};
  }

  Refusal why_no_size(const DevicePool& pool) const {
    using Why = Refusal::Why;
    if (const auto possible = check_division(pool.tensor_parallel.front(), space_.context_parallel,
                                             request_.pins.micro_batch.value_or(request_.job.global_batch));
        !possible)
      return {Why::division, possible.error().what};
    if (!request_.pins.micro_batch)
      return {Why::size,
              fmt::format("no measured micro-batch size divides global_batch {}", request_.job.global_batch)};
    const TrainingJob& job = request_.job;
    std::set<int> measured;
    for (const int degree : pool.tensor_parallel) {
      const auto sizes =
          env_.profile.micro_batches(env_.model.name, pool.gpu, job.precision, degree, job.sequence_length);
      measured.insert(sizes.begin(), sizes.end());
    }
    if (env_.costs->can_estimate(pool.gpu, job.precision))
      return {Why::pinned_size, fmt::format("--pin micro_batch={} is over {}, the largest that is estimated",
                                            *request_.pins.micro_batch, max_estimated_micro_batch)};
    return {Why::pinned_size,
            fmt::format("--pin micro_batch={}: not measured on {}, and {} (measured: {})", *request_.pins.micro_batch,
                        pool.gpu, env_.costs->measured_only() ? "nothing is estimated" : "not between sizes that were",
                        join(measured, ", "))};
  }

  /// What tensor-parallel degrees have to divide.
  std::string divided() const {
    const Model& model = env_.model;
    const simulator::Framework& framework = env_.framework;
    std::vector<std::string> all{fmt::format("{} heads", model.attention_heads)};
    if (framework.divides_key_value_heads && model.key_value_heads != model.attention_heads)
      all.push_back(fmt::format("{} key-value heads", model.key_value_heads));
    if (framework.divides_feed_forward)
      for (const auto& [key, width] : model.feed_forward_widths()) all.push_back(fmt::format("{} {}", key, width));
    if (framework.kernels.sequence_parallel)
      all.push_back(fmt::format("{} tokens", request_.job.sequence_length / space_.context_parallel));
    return join(all, ", ");
  }

  Refusal why_no_degree(const DevicePool& pool) const {
    using Why = Refusal::Why;
    const TrainingJob& job = request_.job;
    const auto measured =
        env_.profile.tensor_parallel_degrees(env_.model.name, pool.gpu, job.precision, job.sequence_length);
    const bool estimable = env_.costs->can_estimate(pool.gpu, job.precision);
    if (const auto possible = check_division(request_.pins.tensor_parallel.value_or(1), space_.context_parallel);
        !possible)
      return {Why::division, possible.error().what};
    if (!measured.empty() || estimable)
      return {Why::degree,
              fmt::format("no tensor-parallel degree is left that {}divides the {} and fits into a node of {}",
                          estimable ? "" : "was measured, ", divided(), pool.largest_node())};
    if (const auto type = env_.gpus.find(pool.gpu); type && !env_.costs->measured_only())
      if (const auto rate = peak_rate(*type, job.precision); !rate) return {Why::precision, rate.error().what};
    std::vector<std::string> there;
    for (const int length : env_.profile.sequence_lengths(env_.model.name, pool.gpu))
      there.push_back(fmt::format("{}", length));
    return {Why::not_measured,
            fmt::format(
                "the profile has no {} measurement of model {} on {} at sequence length {}{}", to_string(job.precision),
                env_.model.name, pool.gpu, job.sequence_length,
                there.empty() ? "" : fmt::format("; it has: {} at sequence length {}", pool.gpu, join(there, ", ")))};
  }

  tl::unexpected<Error> nothing_left(const std::map<std::string, Refusal>& refused) const {
    std::vector<std::string> reasons;  // each once, whatever the number of GPU types
    std::set<Refusal::Why> why;
    std::set<DeviceKind> kinds;
    for (const auto& [gpu, refusal] : refused) {
      if (std::find(reasons.begin(), reasons.end(), refusal.text) == reasons.end()) reasons.push_back(refusal.text);
      why.insert(refusal.why);
      if (const auto type = env_.gpus.find(gpu)) kinds.insert(type->kind);
    }
    const std::optional<DeviceKind> kind = kinds.size() == 1 ? std::optional(*kinds.begin()) : std::nullopt;
    const std::string text = join(reasons, "; ");
    if (why.contains(Refusal::Why::pinned_size))
      return fail(ErrorCode::infeasible, text, "pin another size, or " + layers_advice(kind, " --micro-batches"));
    if (why.contains(Refusal::Why::size))
      return fail(ErrorCode::infeasible, text,
                  "choose a global batch that is a multiple of one, or " + layers_advice(kind, " --micro-batches"));
    if (why.contains(Refusal::Why::degree) && (request_.pins.tensor_parallel || request_.pins.max_tensor_parallel))
      return fail(ErrorCode::infeasible, text, "pin another degree, or raise --max-tensor-parallel");
    if (why.contains(Refusal::Why::division))
      return fail(
          ErrorCode::infeasible, text,
          "choose other degrees, another micro-batch or --global-batch, --sequence-length, --precision or --framework");
    if (why == std::set{Refusal::Why::precision})
      return fail(ErrorCode::infeasible, text, "choose another --precision, or leave it to sailor-plan");
    return fail(ErrorCode::not_found, text, layers_advice(request_.job.precision, kind));
  }

  const Request& request_;
  const simulator::Environment& env_;
  std::optional<int> max_nodes_;  // SearchSpace::max_nodes before nodes are joined
  SearchSpace space_;
};

}  // namespace

Result<SearchSpace> make_search_space(const Request& request, const simulator::Environment& env) {
  return SpaceMaker(request, env).run();
}

}  // namespace sailor::planner
