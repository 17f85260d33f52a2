#include "apps/train/device_choice.hpp"

#include <fmt/format.h>

#include "cluster/gpu_match.hpp"
#include "core/log.hpp"

namespace sailor::apps {

Option device_option() {
  return {.name = "device",
          .value_name = "DEVICE",
          .help = "where to compute: on the plan's devices, or on CPUs or GPUs whatever the plan says, to try it out",
          .default_value = "plan",
          .choices = {"plan", "cpu", "gpu"}};
}

Result<DeviceChoice> choose_devices(const TrainOptions& options, const Plan& plan, const GpuCatalogue& catalogue) {
  const std::string device = *options.device;
  std::string first;  // backend of the plan's first stage
  DeviceChoice choice;
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p)
    for (std::size_t s = 0; s < plan.pipelines[p].stages.size(); ++s) {
      const std::string where = fmt::format("pipeline {}, stage {}", p, s);
      const auto type = catalogue.find(plan.pipelines[p].stages[s].gpu);
      if (!type) return fail(type.error(), where);
      const std::string wanted = device == "plan" ? type->backend : device == "cpu" ? "cpu" : "cuda";
      if (wanted != type->backend) choice.is_the_plans = false;
      if (first.empty()) first = wanted;
      const std::string gpu = fmt::format("{}: gpu = \"{}\": ", where, type->name);
      if (wanted != "cpu" && wanted != "cuda")
        return fail(ErrorCode::unavailable, gpu + "sailor-train computes on CPUs and on NVIDIA's GPUs only",
                    "use a plan for these, or --device cpu to train there all the same");
      if (wanted != first)
        return fail(ErrorCode::unavailable,
                    gpu + "the plan has CPUs and GPUs, and sailor-train moves tensors among one kind only",
                    "use a plan for one kind, or --device cpu to train on CPUs all the same");
    }
  choice.on_gpus = first == "cuda";
  SAILOR_CHECK(check_precision(plan.job.precision, choice.on_gpus));
  return choice;
}

void warn_of_other_gpus(const RankDevice& own, const Plan& plan, const GpuCatalogue& catalogue,
                        runtime::Control& control) {
  const GpuType* const type = match_device(catalogue, own.gpu->name, own.gpu->memory);
  const std::vector<std::string> types = runtime::all_texts(control, type == nullptr ? "" : type->name);
  const std::vector<RankRole> roles = rank_roles(plan);
  for (std::size_t rank = 0; rank < types.size() && control.rank() == 0; ++rank) {
    const auto planned = catalogue.find(stage_of(plan, roles[rank]).gpu);
    if (types[rank].empty() || !planned || planned->name == types[rank]) continue;
    log_warning("rank {} is on a GPU of type {}, and the plan is for {}: its times are not those of the plan", rank,
                types[rank], planned->name);
    return;
  }
}

}  // namespace sailor::apps
