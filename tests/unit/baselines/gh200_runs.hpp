// The runs of OPT-350M on GH200 nodes that the authors of Sailor published (github.com/eth-easl/sailor, commit 16eebd4,
// MIT licence, clariden validation): one node of 4 GPUs, tensor parallel 4, for every replica of a stage. And what
// the artifact's own code answered for two planners' cost models (seconds; GB of 1e9 bytes).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "planner/baselines/plan_list.hpp"

namespace sailor::testing {

struct Gh200Run {
  int global_batch;
  int replicas;
  int stages;
  int micro_batch;
  double metis_s;
  double metis_gb;
  double flashflex_s;
  double flashflex_gb;
};

inline constexpr std::array<Gh200Run, 15> gh200_runs{{{1, 1, 1, 1, 0.1157, 4.919, 0.0320, 7.150},
                                                      {32, 1, 1, 1, 2.6736, 4.919, 1.0232, 7.150},
                                                      {32, 1, 2, 8, 0.6358, 14.168, 0.6711, 2.837},
                                                      {32, 2, 1, 2, 0.7469, 7.764, 0.5146, 7.385},
                                                      {64, 1, 4, 1, 1.5646, 1.511, 0.5916, 1.207},
                                                      {64, 2, 2, 1, 1.5261, 2.716, 0.5690, 2.308},
                                                      {128, 4, 1, 4, 1.0495, 13.454, 1.0277, 7.855},
                                                      {512, 2, 4, 8, 2.2529, 7.618, 2.4651, 1.428},
                                                      {512, 4, 2, 8, 2.1866, 14.168, 2.3285, 2.837},
                                                      {1024, 16, 1, 8, 1.8886, 24.832, 2.0521, 8.794},
                                                      {1024, 4, 4, 8, 2.2536, 7.618, 2.4666, 1.428},
                                                      {1024, 8, 2, 8, 2.1872, 14.168, 2.3293, 2.837},
                                                      {1024, 16, 2, 8, 1.1559, 14.168, 1.2277, 2.837},
                                                      {1024, 32, 1, 8, 0.9653, 24.832, 1.0291, 8.794},
                                                      {1024, 8, 4, 8, 1.2159, 7.618, 1.3319, 1.428}}};

inline planner::baselines::PlanList list_of(const Gh200Run& run) {
  using namespace planner::baselines;
  const std::vector<std::vector<int>> boundaries{{}, {0, 26}, {0, 12, 26}, {}, {0, 5, 12, 19, 26}};
  PlanList list{.pipelines = {{}}, .micro_batch = run.micro_batch};
  for (int stage = 0; stage < run.stages; ++stage) {
    const Replica replica{.machines = {{.gpu = "GH200-96", .gpus_per_node = 4, .zone = "us-central1-a"}},
                          .tensor_parallel = 4};
    list.pipelines.front().stages.push_back(
        {.layers = {boundaries[run.stages][stage], boundaries[run.stages][stage + 1]},
         .replicas = std::vector<Replica>(run.replicas, replica)});
  }
  return list;
}

}  // namespace sailor::testing
