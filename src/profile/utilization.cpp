#include "profile/utilization.hpp"

#include "profile/estimate.hpp"

namespace sailor {

std::optional<double> model_flop_utilization(const Plan& plan, const Model& model, const GpuCatalogue& gpus,
                                             Seconds time) {
  const double tokens = plan.job.tokens();
  double work = 0.0;
  for (int layer = 0; layer < model.layers(); ++layer)
    work += 3.0 * model.layer_forward_flop(layer, tokens, plan.job.sequence_length).value();
  double rate = 0.0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const auto type = gpus.find(stage.gpu);
      if (!type) return std::nullopt;
      const auto peak = peak_rate(*type, plan.job.precision);
      if (!peak) return std::nullopt;
      rate += peak->value() * pipeline.count * plan.ranks_of(stage);
    }
  return work / (rate * time.value());
}

}  // namespace sailor
