#include "plan/placement.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sailor {

Result<void> nodes_of_stages(const Plan& plan, const DevicesPerNode& devices, std::vector<int>& nodes) {
  nodes.clear();
  int node = -1;
  int free_devices = 0;
  const Stage* before = nullptr;
  for (const Pipeline& pipeline : plan.pipelines) {
    for (const Stage& stage : pipeline.stages) {
      const auto known = devices.find(stage.gpu);
      if (known != devices.end() && stage.tensor_parallel > known->second)
        return fail(ErrorCode::invalid_input, fmt::format("tensor_parallel {} needs more {} than the {} of one node",
                                                          stage.tensor_parallel, stage.gpu, known->second));
    }
    for (int copy = 0; copy < pipeline.count; ++copy)
      for (const Stage& stage : pipeline.stages) {
        const bool same =
            before == &stage || (before != nullptr && stage.gpu == before->gpu && stage.zone == before->zone);
        before = &stage;
        if (!same || free_devices < stage.tensor_parallel) {
          ++node;
          const auto known = devices.find(stage.gpu);
          free_devices = std::max(known == devices.end() ? 1 : known->second, stage.tensor_parallel);
        }
        free_devices -= stage.tensor_parallel;
        nodes.push_back(node);
      }
  }
  return {};
}

Result<std::vector<int>> nodes_of_stages(const Plan& plan, const DevicesPerNode& devices) {
  std::vector<int> nodes;
  SAILOR_CHECK(nodes_of_stages(plan, devices, nodes));
  return nodes;
}

Result<std::vector<int>> nodes_of_ranks(const Plan& plan, const DevicesPerNode& devices) {
  const auto stages = nodes_of_stages(plan, devices);
  if (!stages) return fail(stages.error());
  std::vector<int> nodes;
  nodes.reserve(static_cast<std::size_t>(plan.ranks()));
  std::size_t next = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (int copy = 0; copy < pipeline.count; ++copy)
      for (const Stage& stage : pipeline.stages)
        nodes.insert(nodes.end(), static_cast<std::size_t>(stage.tensor_parallel), (*stages)[next++]);
  return nodes;
}

}  // namespace sailor
