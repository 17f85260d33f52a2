#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "core/text.hpp"
#include "preflight/rank_facts.hpp"

namespace sailor::preflight {

namespace {

using nlohmann::ordered_json;

// One list of fields serves both directions: `fields(visit, facts)` calls visit(name, field) for each.

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, GpuFacts>
void fields(Visit&& visit, Facts& gpu) {
  visit("name", gpu.name);
  visit("uuid", gpu.uuid);
  visit("bus_id", gpu.bus_id);
  visit("memory_total_bytes", gpu.memory_total);
  visit("memory_used_bytes", gpu.memory_used);
  visit("temperature_celsius", gpu.temperature_celsius);
  visit("clock_hz", gpu.clock_hz);
  visit("highest_clock_hz", gpu.highest_clock_hz);
  visit("throttle_reasons", gpu.throttle_reasons);
  visit("uncorrected_errors", gpu.uncorrected_errors);
  visit("uncorrected_errors_ever", gpu.uncorrected_errors_ever);
  visit("retired_pages", gpu.retired_pages);
  visit("remapped_rows", gpu.remapped_rows);
  visit("repair_pending", gpu.repair_pending);
  visit("repair_failed", gpu.repair_failed);
  visit("compute_mode", gpu.compute_mode);
  visit("processes", gpu.processes);
  visit("mig", gpu.mig);
  visit("mig_pending", gpu.mig_pending);
  visit("power_limit_watts", gpu.power_limit_watts);
  visit("default_power_limit_watts", gpu.default_power_limit_watts);
  visit("nvlinks_up", gpu.nvlinks_up);
  visit("pcie_lanes", gpu.pcie_lanes);
  visit("highest_pcie_lanes", gpu.highest_pcie_lanes);
  visit("highest_pcie_generation", gpu.highest_pcie_generation);
  visit("unreadable_peers", gpu.unreadable_peers);
  visit("cores", gpu.cores);
  visit("xids", gpu.xids);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, NetworkPort>
void fields(Visit&& visit, Facts& port) {
  visit("name", port.name);
  visit("kind", port.kind);
  visit("is_up", port.is_up);
  visit("bits_per_s", port.bits_per_s);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, FabricProvider>
void fields(Visit&& visit, Facts& provider) {
  visit("name", provider.name);
  visit("domains", provider.domains);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, WriteSpeed>
void fields(Visit&& visit, Facts& writing) {
  visit("folder", writing.folder);
  visit("amount_bytes", writing.amount);
  visit("bytes_per_s", writing.bytes_per_s);
  visit("problem", writing.problem);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, Space>
void fields(Visit&& visit, Facts& space) {
  visit("what", space.what);
  visit("path", space.path);
  visit("free_bytes", space.free);
  visit("can_write", space.can_write);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, Variable>
void fields(Visit&& visit, Facts& variable) {
  visit("name", variable.name);
  visit("wanted", variable.wanted);
  visit("value", variable.value);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, Version>
void fields(Visit&& visit, Facts& version) {
  visit("name", version.name);
  visit("value", version.value);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, Unknown>
void fields(Visit&& visit, Facts& unknown) {
  visit("check", unknown.check);
  visit("why", unknown.why);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, PlannedRank>
void fields(Visit&& visit, Facts& planned) {
  visit("gpu", planned.gpu);
  visit("on_gpu", planned.on_gpu);
  visit("pipeline", planned.pipeline);
  visit("stage", planned.stage);
  visit("tensor_parallel_index", planned.tensor_parallel_index);
  visit("memory_bytes", planned.memory);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, RankSpeed>
void fields(Visit&& visit, Facts& speed) {
  visit("flop_per_s", speed.flop_per_s);
  visit("flop_per_cpu_s", speed.flop_per_cpu_s);
  visit("bytes_per_s", speed.bytes_per_s);
  visit("bytes_per_cpu_s", speed.bytes_per_cpu_s);
  visit("core_share", speed.core_share);
}

template <class Visit, class Facts>
requires std::is_same_v<std::remove_const_t<Facts>, RankFacts>
void fields(Visit&& visit, Facts& facts) {
  visit("rank", facts.rank);
  visit("local_rank", facts.local_rank);
  visit("host", facts.host);
  visit("node", facts.node);
  visit("gres_type", facts.gres_type);
  visit("cpu", facts.cpu);
  visit("cores_online", facts.cores_online);
  visit("cores", facts.cores);
  visit("numa_nodes", facts.numa_nodes);
  visit("numa_nodes_with_cores", facts.numa_nodes_with_cores);
  visit("memory_nodes", facts.memory_nodes);
  visit("bound_memory_nodes", facts.bound_memory_nodes);
  visit("highest_clock_hz", facts.highest_clock_hz);
  visit("allowed_clock_hz", facts.allowed_clock_hz);
  visit("thermal_throttles", facts.thermal_throttles);
  visit("throttles_while_measuring", facts.throttles_while_measuring);
  visit("corrected_memory_errors", facts.corrected_memory_errors);
  visit("uncorrected_memory_errors", facts.uncorrected_memory_errors);
  visit("busy_cores", facts.busy_cores);
  visit("memory_total_bytes", facts.memory_total);
  visit("memory_available_bytes", facts.memory_available);
  visit("visible_gpus", facts.visible_gpus);
  visit("step_gpus", facts.step_gpus);
  visit("gpus_of_job", facts.gpus_of_job);
  visit("gpus_of_node", facts.gpus_of_node);
  visit("has_driver", facts.has_driver);
  visit("by_nvml", facts.by_nvml);
  visit("gpus", facts.gpus);
  visit("ports", facts.ports);
  visit("providers", facts.providers);
  visit("spaces", facts.spaces);
  visit("versions", facts.versions);
  visit("variables", facts.variables);
  visit("planned", facts.planned);
  visit("plan_problem", facts.plan_problem);
  visit("speed", facts.speed);
  visit("writing", facts.writing);
  visit("unknown", facts.unknown);
}

struct Ignore {
  template <class T>
  void operator()(const char*, T&) const {}
};
template <class T>
concept HasFields = requires(T& value) {
  fields(Ignore(), value);
};

ordered_json write(const std::string& value) { return valid_utf8(value); }
ordered_json write(Bytes value) { return value.value(); }
template <class T>
requires std::is_arithmetic_v<T> ordered_json write(T value) { return value; }
template <HasFields T>
ordered_json write(const T& value);
template <class T>
ordered_json write(const std::optional<T>& value);
template <class T>
ordered_json write(const std::vector<T>& values) {
  ordered_json array = ordered_json::array();
  for (const T& value : values) array.push_back(write(value));
  return array;
}
template <class T>
ordered_json write(const std::optional<T>& value) {
  return value ? write(*value) : ordered_json();
}
template <HasFields T>
ordered_json write(const T& value) {
  ordered_json object = ordered_json::object();
  fields([&](const char* name, const auto& field) { object[name] = write(field); }, value);
  return object;
}

// These throw what nlohmann::json throws.
void read(const ordered_json& json, Bytes& value) { value = Bytes(json.get<double>()); }
template <class T>
requires std::is_arithmetic_v<T> || std::is_same_v<T, std::string>
void read(const ordered_json& json, T& value) { value = json.get<T>(); }
template <HasFields T>
void read(const ordered_json& json, T& value);
template <class T>
void read(const ordered_json& json, std::optional<T>& value);
template <class T>
void read(const ordered_json& json, std::vector<T>& values) {
  for (const ordered_json& element : json) read(element, values.emplace_back());
}
template <class T>
void read(const ordered_json& json, std::optional<T>& value) {
  if (!json.is_null()) read(json, value.emplace());
}
template <HasFields T>
void read(const ordered_json& json, T& value) {
  fields([&](const char* name, auto& field) { read(json.at(name), field); }, value);
}

}  // namespace

std::string to_json_text(const RankFacts& facts) { return write(facts).dump(); }

Result<RankFacts> rank_facts_from_json(const std::string& text) {
  try {
    RankFacts facts;
    read(ordered_json::parse(text), facts);
    return facts;
  } catch (const std::exception& error) {
    return fail(ErrorCode::invalid_input, fmt::format("the facts of a rank cannot be read: {}", error.what()),
                "is it the same Sailor on all nodes?");
  }
}

}  // namespace sailor::preflight
