#include "apps/submit/job_checks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "apps/submit/elastic.hpp"
#include "apps/training_program.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "handover/handover.hpp"
#include "preflight/program.hpp"
#include "slurm/edf.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

namespace {

/// Another program than sailor-train is the user's own affair, but for one that cannot be started. Errors:
/// invalid_input.
Result<void> check_own_program(const preflight::TrainingProgram& program, const Environment& environment) {
  if (!program.inside.empty() || preflight::is_sailor_train(program.path)) return {};
  std::error_code code;
  if (!program.path.has_parent_path()) {
    const auto path = environment.find("PATH");
    const std::vector<std::string> folders =
        path == environment.end() ? std::vector<std::string>() : split(path->second, ':');
    if (std::none_of(folders.begin(), folders.end(),
                     [&](const std::string& folder) { return fs::is_regular_file(folder / program.path, code); }))
      log_warning("--program {}: it is in no folder of PATH here; the job looks for it on its nodes",
                  program.path.string());
    return {};
  }
  const fs::file_status status = fs::status(program.path, code);
  if (!fs::exists(status)) {
    log_warning("--program {}: it is not here; the job looks for it on its nodes", program.path.string());
    return {};
  }
  if (fs::is_regular_file(status) && ::access(program.path.c_str(), X_OK) == 0) return {};
  return fail(ErrorCode::invalid_input,
              fmt::format("--program {}: {}", program.path.string(),
                          fs::is_directory(status) ? "it is a folder" : "it cannot be executed"),
              "name a program, or a script with chmod +x");
}

/// Warns of plans that were made for another framework than the one that trains.
void warn_of_framework(const std::vector<std::vector<Submission>>& jobs) {
  std::map<std::string, std::vector<std::string>> made_for;
  for (const std::vector<Submission>& all : jobs)
    for (const Submission& one : all)
      if (const std::string& framework = one.plan.origin.framework;
          one.request.runs_sailor_train && !handover::formats_for(framework).empty())
        made_for[framework].push_back(one.path);
  for (const auto& [framework, paths] : made_for)
    log_warning(
        "{}{}: predicted for framework {}, and the job runs sailor-train; see --trainer, or predict this with "
        "sailor-simulate --framework sailor",
        paths.front(), paths.size() == 1 ? "" : fmt::format(" and {} more", paths.size() - 1), framework);
}

}  // namespace

void warn_of_session(const Environment& environment) {
  for (const char* name : {"UENV_MOUNT_LIST", "UENV_VIEW"})
    if (const auto found = environment.find(name); found != environment.end() && !found->second.empty()) {
      log_warning(
          "this shell is inside of a uenv ({}={}): its variables would reach the job, and sbatch may refuse it; leave "
          "the uenv, and name it with --image",
          name, found->second);
      return;
    }
}

Result<void> check_mounts(const Environment& environment, const std::vector<std::vector<Submission>>& jobs) {
  const Submission& first = jobs.front().front();
  const std::string& image = first.program.inside;
  const bool edf = std::any_of(first.request.srun_options.begin(), first.request.srun_options.end(),
                               [](const std::string& option) { return option.starts_with("--environment="); });
  if (image.empty() || !edf) return {};
  const auto mounts = slurm::read_edf_mounts(image, environment);
  if (!mounts && mounts.error().code == ErrorCode::unavailable) {
    log_warning("whether the job sees its files is not known: {}", mounts.error().what);
    return {};
  }
  if (!mounts) return fail(mounts.error());
  if (!mounts->unknown.empty()) {
    log_warning("{}: whether the job sees its files is not known: '{}' has a variable that is not set here",
                mounts->file.string(), mounts->unknown.front());
    return {};
  }
  std::vector<fs::path> paths;
  for (const std::vector<Submission>& plans : jobs)
    for (const Submission& one : plans) {
      paths.push_back(one.request.run_directory);
      if (one.request.framework)
        paths.push_back(one.request.framework->directory);
      else
        paths.push_back(fs::path(one.request.data).parent_path());
      if (one.request.checkpoints.is_absolute()) paths.push_back(one.request.checkpoints);
    }
  std::vector<std::string> missing;
  for (const fs::path& path : slurm::not_mounted(*mounts, paths))
    if (std::find(missing.begin(), missing.end(), path.string()) == missing.end()) missing.push_back(path.string());
  if (!missing.empty())
    return fail(ErrorCode::invalid_input,
                fmt::format("{} mounts nothing at {}: the job would not find its files", mounts->file.string(),
                            join(missing, ", ")),
                fmt::format("add \"{0}:{0}\" to its mounts, or the folder above it", missing.front()));
  // The program and the models may be in the image.
  for (const fs::path& path : slurm::not_mounted(*mounts, {first.request.program, first.request.models_folder}))
    if (path.is_absolute())
      log_warning("{} mounts nothing at {}: it must be in the image", mounts->file.string(), path.string());
  return {};
}

Result<void> check_program(const SubmitOptions& options, const Environment& environment,
                           const std::vector<std::vector<Submission>>& jobs) {
  const auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  const preflight::TrainingProgram& program = jobs.front().front().program;  // the same for all
  SAILOR_CHECK(check_controller(jobs.front().front()));
  if (options.program.has()) SAILOR_CHECK(check_own_program(program, environment));
  warn_of_framework(jobs);
  const auto abilities = ask_about(program);
  if (!abilities) return {};
  if (!*abilities) {
    log_warning("whether the job's program can run the plan is not known: {}", abilities->error().what);
    return {};
  }
  const auto& known = (*abilities)->options;
  if (jobs.front().front().request.elastic && std::find(known.begin(), known.end(), "--elastic") == known.end())
    return fail(ErrorCode::unavailable, fmt::format("{} is from before elastic trainings", program.path.string()),
                "use the sailor-train of the same installation");
  for (const std::vector<Submission>& all : jobs)
    for (const Submission& one : all)
      if (auto can = preflight::check_can_run(program, **abilities, one.plan, *gpus); !can)
        return fail(can.error(), one.path);
  return {};
}

}  // namespace sailor::apps
