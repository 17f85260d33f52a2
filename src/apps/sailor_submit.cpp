// sailor-submit: turns a plan into a batch script and hands it to Slurm. Runs on a login node. Prints the job's id on
// stdout. Failure: exit 1, also with --wait when the job failed; 2 for a wrong command line.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

#include "apps/inputs.hpp"
#include "apps/stop_requests.hpp"
#include "apps/submit/job_checks.hpp"
#include "apps/submit/submission.hpp"
#include "apps/submit/submit_options.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/stop_status.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/elastic_script.hpp"
#include "slurm/jobs.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;

/// Refuses missing data, which is most often mistyped; --remote-data says that only the nodes can see it.
Result<void> check_data(const SubmitOptions& options, const std::string& prefix) {
  if (*options.remote_data || prefix.empty()) return {};
  std::error_code code;
  for (const std::string& file : {prefix + ".bin", prefix + ".idx"})
    if (!fs::exists(file, code))
      return fail(ErrorCode::not_found, fmt::format("there is no file '{}'", file),
                  "correct --data, make it with sailor-data, or use --remote-data if only the nodes see it");
  return {};
}

/// New files and folders of a submission: if it is refused, they are removed.
class NewPaths {
 public:
  void add(const fs::path& path) { paths_.push_back(path); }
  /// Adds the folder and its parents that do not exist yet.
  void add_missing(const fs::path& folder) {
    std::vector<fs::path> missing;
    std::error_code code;
    for (fs::path path = folder; path.has_relative_path() && !fs::exists(path, code); path = path.parent_path())
      missing.push_back(path);
    paths_.insert(paths_.end(), missing.rbegin(), missing.rend());
  }
  /// Removes the files, and the folders that contain nothing else.
  void remove() const {
    std::error_code code;
    for (auto path = paths_.rbegin(); path != paths_.rend(); ++path) fs::remove(*path, code);
  }

 private:
  std::vector<fs::path> paths_;  ///< in order of creation
};

/// Creates a folder with the plan. Of two submissions at the same time, one finds the plan of the other.
Result<void> write_plan(const fs::path& folder, const std::string& plan_text, NewPaths& made) {
  made.add_missing(folder);
  SAILOR_CHECK(create_folders(folder, "use another one with --run-directory DIR"));
  auto created = create_file_atomically(folder / "plan.toml", plan_text);
  if (!created) return fail(created.error());
  if (*created) made.add(folder / "plan.toml");
  if (*created) return {};
  auto there = read_text_file(folder / "plan.toml");
  if (!there) return fail(there.error());
  if (*there == plan_text) return {};
  return fail(ErrorCode::invalid_input, fmt::format("run directory '{}' belongs to another plan", folder.string()),
              "use another one with --run-directory DIR");
}

/// Writes the plans first and the script last, so that an existing script can run. `companion`: a further script;
/// empty: none.
Result<void> write_job(const std::vector<Submission>& all, const std::string& script, const std::string& companion,
                       const fs::path& path, NewPaths& made) {
  const slurm::SbatchRequest& request = all.front().request;
  for (std::size_t i = 0; i < all.size(); ++i)
    SAILOR_CHECK(
        write_plan(request.array.empty() ? request.run_directory : request.array[i].directory, all[i].plan_text, made));
  const auto write = [&](const fs::path& file, const std::string& text) {
    std::error_code code;
    if (!fs::exists(file, code)) made.add(file);
    return write_file_atomically(file, text);
  };
  if (const std::string& cluster = all.front().cluster_text; !cluster.empty())
    SAILOR_CHECK(write(request.run_directory / cluster_file_name, cluster));
  if (!companion.empty()) SAILOR_CHECK(write(request.run_directory / slurm::companion_script_name, companion));
  return write(path, script);
}

/// Starts of a job that was submitted before do not count for this one.
void forget_earlier_starts(const slurm::SbatchRequest& request) {
  std::error_code code;
  fs::remove(request.run_directory / "starts.txt", code);
  for (const slurm::ArrayTask& task : request.array) fs::remove(task.directory / "starts.txt", code);
}

/// Refuses arrays that Slurm would refuse after all files are written.
Result<void> check_array_size(std::size_t plans) {
  if (plans < 2) return {};
  const auto most = slurm::most_array_tasks();
  if (!most || plans <= *most) return {};
  return fail(ErrorCode::invalid_input,
              fmt::format("{} plans are too many: Slurm allows {} tasks in a job array (MaxArraySize)", plans, *most),
              "submit fewer at a time");
}

/// Unsets environment variables that sbatch would prefer to the script.
void drop_overriding_variables(const slurm::SbatchRequest& request, const Environment& environment) {
  const auto names = slurm::overriding_variables(request, environment);
  if (names.empty()) return;
  for (const std::string& name : names) ::unsetenv(name.c_str());
  log_warning("sbatch does not get {} of the environment: sailor-submit decides that, see its options",
              join(names, ", "));
}

void warn_of_overriding_variables(const slurm::SbatchRequest& request, const Environment& environment) {
  if (const auto names = slurm::overriding_variables(request, environment); !names.empty())
    log_warning("sbatch would take {} of the environment instead of what the script says: unset before submitting it",
                join(names, ", "));
}

/// The last iteration in a log, and its loss: "   41    3.06412     87.1  ..."; std::nullopt before the first.
std::optional<std::pair<std::int64_t, std::string>> last_iteration(const fs::path& log) {
  std::optional<std::pair<std::int64_t, std::string>> last;
  for (const std::string& line : slurm::last_lines(log, 20)) {
    std::istringstream words(line);
    std::int64_t iteration = 0;
    std::string loss;
    if (line.starts_with(' ') && words >> iteration >> loss) last.emplace(iteration, loss);
  }
  return last;
}

/// Meaning of sailor-train's exit status.
std::string_view why(int exit_code) {
  switch (exit_code) {
    case stopped_with_checkpoint:
      return ": stopped before its last iteration, with a checkpoint to go on from";
    case stopped_without_checkpoint:
      return ": stopped before its last iteration, without a checkpoint";
    case mpi_did_not_start:
      return ": MPI crashed while the ranks started, twice";
    default:
      return "";
  }
}

Result<void> follow(const slurm::JobHandle& job, const std::string& name, std::int64_t iterations,
                    bool runs_sailor_train) {
  slurm::WaitOptions options;
  std::optional<Progress> progress;  // begins with the training: time in the queue says nothing of the time left
  options.on_answer = [&](const slurm::JobStatus& now) {
    if (now.phase != slurm::JobPhase::running) return;
    if (iterations == 0) return;  // another framework's log
    if (!progress) progress.emplace("training", static_cast<std::size_t>(iterations));
    if (const auto last = last_iteration(now.log))
      progress->update(static_cast<std::size_t>(std::min(last->first + 1, iterations)),
                       fmt::format("iteration {}, loss {}", last->first, last->second));
  };
  const auto tell = [&](const slurm::JobStatus& now) {
    if (now.ended()) progress.reset();
    log_info("job {}: {}", job.name(), now.describe());
  };
  options.is_cancelled = [] { return stop_request() != 0; };
  auto status = slurm::wait_for(job, tell, options);
  progress.reset();
  if (!status) return fail(status.error());
  if (status->phase == slurm::JobPhase::succeeded) {
    for (const std::string& line : slurm::last_lines(status->log, 10))
      if (line.find("nothing to do: ") != std::string::npos) log_warning("{}", line);
    return {};
  }
  std::string what = fmt::format("job {} ({}): {}{}", job.name(), name, status->describe(),
                                 runs_sailor_train ? why(status->exit_code) : "");
  const auto lines = slurm::last_lines(status->log, 10);
  if (!lines.empty())
    what += fmt::format("; its log {} ends with:\n    {}", status->log.string(), join(lines, "\n    "));
  else if (!status->log.empty())
    what += fmt::format("; its log would be {}, which is empty or not there", status->log.string());
  return fail(ErrorCode::failure, what);
}

/// Follows all tasks of an array, one after the other; the error is that of the first failed task.
Result<void> follow_all(slurm::JobHandle job, const slurm::SbatchRequest& request, bool runs_sailor_train) {
  const std::size_t tasks = request.array.size();
  if (tasks == 0) return follow(job, request.job_name, request.iterations, runs_sailor_train);
  Result<void> done;
  for (std::size_t task = 0; task < tasks; ++task) {
    job.array_task = static_cast<int>(task);
    auto ended = follow(job, request.job_name, request.iterations, runs_sailor_train);
    if (!ended && done) done = ended;
    if (stop_request() != 0) break;
  }
  return done;
}

/// A job that is to be queued, or only inspected.
struct Job {
  const std::vector<Submission>& plans;
  slurm::SbatchRequest request;
  std::string script;
  std::string companion{};  ///< script of the companion jobs of an elastic training; empty: there are none
};

Result<std::vector<Job>> write_scripts(const SubmitOptions& options, const std::vector<std::vector<Submission>>& all) {
  std::vector<Job> jobs;
  for (const std::vector<Submission>& plans : all) {
    const Submission& first = plans.front();
    slurm::SbatchRequest request = first.request;
    // The plugin would look for the plan, which is not written yet.
    if (*options.test_only && request.placer == slurm::Placer::plugin) request.placer = slurm::Placer::launcher;
    if (options.export_.has()) request.script_path = from_here(*options.export_);
    auto script = slurm::sbatch_script(first.plan, first.model, request);
    if (!script) return fail(script.error());
    jobs.push_back({.plans = plans, .request = std::move(request), .script = *std::move(script)});
    if (!jobs.back().request.elastic) continue;
    auto companion = slurm::companion_script(first.plan, jobs.back().request);
    if (!companion) return fail(companion.error());
    jobs.back().companion = *std::move(companion);
  }
  return jobs;
}

Result<void> test_only(const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    auto answer = slurm::test_submission(job.script);
    if (!answer) return fail(answer.error());
    if (job.plans.front().kinds.size() > 1)
      log_info("Slurm says it of each component alone: together they may have to wait for each other");
    fmt::print("{}\n", *answer);
  }
  return {};
}

/// In a run directory: the job of the elastic training there.
constexpr const char* elastic_job_file = "elastic.job";

/// Refuses a run directory whose elastic training is in the queue or runs: its ranks would meet those of another one.
Result<void> check_no_training(const fs::path& run_directory) {
  const auto text = read_text_file(run_directory / elastic_job_file);
  if (!text) return {};
  slurm::JobHandle job;
  std::istringstream words(*text);
  if (!(words >> job.id)) return {};
  words >> job.cluster;  // none: it stays empty
  const auto status = slurm::job_status(job);
  if (!status || status->ended()) return {};
  return fail(ErrorCode::invalid_input,
              fmt::format("run directory '{}' is that of the elastic training of job {}, which is {}",
                          run_directory.string(), job.name(), status->describe()),
              fmt::format("use another one with --run-directory DIR, or end the job: scancel {}", job.name()));
}

/// Writes the job's files and queues the job. If sbatch refuses it, the files are removed.
Result<slurm::JobHandle> queue(const Job& job) {
  SAILOR_CHECK(check_no_training(job.request.run_directory));
  const fs::path path =
      job.request.script_path.empty() ? job.request.run_directory / "job.sbatch" : job.request.script_path;
  NewPaths made;
  if (auto written = write_job(job.plans, job.script, job.companion, path, made); !written) {
    made.remove();
    return fail(written.error());
  }
  forget_earlier_starts(job.request);
  auto handle = slurm::submit(path, job.request.run_directory);
  if (!handle && handle.error().code != ErrorCode::unavailable) made.remove();
  if (!handle) return fail(handle.error());
  fmt::print("{}\n", handle->id);
  std::fflush(stdout);
  log_info("submitted job {}, which runs in {}", handle->id, job.request.run_directory.string());
  suggest_next({fmt::format("squeue --jobs={}  # its log and its run file are in that folder", handle->id)});
  if (job.request.elastic) {
    const fs::path file = job.request.run_directory / elastic_job_file;
    if (const auto written = write_file_atomically(file, fmt::format("{} {}\n", handle->id, handle->cluster)); !written)
      log_warning("{}", written.error().message());
    log_info("its folder, for sailor-plan --watch --elastic FOLDER: {}",
             (job.request.run_directory / "elastic").string());
  }
  if (job.request.continuation == slurm::Continuation::resubmit && job.request.array.empty())
    log_info("each job hands in the next one first; to end the training: scancel --me --name={}", job.request.job_name);
  return handle;
}

/// Warns of options on the command line that change nothing in these jobs.
void warn_of_idle_options(const SubmitOptions& options, const std::vector<Job>& jobs) {
  const auto warn = [](const AnyOptionValue& option, std::string_view why) {
    if (option.typed()) log_warning("--{} changes nothing: {}", option.name(), why);
  };
  if (*options.when_stopped == "end" && !options.elastic.has())
    warn(options.retries, "jobs start once more only with --when-stopped requeue or resubmit");
  if (!options.image.has()) warn(options.view, "it is a view of the uenv that --image names");
  if (std::none_of(jobs.begin(), jobs.end(), [](const Job& job) { return !job.request.array.empty(); }))
    warn(options.array_limit, "there is no job array, which several plans make");
}

Result<void> run(const SubmitOptions& options, const Environment& environment) {
  int instead = 0;
  for (const auto* only : {&options.dry_run, &options.test_only, &options.wait}) instead += **only ? 1 : 0;
  if (instead + (options.export_.has() ? 1 : 0) > 1)
    return fail(ErrorCode::usage, "--dry-run, --test-only, --export and --wait do not go together", "use one of them");
  if (*options.wait && *options.when_stopped == "resubmit")
    return fail(ErrorCode::usage, "--wait would end with the first of the jobs that submit each other",
                "use --when-stopped requeue, which keeps the job, or leave out --wait");
  const auto all = prepare_all(options, environment);
  if (!all) return fail(all.error());
  const auto jobs = write_scripts(options, *all);
  if (!jobs) return fail(jobs.error());
  warn_of_session(environment);
  warn_of_idle_options(options, *jobs);
  auto can_run = check_program(options, environment, *all);
  if (can_run) can_run = check_mounts(environment, *all);
  // Nothing is queued: the script is only to be inspected.
  if (!can_run && (*options.dry_run || *options.test_only)) {
    log_warning("{}", can_run.error().message());
    can_run = {};
  }
  if (!can_run) return can_run;
  if (*options.dry_run) {
    for (const Job& job : *jobs)
      fmt::print("{}{}{}{}", &job == &jobs->front() ? "" : "\n", job.script, job.companion.empty() ? "" : "\n",
                 job.companion);
    return {};
  }
  const slurm::SbatchRequest& first = jobs->front().request;
  SAILOR_CHECK(check_data(options, first.data));
  if (!options.export_.has()) {
    SAILOR_CHECK(slurm::check_configuration(slurm_configuration(environment)));
    drop_overriding_variables(first, environment);
  }
  if (*options.test_only) return test_only(*jobs);
  for (const Job& job : *jobs) SAILOR_CHECK(check_array_size(job.request.array.size()));
  if (options.export_.has()) {
    if (jobs->size() > 1)
      return fail(ErrorCode::usage, fmt::format("--export writes one script, but the plans need {}", jobs->size()),
                  "export plans that need equally many nodes at a time");
    SAILOR_CHECK(check_can_write(from_here(*options.export_)));
    NewPaths made;
    warn_of_overriding_variables(first, environment);
    SAILOR_CHECK(write_job(jobs->front().plans, jobs->front().script, jobs->front().companion,
                           from_here(*options.export_), made));
    log_info("wrote {}, which runs in {}", *options.export_, first.run_directory.string());
    return {};
  }
  std::vector<slurm::JobHandle> queued;
  for (const Job& job : *jobs) {
    auto handle = queue(job);
    if (!handle && !queued.empty())
      return fail(handle.error(), fmt::format("after {} of {} jobs were submitted", queued.size(), jobs->size()));
    if (!handle) return fail(handle.error());
    queued.push_back(*std::move(handle));
  }
  if (!*options.wait) return {};
  Result<void> done;
  catch_stop_requests("sailor-submit", {SIGINT});  // from here on the jobs are safe without this program
  for (std::size_t i = 0; i < queued.size() && stop_request() == 0; ++i) {
    auto ended = follow_all(queued[i], (*jobs)[i].request, (*jobs)[i].request.runs_sailor_train);
    if (!ended && done) done = ended;
  }
  return done;
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv,
                                   sailor::apps::command(sailor::apps::submit_command_line, sailor::apps::run));
}
