// Settings of a training's parameter updates: the same on all ranks, under every plan.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/schedule.hpp"
#include "runtime/loss_scale.hpp"
#include "runtime/stream.hpp"

namespace sailor::runtime {

/// Learning rate: linear from 0 to `peak` over the warm-up, then a cosine down to `least` at `decay_iterations`
/// (Radford et al. 2018); constant after the warm-up if `decay_iterations` is 0.
struct LearningRate {
  float peak = 1e-3f;
  float least = 0.0f;
  std::int64_t warm_up_iterations = 0;
  std::int64_t decay_iterations = 0;  ///< counted from the start of training; constant from there on

  /// Learning rate of iteration `iteration`, counted from 0.
  [[nodiscard]] float at(std::int64_t iteration) const;
};

struct TrainerSettings {
  std::uint64_t seed = 0;  ///< of the initial parameters
  AdamWStep optimizer;     ///< except its learning rate
  LearningRate learning_rate;
  /// Maximum norm of all gradients together, to which they are scaled down; 0: no clipping (Pascanu et al. 2013).
  double clip_norm = 0.0;
  /// Coefficient of the load-balancing loss of models with experts (layers/experts.hpp); 0: none. The losses that are
  /// reported do not include it.
  float router_aux_loss = 0.0f;
  LossScaleSettings loss_scale{};  ///< for plans in fp16
  bool overlap_reduction = true;
  // For rehearsals, which spend in these calls the time that layer and update take on the rehearsed devices.
  std::function<void(int layer, Pass pass)> after_layer{};  ///< called before anything that follows the layer
  std::function<void()> after_update{};                     ///< called after the optimizer step
};

}  // namespace sailor::runtime
