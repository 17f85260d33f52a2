// How long it takes to give ranks their places: on given nodes, and as one task of a job step does it for itself.
//
//   $ build/tests/bench_placement
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "plan/node_placement.hpp"
#include "slurm/task_role.hpp"

namespace {

using namespace sailor;

/// Pipelines of 4 stages on 4 GPUs each, and as many of 2 stages on 2 and on 4, on nodes of 4 behind switches of 16.
Plan plan_of(int ranks) {
  Plan plan;
  const auto stage = [](int tensor_parallel) {
    Stage made;
    made.gpu = "GH200-96";
    made.tensor_parallel = tensor_parallel;
    return made;
  };
  const int of_each = ranks / 22;
  plan.pipelines.resize(2);
  plan.pipelines[0] = {.count = of_each, .micro_batches = 8, .stages = {stage(4), stage(4), stage(4), stage(4)}};
  plan.pipelines[1] = {.count = of_each, .micro_batches = 8, .stages = {stage(2), stage(4)}};
  return plan;
}

std::vector<PlacementNode> nodes_for(const Plan& plan) {
  std::vector<PlacementNode> nodes;
  for (int i = 0; i < plan.ranks() / 4 + 1; ++i)
    nodes.push_back({.name = "nid" + std::to_string(100000 + i),
                     .gpu = "GH200-96",
                     .devices = 4,
                     .leaf_switch = "s" + std::to_string(i / 16)});
  return nodes;
}

void place(benchmark::State& state) {
  const Plan plan = plan_of(static_cast<int>(state.range(0)));
  const std::vector<PlacementNode> nodes = nodes_for(plan);
  for (auto _ : state) benchmark::DoNotOptimize(place_on_nodes(plan, nodes));
  state.counters["ranks"] = plan.ranks();
}
BENCHMARK(place)->Arg(100)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);

void role_of_a_task(benchmark::State& state) {
  Plan plan = plan_of(static_cast<int>(state.range(0)));
  plan.pipelines[1].stages[0].tensor_parallel = 4;  // nodes that are all full
  slurm::Step step;
  for (const PlacementNode& node : nodes_for(plan))
    step.nodes.push_back({.name = node.name, .tasks = 4, .gres_type = "gh200", .leaf_switch = node.leaf_switch});
  step.nodes.pop_back();
  for (auto _ : state) benchmark::DoNotOptimize(find_role(plan, step, nullptr));
  state.counters["ranks"] = plan.ranks();
}
BENCHMARK(role_of_a_task)->Arg(100)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
