#include "spank_plugin/task_side.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cluster/gpu_catalogue.hpp"
#include "core/affinity.hpp"
#include "core/files.hpp"
#include "core/toml_reader.hpp"
#include "slurm/device_models.hpp"
#include "spank_plugin/plan_file.hpp"
#include "spank_plugin/submit_side.hpp"

namespace sailor::spank {

namespace fs = std::filesystem;

namespace {

/// The value of a variable that is set and not empty.
std::optional<std::string> word(const slurm::Lookup& environment, const std::string& name) {
  auto value = environment(name);
  return value && !value->empty() ? value : std::nullopt;
}

/// Path of the plan: a variable that the submitting side has set, or, if the user's --export removed it, the option as
/// it was typed, relative to the folder where the job was submitted.
fs::path plan_of(const slurm::Lookup& environment, const std::optional<std::string>& option) {
  for (const char* name : {plan_variable, carried_variable})
    if (const auto value = word(environment, name)) return *value;
  return fs::path(word(environment, "SLURM_SUBMIT_DIR").value_or("")) / option.value_or("");
}

/// The catalogue that maps GRES types to GPUs; std::nullopt, and a warning, if it cannot be read.
std::optional<GpuCatalogue> load_catalogue(const Arguments& arguments, const slurm::Lookup& environment,
                                           std::string& warning) {
  fs::path file = arguments.gpus;
  if (file.empty()) file = word(environment, "SAILOR_GPUS").value_or("");
  if (file.empty())
    if (const auto folder = word(environment, "SAILOR_PROFILES")) file = fs::path(*folder) / "gpus.toml";
  if (file.empty()) file = arguments.installed_gpus;
  auto catalogue = GpuCatalogue::load(file);
  if (catalogue) return *std::move(catalogue);
  warning = fmt::format("GPU types are not compared with the plan: {}{}", catalogue.error().message(),
                        file == arguments.installed_gpus ? "; name the catalogue in plugstack.conf: gpus=FILE" : "");
  return std::nullopt;
}

}  // namespace

bool Refusal::told_by(const slurm::Lookup& environment) const {
  if (teller == Teller::each_task) return true;
  const auto number = environment(teller == Teller::first_task ? "SLURM_PROCID" : "SLURM_LOCALID");
  return !number || *number == "0";
}

tl::expected<Prepared, Refusal> prepare_task(const TaskHost& task, const Arguments& arguments,
                                             const std::optional<std::string>& option) {
  const slurm::Lookup& environment = task.variable;
  const auto refuse = [](const Error& error, Teller teller) { return tl::unexpected(Refusal{error, teller}); };
  const auto on_node = [&](const Error& error) {
    return fail(error, "node " + word(environment, "SLURMD_NODENAME").value_or("?")).value();
  };
  if (::geteuid() != task.user)
    return refuse(on_node(Error{ErrorCode::failure,
                                fmt::format("the task runs as user {}, not as {}, who owns the job: its plan is not "
                                            "read",
                                            ::geteuid(), task.user),
                                "tell your administrator"}),
                  Teller::first_task_of_node);

  const fs::path path = plan_of(environment, option);
  const auto plan = read_plan_file(path);
  if (!plan) {
    Error error = on_node(plan.error());
    if (error.hint.empty() && error.code != ErrorCode::invalid_input)
      error.hint = "every node of the job must be able to read the plan: keep it on a shared file system";
    return refuse(error, Teller::first_task_of_node);
  }
  auto step = slurm::read_step(environment);
  if (!step) return refuse(step.error(), Teller::first_task);
  Prepared prepared;
  if (const auto known = slurm::add_node_facts(*step, environment); !known)
    prepared.details.push_back("the GPU types of the nodes are not known: " + known.error().message());
  const auto catalogue = load_catalogue(arguments, environment, prepared.warning);
  const auto role = slurm::find_role(*plan, *step, catalogue ? &*catalogue : nullptr);
  if (!role) {
    Error error = fail(role.error(), path.string()).value();
    error.hint +=
        fmt::format("{}a step that is no training: srun --sailor-plan={}", error.hint.empty() ? "" : "; ", no_plan);
    return refuse(error, Teller::first_task);
  }
  if (catalogue && role->on_gpu && !arguments.devices.empty())
    if (const auto good = slurm::check_models(slurm::device_models(arguments.devices), role->gpu, *catalogue); !good)
      return refuse(on_node(good.error()), Teller::first_task_of_node);
  std::vector<std::pair<std::string, std::string>> of_site;
  if (!arguments.environment.empty()) {
    auto variables = read_site_environment(arguments.environment);
    if (!variables) return refuse(on_node(variables.error()), Teller::first_task_of_node);
    of_site = *std::move(variables);
  }
  const auto of_role = slurm::role_environment(*role, *plan, path, environment);
  if (!of_role) return refuse(on_node(of_role.error()), Teller::each_task);

  for (const auto& [name, value] : of_site)
    if (!environment(name))
      if (const auto set = task.set_variable(name, value); !set) return refuse(on_node(set.error()), Teller::each_task);
  for (const auto& [name, value] : *of_role)
    if (const auto set = task.set_variable(name, value); !set) return refuse(on_node(set.error()), Teller::each_task);
  const std::vector<int> allowed = allowed_cores();
  if (const std::vector<int> own = slurm::cores_of_task(*role, allowed, environment); own != allowed)
    if (!bind_to_cores(own)) prepared.warning = "the system refuses to keep the task to its cores";
  prepared.details.push_back(slurm::describe(*role, *step));
  return prepared;
}

Result<std::vector<std::pair<std::string, std::string>>> read_site_environment(const fs::path& file) {
  const auto document = TomlDocument::load(file);
  if (!document) return fail(document.error(), "the site's environment");
  const TomlTable root = document->root();
  std::vector<std::pair<std::string, std::string>> variables;
  for (const std::string& name : root.keys()) {
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
    const auto fits = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
    if (name.empty() || !is_letter(name.front()) || !std::all_of(name.begin(), name.end(), fits))
      root.reject(name, fmt::format("'{}' is no name of a variable", name), "use letters, digits and _");
    std::string value = root.text(name);
    if (value.find('\0') != std::string::npos) root.reject(name, fmt::format("{} holds a NUL character", name));
    variables.emplace_back(name, std::move(value));
  }
  if (const auto good = document->finish(); !good) return fail(good.error(), "the site's environment");
  return variables;
}

}  // namespace sailor::spank
