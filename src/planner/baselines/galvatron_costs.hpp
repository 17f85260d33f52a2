// Galvatron's cost models (Miao et al., VLDB 2023 and TKDE 2024) as the Sailor artifact vendors them
// (baselines/Galvatron/core/cost_model.py): only transformer blocks have times; embedding and
// head are "other" memory. Messages and memory are in MiB. Times of a profile are in ms, as it has them; functions
// return seconds.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines::galvatron_detail {

/// MiB; activations are per sequence.
struct OtherMemory {
  double states = 0.0;
  double activation = 0.0;
};

/// Galvatron's measurements of a model and a GPU type.
struct Profile {
  double forward_ms = 0.0;           ///< of one sequence in one block without tensor parallelism
  double states_mib = 0.0;           ///< model states of a block
  std::map<int, double> activation;  ///< MiB of one sequence in a block, by tensor-parallel degree
  OtherMemory whole;                 ///< of a stage that is the only one
  OtherMemory first;                 ///< of the first of several stages
  OtherMemory last;
  double overlap = 1.0;  ///< slow-down of compute and all-reduces that overlap
  int blocks = 0;
  double summed_mib = 0.0;    ///< per sequence, all-reduced by the tensor parallelism of a block
  bool is_published = false;  ///< from the artifact's own files; else derived from the layer profile

  double output_bytes = 0.0;  ///< per sequence, from stage to stage
  /// As published, transfers between stages are free: the reader looks for other keys than the file has
  /// (config_utils.py:76).
  bool has_transfers = false;

  const LinkCoefficients* between_nodes = nullptr;
  const LinkCoefficients* inside_node = nullptr;  ///< null: as between_nodes
  int gpus_per_node = 1;
  bool algorithm_bandwidth = false;  ///< as published: the factor 2 (n - 1) / n is counted twice
  /// GiB/s of all-reduces over 2, 4, ... 128 ranks if the artifact has a file of its own; else empty.
  std::vector<double> published_collectives;

  /// ms per MiB of an all-reduce over `ranks`. Consecutive ranks are in one node if it has that many.
  [[nodiscard]] double collective(int ranks, bool consecutive) const;
};

/// Errors: not_found (layer times, sizes or links).
Result<Profile> galvatron_profile(const Problem& problem, const Offer& offer);

struct Strategy {
  int pipeline_parallel = 1;
  int tensor_parallel = 1;
  int data_parallel = 1;
  /// Whether tensor-parallel ranks are consecutive. Also true if only one arrangement is possible.
  bool consecutive = true;
};

/// Sizes of the micro-batches when `samples` are divided into at most `chunks`: all but the last are equal.
std::vector<double> pieces_of(double samples, int chunks);

/// MiB of a block at a stage. `micro_batch` is in sequences of a rank as if there were no tensor parallelism.
double layer_memory(const Profile& profile, const Strategy& strategy, int batch, int micro_batch, int stage);
/// Other memory by stage, with PyTorch's context. `strategy` is the first of its pipeline degree, as Galvatron takes
/// it.
std::vector<double> other_memory(const Profile& profile, const Strategy& strategy, int batch, int micro_batch);
/// Seconds of a block for `samples` sequences of all replicas, with or without the gradients' all-reduce.
double layer_time(const Profile& profile, const Strategy& strategy, double samples, bool with_gradients);
/// Seconds that a block waits for its input if the layout changes between blocks.
double layout_change(const Profile& profile, const Strategy& from, const Strategy& to, int batch);
/// Seconds of an iteration; `stages` has the strategies of the blocks of each stage.
double pipeline_time(const Profile& profile, const std::vector<std::vector<Strategy>>& stages, int batch, int chunks);

/// Number of blocks of each stage: floor(blocks / stages), the last takes the rest.
std::vector<int> blocks_of_stages(int blocks, int stages);

}  // namespace sailor::planner::baselines::galvatron_detail
