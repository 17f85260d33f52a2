#include "simulator/price_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/cluster_nodes.hpp"
#include "profile/advice.hpp"

namespace sailor::simulator {

namespace {

/// Smallest memory among the nodes that carry the type, in the stage's zone when it names one.
std::optional<Bytes> capacity_of(const Environment& environment, const GpuType& type, const std::string& zone) {
  std::optional<Bytes> smallest;
  if (environment.cluster != nullptr)
    for (const NodeGroup& group : environment.cluster->groups) {
      const bool in_zone = zone.empty() || group.zone == zone ||
                           std::find(group.partitions.begin(), group.partitions.end(), zone) != group.partitions.end();
      if (group.gpu != type.name || !in_zone) continue;
      const Bytes memory = device_memory(type, group);
      if (memory <= Bytes(0)) continue;  // unknown
      smallest = smallest ? std::min(*smallest, memory) : memory;
    }
  if (!smallest && type.kind == DeviceKind::gpu) smallest = type.memory;
  return smallest;
}

constexpr Seconds assumed_latency{5e-6};  // of a network of a cluster, and more than NVLink's
constexpr double assumed_error = 0.5;     // of an estimated link, as a share

LinkTime estimated_time(Seconds time) { return {.time = time, .error = assumed_error, .origin = Origin::estimated}; }

}  // namespace

PriceList::PriceList(const Environment& environment) : env(environment) {
  if (env.cluster != nullptr) node_sizes = sailor::node_sizes(env.cluster->groups);
  if (env.costs == nullptr) own_costs_.emplace(layer_costs_for(env));
  parameters.push_back(0.0);
  experts.push_back(0.0);
  for (int layer = 0; layer < env.model.layers(); ++layer) {
    parameters.push_back(parameters.back() + static_cast<double>(env.model.layer_parameters(layer)));
    experts.push_back(experts.back() + static_cast<double>(env.model.expert_parameters(layer)));
  }
  tied = static_cast<double>(env.model.tied_parameters());
}

Result<std::uint32_t> PriceList::place_of(const Stage& stage) {
  for (std::size_t i = 0; i < places.size(); ++i)
    if (places[i].gpu == stage.gpu && places[i].name == stage.zone) return static_cast<std::uint32_t>(i);
  const auto type = env.gpus.find(stage.gpu);
  if (!type) return fail(type.error());
  if (type->name != stage.gpu)
    return fail(ErrorCode::invalid_input, fmt::format("GPU '{}' is another name of {}", stage.gpu, type->name),
                "write the latter");
  const auto zone = zone_of(stage);
  if (!zone) return fail(zone.error());
  Place place{.gpu = stage.gpu, .name = stage.zone, .zone = *zone};
  place.capacity = capacity_of(env, *type, stage.zone);
  const auto stated = env.cluster != nullptr ? stated_price(*env.cluster, type->name, *zone) : std::nullopt;
  place.price = stated.value_or(type->price);
  place.price_is_assumed = !stated;
  SAILOR_CHECK(find_base(place));
  places.push_back(std::move(place));
  return static_cast<std::uint32_t>(places.size() - 1);
}

Result<std::string> PriceList::zone_of(const Stage& stage) const {
  if (env.cluster == nullptr || env.cluster->zones.empty() || stage.zone.empty()) return stage.zone;
  std::vector<std::string> known;
  for (const Zone& zone : env.cluster->zones) {
    if (zone.name == stage.zone) return zone.name;
    known.push_back(zone.name);
  }
  for (const NodeGroup& group : env.cluster->groups)
    if (group.gpu == stage.gpu &&
        std::find(group.partitions.begin(), group.partitions.end(), stage.zone) != group.partitions.end())
      return group.zone;
  return fail(ErrorCode::not_found,
              fmt::format("the plan has {} in zone '{}', which is neither a zone of the cluster ({}) nor a partition "
                          "with such nodes",
                          stage.gpu, stage.zone, join(known, ", ")),
              "correct the plan, or name the cluster that it was made for");
}

Result<void> PriceList::check_linked(const Place& a, const Place& b) const {
  if (a.zone == b.zone || env.cluster == nullptr || env.cluster->zones.empty()) return {};
  if (env.profile.names_zone(a.zone) && env.profile.names_zone(b.zone)) return {};
  const auto kind = [&](const Place& place) {
    const auto type = env.gpus.find(place.gpu);
    return type ? type->kind : DeviceKind::gpu;
  };
  const bool cpus = kind(a) == DeviceKind::cpu && kind(b) == DeviceKind::cpu;
  return fail(ErrorCode::not_found, fmt::format("no link joins the zones '{}' and '{}'", a.zone, b.zone),
              links_advice(cpus ? DeviceKind::cpu : DeviceKind::gpu, " --zone"));
}

Result<void> PriceList::find_base(Place& place) const {
  const Framework& framework = env.framework;
  const std::string what =
      fmt::format("memory of a process of framework {} on {} before its first tensor", framework.name, place.gpu);
  if (const auto known = framework.base_by_gpu.find(place.gpu); known != framework.base_by_gpu.end()) {
    place.base = known->second;
  } else if (const auto measured = env.profile.base_memory(place.gpu, framework.name)) {
    place.base = *measured;
  } else if (framework.base) {
    place.base = *framework.base;
    place.base_input = {.origin = Origin::estimated,
                        .what = fmt::format("{} (not measured: {} by {})", what, format_bytes(place.base),
                                            framework.base_source.empty() ? "assumption" : framework.base_source)};
  } else {
    return fail(ErrorCode::not_found, fmt::format("the profile has no {}", what),
                fmt::format("{}, or give base_bytes in the framework's file", layers_advice(env.gpus, place.gpu)));
  }
  return {};
}

const ZoneLink* PriceList::zone_link(const Place& from, const Place& to) const {
  if (env.cluster == nullptr || from.zone == to.zone) return nullptr;
  for (const ZoneLink& link : env.cluster->links)
    if ((link.from == from.zone && link.to == to.zone) || (link.from == to.zone && link.to == from.zone)) return &link;
  return nullptr;
}

const SwitchLink* PriceList::switch_link(std::uint32_t from, std::uint32_t to, Reach reach) const {
  return reach == Reach::across && places[from].zone == places[to].zone ? &*env.cluster->across_switches : nullptr;
}

const ZoneLink* PriceList::usable_link(std::uint32_t from, std::uint32_t to, Reach reach) {
  if (env.cluster == nullptr || reach == Reach::node) return nullptr;
  const auto [known, is_new] = links_.try_emplace(std::uint64_t{from} << 32 | to, nullptr);
  if (!is_new) return known->second;
  const std::string& a = places[from].zone;
  const std::string& b = places[to].zone;
  for (const ZoneLink& link : env.cluster->links)
    if (link.bandwidth && ((link.from == a && link.to == b) || (link.from == b && link.to == a)))
      return known->second = &link;
  return nullptr;
}

std::optional<ZoneLink> PriceList::estimated_link(const Place& from, const Place& to, bool one_node) const {
  if (env.measured_only) return std::nullopt;
  const StatedNetwork network = env.cluster != nullptr ? env.cluster->network : StatedNetwork{};
  ZoneLink link{.from = from.zone, .to = to.zone, .bandwidth = network.between_nodes, .latency = assumed_latency};
  if (!one_node) return link.bandwidth ? std::optional(link) : std::nullopt;
  link.bandwidth = network.within_node;
  for (const std::string& gpu : {from.gpu, to.gpu}) {
    const auto type = env.gpus.find(gpu);
    if (network.within_node || !type) continue;
    const Efficiency reached = generic_efficiency(type->kind, Precision::fp32);
    const BytesPerSecond own =
        type->node_link.value() > 0.0 ? type->node_link * reached.memory : type->memory_bandwidth * reached.link_share;
    if (own.value() > 0.0) link.bandwidth = std::min(link.bandwidth.value_or(own), own);
  }
  return link.bandwidth ? std::optional(link) : std::nullopt;
}

EstimatedInput PriceList::link_input(const EstimatedLink& link) const {
  const Place& from = places[link.from];
  const Place& to = places[link.to];
  const auto estimated = estimated_link(from, to, link.one_node);
  const StatedNetwork network = env.cluster != nullptr ? env.cluster->network : StatedNetwork{};
  constexpr std::array<const char*, 3> between{"as the site or cluster file states", "as --gpus states",
                                               "assumed; network:GB/s in --gpus says yours"};
  const char* source = "by the device's figures";
  if (!link.one_node)
    source = between[static_cast<std::size_t>(network.source)];
  else if (network.within_node)
    source = between.front();
  return {.origin = Origin::estimated,
          .what = fmt::format("link {} - {}, {} (not measured: {:.3g} GB/s, {})", from.gpu, to.gpu,
                              to_string(link.one_node ? LinkScope::intra_node : LinkScope::inter_node),
                              estimated ? estimated->bandwidth->value() / 1e9 : 0.0, source)};
}

Result<const LayerTable*> PriceList::table_of(const Plan& plan, const Pipeline& pipeline, const Stage& stage,
                                              std::uint32_t at, int busy_ranks) {
  const int micro_batch = plan.micro_batch_of(pipeline);
  const Place& place = places[at];
  std::uint32_t gpu = at;  // the first place with the same GPU
  for (std::uint32_t i = 0; i < at; ++i)
    if (places[i].gpu == place.gpu) {
      gpu = i;
      break;
    }
  const auto u = [](auto value) { return static_cast<std::uint64_t>(value); };
  const PriceKey key{u(gpu) << 32 | u(stage.tensor_parallel), u(micro_batch) << 32 | u(plan.job.sequence_length),
                     u(busy_ranks) << 40 | u(plan.context_parallel) << 28 | u(plan.expert_parallel) << 16 |
                         u(stage.recompute) << 8 | u(plan.job.precision)};
  auto& entry = tables_[key];
  if (!entry)
    entry = std::make_unique<Result<LayerTable>>(make_layer_table(env, layer_costs(),
                                                                  {.model = env.model.name,
                                                                   .gpu = stage.gpu,
                                                                   .precision = plan.job.precision,
                                                                   .recompute = stage.recompute,
                                                                   .tensor_parallel = stage.tensor_parallel,
                                                                   .micro_batch = micro_batch,
                                                                   .sequence_length = plan.job.sequence_length,
                                                                   .busy_ranks = busy_ranks,
                                                                   .context_parallel = plan.context_parallel,
                                                                   .expert_parallel = plan.expert_parallel}));
  if (!*entry) return fail(entry->error());
  return &**entry;
}

template <class Measured>
LinkTime PriceList::Route<Measured>::time_of(Bytes message) {
  for (const Priced& known : priced)
    if (known.message == message) return known.time;
  Priced& priced_last = priced[next];
  next = (next + 1) % priced.size();
  priced_last = {.message = message, .time = measured->time(message)};
  return priced_last.time;
}

template <class Measured, class Over, class LookUp>
Result<LinkTime> PriceList::time_over(std::unordered_map<PriceKey, Route<Measured>, PriceKeyHash>& routes,
                                      const PriceKey& key, const Hop& hop, Over over, LookUp look_up) {
  const SwitchLink* across = switch_link(hop.from, hop.to, hop.reach);
  const auto through_switches = [&](LinkTime time) {  // the slower of the two links decides, in every step of a ring
    if (across != nullptr) time.time = std::max(time.time, over(across->latency, across->bandwidth));
    return time;
  };
  if (const ZoneLink* link = usable_link(hop.from, hop.to, hop.reach))
    return through_switches({.time = over(link->latency, *link->bandwidth)});
  const auto [known, is_new] = routes.try_emplace(key);
  Route<Measured>& route = known->second;
  if (is_new) {
    const Place& from = places[hop.from];
    const Place& to = places[hop.to];
    const bool one_node = hop.reach == Reach::node;
    if (const auto linked = check_linked(from, to); !linked) {
      route.missing = linked.error();
    } else if (auto measured = look_up(from, to, one_node ? LinkScope::intra_node : LinkScope::inter_node)) {
      route.measured = *measured;
    } else {
      route.estimated = estimated_link(from, to, one_node);
      if (!route.estimated) route.missing = measured.error();
    }
  }
  if (route.missing) return fail(*route.missing);
  return through_switches(route.measured ? route.time_of(hop.message)
                                         : estimated_time(over(route.estimated->latency, *route.estimated->bandwidth)));
}

Result<LinkTime> PriceList::send_time(std::uint32_t from, std::uint32_t to, int from_ranks, int to_ranks, Reach reach,
                                      Bytes message) {
  const auto u = [](auto value) { return static_cast<std::uint64_t>(value); };
  const PriceKey key{u(from) << 32 | u(to), u(from_ranks) << 32 | u(to_ranks) << 1 | u(reach == Reach::node), 0};
  return time_over(
      sends_, key, {.from = from, .to = to, .reach = reach, .message = message},
      [&](Seconds latency, BytesPerSecond bandwidth) { return latency + message / bandwidth; },
      [&](const Place& sender, const Place& receiver, LinkScope scope) {
        return env.profile.send_route({.gpu = sender.gpu, .zone = sender.zone, .ranks = from_ranks},
                                      {.gpu = receiver.gpu, .zone = receiver.zone, .ranks = to_ranks}, scope);
      });
}

Result<LinkTime> PriceList::all_reduce_time(std::uint32_t from, std::uint32_t to, int ranks, int rings, int replicas,
                                            Reach reach, Bytes message) {
  const auto u = [](auto value) { return static_cast<std::uint64_t>(value); };
  const PriceKey key{u(from) << 48 | u(to) << 32 | u(rings),
                     u(replicas) << 32 | u(ranks) << 1 | u(reach == Reach::node), 0};
  return time_over(
      reduces_, key, {.from = from, .to = to, .reach = reach, .message = message},
      // A ring: 2(n - 1) steps of 1/n of the message each (Patarasuk & Yuan 2009).
      [&](Seconds latency, BytesPerSecond bandwidth) {
        return (latency + message / replicas / bandwidth) * (2.0 * (replicas - 1));
      },
      [&](const Place& a, const Place& b, LinkScope scope) {
        return env.profile.all_reduce_route({.gpu = a.gpu, .zone = a.zone, .ranks = ranks},
                                            {.gpu = b.gpu, .zone = b.zone, .ranks = ranks}, scope, replicas, rings);
      });
}

}  // namespace sailor::simulator
