// The options of sailor-train.
#pragma once

#include <cstdint>
#include <string>

#include "apps/options.hpp"

namespace sailor::apps {

struct TrainOptions : CommonOptions {
  OptionValue<std::string> plan, data, run_file, transport, device, models, gpus;
  OptionValue<std::int64_t> iterations, seed, log_every;
  OptionValue<double> timeout;
  OptionValue<bool> deterministic;
  // Optimizer: trainer_settings()
  OptionValue<double> learning_rate, min_learning_rate, weight_decay, clip_norm, router_aux_loss, loss_scale;
  OptionValue<std::int64_t> warm_up_iterations, decay_iterations, loss_scale_window;
  // checkpoint_options()
  OptionValue<std::string> checkpoints, start_from;
  OptionValue<std::int64_t> checkpoint_every;
  OptionValue<int> keep_checkpoints;
  // recording_options()
  OptionValue<std::string> metrics, trace;
  OptionValue<std::int64_t> trace_iteration;
  // rehearsal_options()
  OptionValue<bool> rehearse;
  OptionValue<double> rehearse_slowdown;
  OptionValue<std::int64_t> max_communicators;
  OptionValue<std::string> cluster, profile, framework;
  // elastic_options()
  OptionValue<std::string> elastic, gpu_type, zone;
};

}  // namespace sailor::apps
