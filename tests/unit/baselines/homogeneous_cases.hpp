// The published inputs of the figures for planners of one GPU type, and the 15 runs on GH200 nodes of figures 5a and
// 5b (github.com/eth-easl/sailor, simulations/validation/clariden/OPT-350).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/baselines/baseline.hpp"
#include "tests/fakes/published_profiles.hpp"

namespace sailor::planner::baselines {

inline const Inputs& published_inputs() {
  static const Model model = testing::published_model("OPT-350");
  static const Inputs inputs = Inputs::build(testing::published_job("OPT-350", 1024), model, testing::published(),
                                             testing::published_gpus())
                                   .value();
  return inputs;
}

inline Problem problem_of(std::vector<Offer> offers, Faults faults, int batch = 1024) {
  Problem problem{.inputs = published_inputs(), .job = testing::published_job("OPT-350", batch)};
  problem.offers = std::move(offers);
  problem.faults = faults;
  return problem;
}

inline Offer offer_of(const std::string& gpu, int gpus, const std::string& zone = "us-central1-a") {
  return {gpu, zone, gpus, 4};
}

/// A run on GH200 nodes with tensor parallel 4, its layers as the plan files of the artifact divide them.
struct ValidationRun {
  int nodes;
  int batch;
  int replicas;
  int stages;
  int micro_batch;
};

inline const std::vector<ValidationRun>& validation_runs() {
  static const std::vector<ValidationRun> runs{
      {1, 1, 1, 1, 1},    {1, 32, 1, 1, 1},    {2, 32, 1, 2, 8},    {2, 32, 2, 1, 2},    {4, 64, 1, 4, 1},
      {4, 64, 2, 2, 1},   {4, 128, 4, 1, 4},   {8, 512, 2, 4, 8},   {8, 512, 4, 2, 8},   {16, 1024, 16, 1, 8},
      {16, 1024, 4, 4, 8}, {16, 1024, 8, 2, 8}, {32, 1024, 16, 2, 8}, {32, 1024, 32, 1, 8}, {32, 1024, 8, 4, 8}};
  return runs;
}

inline PlanList validation_plan(const ValidationRun& run) {
  static const std::map<int, std::vector<int>> layers{{1, {26}}, {2, {12, 14}}, {4, {5, 7, 7, 7}}};
  PlanList plan;
  plan.micro_batch = run.micro_batch;
  ListPipeline pipeline;
  int first = 0;
  for (const int count : layers.at(run.stages)) {
    const Replica replica{{{"GH200-96", 4, "us-central1-a"}}, 4};
    pipeline.stages.push_back({{first, first + count}, std::vector<Replica>(static_cast<std::size_t>(run.replicas), replica)});
    first += count;
  }
  plan.pipelines.push_back(pipeline);
  return plan;
}

}  // namespace sailor::planner::baselines
