// Makes rows of a profile store of what other programs measured of a training. Does no I/O.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "profile/estimate.hpp"
#include "profile/measurements.hpp"
#include "profile/traces/measure.hpp"

namespace sailor::traces {

/// What is known of a recorded training. Files say a part, the user the rest.
struct TrainingFacts {
  std::optional<Precision> precision{};
  std::optional<Recompute> recompute{};
  std::optional<int> tensor_parallel{};
  std::optional<int> micro_batch{};            ///< sequences
  std::optional<int> sequence_length{};        ///< tokens
  std::optional<int> gradient_accumulation{};  ///< micro-batches of an iteration on one rank
  std::optional<LayerRange> layers{};          ///< layers that the ranks of the file have
};

/// Joins what a file says with what the user says. Errors: invalid_input (they differ; names the option).
Result<TrainingFacts> joined(const TrainingFacts& of_file, const TrainingFacts& given, std::string_view file);

/// The training that the times are of.
struct Training {
  const Model& model;
  GpuType gpu;
  LayerRange layers{};
  LayerKey key{};  ///< kind and first_layer are not used
  /// How the training computes, for what is divided in proportion to estimates.
  LayerKernels kernels{};
};
/// Errors: usage (a fact is missing, with the option that states it), invalid_input (a fact that cannot be).
Result<Training> training_of(const Model& model, const GpuType& gpu, const TrainingFacts& facts,
                             const LayerKernels& kernels, int busy_ranks, std::string_view file);

/// Number of blocks in a range of layers.
int blocks_in(const Model& model, LayerRange layers);

/// Rows, and how they were made.
struct TrainingRows {
  std::vector<LayerTime> times{};
  std::vector<std::string> notes{};
};

/// One row for each kind of layer, and for blocks that differ, of the times of passes. [low, high] holds the time with
/// and without the gaps between kernels. The time of what follows the last block is divided between a separate final
/// norm and the head in proportion to their estimates; that of the optimizer in proportion to the parameters, and is
/// estimated where it was not recorded. Errors: not_found (the catalogue has no rate of the GPU).
Result<TrainingRows> rows_of(const Training& training, const std::vector<RecordedTimes>& recorded);

/// Times of one iteration on the ranks of a stage, for one micro-batch; [smallest, largest] over the ranks.
struct StageTimes {
  struct Range {
    double smallest = 0.0;
    double largest = 0.0;
  };
  Range forward{};
  Range backward{};
  std::optional<Range> update{};
};
/// Divides the times of a stage among its layers in proportion to their estimates. [low, high] spans the times of the
/// ranks, widened by how much a layer's share changes if the estimates of the layers other than blocks are off by as
/// much as one estimate in ten is. Errors: not_found (the catalogue has no rate of the GPU).
Result<TrainingRows> rows_of(const Training& training, const std::vector<StageTimes>& iterations);

}  // namespace sailor::traces
