#include "planner/search_space.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "profile/advice.hpp"
#include "simulator/price_list.hpp"

namespace sailor::planner {

namespace {

constexpr int most_estimated_tensor_parallel = 8;  // on a device that nobody measured
constexpr int most_estimated_micro_batch = 128;
constexpr int most_nodes_of_place = 1 << 20;  // no plan has more ranks

bool contains(const std::vector<std::string>& list, const std::string& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::vector<int> powers_of_two(int most) {
  std::vector<int> values;
  for (int value = 1; value <= most; value *= 2) values.push_back(value);
  return values;
}

tl::unexpected<Error> no_nodes(const Request& request, const Cluster& cluster) {
  std::set<std::string> reasons;
  for (const NodeGroup& group : cluster.usable(request.partitions, Availability::all))
    if (group.state != NodeState::idle)
      reasons.insert(group.state_reason.empty() ? std::string(to_string(group.state))
                                                : fmt::format("{}: {}", to_string(group.state), group.state_reason));
  std::string remedy;
  for (const LeftOutNodes& nodes : cluster.left_out_of(request.partitions)) {
    reasons.insert(nodes.message().substr(0, nodes.message().find("; " + nodes.remedy)));
    if (remedy.empty()) remedy = nodes.remedy;
  }
  const bool free_now = request.availability == Availability::idle;
  const char* const wanted = free_now ? "is idle" : request.availability == Availability::up ? "is up" : "exists";
  return fail(ErrorCode::infeasible,
              fmt::format("no node of {} {}{}", where_of(request), wanted,
                          reasons.empty() ? "" : fmt::format(" ({})", fmt::join(reasons, "; "))),
              !remedy.empty() ? remedy
              : free_now      ? "use --availability up to plan for nodes that are busy now"
              : request.availability == Availability::up
                  ? "choose another partition, or plan for what may come back with --availability all"
                  : "choose another partition");
}

/// The names that pins give, as the catalogue and the cluster have them.
Result<std::vector<std::string>> pinned_gpus(const Request& request, const simulator::Environment& env) {
  std::vector<std::string> names;
  for (const std::string& gpu : request.pins.gpus) {
    const auto type = env.gpus.find(gpu);
    if (!type) return fail(type.error());
    names.push_back(type->name);
  }
  return names;
}

class SpaceMaker {
 public:
  SpaceMaker(const Request& request, const simulator::Environment& env) : request_(request), env_(env) {}

  Result<SearchSpace> run() {
    SAILOR_CHECK(check_job());
    SAILOR_CHECK(choose_options());
    SAILOR_CHECK(find_places());
    SAILOR_CHECK(find_degrees());
    return std::move(space_);
  }

 private:
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
    if (pins.tensor_parallel && env_.model.attention_heads % *pins.tensor_parallel != 0)
      return fail(ErrorCode::usage, fmt::format("--pin tensor_parallel={} does not divide the {} attention heads of {}",
                                                *pins.tensor_parallel, env_.model.attention_heads, env_.model.name));
    return {};
  }

  Result<void> choose_options() {
    const simulator::Framework& framework = env_.framework;
    const Pins& pins = request_.pins;
    const auto refuse = [&](std::string_view key, std::string_view value) {
      return fail(ErrorCode::usage,
                  fmt::format("--pin {}={}: framework {} does not have it", key, value, framework.name),
                  "choose another framework, or leave the pin out");
    };
    const bool paper = request_.space == Space::paper;
    space_.recompute = {Recompute::none};
    if (framework.supports_recompute && !paper)
      space_.recompute = {Recompute::none, Recompute::selective, Recompute::full};
    if (pins.recompute) {
      if (*pins.recompute != Recompute::none && !framework.supports_recompute)
        return refuse("recompute", to_string(*pins.recompute));
      space_.recompute = {*pins.recompute};
    }
    space_.sharding = {OptimizerSharding::none};
    if (framework.supports_optimizer_sharding && !paper) space_.sharding.push_back(OptimizerSharding::zero1);
    if (pins.optimizer_sharding) {
      if (*pins.optimizer_sharding != OptimizerSharding::none && !framework.supports_optimizer_sharding)
        return refuse("optimizer_sharding", to_string(*pins.optimizer_sharding));
      space_.sharding = {*pins.optimizer_sharding};
    }
    space_.schedules = {Schedule::one_f_one_b};
    if (!paper && framework.supports(Schedule::interleaved_1f1b))
      space_.schedules.push_back(Schedule::interleaved_1f1b);
    if (pins.schedule) {
      if (!framework.supports(*pins.schedule)) return refuse("schedule", to_string(*pins.schedule));
      space_.schedules = {*pins.schedule};
    }
    if (paper && (space_.recompute.front() != Recompute::none || space_.schedules.front() != Schedule::one_f_one_b ||
                  space_.sharding.front() != OptimizerSharding::none))
      return fail(ErrorCode::usage,
                  "the paper's space has neither recomputation, other schedules than 1f1b nor a sharded optimizer",
                  "leave out --space paper or the pin");
    return {};
  }

  Result<void> find_places() {
    const Cluster& cluster = *env_.cluster;
    const auto partitions = partitions_of(request_, cluster);
    if (!partitions) return fail(partitions.error());
    const auto gpus = pinned_gpus(request_, env_);
    if (!gpus) return fail(gpus.error());
    SAILOR_CHECK(check_places(request_, cluster));
    space_.most_nodes = most_nodes_of(*partitions);
    if (request_.limits.nodes)
      space_.most_nodes = std::min(*request_.limits.nodes, space_.most_nodes.value_or(*request_.limits.nodes));
    space_.most_gpus = request_.limits.gpus;

    NodesFound found;
    const auto usable = cluster.usable(request_.partitions, request_.availability);
    for (const NodeGroup& group : usable) {
      if (!gpus->empty() && !contains(*gpus, group.gpu)) continue;
      if (!request_.pins.zones.empty() && !contains(request_.pins.zones, group.zone)) continue;
      int count = group.count;
      for (const std::string& node : group.nodes)
        if (contains(request_.pins.excluded_nodes, node)) --count;
      if (count <= 0 || group.gpus_per_node <= 0) continue;
      int& nodes = found[{group.gpu, group.zone}][group.gpus_per_node];
      nodes = std::min(nodes + count, most_nodes_of_place / group.gpus_per_node);
    }
    if (usable.empty()) return no_nodes(request_, cluster);
    if (found.empty())
      return fail(ErrorCode::infeasible, "the pins and excluded nodes leave no device to plan for",
                  "leave out a --pin gpu, --pin zone or --exclude");
    SAILOR_CHECK(check_room(found));
    for (auto& [key, sizes] : found) {
      Place place{.gpu = key.first, .zone = key.second};
      int left = space_.most_nodes.value_or(most_nodes_of_place);
      for (const auto& [devices, nodes] : sizes) {  // largest first
        if (left <= 0) break;
        place.nodes.push_back({.devices = devices, .nodes = std::min(nodes, left)});
        left -= place.nodes.back().nodes;
      }
      if (!place.nodes.empty()) space_.places.push_back(std::move(place));
    }
    return {};
  }

  using NodesFound = std::map<std::pair<std::string, std::string>, std::map<int, int, std::greater<>>>;

  /// Whether what is pinned can have as many devices as it takes, under the limits on nodes and devices.
  Result<void> check_room(const NodesFound& found) const {
    const Pins& pins = request_.pins;
    const std::int64_t needed = std::int64_t{pins.tensor_parallel.value_or(1)} * pins.pipeline_parallel.value_or(1) *
                                pins.data_parallel.value_or(1);
    std::map<int, std::int64_t, std::greater<>> nodes;  // of all places, by devices
    for (const auto& [key, sizes] : found)
      for (const auto& [devices, count] : sizes) nodes[devices] += count;
    std::int64_t there = 0;
    std::int64_t left = space_.most_nodes.value_or(std::numeric_limits<int>::max());
    for (const auto& [devices, count] : nodes) {
      there += devices * std::min(count, left);
      left -= std::min(count, left);
    }
    there = std::min<std::int64_t>(there, space_.most_gpus.value_or(std::numeric_limits<int>::max()));
    if (needed <= there) return {};
    std::vector<std::string> factors;
    for (const auto& [name, value] :
         {std::pair("pipeline_parallel", pins.pipeline_parallel), std::pair("tensor_parallel", pins.tensor_parallel),
          std::pair("data_parallel", pins.data_parallel)})
      if (value) factors.push_back(fmt::format("{} {}", name, *value));
    const auto limits =
        fmt::format("{}{}", request_.limits.nodes ? fmt::format(" --max-nodes {}", *request_.limits.nodes) : "",
                    request_.limits.gpus ? fmt::format(" --max-gpus {}", *request_.limits.gpus) : "");
    return fail(ErrorCode::infeasible,
                fmt::format("what is pinned takes {} ({}), {} more than there are{}{}",
                            plural(static_cast<std::size_t>(needed), "device"), fmt::join(factors, " x "),
                            needed - there, limits.empty() ? "" : " under", limits),
                limits.empty() ? "pin less, or give more devices" : "pin less, or raise the limit");
  }

  /// Tensor parallel degrees to consider: those that were measured; on a device without any measurement of the model
  /// the usual ones that divide the attention heads.
  std::vector<int> degrees_of(const Place& place) const {
    const TrainingJob& job = request_.job;
    std::vector<int> degrees;
    if (env_.costs->only_estimates(place.gpu, job.precision))
      degrees = powers_of_two(std::min(place.largest_node(), most_estimated_tensor_parallel));
    else
      degrees = env_.profile.tensor_parallel_degrees(env_.model.name, place.gpu, job.precision, job.sequence_length);
    const Pins& pins = request_.pins;
    std::erase_if(degrees, [&](int degree) {
      return env_.model.attention_heads % degree != 0 || place.groups(degree) < 1 ||
             (pins.tensor_parallel && degree != *pins.tensor_parallel) ||
             (pins.most_tensor_parallel && degree > *pins.most_tensor_parallel);
    });
    return degrees;
  }

  /// Micro-batches to consider: what was measured or lies between two that were.
  std::vector<int> sizes_of(const std::string& gpu, int tensor_parallel) const {
    const TrainingJob& job = request_.job;
    std::vector<int> values;
    if (env_.costs->only_estimates(gpu, job.precision)) {
      values = powers_of_two(std::min(job.global_batch, most_estimated_micro_batch));
    } else {
      values = env_.profile.micro_batches(env_.model.name, gpu, job.precision, tensor_parallel, job.sequence_length);
      if (!env_.costs->measured_only() && !values.empty()) {
        const std::pair range(values.front(), std::min(values.back(), job.global_batch));
        values.clear();
        for (int value = range.first; value <= range.second; ++value) values.push_back(value);
      }
    }
    // A size that does not divide the batch could be mixed with others; those that do are enough.
    std::erase_if(values, [&](int value) {
      return job.global_batch % value != 0 || (request_.pins.micro_batch && value != *request_.pins.micro_batch);
    });
    return values;
  }

  Result<void> find_degrees() {
    simulator::PriceList prices(env_);
    std::set<int> sizes;
    std::vector<Place> kept;
    std::map<std::string, std::string> refused;
    const auto leave_out = [&](const Place& place, const std::string& why) { refused.emplace(place.gpu, why); };
    for (Place& place : space_.places) {
      place.tensor_parallel = degrees_of(place);
      if (place.tensor_parallel.empty()) {
        leave_out(place, why_no_degree(place));
        continue;
      }
      const Stage stage{.layers = {0, env_.model.layers()}, .gpu = place.gpu, .zone = place.zone};
      const auto priced = prices.place_of(stage);
      if (!priced) {
        leave_out(place, priced.error().message());
        continue;
      }
      place.price = prices.places[*priced].price;
      place.base = prices.places[*priced].base;
      const auto capacity = prices.places[*priced].capacity;
      place.memory =
          capacity ? *capacity * (1.0 - request_.memory_margin) : Bytes(std::numeric_limits<double>::infinity());
      const auto type = std::find(space_.types.begin(), space_.types.end(), place.gpu);
      place.type = static_cast<std::size_t>(type - space_.types.begin());
      if (type == space_.types.end()) {
        space_.types.push_back(place.gpu);
        auto& by_degree = space_.micro_batches_of.emplace_back();
        for (const Place& other : space_.places) {
          if (other.gpu != place.gpu) continue;
          for (const int degree : degrees_of(other)) {
            if (std::any_of(by_degree.begin(), by_degree.end(), [&](const auto& e) { return e.first == degree; }))
              continue;
            by_degree.emplace_back(degree, sizes_of(place.gpu, degree));
          }
        }
      }
      bool any = false;
      for (const auto& [degree, values] : space_.micro_batches_of[place.type]) {
        any = any || !values.empty();
        sizes.insert(values.begin(), values.end());
      }
      if (!any) {
        leave_out(place, why_no_size(place));
        continue;
      }
      kept.push_back(place);
    }
    for (const auto& [gpu, why] : refused) space_.left_out.push_back(fmt::format("{}: {}", gpu, why));
    if (kept.empty()) return nothing_left(refused);
    space_.places = std::move(kept);
    space_.micro_batches.assign(sizes.begin(), sizes.end());
    return {};
  }

  std::string why_no_size(const Place& place) const {
    if (!request_.pins.micro_batch)
      return fmt::format("no measured micro-batch size divides global_batch {}", request_.job.global_batch);
    const TrainingJob& job = request_.job;
    std::set<int> measured;
    for (const int degree : place.tensor_parallel) {
      const auto sizes =
          env_.profile.micro_batches(env_.model.name, place.gpu, job.precision, degree, job.sequence_length);
      measured.insert(sizes.begin(), sizes.end());
    }
    if (measured.empty())
      return fmt::format("--pin micro_batch={} is over {}, the largest that is estimated", *request_.pins.micro_batch,
                         most_estimated_micro_batch);
    return fmt::format("--pin micro_batch={}: not measured on {}, and {} (measured: {})", *request_.pins.micro_batch,
                       place.gpu, env_.costs->measured_only() ? "nothing is estimated" : "not between sizes that were",
                       fmt::join(measured, ", "));
  }

  std::string why_no_degree(const Place& place) const {
    const TrainingJob& job = request_.job;
    const auto measured =
        env_.profile.tensor_parallel_degrees(env_.model.name, place.gpu, job.precision, job.sequence_length);
    if (!measured.empty() || env_.costs->only_estimates(place.gpu, job.precision))
      return fmt::format(
          "no tensor-parallel degree is left that was measured, divides the {} heads and fits into a "
          "node of {}",
          env_.model.attention_heads, place.largest_node());
    std::vector<std::string> there;
    for (const int length : env_.profile.sequence_lengths(env_.model.name, place.gpu))
      there.push_back(fmt::format("{}", length));
    return fmt::format(
        "the profile has no {} measurement of model {} on {} at sequence length {}{}", to_string(job.precision),
        env_.model.name, place.gpu, job.sequence_length,
        there.empty() ? "" : fmt::format("; it has: {} at sequence length {}", place.gpu, fmt::join(there, ", ")));
  }

  tl::unexpected<Error> nothing_left(const std::map<std::string, std::string>& refused) const {
    std::vector<std::string> reasons;
    std::set<DeviceKind> kinds;
    for (const auto& [gpu, why] : refused)
      if (const auto type = env_.gpus.find(gpu)) kinds.insert(type->kind);
    const std::optional<DeviceKind> kind = kinds.size() == 1 ? std::optional(*kinds.begin()) : std::nullopt;
    bool by_batch = false;
    bool by_pin = false;
    for (const auto& [gpu, why] : refused) {
      reasons.push_back(why);
      by_batch = by_batch || why.find("divides global_batch") != std::string::npos;
      by_pin = by_pin || why.find("--pin micro_batch") != std::string::npos;
    }
    if (by_pin)
      return fail(ErrorCode::infeasible, fmt::format("{}", fmt::join(reasons, "; ")),
                  "pin another size, or " + layers_advice(kind, " --micro-batches"));
    if (by_batch)
      return fail(ErrorCode::infeasible, fmt::format("{}", fmt::join(reasons, "; ")),
                  "choose a global batch that is a multiple of one, or " + layers_advice(kind, " --micro-batches"));
    return fail(ErrorCode::not_found, fmt::format("{}", fmt::join(reasons, "; ")), layers_advice(kind));
  }

  const Request& request_;
  const simulator::Environment& env_;
  SearchSpace space_;
};

}  // namespace

Result<std::vector<const Partition*>> partitions_of(const Request& request, const Cluster& cluster) {
  std::vector<const Partition*> partitions;
  for (const std::string& name : request.partitions) {
    const Partition* partition = cluster.find_partition(name);
    if (partition == nullptr) {
      std::vector<std::string> names;
      for (const Partition& known : cluster.partitions) names.push_back(known.name);
      const auto guess = closest(name, names);
      return fail(ErrorCode::not_found,
                  fmt::format("partition '{}' not found (known: {})", name, fmt::join(names, ", ")),
                  guess ? fmt::format("did you mean --partition {}?", *guess) : "use --partition NAME");
    }
    if (partition->state() != "up" && request.availability != Availability::all)
      return fail(
          ErrorCode::unavailable,
          fmt::format("partition '{}' is {}", name, partition->state() == "drain" ? "draining" : partition->state()),
          "choose another partition, or ask its administrators");
    partitions.push_back(partition);
  }
  return partitions;
}

std::optional<int> most_nodes_of(const std::vector<const Partition*>& partitions) {
  if (partitions.empty()) return std::nullopt;
  std::int64_t sum = 0;
  for (const Partition* partition : partitions) {
    if (!partition->most_nodes) return std::nullopt;
    sum += *partition->most_nodes;
  }
  return static_cast<int>(std::min<std::int64_t>(sum, most_nodes_of_place));
}

Result<void> check_places(const Request& request, const Cluster& cluster) {
  std::set<std::string> zones;
  for (const NodeGroup& group : cluster.groups) zones.insert(group.zone);
  for (const std::string& zone : request.pins.zones)
    if (!zones.contains(zone))
      return fail(ErrorCode::usage,
                  fmt::format("zone '{}' has no nodes in this cluster (zones: {})", zone, fmt::join(zones, ", ")),
                  "correct --pin zone");
  std::set<std::string> unknown(request.pins.excluded_nodes.begin(), request.pins.excluded_nodes.end());
  for (const NodeGroup& group : cluster.groups)
    for (const std::string& node : group.nodes) unknown.erase(node);
  if (!unknown.empty())
    return fail(ErrorCode::invalid_input, fmt::format("no node is named {}", fmt::join(unknown, ", ")),
                "correct --exclude");
  return {};
}

int Place::devices() const {
  int sum = 0;
  for (const NodeSize& size : nodes) sum += size.devices * size.nodes;
  return sum;
}

int Place::groups(int degree) const {
  int sum = 0;
  for (const NodeSize& size : nodes) sum += size.devices / degree * size.nodes;
  return sum;
}

int SearchSpace::devices() const {
  int sum = 0;
  for (const Place& place : places) sum += place.devices();
  return sum;
}

bool SearchSpace::allows(std::size_t type, int tensor_parallel, int micro_batch) const {
  for (const auto& [degree, sizes] : micro_batches_of[type])
    if (degree == tensor_parallel) return std::binary_search(sizes.begin(), sizes.end(), micro_batch);
  return false;
}

Result<SearchSpace> make_search_space(const Request& request, const simulator::Environment& env) {
  return SpaceMaker(request, env).run();
}

std::optional<int> nodes_needed(const Plan& plan, const SearchSpace& space) {
  int total = 0;
  std::size_t placed = 0;
  std::size_t all = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    all += pipeline.stages.size() * static_cast<std::size_t>(pipeline.count);
  std::vector<int> free;
  for (const Place& place : space.places) {
    const auto here = [&](const Stage& stage) { return stage.gpu == place.gpu && stage.zone == place.zone; };
    std::set<int> degrees;
    std::int64_t devices = 0;
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages) {
        if (!here(stage)) continue;
        placed += static_cast<std::size_t>(pipeline.count);
        devices += std::int64_t{stage.tensor_parallel} * pipeline.count;
        degrees.insert(stage.tensor_parallel);
      }
    if (devices == 0) continue;
    // Where each degree divides the next and the largest the nodes, no order leaves a node open that a group fits into:
    // of two that have less room than the group, the later one's smallest group would have gone to the earlier one.
    degrees.insert(place.largest_node());
    int before = 1;
    const bool divide = std::all_of(degrees.begin(), degrees.end(),
                                    [&](int degree) { return degree % std::exchange(before, degree) == 0; });
    if (divide && place.nodes.size() == 1) {
      const NodeSize& size = place.nodes.front();
      const std::int64_t nodes = (devices + size.devices - 1) / size.devices;
      if (nodes > size.nodes || *degrees.rbegin() > size.devices) return std::nullopt;
      total += static_cast<int>(nodes);
      continue;
    }
    free.clear();
    for (const NodeSize& size : place.nodes)
      free.insert(free.end(), static_cast<std::size_t>(size.nodes), size.devices);
    const std::vector<int> empty = free;
    std::map<int, std::size_t> from;  // by degree: no node before has room
    for (const Pipeline& pipeline : plan.pipelines)
      for (int copy = 0; copy < pipeline.count; ++copy)
        for (const Stage& stage : pipeline.stages) {
          if (!here(stage)) continue;
          std::size_t& node = from[stage.tensor_parallel];
          while (node < free.size() && free[node] < stage.tensor_parallel) ++node;
          if (node == free.size()) return std::nullopt;
          free[node] -= stage.tensor_parallel;
        }
    for (std::size_t node = 0; node < free.size(); ++node) total += free[node] < empty[node] ? 1 : 0;
  }
  if (placed != all) return std::nullopt;
  return total;
}

}  // namespace sailor::planner
