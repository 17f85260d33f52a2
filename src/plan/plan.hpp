// The plan: which ranks hold which layers, on which GPUs, and how the batch is divided among them.
//
// A plan is a set of pipelines. Each pipeline is a chain of stages that together hold every layer once;
// each stage is one tensor-parallel group, or several of them that divide the sequence (context parallelism).
// Pipelines may differ in everything; replicas of a layer in different pipelines sum their gradients. Identical
// pipelines are folded with a `count`.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "model/model.hpp"

namespace sailor {

class TomlTable;

/// fp8: bf16, but the linear layers of blocks multiply numbers of 8 bits (Micikevicius et al. 2022).
enum class Precision { fp32, tf32, bf16, fp16, fp8 };
inline constexpr std::array all_precisions{Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16,
                                           Precision::fp8};
enum class Optimizer { adamw };
enum class Schedule { one_f_one_b, gpipe, interleaved_1f1b };
enum class Recompute { none, selective, full };
/// zero1: each replica of a layer keeps and updates its share of the optimizer state (ZeRO stage 1, Rajbhandari et al.
/// 2020); gradients are reduce-scattered and the updated weights all-gathered. zero2: each replica also keeps only its
/// share of the gradients. zero3: and of the weights, which are all-gathered layer by layer for every pass (fully
/// sharded data parallelism); gradients are reduce-scattered in every backward pass.
enum class OptimizerSharding { none, zero1, zero2, zero3 };
constexpr bool shards_gradients(OptimizerSharding sharding) { return sharding >= OptimizerSharding::zero2; }
constexpr bool shards_weights(OptimizerSharding sharding) { return sharding == OptimizerSharding::zero3; }
/// Which nodes are placed at one leaf switch (or in one block) first, if not all of a plan's nodes fit there: those of
/// the stages of a pipeline, or of the replicas of a stage, which sum their gradients.
enum class KeepTogether { pipelines, replicas };

/// Bytes of an activation value, as it is kept and sent across a stage boundary.
constexpr double value_bytes(Precision precision) {
  return precision == Precision::fp32 || precision == Precision::tf32 ? 4.0 : 2.0;
}

std::string_view to_string(Precision precision);
std::string_view to_string(Optimizer optimizer);
std::string_view to_string(Schedule schedule);
std::string_view to_string(Recompute recompute);
std::string_view to_string(OptimizerSharding sharding);
std::string_view to_string(KeepTogether what);
Result<Precision> parse_precision(std::string_view text);
/// Names of all precisions, for options.
std::vector<std::string> precision_choices();
/// Errors (unavailable): devices of this kind do not compute in this precision.
Result<void> check_precision(Precision precision, bool on_gpus);
Result<Schedule> parse_schedule(std::string_view text);
Result<OptimizerSharding> parse_optimizer_sharding(std::string_view text);

/// What is to be trained, independent of where.
struct TrainingJob {
  std::string model;        ///< name of a model
  int global_batch = 0;     ///< sequences per iteration
  int sequence_length = 0;  ///< tokens per sequence
  Precision precision = Precision::fp32;
  Optimizer optimizer = Optimizer::adamw;
  /// Number of tokens per iteration.
  [[nodiscard]] double tokens() const { return static_cast<double>(global_batch) * sequence_length; }
};

/// One tensor-parallel group (Plan::context_parallel of them) and the layers it holds.
struct Stage {
  LayerRange layers;
  /// Under interleaved-1f1b a stage holds several chunks of layers (Narayanan et al. 2021, section 2.2): `layers` and
  /// these, in the order of the pipeline. Empty under the other schedules.
  std::vector<LayerRange> later_chunks{};
  std::string gpu;  ///< name in the GPU catalogue
  int tensor_parallel = 1;
  std::string zone;  ///< zone (cluster.toml) or partition (Slurm) that its node belongs to
  Recompute recompute = Recompute::none;
  bool operator==(const Stage&) const = default;

  [[nodiscard]] int chunks() const { return 1 + static_cast<int>(later_chunks.size()); }
  /// 0 <= index < chunks().
  [[nodiscard]] const LayerRange& chunk(int index) const {
    return index == 0 ? layers : later_chunks[static_cast<std::size_t>(index) - 1];
  }
  [[nodiscard]] bool holds(int layer) const;
  /// Number of layers in all chunks.
  [[nodiscard]] int layer_count() const;
};

struct Pipeline {
  int count = 1;          ///< number of identical pipelines
  int micro_batches = 0;  ///< per iteration, for each of them
  int micro_batch = 0;    ///< sequences; 0: Plan::micro_batch. See Plan::micro_batch_of()
  std::vector<Stage> stages;
  /// Ranks of one of them without context parallelism; see Plan::ranks_of().
  [[nodiscard]] int ranks() const;
  /// Chunks of every stage; check_plan() refuses pipelines whose stages differ in it.
  [[nodiscard]] int chunks() const { return stages.empty() ? 1 : stages.front().chunks(); }
};

/// Where a plan came from. Empty strings are left out of the file.
struct PlanOrigin {
  std::string tool;       ///< "sailor-plan 0.1.0"
  std::string cluster;    ///< name of the cluster, or the path of its file
  std::string partition;  ///< the Slurm partition that the plan was made for
  std::string profile_store;
  std::string framework;     ///< the training framework that its times and memory were predicted for
  std::string cluster_hash;  ///< content_hash() of what was read
  std::string profile_hash;
  std::string model_file;  ///< absolute path of the model's description; empty: a model that is known by its name
};

/// What the planner expected, carried along for comparison. Written only with a plan that was simulated.
struct PlanPrediction {
  Seconds iteration_time{};
  Seconds pipeline_time{};         ///< forward and backward of all micro-batches, slowest pipeline
  Seconds synchronization_time{};  ///< gradient reduction that is not hidden
  Seconds update_time{};           ///< optimizer step
  Bytes peak_memory{};             ///< largest over ranks
  Usd cost_per_iteration{};
  /// The worst origin of its inputs: "measured", "published", "interpolated" or "estimated". Empty: not given.
  std::string origin;
};

inline constexpr int max_plan_ranks = 1 << 20;  ///< of a plan in a file

struct Plan {
  TrainingJob job;
  int micro_batch = 1;  ///< sequences, of the pipelines that set none
  Schedule schedule = Schedule::one_f_one_b;
  OptimizerSharding optimizer_sharding = OptimizerSharding::none;
  /// Replicas of a layer among which `optimizer_sharding` divides: groups of so many consecutive replicas. Each group
  /// holds everything, and groups all-reduce the gradients of their shards (hybrid sharding: HSDP, Zhao et al. 2023,
  /// section 3.2.2; MiCS, Zhang et al. 2022). 0: all replicas are one group.
  int sharding_degree = 0;
  KeepTogether keep_together = KeepTogether::pipelines;
  /// Tensor-parallel groups of every stage, which divide each sequence among them (Liu et al. 2023; Jacobs et al.
  /// 2023). A stage has tensor_parallel x context_parallel ranks; each of them holds its layers' weights.
  int context_parallel = 1;
  /// Ranks that divide the experts of a layer among them. They are taken from the count x context_parallel ranks of a
  /// stage that would otherwise hold the same weights, so this adds no ranks.
  int expert_parallel = 1;
  std::vector<Pipeline> pipelines;
  PlanOrigin origin;
  /// std::nullopt also if the file's prediction was made for another plan, that is, the file was edited since.
  std::optional<PlanPrediction> prediction;
  bool prediction_is_stale = false;  ///< the file has a prediction, but was edited since

  /// Sequences of a micro-batch of `pipeline`, which belongs to this plan.
  [[nodiscard]] int micro_batch_of(const Pipeline& pipeline) const {
    return pipeline.micro_batch > 0 ? pipeline.micro_batch : micro_batch;
  }
  /// Number of pipelines, counts included (the data-parallel degree).
  [[nodiscard]] int data_parallel() const;
  /// Number of ranks that hold a slice of the same layer, of all pipelines.
  [[nodiscard]] int replicas() const { return data_parallel() * context_parallel; }
  /// Number of replicas that share what is sharded.
  [[nodiscard]] int shards() const {
    if (optimizer_sharding == OptimizerSharding::none) return 1;
    return sharding_degree > 0 ? sharding_degree : replicas();
  }
  /// Number of groups of replicas that shard each for itself; 1 where nothing is sharded.
  [[nodiscard]] int sharding_groups() const {
    return optimizer_sharding == OptimizerSharding::none ? 1 : replicas() / shards();
  }
  /// Number of ranks of one stage, of one pipeline, and of all pipelines.
  [[nodiscard]] int ranks_of(const Stage& stage) const { return stage.tensor_parallel * context_parallel; }
  [[nodiscard]] int ranks_of(const Pipeline& pipeline) const { return pipeline.ranks() * context_parallel; }
  [[nodiscard]] int ranks() const;
  /// Number of consecutive copies of a pipeline that are placed together, because they hold an expert-parallel group.
  [[nodiscard]] int copies_together() const { return expert_parallel / std::gcd(expert_parallel, context_parallel); }
};

/// The role of one rank. Ranks are numbered by pipeline, then stage, then context-parallel and tensor-parallel index.
struct RankRole {
  int rank = 0;
  int pipeline = 0;  ///< index over all pipelines, counts expanded
  int stage = 0;
  int tensor_parallel_index = 0;
  int pipeline_entry = 0;  ///< index into Plan::pipelines
  int context_parallel_index = 0;
  int expert_parallel_index = 0;
};

/// Roles of all ranks, ordered by rank.
std::vector<RankRole> rank_roles(const Plan& plan);
const Stage& stage_of(const Plan& plan, const RankRole& role);
/// Ranks of the expert-parallel group of a role, by expert-parallel index, ascending: of the ranks with its stage and
/// tensor-parallel index in the copies of its pipeline (by copy, then context-parallel index) every expert_parallel
/// consecutive ones divide the experts. The plan must have passed check_plan().
std::vector<int> expert_group(const Plan& plan, const RankRole& role);

/// Checks what needs no other file: contiguous layer ranges from 0, the requirements of the schedule, micro-batches of
/// all pipelines times their sequences = global_batch, and degrees that divide what they must. Sizes that are zero must
/// have been refused before. Errors: invalid_input.
Result<void> check_plan(const Plan& plan);
/// Also checks that the stages hold exactly the model's layers, that the sequence fits the model, and that the model
/// has experts that expert_parallel divides. Errors: invalid_input.
Result<void> check_plan(const Plan& plan, const Model& model);
/// Checks that sailor-train can run the plan's ways of parallelism. Errors: unavailable, naming the key.
Result<void> check_trainable(const Plan& plan);
/// Whether sailor-train computes in this precision on some device.
constexpr bool is_trainable(Precision precision) { return precision != Precision::fp8; }

/// plan.toml. Errors: not_found, io, invalid_input with file, line, column and reason.
Result<Plan> load_plan(const std::filesystem::path& path);
Result<Plan> parse_plan(std::string_view text, std::string_view source_name);
/// The plan in a table of another file, with the keys of plan.toml except schema_version. Errors are recorded in the
/// table's document, whose finish() returns them.
Plan read_plan(const TomlTable& table);
/// The text of plan.toml; parse_plan() of it gives the same plan.
std::string plan_to_toml(const Plan& plan);
/// Fingerprint of a plan without its origin and prediction: equal for plans that train alike.
std::string plan_fingerprint(const Plan& plan);
/// Writes plan.toml atomically. Errors: io.
Result<void> save_plan(const Plan& plan, const std::filesystem::path& path);

/// "2 pipelines of 4 stages on GH200-96, micro-batch 2": for tables and messages.
std::string describe(const Plan& plan);
/// "none", "zero3", or "zero3 over 8" where groups of 8 replicas share.
std::string sharding_text(const Plan& plan);
/// "2", or "1 to 4" where pipelines differ.
std::string micro_batch_text(const Plan& plan);

}  // namespace sailor
