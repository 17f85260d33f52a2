#include "plan/uniformity.hpp"

#include <gtest/gtest.h>

namespace sailor::uniformity_test {
namespace {

constexpr Uniformity all{.pipelines_alike = true, .one_tensor_parallel = true, .one_recompute = true};

Stage stage(int first, int last, int tensor_parallel = 2) {
  return {.layers = {first, last}, .gpu = "A100-40", .tensor_parallel = tensor_parallel};
}

Plan two_pipelines() {
  Plan plan;
  plan.micro_batch = 2;
  plan.pipelines = {{.micro_batches = 4, .stages = {stage(0, 3), stage(3, 6)}},
                    {.micro_batches = 4, .stages = {stage(0, 3), stage(3, 6)}}};
  return plan;
}

void expect_violation(const Plan& plan, const std::string& what, const std::string& pin) {
  EXPECT_FALSE(is_uniform(plan, all));
  const auto violation = find_non_uniformity(plan, all);
  ASSERT_TRUE(violation.has_value());
  EXPECT_EQ(violation->what, what);
  EXPECT_EQ(violation->pin, pin);
  EXPECT_TRUE(is_uniform(plan, {}));
}

TEST(Uniformity, PipelinesOnOtherGpusAndInOtherZonesAreAlike) {
  Plan plan = two_pipelines();
  plan.pipelines[1].stages[0].gpu = "V100-16";
  plan.pipelines[1].stages[1].zone = "b";
  EXPECT_TRUE(is_uniform(plan, all));
  EXPECT_FALSE(find_non_uniformity(plan, all).has_value());
}

TEST(Uniformity, EveryDifferenceIsNamedWithThePinThatRemovesIt) {
  Plan plan = two_pipelines();
  plan.pipelines[1].stages = {stage(0, 6)};
  expect_violation(plan, "pipeline 0 has 2 stages and pipeline 1 has 1", "pipeline_parallel=2");

  plan = two_pipelines();
  plan.pipelines[1].micro_batch = 1;
  expect_violation(plan, "pipeline 0 has 2 sequences in a micro-batch and pipeline 1 has 1", "micro_batch=2");

  plan = two_pipelines();
  plan.pipelines[1].micro_batches = 3;
  expect_violation(plan, "pipeline 0 has 4 micro-batches and pipeline 1 has 3",
                   "data_parallel=N, which divides the global batch");

  plan = two_pipelines();
  plan.pipelines[1].stages = {stage(0, 2), stage(2, 6)};
  expect_violation(plan, "stage 0 of pipeline 0 has the layers [0, 3) and stage 0 of pipeline 1 has [0, 2)",
                   "gpu=A100-40");

  plan = two_pipelines();
  plan.pipelines[0].stages[1].tensor_parallel = 4;
  expect_violation(plan, "stage 0 of pipeline 0 has the tensor-parallel degree 2 and stage 1 of pipeline 0 has 4",
                   "tensor_parallel=2");

  plan = two_pipelines();
  plan.pipelines[1].stages[1].recompute = Recompute::full;
  expect_violation(plan, "stage 0 of pipeline 0 has the recomputation none and stage 1 of pipeline 1 has full",
                   "recompute=full");
}

TEST(Uniformity, OnlyWhatIsWantedHasToBeEqual) {
  Plan plan = two_pipelines();
  for (Pipeline& pipeline : plan.pipelines) pipeline.stages[1].recompute = Recompute::full;
  EXPECT_TRUE(is_uniform(plan, {.pipelines_alike = true, .one_tensor_parallel = true}));
  EXPECT_FALSE(is_uniform(plan, {.one_recompute = true}));
  for (Pipeline& pipeline : plan.pipelines) pipeline.stages[1].tensor_parallel = 1;
  EXPECT_TRUE(is_uniform(plan, {.pipelines_alike = true}));
  EXPECT_FALSE(is_uniform(plan, {.one_tensor_parallel = true}));
}

}  // namespace
}  // namespace sailor::uniformity_test
