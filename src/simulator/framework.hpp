// Costs that a training framework adds to those of the layers: bytes per parameter, bytes per process, and which
// communication it hides. One TOML file per framework in profiles/frameworks/; the few constants in it have a physical
// meaning, which the file states together with the data that they were fitted to.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"
#include "plan/uniformity.hpp"
#include "profile/estimate.hpp"

namespace sailor::simulator {

/// Bytes that a rank keeps for each of its parameters.
struct StateBytes {
  Bytes weight{};
  Bytes gradient{};
  Bytes optimizer{};  ///< moments, and fp32 master weights of bf16 or fp16 ones: sharded under every OptimizerSharding
                      ///< but none
  Bytes copy{};       ///< second copy of the gradients: flattened, or accumulated in fp32

  /// Bytes per parameter that replicas exchange, as the size of one all-reduce. Without ZeRO they are the gradients.
  /// Under ZeRO-1 and ZeRO-2 half of the all-reduce, a reduce-scatter, is of the gradients and the other half, an
  /// all-gather, of the weights. Under ZeRO-3 they are the gradients again: passes exchange both (PlanCosts::passes).
  [[nodiscard]] Bytes exchanged(OptimizerSharding sharding) const {
    const bool once = sharding == OptimizerSharding::zero1 || sharding == OptimizerSharding::zero2;
    return once ? (gradient + weight) / 2.0 : gradient;
  }
};

/// How the ranks of a stage send an activation to those of the next stage, or a gradient back, where the
/// tensor-parallel groups have `s` sending and `r` receiving ranks:
enum class StageMessages {
  whole,   ///< every sender sends the whole value to its counterpart; if r > s to several, one after the other
  pieces,  ///< every sender sends 1/s of the value, if r > s to several in turn; the receivers gather the parts
  once,    ///< the value crosses once, in parts of 1/max(s, r); the receivers gather the parts
};
std::string_view to_string(StageMessages messages);
/// Bytes that cross between the two groups for each byte of the value.
double crossing_copies(StageMessages messages, int senders, int receivers);

/// A Division says into how many parts the ranks of a stage divide a micro-batch and its layers.
struct Division {
  int tensor_parallel = 1;
  int context_parallel = 1;
  Precision precision = Precision::fp32;
  int sequence_length = 0;  ///< tokens
  int micro_batch = 0;      ///< sequences; 0: not chosen yet
};

struct Framework {
  std::string name{};
  std::string source{};                     ///< what its constants were taken from or fitted to
  std::map<Precision, StateBytes> state{};  ///< a precision that is not there is not supported

  // Supported features, for advice on plans that do not fit.
  bool supports_recompute = true;
  bool supports_tensor_parallel = true;
  bool supports_context_parallel = false;
  bool supports_expert_parallel = false;
  bool supports_sharding_degree = false;  ///< sharding within groups of replicas (Plan::sharding_degree)
  /// Shardings that plans may use besides none, ascending.
  std::vector<OptimizerSharding> shardings{OptimizerSharding::zero1};
  bool names_shardings = false;  ///< the file lists them: plans with any other are refused
  /// What a tensor-parallel degree has to divide besides the attention heads.
  bool divides_key_value_heads = false;
  bool divides_feed_forward = false;
  /// Precision::fp8: tokens on a rank, and the parts of a block's widths there, have to be multiples of this.
  int fp8_multiple = 1;
  std::vector<Schedule> schedules{};  ///< supported schedules; empty: all
  Uniformity uniformity{};            ///< what has to be equal throughout its plans: the planner offers no others
  [[nodiscard]] bool supports(Schedule schedule) const {
    return schedules.empty() || std::find(schedules.begin(), schedules.end(), schedule) != schedules.end();
  }

  [[nodiscard]] bool supports(OptimizerSharding sharding) const {
    return sharding == OptimizerSharding::none ||
           std::find(shardings.begin(), shardings.end(), sharding) != shardings.end();
  }

  // Memory of a process.
  std::optional<Bytes> base{};  ///< before its first tensor, if neither base_by_gpu nor the profile has it
  std::string base_source{};    ///< source of `base`: an assumption is named as such
  std::map<std::string, Bytes> base_by_gpu{};  ///< by GPU type
  /// Temporary tensors while a layer runs, as a multiple of the activations that it keeps; in addition to the workspace
  /// that a profile measured.
  double workspace_activations = 0.0;
  // The same as numbers of arrays in the precision of the layer, where it is known which arrays are temporary:
  double workspace_scores = 0.0;  ///< attention scores (micro_batch x heads x sequence_length^2), while a block runs
  double workspace_hidden_states = 0.0;  ///< hidden states (micro_batch x sequence_length x hidden), while a block runs
  double workspace_gradients = 0.0;      ///< gradients of the layer's parameters, before they are accumulated
  /// Arrays of logits (micro_batch x sequence_length x vocabulary) on the last stage, besides what the head keeps.
  double extra_logits = 0.0;
  /// Layers keep their outputs, not their inputs, so a stage keeps its received input of every micro-batch in flight.
  bool keeps_stage_inputs = false;
  /// A gradient reduction copies what it reduces into a second buffer.
  bool copies_reduced_gradients = false;
  /// Kernels of estimated layers; measured layers are not changed.
  LayerKernels kernels{};
  /// Bytes per attention score (micro_batch x heads x sequence_length^2) kept from forward to backward, but not under
  /// Recompute::selective.
  Bytes attention_score{};

  /// Whether LayerKernels::expert_imbalance was stated, not assumed.
  bool states_expert_imbalance = false;

  // Time.
  StageMessages stage_messages = StageMessages::whole;
  /// Transfers between stages overlap with computation; otherwise they block both stages until they are done.
  bool overlaps_transfers = false;
  /// Gradients are reduced in buckets as soon as the last backward pass has computed them; otherwise after it.
  bool overlaps_reduction = false;
  /// Under OptimizerSharding::zero3 the next layer's weights are gathered, and the previous layer's gradients
  /// scattered, while a layer computes; otherwise layers wait for both.
  bool prefetches_weights = false;
  Bytes reduction_bucket{};     ///< bytes of gradients per bucket; 0: all that the same ranks share in one
  Seconds transfer_overhead{};  ///< of each message between stages, in addition to the time of the link
  /// Rate at which the framework itself processes gradients around their reduction (flattening, scaling, waiting for
  /// the host), in addition to the time of the links; 0: takes no time.
  BytesPerSecond reduction_rate{};
  /// Time that each rank of a tensor-parallel group adds to the launch of an all-reduce, in plans on several nodes with
  /// pipelines of several stages, whose hosts also serve messages between nodes. A pass of a stage takes at least
  /// launches x Efficiency::launch + all-reduces x ranks x this. Predictions have it; searches for plans ignore it.
  Seconds launch_delay_across_nodes{};
  /// A layer whose time per sequence falls with the micro-batch is bound by the host that launches it. This share of
  /// the excess time is the profiler's own (hooks, events) and absent in training.
  double profiling_overhead = 0.0;
  /// Relative standard deviation of measured / predicted time that the constants above leave.
  double time_error = 0.0;

  /// Errors: unavailable, naming the precisions there are.
  [[nodiscard]] Result<StateBytes> state_of(Precision precision) const;
  /// `degree` as Plan::sharding_degree. Errors: unavailable, naming the shardings there are.
  [[nodiscard]] Result<void> check(OptimizerSharding sharding, int degree = 0) const;
  /// Checks that ranks can divide the layers of the model by these degrees.
  /// Errors: infeasible, naming what the degrees do not divide.
  [[nodiscard]] Result<void> check(const Model& model, const Division& division) const;
};

/// Errors: not_found, io, invalid_input with file, line and column.
Result<Framework> load_framework(const std::filesystem::path& path);
/// The same from text; `source_name` stands for the file in messages.
Result<Framework> parse_framework(std::string_view text, std::string_view source_name);
/// By name in a folder of *.toml files, or the file itself if `name_or_path` ends in ".toml". Errors: not_found, with
/// the known names.
Result<Framework> find_framework(const std::string& name_or_path, const std::filesystem::path& folder);
/// Whether the framework trains with the precision. Errors: usage, naming those of the folder that do.
Result<void> check_trains(const Framework& framework, Precision precision, const std::filesystem::path& folder);

}  // namespace sailor::simulator
