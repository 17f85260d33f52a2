// Reads the timers that Megatron-LM writes into its log with --timing-log-level 2.
#pragma once

#include <istream>
#include <optional>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "model/model.hpp"
#include "profile/traces/training_rows.hpp"

namespace sailor::traces {

/// The timers of one pipeline stage.
struct MegatronStage {
  std::optional<LayerRange> layers{};    ///< std::nullopt: the whole model, as far as the log says
  std::vector<StageTimes> iterations{};  ///< seconds of one micro-batch, and of one optimizer step
};

struct MegatronTimers {
  TrainingFacts facts{};  ///< what the arguments say that Megatron prints at its start
  std::vector<MegatronStage> stages{};
  int left_out = 0;  ///< iterations at the start that were left out: they contain what happens once
};

/// Reads the log line by line. The timers of an iteration are sums over its micro-batches, whose number follows from
/// the arguments in the log or is given. Forms: minima and maxima, maxima, and times of all ranks
/// (--timing-log-option minmax, max, all; a pipeline of several stages needs all), and the "time (ms) |" lines of
/// earlier versions. Errors: invalid_input (no timers; another model; a parallelism that profiles do not have), usage
/// (the number of micro-batches is not known).
Result<MegatronTimers> read_megatron_timers(std::istream& stream, const Model& model, const TrainingFacts& given,
                                            std::string_view file);

}  // namespace sailor::traces
