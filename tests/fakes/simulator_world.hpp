// tiny-gpt (an embedding, four blocks, a head) on nodes of one core each, with the measurements of round_numbers.hpp:
// input of the simulator's and the planner's tests.
#pragma once

#include <functional>
#include <vector>

#include "cluster/cluster.hpp"
#include "planner/planner.hpp"
#include "simulator/simulator.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor::testing {

/// Parameters: 128 wide, feed-forward 512, 256 tokens, 128 positions. round_numbers_profile() has others.
namespace tiny_gpt {
inline constexpr double tied = 256 * 128;
inline constexpr double positions = 128 * 128;
// Four attention matrices and two of the feed-forward part with their biases, two norms.
inline constexpr double block = 4 * (128 * 128 + 128) + 2 * 128 * 512 + 512 + 128 + 2 * 2 * 128;
inline constexpr double head = 2 * 128;
}  // namespace tiny_gpt

/// Members are there to be changed. Under the framework description of Sailor's own runtime transfers block and
/// gradients are reduced after the last backward pass.
struct World {
  World() {
    cluster = parse_cluster(R"(schema_version = 1
name = "test"
[[partitions]]
name = "normal"
[[nodes]]
count = 4
gpu = "cpu"
gpus_per_node = 1
memory_per_node_bytes = 1e9
partitions = ["normal"]
)",
                            "c.toml", gpus)
                  .value();
  }

  /// `count` pipelines of stages with these layers.
  static Plan plan(int count, const std::vector<LayerRange>& ranges, int micro_batches) {
    Plan plan;
    plan.job = {.model = "tiny-gpt",
                .global_batch = count * micro_batches,
                .sequence_length = 64,
                .precision = Precision::fp32,
                .optimizer = Optimizer::adamw};
    Pipeline pipeline{.count = count, .micro_batches = micro_batches, .stages = {}};
    for (const LayerRange& range : ranges) pipeline.stages.push_back({.layers = range, .gpu = "cpu"});
    plan.pipelines.push_back(pipeline);
    return plan;
  }

  /// Adds the pipelines of another plan.
  static Plan join(Plan plan, const Plan& other) {
    plan.pipelines.insert(plan.pipelines.end(), other.pipelines.begin(), other.pipelines.end());
    plan.job.global_batch += other.job.global_batch;
    return plan;
  }

  [[nodiscard]] simulator::Environment environment(const Profile& profile) const {
    return {.model = model,
            .profile = profile,
            .gpus = gpus,
            .framework = framework,
            .cluster = &cluster,
            .measured_only = measured_only};
  }
  [[nodiscard]] Result<simulator::Prediction> predict(const Plan& plan, Timeline* timeline = nullptr) const {
    const Profile profile(data);
    return simulator::simulate(plan, environment(profile), timeline);
  }
  [[nodiscard]] Result<planner::SearchResult> search(
      const planner::Request& request, const std::function<void(const planner::SearchProgress&)>& progress = {}) const {
    const Profile profile(data);
    return planner::find_plans(request, environment(profile), progress);
  }

  /// An all-reduce between cores of different nodes, of any size.
  void add_all_reduce(int ranks, double seconds) {
    for (const double bytes : {1.0, 1e12})
      data.links.push_back({.key = {.from = {.gpu = "cpu"},
                                    .to = {.gpu = "cpu"},
                                    .scope = LinkScope::inter_node,
                                    .operation = LinkOperation::all_reduce,
                                    .ranks = ranks},
                            .message = Bytes(bytes),
                            .time = exactly(seconds)});
  }

  /// Nodes of four cores, and what was measured for one rank also for groups of 2 and 4.
  void add_tensor_parallel() {
    cluster.groups[0].gpus_per_node = 4;
    const std::size_t rows = data.layer_times.size();
    for (const int degree : {2, 4})
      for (std::size_t i = 0; i < rows; ++i) {
        data.layer_times.push_back(data.layer_times[i]);
        data.layer_memory.push_back(data.layer_memory[i]);
        data.layer_times.back().key.tensor_parallel = degree;
        data.layer_memory.back().key.tensor_parallel = degree;
      }
  }

  /// Instead of all links. Between nodes each pair of ranks has 65,536 bytes per second, on which the 32,768 bytes that
  /// cross a boundary take 0.5 s; all-reduces inside a node take 0.1 s over two ranks, 0.2 s over four.
  void set_proportional_links() {
    data.links.clear();
    for (const double bytes : {1.0, 1e12}) {
      for (const int pairs : {1, 2, 4})
        data.links.push_back({.key = {.from = {.gpu = "cpu", .ranks = pairs},
                                      .to = {.gpu = "cpu", .ranks = pairs},
                                      .scope = LinkScope::inter_node},
                              .message = Bytes(bytes),
                              .time = exactly(bytes / 65536.0)});
      for (const int ranks : {2, 4})
        data.links.push_back({.key = {.from = {.gpu = "cpu"},
                                      .to = {.gpu = "cpu"},
                                      .scope = LinkScope::intra_node,
                                      .operation = LinkOperation::all_reduce,
                                      .ranks = ranks},
                              .message = Bytes(bytes),
                              .time = exactly(0.05 * ranks)});
    }
  }

  Model model = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
  GpuCatalogue gpus = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  simulator::Framework framework =
      simulator::load_framework(SAILOR_SOURCE_DIR "/profiles/frameworks/sailor.toml").value();
  Cluster cluster;
  bool measured_only = false;
  ProfileData data = round_numbers_profile();
};

}  // namespace sailor::testing
