#include "planner/baselines/flashflex_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace sailor::planner::baselines::flashflex_detail {

namespace {

constexpr double float_bytes = 4.0;
constexpr double gigabyte_binary = 1024.0 * 1024.0 * 1024.0;
constexpr double teraflop_binary = 1024.0 * gigabyte_binary;

/// src/machine_amounts.json: 2^40 FLOP/s, GiB, 2^30 bytes/s inside a node, in the order in which devices are listed.
struct Figures {
  const char* gpu;
  double teraflops;
  double memory;
  double node_bandwidth;
  /// For RTX types the peak FP32 of NVIDIA's data sheets (the 2080 with 11 GB is the Ti). The artifact's figures of
  /// these are not of the kind of the others: 1513 makes a 2080 Ti worth 25 GH200.
  double fixed_teraflops;
};
constexpr std::array<Figures, 7> figures{{{"A100-40", 19.5, 40.0, 248.88, 19.5},
                                          {"V100-16", 14.0, 16.0, 68.28, 14.0},
                                          {"A100-80", 19.5, 80.0, 243.21, 19.5},
                                          {"GH200-96", 60.0, 96.0, 125.46, 60.0},
                                          {"Titan-RTX", 1513.0, 24.0, 10.82, 16.3},
                                          {"RTX-2080", 1513.0, 11.0, 10.755, 13.4},
                                          {"RTX-3090", 250.0, 24.0, 49.77, 35.6}}};

/// Bytes of the activations that stages and tensor-parallel ranks exchange.
double boundary_bytes(const Shape& shape) { return shape.micro_batch * shape.sequence * shape.hidden * float_bytes; }

double compute_time(const std::vector<int>& stage, const Shape& shape, const Devices& devices) {
  return 72.0 * shape.micro_batch * shape.sequence * shape.hidden * shape.hidden *
         (1.0 + shape.sequence / (6.0 * shape.hidden) + shape.vocabulary / (16.0 * shape.layers * shape.hidden)) /
         (devices.list[stage.front()].flop_per_s * static_cast<double>(stage.size()));
}

double tensor_parallel_time(const std::vector<int>& stage, const Shape& shape, const Devices& devices) {
  double slowest = 0.0;
  for (const int from : stage) {
    double seconds = 0.0;
    for (const int to : stage)
      if (to != from)
        seconds += boundary_bytes(shape) / (static_cast<double>(stage.size()) * devices.between(from, to));
    slowest = std::max(slowest, seconds);
  }
  return 8.0 * slowest;
}

/// Time of a transfer to one device of the next stage, which sends it on to the others, and of the gradient back.
double transfer_time(const std::vector<int>& stage, const std::vector<int>& next, const Shape& shape,
                     const Devices& devices) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const int from : stage)
    for (const int to : next) {
      double broadcast = 0.0;
      for (const int other : next)
        if (other != to)
          broadcast += boundary_bytes(shape) / (static_cast<double>(next.size()) * devices.between(to, other));
      fastest = std::min(fastest, boundary_bytes(shape) / devices.between(from, to) + broadcast);
    }
  return 2.0 * fastest;
}

/// All-reduce time of one layer's gradients. Devices of a smaller group each stand for several of a larger one.
double reduction_time(const std::vector<const std::vector<int>*>& groups, const Shape& shape, const Devices& devices) {
  std::size_t smallest = groups.front()->size();
  std::size_t largest = smallest;
  for (const std::vector<int>* group : groups) {
    smallest = std::min(smallest, group->size());
    largest = std::max(largest, group->size());
  }
  const double bytes = 12.0 * shape.hidden * shape.hidden * float_bytes;
  double seconds = 0.0;
  for (std::size_t rank = 0; rank < largest / smallest; ++rank) {
    std::vector<int> members;
    for (const std::vector<int>* group : groups)
      members.push_back((*group)[std::min(rank / (largest / group->size()), group->size() - 1)]);
    double slowest = 0.0;
    for (const int from : members) {
      double sent = 0.0;
      for (const int to : members)
        if (to != from) sent += bytes / (static_cast<double>(smallest * members.size()) * devices.between(from, to));
      slowest = std::max(slowest, sent);
    }
    seconds += 2.0 * slowest;
  }
  return seconds;
}

}  // namespace

Result<Devices> list_devices(const std::vector<OfferedNodes>& nodes, const Inputs& inputs, Faults faults) {
  Devices devices;
  int node = 0;
  for (const Figures& type : figures)
    for (const OfferedNodes& offered : nodes) {
      if (offered.gpu != type.gpu) continue;
      for (int i = 0; i < offered.nodes; ++i, ++node)
        for (int gpu = 0; gpu < offered.gpus_per_node; ++gpu)
          devices.list.push_back(
              {.gpu = offered.gpu,
               .zone = offered.zone,
               .node = node,
               .gpus_per_node = offered.gpus_per_node,
               .flop_per_s = (faults == Faults::kept ? type.teraflops : type.fixed_teraflops) * teraflop_binary,
               .memory_gib = type.memory,
               .node_bandwidth = type.node_bandwidth * gigabyte_binary});
    }
  double slowest = std::numeric_limits<double>::infinity();
  for (const OfferedNodes& from : nodes) {
    if (std::none_of(figures.begin(), figures.end(), [&](const Figures& type) { return from.gpu == type.gpu; }))
      return fail(ErrorCode::not_found, fmt::format("FlashFlex has no figures (FLOP/s, memory, links) of {}", from.gpu),
                  "it knows A100-40, A100-80, V100-16, GH200-96, Titan-RTX, RTX-2080 and RTX-3090");
    for (const OfferedNodes& to : nodes) {
      const LinkCoefficients* link =
          inputs.inter(from.gpu, from.zone, from.gpus_per_node, to.gpu, to.zone, to.gpus_per_node);
      if (link == nullptr)
        return fail(
            ErrorCode::not_found,
            fmt::format("the profile has no link from {} in zone '{}' to {} in zone '{}' with {} and {} senders",
                        from.gpu, from.zone, to.gpu, to.zone, from.gpus_per_node, to.gpus_per_node),
            "FlashFlex needs the bandwidth between all GPU types");
      slowest = std::min(slowest, link->max_bandwidth / 1e9);
    }
  }
  devices.bandwidth = slowest * gigabyte_binary;
  return devices;
}

double pipeline_time(const Pipeline& pipeline, const Shape& shape, const Devices& devices) {
  std::vector<double> stages;
  for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
    const std::vector<int>& stage = pipeline.stages[i];
    const double transfer =
        i + 1 < pipeline.stages.size() ? transfer_time(stage, pipeline.stages[i + 1], shape, devices) : 0.0;
    stages.push_back(transfer + pipeline.layers[i] * (compute_time(stage, shape, devices) +
                                                      tensor_parallel_time(stage, shape, devices)));
  }
  const int count = static_cast<int>(stages.size());
  double seconds = 0.0;
  for (int slot = 0; slot < shape.micro_batches + count - 1; ++slot) {
    const int first = std::max(0, slot - shape.micro_batches + 1);
    const int last = std::min(slot, count - 1);
    seconds += *std::max_element(stages.begin() + first, stages.begin() + last + 1);
  }
  return seconds;
}

double iteration_time(const std::vector<Pipeline>& pipelines, const Shape& shape, const Devices& devices) {
  double slowest = 0.0;
  // The stage of each layer, by pipeline.
  std::vector<std::vector<int>> holders;
  for (const Pipeline& pipeline : pipelines) {
    slowest = std::max(slowest, pipeline_time(pipeline, shape, devices));
    std::vector<int>& stages = holders.emplace_back();
    for (std::size_t i = 0; i < pipeline.layers.size(); ++i)
      stages.insert(stages.end(), pipeline.layers[i], static_cast<int>(i));
  }
  double reduction = 0.0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    std::vector<const std::vector<int>*> groups;
    for (std::size_t i = 0; i < pipelines.size(); ++i)
      if (layer < static_cast<int>(holders[i].size())) groups.push_back(&pipelines[i].stages[holders[i][layer]]);
    if (!groups.empty()) reduction += reduction_time(groups, shape, devices);
  }
  return slowest + reduction;
}

double stage_memory(int layers, int degree, bool is_first, bool is_last, const Shape& shape) {
  const double hidden = shape.hidden;
  const double parameters = layers * 12.0 * hidden * hidden / degree +
                            (is_last ? hidden * (1.0 + shape.vocabulary) : 0.0) +
                            (is_first ? hidden * (shape.vocabulary + shape.sequence) : 0.0);
  const double activation = shape.micro_batch * shape.sequence * hidden;
  // Parameters, gradients and two states of the optimizer.
  return (4.0 * parameters + layers * activation / degree + 2.0 * activation) * float_bytes / gigabyte_binary;
}

}  // namespace sailor::planner::baselines::flashflex_detail
