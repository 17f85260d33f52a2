// The preflight's number of communicators against what the runtime would make.
#include <gtest/gtest.h>

#include <algorithm>

#include "preflight/communicators.hpp"
#include "runtime/gradient_groups.hpp"
#include "tests/unit/runtime_models.hpp"

namespace sailor::preflight {
namespace {

struct Part {
  int count = 1;
  std::vector<std::pair<int, int>> stages;  // layers, tensor-parallel degree
};

Plan plan_of(const Model& model, const std::vector<Part>& parts) {
  Plan plan;
  plan.job = {.model = model.name, .global_batch = 8, .sequence_length = 8};
  for (const Part& part : parts) {
    Pipeline pipeline{.count = part.count, .micro_batches = 1, .stages = {}};
    int first = 0;
    for (const auto& [layers, degree] : part.stages) {
      pipeline.stages.push_back({.layers = {first, first + layers}, .gpu = "cpu", .tensor_parallel = degree});
      first += layers;
    }
    plan.pipelines.push_back(std::move(pipeline));
  }
  return plan;
}

/// Of the rank with most: the groups it sums in, its tensor-parallel group, the world.
int made_by_runtime(const Plan& plan, const Model& model) {
  const runtime::ParameterMap map(plan, model);
  std::vector<int> of_rank(static_cast<std::size_t>(plan.ranks()), 1);
  for (const runtime::GradientGroup& group : map.groups())
    if (group.ranks.size() > 1)
      for (const int rank : group.ranks) ++of_rank[static_cast<std::size_t>(rank)];
  for (int rank = 0; rank < plan.ranks(); ++rank)
    if (map.degree(rank) > 1) ++of_rank[static_cast<std::size_t>(rank)];
  return *std::max_element(of_rank.begin(), of_rank.end());
}

TEST(CountCommunicators, IsWhatTheRuntimeMakes) {
  // All of 4 layers but LLaMA's may have more: the last stage takes the rest.
  const std::vector<std::vector<Part>> plans{
      {{1, {{4, 1}}}},
      {{3, {{4, 1}}}},
      {{2, {{2, 1}, {2, 1}}}},
      {{1, {{4, 2}}}},
      {{2, {{2, 2}, {2, 2}}}},
      {{1, {{2, 2}, {2, 1}}}, {1, {{2, 1}, {2, 2}}}},
      {{1, {{4, 4}}}, {2, {{1, 2}, {3, 1}}}},
      {{1, {{1, 1}, {1, 1}, {1, 1}, {1, 1}}}, {1, {{2, 2}, {2, 1}}}},
  };
  for (const Model& model : {runtime::test::gpt_model(), runtime::test::opt_model(), runtime::test::untied_model(),
                             runtime::test::llama_model()})
    for (std::size_t i = 0; i < plans.size(); ++i) {
      std::vector<Part> parts = plans[i];
      for (Part& part : parts) part.stages.back().first += model.layers() - 4;
      const Plan plan = plan_of(model, parts);
      EXPECT_EQ(count_communicators(plan, model).most_per_rank, made_by_runtime(plan, model))
          << model.name << ", plan " << i;
    }
}

}  // namespace
}  // namespace sailor::preflight
