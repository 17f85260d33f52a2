// Training state of one rank of a plan: parameters, the moments of those that it updates, gradients, the iteration to
// run next (which determines the position in the data), the loss scale. It outlives the trainers that are made for it,
// and is consistent whenever a transfer fails: an iteration either counts, or has changed nothing but gradients.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/device.hpp"
#include "runtime/gradient_groups.hpp"
#include "runtime/loss_scale.hpp"
#include "runtime/optimizer.hpp"
#include "runtime/parameters.hpp"
#include "runtime/tensor.hpp"
#include "runtime/trainer_settings.hpp"

namespace sailor::runtime {

/// Results of an iteration, summed over all ranks.
struct IterationTotals {
  double squared_norm = 0.0;  ///< of the gradients, times the loss scale's square
  double loss = 0.0;          ///< sum over the tokens of the global batch
  double stop = 0.0;          ///< number of ranks that are to stop
};

/// Identifies the bits of a training's state: two states of one version are the same, to the last bit. After a recovery
/// an iteration may be run again under another plan, with sums in another order.
struct StateVersion {
  std::int64_t iteration = 0;  ///< to run next
  std::uint64_t epoch = 0;     ///< in which the last update was made
  auto operator<=>(const StateVersion&) const = default;
};

/// Result of an enqueued update.
struct Update {
  float learning_rate = 0.0f;
  double gradient_norm = 0.0;  ///< of all gradients, before clipping
  bool updated = true;         ///< false: the norm is not finite, and values and moments stay as they are
  /// The norm is not finite; in fp16, although the loss scale is already at its minimum.
  bool diverged = false;
};

class TrainingState {
 public:
  /// State of rank `rank`. check_trainable() must have succeeded; the device must outlive it. Values and moments are
  /// zero.
  TrainingState(const Plan& plan, const Model& model, int rank, Device& device);
  ~TrainingState();
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  /// The state at the start of a training.
  void initialize(const TrainerSettings& settings);

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] Device& device() { return device_; }
  [[nodiscard]] const ParameterMap& map() const { return map_; }
  [[nodiscard]] const RankRole& role() const { return role_; }
  [[nodiscard]] const RankSums& sums() const { return sums_; }
  [[nodiscard]] DataType type() const { return parameters_->type(); }  ///< of values and activations

  [[nodiscard]] ParameterStorage& parameters() { return *parameters_; }
  [[nodiscard]] AdamW& optimizer() { return *optimizer_; }
  /// Iteration to run next, counted from 0.
  [[nodiscard]] std::int64_t iteration() const { return iteration_; }
  /// Loss scale of the next iteration. The factor is 1 in other precisions than fp16.
  [[nodiscard]] const LossScale& loss_scale() const { return loss_scale_; }
  /// Continues from restored values and moments. From the scale of another precision only the number of skipped
  /// iterations is taken, which are not steps of the optimizer.
  void restore(std::int64_t iteration, const LossScale& scale);
  /// The same, from a state of that version, with its last_totals().
  void restore(const StateVersion& version, const LossScale& scale, const std::optional<IterationTotals>& last_totals);
  /// Whether it has been initialized or restored.
  [[nodiscard]] bool is_filled() const { return is_filled_; }
  [[nodiscard]] StateVersion version() const { return {iteration_, updated_in_}; }
  /// Number of recoveries before this state was made; it identifies the updates that are made together.
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  /// To be called before the state is filled.
  void set_epoch(std::uint64_t epoch) { epoch_ = updated_in_ = epoch; }

  /// Device memory of the IterationTotals, as doubles in their order.
  [[nodiscard]] double* totals() { return totals_.doubles(); }
  /// Pinned host memory for them.
  [[nodiscard]] IterationTotals& host_totals() { return *host_totals_; }
  /// Enqueues the update that ends this iteration on the main stream, and continues with the next iteration. Gradients
  /// must be summed, and their totals known on the device and here.
  Update update(const TrainerSettings& settings, const IterationTotals& totals);
  /// Totals of the last update, for ranks that have everything for it but these. std::nullopt: there was no update yet,
  /// or the state was restored and no rank knew them.
  [[nodiscard]] const std::optional<IterationTotals>& last_totals() const { return last_totals_; }

 private:
  Plan plan_;
  Model model_;
  Device& device_;
  ParameterMap map_;
  RankRole role_;
  RankSums sums_;
  std::vector<Parameter> declared_;
  std::unique_ptr<ParameterStorage> parameters_;
  std::unique_ptr<AdamW> optimizer_;
  std::int64_t iteration_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint64_t updated_in_ = 0;  // epoch of the last update
  bool is_filled_ = false;
  LossScale loss_scale_;
  Tensor totals_;
  Tensor gradient_factor_;  // of clipping
  IterationTotals* host_totals_;
  std::optional<IterationTotals> last_totals_;
};

}  // namespace sailor::runtime
