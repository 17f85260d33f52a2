#include "slurm/jobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <fstream>
#include <optional>
#include <thread>

#include "core/process.hpp"
#include "core/stopwatch.hpp"
#include "core/text.hpp"
#include "slurm/node_records.hpp"
#include "slurm/words.hpp"

namespace sailor::slurm {

namespace {

constexpr Seconds command_deadline{120};  // Slurm's own retries take up to a minute

/// Message of a Slurm command on stderr ("sbatch: error: Batch job submission failed: ...") in one line, without the
/// repetition.
std::string words_of(const ProcessOutcome& outcome) {
  std::string text;
  for (const std::string& line : split(outcome.errors, '\n')) {
    std::string_view rest(line);
    for (const std::string_view prefix : {"sbatch: ", "scontrol: ", "scancel: ", "sacct: ", "error: "})
      if (rest.starts_with(prefix)) rest.remove_prefix(prefix.size());
    if (rest.empty()) continue;
    if (!text.empty()) text += "; ";
    text += printable(rest);
  }
  return text.empty() ? outcome.how_it_ended() : text;
}

Result<ProcessOutcome> run_slurm(std::vector<std::string> arguments, std::string input = {}) {
  const std::string program = arguments.front();
  auto outcome =
      run_command({.arguments = std::move(arguments), .input = std::move(input), .deadline = command_deadline});
  if (!outcome && outcome.error().code == ErrorCode::not_found)
    return fail(ErrorCode::unavailable, outcome.error().what, "load Slurm's module, or log in to the cluster");
  if (outcome && outcome->timed_out)
    return fail(ErrorCode::unavailable, fmt::format("{}: {}", program, outcome->how_it_ended()));
  return outcome;
}

std::vector<std::string> cluster_option(const JobHandle& job) {
  if (job.cluster.empty()) return {};
  return {"--clusters=" + job.cluster};
}

std::vector<std::string> command_for(const JobHandle& job, std::vector<std::string> arguments,
                                     std::vector<std::string> rest) {
  for (std::string& option : cluster_option(job)) arguments.push_back(std::move(option));
  for (std::string& word : rest) arguments.push_back(std::move(word));
  return arguments;
}

/// The value of "Key=value" in a line of such words; empty when it is not there or Slurm writes "(null)". Values
/// with blanks reach up to the next key: `up_to` names it.
std::string value_of(std::string_view line, std::string_view key, std::string_view up_to = " ") {
  std::size_t start = std::string_view::npos;
  if (line.starts_with(fmt::format("{}=", key)))
    start = key.size() + 1;
  else if (const std::size_t found = line.find(fmt::format(" {}=", key)); found != std::string_view::npos)
    start = found + key.size() + 2;
  if (start == std::string_view::npos) return {};
  line.remove_prefix(start);
  const std::string_view value = line.substr(0, line.find(up_to));
  if (value == "(null)" || value == "None" || value == "N/A") return {};
  return std::string(value);
}

/// "2:15": exit code and signal.
void read_exit_code(std::string_view text, JobStatus& status) {
  const std::size_t colon = text.find(':');
  const auto read = [](std::string_view digits, int& number) {
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
  };
  read(text.substr(0, colon), status.exit_code);
  if (colon != std::string_view::npos) read(text.substr(colon + 1), status.exit_signal);
}

Result<JobPhase> phase_of(std::string_view state) {
  using enum JobPhase;
  constexpr std::array<std::pair<std::string_view, JobPhase>, 26> phases{{
      {"PENDING", pending},      {"CONFIGURING", pending},   {"REQUEUED", pending},     {"REQUEUE_FED", pending},
      {"REQUEUE_HOLD", pending}, {"RESV_DEL_HOLD", pending}, {"SPECIAL_EXIT", pending}, {"RUNNING", running},
      {"COMPLETING", running},   {"RESIZING", running},      {"SIGNALING", running},    {"STAGE_OUT", running},
      {"STOPPED", running},      {"SUSPENDED", running},     {"COMPLETED", succeeded},  {"BOOT_FAIL", failed},
      {"CANCELLED", failed},     {"DEADLINE", failed},       {"FAILED", failed},        {"NODE_FAIL", failed},
      {"OUT_OF_MEMORY", failed}, {"PREEMPTED", failed},      {"REVOKED", failed},       {"TIMEOUT", failed},
      {"EXPEDITING", pending},   {"POWER_UP_NODE", pending},
  }};
  // sacct adds who cancelled: "CANCELLED by 1000"
  const std::string_view word = state.substr(0, state.find(' '));
  for (const auto& [name, phase] : phases)
    if (name == word) return phase;
  if (word == "LAUNCH_FAILED" || word == "RECONFIG_FAIL") return failed;
  return fail(ErrorCode::failure,
              fmt::format("Slurm says the job is '{}', which is no state known here", printable(state)));
}

bool same_to_a_reader(const JobStatus& a, const JobStatus& b) {
  return a.state == b.state && a.reason == b.reason && a.nodes == b.nodes;
}

/// Returns false as soon as it is cancelled.
bool pause_for(Seconds time, const std::function<bool()>& is_cancelled) {
  for (Seconds left = time; left.value() > 0.0; left = left - Seconds(0.1)) {
    if (is_cancelled && is_cancelled()) return false;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left.value(), 0.1)));
  }
  return !is_cancelled || !is_cancelled();
}

Error no_longer_waits(const JobHandle& job, const std::optional<JobStatus>& last) {
  const std::string log = last && !last->log.empty() ? ", tail -f " + shell_quote(last->log.string()) : "";
  return {ErrorCode::failure, fmt::format("no longer waiting for job {}, which goes on", job.name()),
          fmt::format("follow it: squeue --jobs={}{}; end it: scancel {}", job.name(), log, job.name())};
}

/// Once slurmctld has forgotten a job (MinJobAge), accounting may still know it.
Result<JobStatus> status_from_accounting(const JobHandle& job) {
  const auto outcome =
      run_slurm(command_for(job, {"sacct"}, {"-n", "-P", "-X", "-o", "State,ExitCode,NodeList", "-j", job.name()}));
  if (outcome && outcome->succeeded())
    for (const std::string& line : split(outcome->output, '\n')) return parse_sacct_job(line);
  return fail(ErrorCode::not_found, fmt::format("Slurm knows no job {} (any more)", job.name()),
              "look into its log; accounting would know more where it is switched on");
}

/// Whether, by its message, sbatch reached no slurmctld, or did not even know where to look for one.
bool reached_nobody(std::string_view words) {
  constexpr std::array<std::string_view, 4> signs{"Unable to contact slurm controller (connect failure)",
                                                  "Unable to process configuration", "configuration source",
                                                  "Unable to resolve"};
  return std::any_of(signs.begin(), signs.end(),
                     [&](std::string_view sign) { return words.find(sign) != std::string_view::npos; });
}
constexpr const char* ask_for_controller = "is slurmctld up? see with scontrol ping";

/// Whether, by sbatch's message, slurmctld may have taken the job and only its answer is missing.
bool may_have_lost_the_answer(std::string_view words) {
  constexpr std::array<std::string_view, 5> signs{"timed out", "Zero Bytes", "Communication", "receive",
                                                  "Unable to contact"};
  return std::any_of(signs.begin(), signs.end(),
                     [&](std::string_view sign) { return words.find(sign) != std::string_view::npos; });
}

}  // namespace

Result<JobHandle> submit(const std::filesystem::path& script, const std::filesystem::path& working_directory,
                         std::string_view shows_script) {
  auto outcome = run_slurm({"sbatch", "--parsable", "--chdir=" + working_directory.string(), "--", script.string()});
  if (!outcome) return fail(outcome.error(), "cannot submit the job");
  if (!outcome->succeeded()) {
    const std::string words = words_of(*outcome);
    if (reached_nobody(words))
      return fail(ErrorCode::failure, "sbatch reached no slurmctld, so nothing was submitted: " + words,
                  ask_for_controller);
    const bool refused = outcome->signal == 0 && !may_have_lost_the_answer(words);
    return refused ? fail(ErrorCode::invalid_input, "sbatch refused the job: " + words,
                          fmt::format("nothing was submitted; {} shows the script", shows_script))
                   : fail(ErrorCode::unavailable, fmt::format("sbatch failed with '{}': {}", script.string(), words),
                          "see with squeue --me whether the job is there");
  }
  // "123" or "123;cluster"; a site's plugin may print lines of its own before it.
  for (const std::string& line : split(outcome->output, '\n')) {
    JobHandle job;
    const auto [end, problem] = std::from_chars(line.data(), line.data() + line.size(), job.id);
    const std::string_view rest(end, static_cast<std::size_t>(line.data() + line.size() - end));
    if (problem != std::errc() || (!rest.empty() && rest.front() != ';')) continue;
    if (!rest.empty()) job.cluster = rest.substr(1);
    return job;
  }
  return fail(ErrorCode::failure, fmt::format("sbatch gave no job id but '{}'", printable(outcome->output)));
}

Result<std::string> test_submission(const std::string& script_text) {
  auto outcome = run_slurm({"sbatch", "--test-only"}, script_text);
  if (!outcome) return fail(outcome.error(), "cannot ask Slurm");
  const std::string words = words_of(*outcome);
  if (outcome->succeeded()) return words;
  if (reached_nobody(words) || may_have_lost_the_answer(words))
    return fail(ErrorCode::unavailable, "slurmctld did not say whether it would take the job: " + words,
                ask_for_controller);
  return fail(ErrorCode::failure, fmt::format("sbatch would refuse the job: {}", words));
}

std::string JobHandle::name() const {
  return array_task < 0 ? std::to_string(id) : fmt::format("{}_{}", id, array_task);
}

std::optional<std::size_t> parse_most_array_tasks(std::string_view configuration) {
  std::optional<std::size_t> most;
  const auto read = [&](std::string_view text) {
    std::size_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc())
      most = std::min(most.value_or(number), number);
  };
  for (const std::string& line : split(configuration, '\n')) {
    const std::size_t equals = line.find("= ");
    if (equals == std::string::npos) continue;
    const std::string_view value = std::string_view(line).substr(equals + 2);
    constexpr std::string_view parameter = "max_array_tasks=";
    if (line.starts_with("MaxArraySize ")) read(value);
    if (const std::size_t found = value.find(parameter);
        line.starts_with("SchedulerParameters ") && found != std::string_view::npos)
      read(value.substr(found + parameter.size()));
  }
  return most;
}

std::optional<std::size_t> most_array_tasks() {
  const auto outcome = run_slurm({"scontrol", "show", "config"});
  return outcome && outcome->succeeded() ? parse_most_array_tasks(outcome->output) : std::nullopt;
}

bool has_plugin() {
  const auto outcome = run_slurm({"sbatch", "--help"});
  return outcome && outcome->succeeded() && outcome->output.find("--sailor-plan") != std::string::npos;
}

std::string JobStatus::describe() const {
  std::string text = state;
  if (phase == JobPhase::running && !nodes.empty()) text += " on " + nodes;
  if (phase == JobPhase::failed && exit_code != 0) text += fmt::format(", exit code {}", exit_code);
  if (phase == JobPhase::failed && exit_signal != 0) text += fmt::format(", signal {}", exit_signal);
  if (!reason.empty()) text += fmt::format(" ({})", reason);
  return text;
}

Result<JobStatus> parse_scontrol_job(std::string_view line) {
  JobStatus status;
  status.state = value_of(line, "JobState");
  if (status.state.empty())
    return fail(ErrorCode::failure,
                fmt::format("scontrol says nothing of the job's state: '{}'", printable(line.substr(0, 200))));
  auto phase = phase_of(status.state);
  if (!phase) return fail(phase.error());
  status.phase = *phase;
  status.reason = value_of(line, "Reason", " Dependency=");
  if (status.reason.find('=') != std::string::npos) status.reason = value_of(line, "Reason");
  status.nodes = value_of(line, "NodeList");
  read_exit_code(value_of(line, "ExitCode"), status);
  // The last key with blanks in it: what follows differs by release (Power=, TresPerNode=, ...).
  // In 26.05 the command line of the submission comes before it: "SubmitLine=sbatch ... StdOut=...".
  const std::size_t last = line.rfind(" StdOut=");
  std::string log = last == std::string_view::npos ? "" : value_of(line.substr(last), "StdOut", "\n");
  for (const std::string_view next :
       {" Power=", " Switches=", " TresPerNode=", " TresPerJob=", " TresPerTask=", " MailUser=", " CpusPerTres="})
    log = log.substr(0, log.find(next));
  while (log.ends_with(' ')) log.pop_back();
  status.log = log;
  return status;
}

Result<JobStatus> parse_sacct_job(std::string_view line) {
  std::vector<std::string> fields = split(line, '|');
  if (fields.size() < 2) return fail(ErrorCode::failure, fmt::format("sacct says '{}'", printable(line)));
  JobStatus status;
  status.state = fields[0];
  auto phase = phase_of(status.state);
  if (!phase) return fail(phase.error());
  status.phase = *phase;
  read_exit_code(fields[1], status);
  if (fields.size() > 2 && fields[2] != "None assigned") status.nodes = fields[2];
  return status;
}

Result<JobStatus> job_status(const JobHandle& job) {
  auto outcome = run_slurm(command_for(job, {"scontrol", "-o"}, {"show", "job", job.name()}));
  if (!outcome) return fail(outcome.error(), fmt::format("job {}", job.name()));
  if (outcome->succeeded()) {
    const std::size_t end = outcome->output.find('\n');
    return parse_scontrol_job(std::string_view(outcome->output).substr(0, end));
  }
  const std::string words = words_of(*outcome);
  if (words.find("Invalid job id") != std::string::npos) return status_from_accounting(job);
  return fail(ErrorCode::unavailable, fmt::format("job {}: {}", job.name(), words));
}

Result<JobStatus> wait_for(const JobHandle& job, const std::function<void(const JobStatus&)>& on_change,
                           const WaitOptions& options) {
  using Clock = std::chrono::steady_clock;
  std::optional<JobStatus> last;
  auto heard = Clock::now();
  for (Seconds pause = options.first_pause;; pause = std::min(pause * 1.5, options.longest_pause)) {
    auto status = job_status(job);
    if (status) {
      heard = Clock::now();
      if (options.on_answer) options.on_answer(*status);
      if (on_change && (!last || !same_to_a_reader(*last, *status))) on_change(*status);
      if (status->log.empty() && last) status->log = last->log;
      last = *status;
      if (status->ended()) return status;
    } else if (status.error().code != ErrorCode::unavailable || seconds_since(heard) > options.patience.value()) {
      return fail(status.error());
    }
    if (!pause_for(pause, options.is_cancelled)) return fail(no_longer_waits(job, last));
  }
}

Result<void> cancel(const JobHandle& job) {
  auto outcome = run_slurm(command_for(job, {"scancel"}, {job.name()}));
  if (!outcome) return fail(outcome.error(), fmt::format("cannot cancel job {}", job.name()));
  if (!outcome->succeeded())
    return fail(ErrorCode::failure, fmt::format("cannot cancel job {}: {}", job.name(), words_of(*outcome)));
  return {};
}

std::vector<std::string> last_lines(const std::filesystem::path& log, std::size_t most) {
  std::ifstream stream(log, std::ios::binary | std::ios::ate);
  if (!stream) return {};
  // Logs may be long: the last 16 KiB hold enough lines.
  constexpr std::streamoff window = 16384;
  const std::streamoff size = stream.tellg();
  stream.seekg(std::max<std::streamoff>(0, size - window));
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(printable(line));
  if (size > window && lines.size() > 1) lines.erase(lines.begin());  // it was cut
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(most));
  return lines;
}

}  // namespace sailor::slurm
