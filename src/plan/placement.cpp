#include "plan/placement.hpp"

#include <fmt/format.h>

namespace sailor {

Result<std::vector<int>> nodes_of_ranks(const Plan& plan, const DevicesPerNode& devices) {
  std::vector<int> nodes;
  nodes.reserve(static_cast<std::size_t>(plan.ranks()));
  int node = -1;
  int free_devices = 0;
  std::string node_gpu;
  for (const Pipeline& pipeline : plan.pipelines)
    for (int copy = 0; copy < pipeline.count; ++copy)
      for (const Stage& stage : pipeline.stages) {
        const auto known = devices.find(stage.gpu);
        const int per_node = known == devices.end() ? 1 : known->second;
        if (stage.tensor_parallel > per_node && known != devices.end())
          return fail(ErrorCode::invalid_input, fmt::format("tensor_parallel {} needs more {} than the {} of one node",
                                                            stage.tensor_parallel, stage.gpu, per_node));
        if (stage.gpu != node_gpu || free_devices < stage.tensor_parallel) {
          ++node;
          node_gpu = stage.gpu;
          free_devices = std::max(per_node, stage.tensor_parallel);
        }
        free_devices -= stage.tensor_parallel;
        nodes.insert(nodes.end(), static_cast<std::size_t>(stage.tensor_parallel), node);
      }
  return nodes;
}

}  // namespace sailor
