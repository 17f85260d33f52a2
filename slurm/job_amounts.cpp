#include "slurm/job_amounts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/terminal.hpp"
#include "core/text.hpp"

namespace sailor::slurm {

namespace {

// Margin for a CPU rank beyond its prediction: what libraries allocate besides tensors differs among clusters.
constexpr double cpu_memory_factor = 1.2;
constexpr Bytes cpu_memory_reserve = 256.0 * mib;
// A process with a CUDA context, NCCL's buffers and pinned memory for the data.
constexpr Bytes gpu_process_memory = 4.0 * gib;

/// GPUs of a node that count as the job's.
int gpus_on_node(const NodeRequest& request, const JobComponent& component, bool whole_nodes, const NodeSize& node) {
  if (whole_nodes) return node.gpus;
  return request.device_kind == DeviceKind::gpu ? component.tasks_per_node : 0;
}

int ceiling(Bytes amount, Bytes unit) { return static_cast<int>(std::min(std::ceil(amount / unit), 1e9)); }

/// Slurm counts whole MiB.
Bytes whole_mib(Bytes amount) { return std::ceil(amount / mib) * mib; }

/// Max memory that a job may have of a node.
Bytes most_memory(const NodeSize& node, const Partition* partition) {
  Bytes most = node.memory;
  const auto lower = [&](Bytes limit) { most = most > Bytes(0) ? std::min(most, limit) : limit; };
  if (partition != nullptr && partition->most_memory_per_node) lower(*partition->most_memory_per_node);
  if (partition != nullptr && partition->most_memory_per_cpu && node.cpus > 0)
    lower(*partition->most_memory_per_cpu * node.cpus);
  return most;
}

std::vector<NodeGroup> groups_of(const Cluster& cluster, const std::string& partition) {
  return cluster.usable(split(partition, ','), Availability::all);
}

}  // namespace

NodeSize node_size(const Cluster& cluster, const std::string& partition, const GpuType& device) {
  NodeSize size;
  bool first = true;
  for (const NodeGroup& group : groups_of(cluster, partition)) {
    if (group.gpu != device.name) continue;
    const int gpus = device.kind == DeviceKind::gpu ? group.gpus_per_node : 0;
    size.cpus = first ? group.cpus_per_node : std::min(size.cpus, group.cpus_per_node);
    size.gpus = first ? gpus : std::min(size.gpus, gpus);
    size.memory = first ? group.memory_per_node : std::min(size.memory, group.memory_per_node);
    size.gpu_type = group.gres_type;
    first = false;
  }
  return size;
}

std::string gres_type_to_ask_for(const Cluster& cluster, const std::string& partition, const std::string& device) {
  std::string type;
  bool others = !cluster.left_out_of(split(partition, ',')).empty();
  for (const NodeGroup& group : groups_of(cluster, partition)) {
    if (group.gpu == device)
      type = group.gres_type;
    else
      others = true;
  }
  return others ? type : "";
}

Bytes host_memory_of_rank(DeviceKind kind, Bytes peak) {
  return kind == DeviceKind::gpu ? peak + gpu_process_memory : peak * cpu_memory_factor + cpu_memory_reserve;
}

void choose_memory(NodeRequest& request, std::optional<Bytes> site_memory, std::optional<Bytes> peak,
                   int ranks_per_node, bool whole_nodes, const NodeSize& node, const Partition* partition) {
  if (request.memory_per_cpu || request.memory_reason == MemoryReason::given) return;
  const Bytes most = most_memory(node, partition);
  const bool on_gpu = request.device_kind == DeviceKind::gpu;
  const auto all_of_it = [&](MemoryReason reason) {
    request.memory_reason = reason;
    // --mem=0 is refused where the partition allows less than the nodes have.
    request.memory_per_node = most < node.memory ? std::floor(most / mib) * mib : Bytes(0);
  };
  if (on_gpu && site_memory) {
    request.memory_reason = MemoryReason::site;
    request.memory_per_node = most > Bytes(0) ? std::min(*site_memory, std::floor(most / mib) * mib) : *site_memory;
  } else if (peak && *peak > Bytes(0)) {
    const Bytes rank = host_memory_of_rank(request.device_kind, *peak) + request.copies_of_rank;
    request.memory_reason = MemoryReason::predicted;
    const Bytes there = std::floor(most / mib) * mib;
    const bool too_much = there >= mib && rank * ranks_per_node > there;
    if (too_much) request.memory_reason = MemoryReason::all_there;
    if (!on_gpu)
      request.memory_per_cpu =
          too_much ? std::floor(there / (std::max(node.cpus, 1) * mib)) * mib : rank / request.cpus_per_rank;
    else if (too_much)
      all_of_it(MemoryReason::all_there);
    else
      request.memory_per_rank = rank;
  } else if (on_gpu && whole_nodes) {
    all_of_it(MemoryReason::whole_nodes);
  }
}

Result<NodeGrant> grant_of(const NodeRequest& request, const JobComponent& component, bool whole_nodes,
                           const NodeSize& node, const Partition* partition) {
  NodeGrant grant{.cpus = component.tasks_per_node * request.cpus_per_rank, .memory = node.memory};
  const int asked_cpus = grant.cpus;
  if (whole_nodes) grant.cpus = std::max(grant.cpus, node.cpus);
  const Partition none;
  const Partition& limits = partition == nullptr ? none : *partition;
  const int gpus = gpus_on_node(request, component, whole_nodes, node);
  if (request.memory_per_node)
    grant.memory = *request.memory_per_node > Bytes(0) ? whole_mib(*request.memory_per_node) : node.memory;
  else if (request.memory_per_rank)
    grant.memory = whole_mib(*request.memory_per_rank * component.tasks_per_node);
  else if (request.memory_per_cpu)
    grant.memory = whole_mib(*request.memory_per_cpu) * grant.cpus;
  else if (limits.default_memory_per_gpu && gpus > 0)
    grant.memory = *limits.default_memory_per_gpu * gpus;
  else if (limits.default_memory_per_node)
    grant.memory = *limits.default_memory_per_node;
  else if (limits.default_memory_per_cpu)
    grant.memory = *limits.default_memory_per_cpu * grant.cpus;
  const auto refuse = [&](Bytes limit, std::string_view of) {
    return fail(ErrorCode::invalid_input, fmt::format("the job asks for {} of a node's memory, {} {}",
                                                      format_bytes(grant.memory), of, format_bytes(limit)));
  };
  if (node.memory > Bytes(0) && grant.memory > node.memory) return refuse(node.memory, "the nodes have");
  if (limits.most_memory_per_node && grant.memory > *limits.most_memory_per_node)
    return refuse(*limits.most_memory_per_node, fmt::format("partition '{}' allows", limits.name));
  // A job with more memory than its CPUs may have gets more CPUs from Slurm.
  if (limits.most_memory_per_cpu && *limits.most_memory_per_cpu > Bytes(0)) {
    const Bytes wanted =
        whole_nodes && request.memory_per_cpu ? whole_mib(*request.memory_per_cpu) * asked_cpus : grant.memory;
    const int cpus = ceiling(wanted, *limits.most_memory_per_cpu);
    if (node.cpus > 0 && cpus > node.cpus)
      return refuse(*limits.most_memory_per_cpu * node.cpus, fmt::format("partition '{}' allows", limits.name));
    grant.cpus = std::max(grant.cpus, cpus);
  }
  return grant;
}

std::int64_t billing_of(const Tres& amounts, std::string_view weights, bool takes_largest) {
  double sum = 0.0;
  double largest = 0.0;
  bool any = false;
  for (const std::string& word : split(weights, ',')) {
    const std::size_t equals = word.rfind('=');
    if (equals == std::string::npos) continue;
    const std::string name = to_lower(std::string_view(word).substr(0, equals));
    double weight = 0.0;
    const char* const end = word.data() + word.size();
    const auto [rest, problem] = std::from_chars(word.data() + equals + 1, end, weight);
    if (problem != std::errc()) continue;
    any = true;
    // "0.25G" is a weight per GiB, while Slurm counts MiB.
    if (rest != end)
      if (const std::size_t power = std::string_view("KMGTPE").find(*rest); power != std::string_view::npos)
        weight /= std::pow(1024.0, static_cast<double>(power) - (name == "mem" ? 1.0 : -1.0));
    const double value = weight * static_cast<double>(amount_of(amounts, name));
    const bool on_nodes = name == "cpu" || name == "mem" || name == "node" || name.starts_with("gres/");
    if (takes_largest && on_nodes)
      largest = std::max(largest, value);
    else
      sum += value;
  }
  return any ? static_cast<std::int64_t>(sum + largest) : amount_of(amounts, "cpu");
}

Tres amounts_of(const NodeRequest& request, const JobComponent& component, bool whole_nodes, const NodeSize& node,
                const NodeGrant& grant, const Partition* partition, bool billing_takes_largest) {
  Tres amounts;
  const std::int64_t nodes = component.nodes;
  amounts["node"] = nodes;
  // A packed component has fewer tasks on its last node.
  const std::int64_t asked = std::int64_t{component.tasks} * request.cpus_per_rank;
  const bool as_asked = grant.cpus == component.tasks_per_node * request.cpus_per_rank;
  amounts["cpu"] = as_asked && !whole_nodes ? asked : nodes * grant.cpus;
  if (grant.memory > Bytes(0)) {
    const auto memory = static_cast<std::int64_t>(std::ceil(grant.memory / mib));
    amounts["mem"] = request.memory_per_cpu && as_asked && !whole_nodes
                         ? asked * static_cast<std::int64_t>(std::ceil(*request.memory_per_cpu / mib))
                         : nodes * memory;
  }
  if (const int gpus = gpus_on_node(request, component, whole_nodes, node); gpus > 0) {
    amounts["gres/gpu"] = nodes * gpus;
    // Limits on a type count only what is asked for by type, or comes with a whole node.
    const std::string& type = whole_nodes && request.gres_type.empty() ? node.gpu_type : request.gres_type;
    if (!type.empty()) amounts["gres/gpu:" + type] = nodes * gpus;
  }
  amounts["billing"] = billing_of(amounts, partition == nullptr ? std::string_view() : partition->billing_weights,
                                  billing_takes_largest);
  return amounts;
}

}  // namespace sailor::slurm
