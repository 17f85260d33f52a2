#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "core/files.hpp"
#include "core/log.hpp"
#include "model/model.hpp"
#include "plan/plan_origin.hpp"

namespace sailor {

Result<Model> find_model(const Plan& plan, const std::filesystem::path& folder) {
  // A model of Hugging Face's config.json has the path of that file as its name.
  const bool is_path = plan.job.model.ends_with(".json");
  const std::string& file = is_path ? plan.job.model : plan.origin.model_file;
  if (std::error_code code; file.empty() || !std::filesystem::exists(file, code)) {
    auto model = find_model(plan.job.model, folder);
    if (!model && !file.empty())
      return fail(
          model.error().code,
          fmt::format("the plan was made for the model of '{}', which is not there: {}", file, model.error().what),
          model.error().hint.empty() ? "put the file back, or correct the plan" : model.error().hint);
    return model;
  }
  auto model = load_model(file);
  if (model && !is_path && model->name != plan.job.model)
    return fail(ErrorCode::invalid_input,
                fmt::format("the plan is for {}, but '{}', which it was made with, describes {} now", plan.job.model,
                            file, model->name),
                "make a new plan, or correct [origin] model_file");
  return model;
}

std::optional<Cluster> cluster_of_origin(const Plan& plan, const GpuCatalogue& gpus, bool speaks) {
  const std::string& file = plan.origin.cluster;
  if (std::error_code code; !file.ends_with(".toml") || !std::filesystem::exists(file, code)) return std::nullopt;
  auto cluster = load_cluster(file, gpus);
  if (!cluster) {
    if (speaks)
      log_warning("the cluster that the plan was made for cannot be read, and its links and prices are left out: {}",
                  cluster.error().what);
    return std::nullopt;
  }
  const bool is_same = content_hash(cluster_to_toml(*cluster)) == plan.origin.cluster_hash;
  if (speaks)
    log_info("uses cluster {}, for which the plan was made{}; --cluster names another", file,
             is_same ? "" : " (it has changed since)");
  return *std::move(cluster);
}

Result<std::optional<Cluster>> cluster_for(const Plan& plan, const std::string& file, const GpuCatalogue& gpus,
                                           bool speaks) {
  if (file.empty()) return cluster_of_origin(plan, gpus, speaks);
  auto cluster = load_cluster(file, gpus);
  if (!cluster) return fail(cluster.error());
  return std::optional<Cluster>(*std::move(cluster));
}

}  // namespace sailor
