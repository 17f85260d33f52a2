// sailor-sweep: runs the points of an experiment, on this machine or as a job array, and writes the results as HDF5,
// CSV and a table. Runs on a login node. Failure: exit 1, also if a point fails; 2 for a wrong command line; 3 when no
// point has a plan.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <thread>

#include "apps/options.hpp"
#include "apps/stop_requests.hpp"
#include "apps/sweep/experiment.hpp"
#include "apps/sweep/sweep.hpp"
#include "apps/sweep/sweep_options.hpp"
#include "apps/sweep/sweep_tables.hpp"
#include "core/affinity.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/shell.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "slurm/command_array.hpp"
#include "slurm/jobs.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;
using sweep::Sweep;
using sweep::SweepChoices;

/// A hash of the content of these files, of folders of all *.toml and *.h5 in them. Missing ones count by their names.
std::string hash_of(const std::vector<fs::path>& paths) {
  std::string all;
  std::error_code code;
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path, code)) files.push_back(path);
    if (!fs::is_directory(path, code)) continue;
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(path, code))
      if (entry.path().extension() == ".toml" || entry.path().extension() == ".h5") inside.push_back(entry.path());
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  // Reads in blocks: the kernel counts the peak memory of this process towards its child processes.
  std::string block(std::size_t{1} << 20U, '\0');
  for (const fs::path& file : files) {
    all += file.filename().string();
    if (!fs::is_regular_file(file, code)) continue;
    std::ifstream stream(file, std::ios::binary);
    while (stream.read(block.data(), static_cast<std::streamsize>(block.size())) || stream.gcount() > 0)
      all += content_hash(std::string_view(block).substr(0, static_cast<std::size_t>(stream.gcount())));
  }
  return content_hash(all);
}

Result<Sweep> read_sweep(const SweepChoices& choices, const sweep::SweepOptions& options,
                         const Environment& environment) {
  auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  const fs::path profiles = profiles_folder(environment);
  // Another planner knows its own names.
  const fs::path models = options.sailor_plan.has() ? fs::path() : profiles / "models";
  auto experiment = sweep::load_experiment(choices.experiment, *gpus, models);
  if (!experiment) return fail(experiment.error());
  Sweep read{.experiment = *std::move(experiment), .program = choices.program};
  std::error_code code;
  read.folder = fs::absolute(choices.folder.empty() ? fs::path(read.experiment.name) : choices.folder, code);
  read.points = sweep::points_of(read.experiment);
  if (read.points.empty())
    return fail(ErrorCode::invalid_input,
                fmt::format("{}: [[exclude]] leaves out every point", choices.experiment.string()),
                "take out one of its tables");
  if (options.gpus.has()) read.options = {"--gpus", fs::absolute(*options.gpus, code).string()};
  read.inputs = hash_of({read.program, find_store(read.experiment.profile, environment),
                         gpus_file(options.gpus, environment), profiles / "models", profiles / "frameworks"});
  return read;
}

std::vector<std::size_t> part_of(const std::vector<std::size_t>& points, const sweep::Part& part) {
  std::vector<std::size_t> chosen;
  for (const std::size_t point : points)
    if (point % part.of == part.number) chosen.push_back(point);
  return chosen;
}

void list_points(const Sweep& read, const std::vector<std::size_t>& pending, const std::string& format) {
  const auto is_pending = [&](std::size_t i) { return std::find(pending.begin(), pending.end(), i) != pending.end(); };
  if (format == "json") {
    nlohmann::ordered_json points = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < read.points.size(); ++i)
      points.push_back({{"id", read.points[i].id},
                        {"planner", read.points[i].planner},
                        {"model", read.points[i].model},
                        {"cluster", read.points[i].cluster},
                        {"constraint", read.points[i].constraint},
                        {"repetition", read.points[i].repetition},
                        {"finished", !is_pending(i)},
                        {"command", sweep::command_of(read, read.points[i], 1)}});
    fmt::print("{}\n", nlohmann::ordered_json({{"experiment", read.experiment.name}, {"points", points}}).dump(2));
    return;
  }
  Table table({{"point", Align::right},
               {"planner", Align::left},
               {"model", Align::left},
               {"cluster", Align::left},
               {"constraint", Align::left},
               {"repetition"},
               {"state", Align::left}});
  for (std::size_t i = 0; i < read.points.size(); ++i) {
    const sweep::Point& point = read.points[i];
    table.add_row({std::to_string(i), point.planner, point.model, point.cluster, point.constraint,
                   std::to_string(point.repetition), is_pending(i) ? "to do" : "finished"});
  }
  fmt::print("{}\n{}\n{}: {} to do\n", read.experiment.title, table.to_string(), plural(read.points.size(), "point"),
             pending.size());
}

/// Number of tasks of the job array.
int tasks_of(const Sweep& read, const sweep::SlurmChoice& slurm) {
  return std::min(slurm.tasks > 0 ? slurm.tasks : 64, static_cast<int>(read.points.size()));
}

Result<std::string> array_script(const Sweep& read, const SweepChoices& choices) {
  const sweep::SlurmChoice& slurm = *choices.slurm;
  const int tasks = tasks_of(read, slurm);
  std::error_code code;
  slurm::CommandArray request{
      .job_name = "sweep-" + read.experiment.name,
      .comment = fmt::format("{}: {} in {}", read.experiment.title, plural(read.points.size(), "point"),
                             plural(static_cast<std::size_t>(tasks), "task")),
      .partition = slurm.partition,
      .account = slurm.account,
      .qos = slurm.qos,
      .time_limit = slurm.time_limit,
      .tasks = tasks,
      .array_limit = slurm.array_limit,
      .cpus_per_task = slurm.cpus_per_task,
      .working_directory = read.folder,
      .log_path = read.folder / "slurm-%A_%a.out",
      .command = {fs::read_symlink("/proc/self/exe", code).string(), fs::absolute(choices.experiment, code).string(),
                  "--output", read.folder.string(), "--sailor-plan", read.program.string(), "--jobs",
                  std::to_string(read.experiment.most_at_once > 0
                                     ? std::min(read.experiment.most_at_once, slurm.cpus_per_task)
                                     : slurm.cpus_per_task)},
      .task_argument = fmt::format("--part=$SLURM_ARRAY_TASK_ID/{}", tasks)};
  request.command.insert(request.command.end(), read.options.begin(), read.options.end());
  return slurm::command_array_script(request);
}

/// Writes the script and queues it; with --wait waits until all tasks have ended.
Result<void> submit(const Sweep& read, const SweepChoices& choices, const std::string& script) {
  SAILOR_CHECK(create_folders(read.folder, "choose another one with --output FOLDER"));
  std::error_code code;
  const fs::path path = read.folder / "job.sbatch";
  SAILOR_CHECK(write_file_atomically(path, script));
  auto job = slurm::submit(path, read.folder, "sailor-sweep --slurm --dry-run");
  if (!job && job.error().code != ErrorCode::unavailable) fs::remove(path, code);
  if (!job) return fail(job.error());
  fmt::print("{}\n", job->id);
  std::fflush(stdout);
  log_info("submitted job {}, which works in {}", job->id, read.folder.string());
  if (!choices.slurm->wait) {
    suggest_next({fmt::format("squeue --jobs={}", job->id),
                  fmt::format("sailor-sweep {} --output {}  # when it has ended: tables, and what failed again",
                              shell_quote(choices.experiment.string()), shell_quote(read.folder.string()))});
    return {};
  }
  catch_stop_requests("sailor-sweep", {SIGINT});
  for (int task = 0; task < tasks_of(read, *choices.slurm); ++task) {
    job->array_task = task;
    auto ended =
        slurm::wait_for(*job, [&](const slurm::JobStatus& now) { log_info("job {}: {}", job->name(), now.describe()); },
                        {.is_cancelled = [] { return stop_request() != 0; }});
    if (!ended) return fail(ended.error());
  }
  return {};
}

/// Names the command that makes the plan of the fastest point a file.
void suggest_best_plan(const Sweep& read, const std::vector<SweepRow>& rows) {
  const auto throughput = [](const SweepRow& row) {
    return row.status == SweepStatus::plan ? row.judged.throughput.value_or(0.0) : 0.0;
  };
  const auto best = std::max_element(
      rows.begin(), rows.end(), [&](const SweepRow& a, const SweepRow& b) { return throughput(a) < throughput(b); });
  if (best == rows.end() || throughput(*best) <= 0.0) return;
  const sweep::Point& point = read.points[static_cast<std::size_t>(best - rows.begin())];
  std::vector<std::string> words{"sailor-plan"};
  words.insert(words.end(), point.options.begin(), point.options.end());
  words.insert(words.end(), read.options.begin(), read.options.end());
  words.insert(words.end(), {"--cluster", sweep::cluster_file(read, point).string(), "--output", "plan.toml"});
  for (std::string& word : words) word = shell_quote(word);
  suggest_next({fmt::format("{}  # the fastest: {}", join(words, " "), point.label(read.experiment))});
}

Result<int> tabulate(const Sweep& read, const SweepChoices& choices, const std::string& command) {
  const auto rows = sweep::rows_of(read);
  if (!rows) return fail(rows.error());
  SAILOR_CHECK(sweep::write_tables(read, *rows, fmt::format("sailor-sweep {}", version()), command));
  fmt::print("{}", sweep::report(read, *rows, choices.format));
  if (choices.format == "table") suggest_best_plan(read, *rows);
  return sweep::exit_status_of(*rows);
}

Result<int> run(const sweep::SweepOptions& options, const Environment& environment) {
  const auto choices = sweep::read_choices(options);
  if (!choices) return fail(choices.error());
  const auto read = read_sweep(*choices, options, environment);
  if (!read) return fail(read.error());
  const auto pending = sweep::pending_points(*read, choices->again);
  if (!pending) return fail(pending.error());
  const std::vector<std::size_t> to_do = part_of(pending->points, choices->part);
  if (choices->dry_run && !choices->slurm) {
    list_points(*read, to_do, choices->format);
    return 0;
  }
  if (pending->changed > 0)
    log_info("{} finished before, by another sailor-plan or from other measurements: they are done again",
             plural(pending->changed, "point") + (pending->changed == 1 ? " was" : " were"));
  if (choices->slurm) {
    const auto script = array_script(*read, *choices);
    if (!script) return fail(script.error());
    if (choices->dry_run) {
      fmt::print("{}", *script);
      return 0;
    }
    SAILOR_CHECK(submit(*read, *choices, *script));
    if (!choices->slurm->wait) return 0;
  } else {
    catch_stop_requests("sailor-sweep", {SIGINT, SIGTERM, SIGHUP});
    int jobs = choices->jobs;
    if (read->experiment.most_at_once > 0) jobs = std::min(jobs, read->experiment.most_at_once);
    const auto cores = static_cast<int>(std::max<std::size_t>(allowed_cores().size(), 1));
    SAILOR_CHECK(sweep::run_points(
        *read, to_do,
        {.jobs = jobs, .threads = std::max(cores / jobs, 1), .is_cancelled = [] { return stop_request() != 0; }}));
    if (choices->part.of > 1) return 0;
  }
  return tabulate(*read, *choices, fmt::format("sailor-sweep {}", choices->experiment.filename().string()));
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv,
                                   sailor::apps::command(sailor::apps::sweep::sweep_command_line, sailor::apps::run));
}
