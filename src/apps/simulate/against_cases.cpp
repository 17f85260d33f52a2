#include "apps/simulate/against_cases.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "apps/inputs.hpp"
#include "apps/simulate/plan_input.hpp"
#include "core/output_fit.hpp"
#include "core/text.hpp"
#include "plan/plan_origin.hpp"
#include "reports/accuracy.hpp"
#include "simulator/cases.hpp"
#include "simulator/simulator.hpp"

namespace sailor::apps {

Result<void> compare_with_cases(const SimulateOptions& options, const Environment& environment,
                                const GpuCatalogue& gpus, const Profile& profile) {
  const std::string path = *options.against;
  if (options.trace.has())
    return fail(ErrorCode::usage, "--trace is for one plan, not for the cases of a file",
                "name a PLAN, or leave it out");
  if (to_lower(std::filesystem::path(path).extension().string()) == ".h5")
    return fail(ErrorCode::usage, fmt::format("PLAN is missing: the plan that the run '{}' is compared with", path));
  auto file = simulator::load_cases(path);
  if (!file) return fail(file.error());
  auto cluster = read_cluster(options, environment, gpus);
  if (!cluster) return fail(cluster.error());
  const auto framework = simulator::find_framework(options.framework.has() ? *options.framework : file->framework,
                                                   frameworks_folder(environment));
  if (!framework) return fail(framework.error(), path);

  std::map<std::string, Model> models;
  std::vector<reports::CaseOutcome> outcomes;
  for (simulator::Case& entry : file->cases) {
    const std::string where = fmt::format("{}, case '{}'", path, entry.name);
    auto model = models.find(entry.plan.job.model);
    if (model == models.end()) {
      auto found = find_model(entry.plan, models_folder(options.models, environment));
      if (!found) return fail(found.error(), where);
      model = models.emplace(entry.plan.job.model, *std::move(found)).first;
    }
    if (auto good = check_plan(entry.plan, model->second); !good) return fail(good.error(), where);
    use_catalogue_names(entry.plan, gpus);
    const auto prediction = simulator::simulate(entry.plan, {.model = model->second,
                                                             .profile = profile,
                                                             .gpus = gpus,
                                                             .framework = *framework,
                                                             .cluster = *cluster ? &**cluster : nullptr,
                                                             .measured_only = *options.measured_only});
    if (!prediction) return fail(prediction.error(), where);
    outcomes.push_back({.name = entry.name,
                        .artefact = entry.artefact,
                        .note = entry.note,
                        .measured_time = entry.iteration_time,
                        .measured_low = entry.iteration_time_low,
                        .measured_high = entry.iteration_time_high,
                        .predicted_time = prediction->iteration_time,
                        .predicted_p5 = prediction->iteration_time_p5,
                        .predicted_p95 = prediction->iteration_time_p95,
                        .measured_memory = entry.peak_memory,
                        .predicted_memory = prediction->peak_memory});
  }
  if (options.plot.has()) SAILOR_CHECK(reports::draw(reports::accuracy_plot(file->title, outcomes), *options.plot));
  if (*options.format == "json")
    fmt::print("{}\n", reports::accuracy_to_json(file->title, outcomes).dump(2));
  else
    fmt::print("{}", fitted(reports::accuracy_report(file->title, outcomes)));
  return {};
}

}  // namespace sailor::apps
