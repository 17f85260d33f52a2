#include "runtime/training_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace {

std::vector<Parameter*> pointers_to(std::vector<Parameter>& parameters) {
  std::vector<Parameter*> pointers;
  for (Parameter& parameter : parameters) pointers.push_back(&parameter);
  return pointers;
}

}  // namespace

float LearningRate::at(std::int64_t iteration) const {
  if (iteration < warm_up_iterations)
    return peak * static_cast<float>(iteration + 1) / static_cast<float>(warm_up_iterations);
  if (decay_iterations <= warm_up_iterations) return peak;
  const double done = std::min(1.0, static_cast<double>(iteration - warm_up_iterations) /
                                        static_cast<double>(decay_iterations - warm_up_iterations));
  return least + (peak - least) * static_cast<float>(0.5 * (1.0 + std::cos(std::numbers::pi * done)));
}

TrainingState::TrainingState(const Plan& plan, const Model& model, int rank, Device& device)
    : plan_(plan),
      model_(model),
      device_(device),
      map_(plan_, model_),
      role_(map_.roles()[static_cast<std::size_t>(rank)]),
      sums_(map_.sums_of(rank, map_.groups())),
      declared_(map_.parameters(rank)),
      parameters_(std::make_unique<ParameterStorage>(device, pointers_to(declared_))),
      optimizer_(std::make_unique<AdamW>(device, *parameters_, sums_.owned)),
      totals_(device, {sizeof(IterationTotals) / sizeof(double)}, DataType::float64),
      gradient_factor_(device, {1}),
      host_totals_(static_cast<IterationTotals*>(device.allocate_host(sizeof(IterationTotals)))) {}

TrainingState::~TrainingState() { device_.release_host(host_totals_); }

void TrainingState::initialize(const TrainerSettings& settings) {
  parameters_->initialize(settings.seed);
  optimizer_->initialize(settings.seed);
  if (type() == DataType::float16) loss_scale_.factor = settings.loss_scale.initial;
  is_filled_ = true;
}

void TrainingState::restore(std::int64_t iteration, const LossScale& scale) {
  restore(StateVersion{iteration, epoch_}, scale, std::nullopt);
}

void TrainingState::restore(const StateVersion& version, const LossScale& scale,
                            const std::optional<IterationTotals>& last_totals) {
  iteration_ = version.iteration;
  last_totals_ = last_totals;
  updated_in_ = version.epoch;
  is_filled_ = true;
  if (type() == DataType::float16)
    loss_scale_ = scale;
  else
    loss_scale_.skipped = scale.skipped;
}

Update TrainingState::update(const TrainerSettings& settings, const IterationTotals& totals) {
  Update update;
  update.learning_rate = settings.learning_rate.at(iteration_);
  update.gradient_norm = std::sqrt(totals.squared_norm) / loss_scale_.factor;
  update.updated = std::isfinite(update.gradient_norm);
  update.diverged = !update.updated;
  AdamWStep step = settings.optimizer;
  step.step = iteration_ + 1 - loss_scale_.skipped;
  step.learning_rate = update.learning_rate;
  device_.main().clip_factor(totals_.doubles() + offsetof(IterationTotals, squared_norm) / sizeof(double),
                             loss_scale_.factor, settings.clip_norm, gradient_factor_.floats());
  optimizer_->step(step, gradient_factor_.floats());
  last_totals_ = totals;
  ++iteration_;
  updated_in_ = epoch_;
  if (type() == DataType::float16) {
    const bool can_go_on = loss_scale_.update(settings.loss_scale, !update.updated);
    if (!update.updated) update.diverged = !can_go_on;
  }
  return update;
}

}  // namespace sailor::runtime
