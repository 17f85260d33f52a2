// What one rank of a plan has of a training: parameters, the moments of those that it steps, gradients, the iteration
// to run next (of which the position in the data follows), the loss scale. Trainers are made for it and thrown away
// again; it outlives them, and is whole whenever a transfer fails: an iteration either counts, or has changed nothing
// but gradients.
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

/// What an iteration ends with, summed over all ranks.
struct IterationTotals {
  double squared_norm = 0.0;  ///< of the gradients, times the loss scale's square
  double loss = 0.0;          ///< over the tokens of the global batch
  double stop = 0.0;          ///< ranks that are to stop
};

/// Names the bits of a training's state: two states of one version are the same, to the last bit. After a recovery an
/// iteration may be run again, under another plan, with sums in another order.
struct StateVersion {
  std::int64_t iteration = 0;  ///< to run next
  std::uint64_t epoch = 0;     ///< in which the update before it was made
  auto operator<=>(const StateVersion&) const = default;
};

/// An update that was asked for.
struct Update {
  float learning_rate = 0.0f;
  double gradient_norm = 0.0;  ///< of all gradients, before clipping
  bool updated = true;         ///< false: the norm is not finite, and values and moments stay as they are
  /// The norm is not finite; in fp16, though the loss scale is the least already.
  bool diverged = false;
};

class TrainingState {
 public:
  /// Of rank `rank`. check_trainable() must have succeeded; the device must outlive it. Values and moments are zero.
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
  /// To run next, counted from 0.
  [[nodiscard]] std::int64_t iteration() const { return iteration_; }
  /// For the next iteration. Other precisions than fp16 have the factor 1.
  [[nodiscard]] const LossScale& loss_scale() const { return loss_scale_; }
  /// Goes on from elsewhere, values and moments being there. Of a scale of another precision only the skipped
  /// iterations count, of which the optimizer knows nothing.
  void restore(std::int64_t iteration, const LossScale& scale);
  /// The same, from a state of that version, with its last_totals().
  void restore(const StateVersion& version, const LossScale& scale, const std::optional<IterationTotals>& last_totals);
  /// Whether it has been initialized or restored.
  [[nodiscard]] bool is_filled() const { return is_filled_; }
  [[nodiscard]] StateVersion version() const { return {iteration_, updated_in_}; }
  /// Counts the recoveries before this state was made: which updates are made together.
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }
  /// Before it is filled.
  void set_epoch(std::uint64_t epoch) { epoch_ = updated_in_ = epoch; }

  /// Device memory of the IterationTotals, as doubles in their order.
  [[nodiscard]] double* totals() { return totals_.doubles(); }
  /// Pinned memory of the host for them.
  [[nodiscard]] IterationTotals& host_totals() { return *host_totals_; }
  /// Asks the main stream for the update that ends this iteration: gradients are summed, and their totals are known, on
  /// the device and here. From now on the next iteration counts.
  Update update(const TrainerSettings& settings, const IterationTotals& totals);
  /// Of the last update, for ranks that have everything for it but these; none: there was no update yet, or the state
  /// was restored and nobody knew them.
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
  std::uint64_t updated_in_ = 0;  // epoch
  bool is_filled_ = false;
  LossScale loss_scale_;
  Tensor totals_;
  Tensor gradient_factor_;  // of clipping
  IterationTotals* host_totals_;
  std::optional<IterationTotals> last_totals_;
};

}  // namespace sailor::runtime
