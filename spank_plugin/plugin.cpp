// The SPANK plugin's hooks. Slurm loads this into srun, sbatch and salloc (contexts LOCAL and ALLOCATOR), slurmd and
// slurmstepd (SLURMD, REMOTE). A job that asks for no plan passes through every hook in a few comparisons.
//
// A user's mistake stops the command that was typed, or the tasks; nothing else ever fails: in slurmd and slurmstepd a
// failed hook drains the node. A refusal ends its process itself, for under "optional" in plugstack.conf Slurm would
// ignore a failed hook, and start the program without its place.
//
// spank.h declares the hooks without extern "C", so it is included inside one.
#pragma GCC visibility push(default)
extern "C" {
#include <slurm/spank.h>
}
#pragma GCC visibility pop
#include <dlfcn.h>
#include <slurm/slurm.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "core/text.hpp"
#include "spank_plugin/arguments.hpp"
#include "spank_plugin/guard.hpp"
#include "spank_plugin/job_size.hpp"
#include "spank_plugin/plan_file.hpp"
#include "spank_plugin/submit_side.hpp"
#include "spank_plugin/task_side.hpp"

namespace sailor::spank {

namespace {

/// State of the plugin in this process.
struct State {
  SubmitSide submit{};
  std::optional<std::string> option{};  // in slurmstepd
  bool option_lost = false;             // in slurmstepd, for lack of memory
};

State& state() {
  static State instance;
  return instance;
}

/// `message` without anything that could control a terminal or flood a log: paths and plans may hold anything.
std::string printable(const std::string& message) {
  constexpr std::size_t half = 1500;
  const std::string shown =
      message.size() <= 2 * half ? message : message.substr(0, half) + " ... " + message.substr(message.size() - half);
  std::string text = valid_utf8(shown);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return text;
}

void report(const std::string& message) { slurm_error("sailor: %s", printable(message).c_str()); }

/// Reports an exception without allocating memory.
auto report_thrown(const char* hook) {
  return [hook](const char* what) { slurm_error("sailor: %s: %s", hook, what); };
}

bool on_submit_side() {
  const spank_context_t context = spank_context();
  return context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR;
}

std::optional<std::string> own_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// ---- the option

char option_name[] = "sailor-plan";
char option_value[] = "FILE";
char option_help[] =
    "[sailor] place the ranks as this plan says, and refuse nodes that are not the plan's; none: no plan";

int take_option(int /*val*/, const char* text, int remote) {
  const char* argument = text == nullptr ? "" : text;
  if (remote != 0) {
    // A failure here would drain the node: task_init refuses.
    const int taken = guarded(
        "--sailor-plan", 1,
        [&] {
          state().option = argument;
          return 0;
        },
        report_thrown("--sailor-plan"));
    if (taken != 0) state().option_lost = true;
    return 0;
  }
  return guarded(
      "--sailor-plan", -1,
      [&] {
        const auto taken = state().submit.take_option(argument, own_variable);
        if (taken) return 0;
        report(taken.error().message());
        return -1;
      },
      report_thrown("--sailor-plan"));
}

spank_option plan_option{option_name, option_value, option_help, 1, 0, take_option};

// ---- srun, sbatch, salloc

/// Sets the plan's variables where Slurm takes the job's environment from, and again where --export=NONE has no effect.
void hand_on(spank_t spank, const std::string& plan) {
  ::setenv(plan_variable, plan.c_str(), 1);
  if (spank_context() == S_CTX_LOCAL) ::setenv(carried_variable, plan.c_str(), 1);
  if (const spank_err_t problem = spank_job_control_setenv(spank, plan_variable, plan.c_str(), 1);
      problem != ESPANK_SUCCESS)
    report(std::string("the plan is lost under --export=NONE: ") + spank_strerror(problem));
}

/// Neither throws nor reads a file.
bool command_asks_for_plan() {
  const auto is_set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  return state().submit.has_option() || is_set(plan_variable) || is_set(carried_variable);
}

/// Command line of this process, its own name first.
std::vector<std::string> own_words() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(std::move(word));
  return words;
}

/// False: the job that sbatch or salloc asks for is too small for the plan.
bool size_fits(const std::string& path) {
  if (spank_context() != S_CTX_ALLOCATOR || !state().submit.has_own_option()) return true;
  const auto plan = read_plan_file(path);
  if (!plan) return true;  // it was read before
  std::vector<std::string> words = own_words();
  if (words.empty()) return true;
  const bool has_script = std::filesystem::path(words.front()).filename() == "sbatch";
  words.erase(words.begin());
  const auto read = [&](const std::string& file) -> std::optional<std::string> {
    constexpr std::size_t largest_script = std::size_t{4} << 20;
    std::error_code code;
    if (!has_script || !std::filesystem::is_regular_file(file, code)) return std::nullopt;
    auto text = read_text_file(file, largest_script);
    return text ? std::optional(*std::move(text)) : std::nullopt;
  };
  const auto fits = check_size(*plan, size_of_job(words, read));
  if (!fits) report("--sailor-plan: " + path + ": " + fits.error().message());
  return fits.has_value();
}

/// False: the command must not go on.
bool settle_plan(spank_t spank, int count, char** words) {
  const auto plan = state().submit.settle(own_variable);
  if (!plan) {
    report(plan.error().message());
    return false;
  }
  if (!*plan) {
    ::setenv(carried_variable, "", 1);  // else the tasks would find the enclosing job's
    return true;
  }
  if (!size_fits((*plan)->string())) return false;
  for (const std::string& problem : read_arguments(count, words).problems) report(problem);
  hand_on(spank, (*plan)->string());
  return true;
}

// ---- slurmstepd

/// A variable of the task's environment; std::nullopt also if it is too long for any environment.
std::optional<std::string> task_variable(spank_t spank, const std::string& name) {
  constexpr std::size_t largest = std::size_t{1} << 20;
  for (std::string value(4096, '\0'); value.size() <= largest; value.resize(4 * value.size())) {
    const spank_err_t problem = spank_getenv(spank, name.c_str(), value.data(), static_cast<int>(value.size()));
    if (problem == ESPANK_SUCCESS) return value.c_str();
    if (problem != ESPANK_NOSPACE) break;
  }
  return std::nullopt;
}

enum class Presence { unset, empty, set };

Presence presence(spank_t spank, const char* name) {
  char value[2] = "";
  const spank_err_t problem = spank_getenv(spank, name, value, sizeof value);
  if (problem == ESPANK_NOSPACE) return Presence::set;
  if (problem != ESPANK_SUCCESS) return Presence::unset;
  return value[0] == '\0' ? Presence::empty : Presence::set;
}

/// Whether a plan was requested: variables that the submitting side has set count more than the option as typed.
bool has_plan(spank_t spank) {
  if (state().option == no_plan) return false;
  for (const char* name : {plan_variable, carried_variable})
    if (const Presence found = presence(spank, name); found != Presence::unset) return found == Presence::set;
  return state().option.has_value() || state().option_lost;
}

/// Batch scripts, interactive shells and what Slurm itself runs are no ranks. Neither throws nor reads a file.
bool task_asks_for_plan(spank_t spank) {
  if (!has_plan(spank)) return false;
  std::uint32_t step = 0;
  return spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step <= SLURM_MAX_NORMAL_STEP_ID;
}

TaskHost host_of(spank_t spank) {
  TaskHost host;
  host.variable = [spank](const std::string& name) { return task_variable(spank, name); };
  host.set_variable = [spank](const std::string& name, const std::string& value) -> Result<void> {
    const spank_err_t problem = spank_setenv(spank, name.c_str(), value.c_str(), 1);
    if (problem == ESPANK_SUCCESS) return {};
    return fail(ErrorCode::failure, "cannot set " + name + " for the task: " + spank_strerror(problem));
  };
  host.user = static_cast<uid_t>(-1);  // nobody: nothing is read
  (void)spank_get_item(spank, S_JOB_UID, &host.user);
  return host;
}

#ifndef SAILOR_PROFILES_FROM_PLUGIN
#define SAILOR_PROFILES_FROM_PLUGIN "../../share/sailor/profiles"
#endif

/// The catalogue that was installed with this plugin.
std::filesystem::path installed_gpus() {
  Dl_info module{};
  if (::dladdr(&plan_option, &module) == 0 || module.dli_fname == nullptr) return {};
  const std::filesystem::path folder = std::filesystem::path(module.dli_fname).parent_path();
  return (folder / SAILOR_PROFILES_FROM_PLUGIN / "gpus.toml").lexically_normal();
}

/// For tasks that leave the message to another task: where a failed task ends the step (--kill-on-bad-exit), the first
/// that exits would end the one that reports.
void wait_for_teller() {
  std::signal(SIGTERM, [](int) { ::_exit(EXIT_FAILURE); });
  ::sleep(2);
}

/// False: the task must not start.
bool prepare(spank_t spank, int count, char** words) {
  const TaskHost host = host_of(spank);
  if (state().option_lost) {
    // The message of that time is only in slurmd's log.
    if (Refusal{{}, Teller::first_task_of_node}.told_by(host.variable))
      report("the option --sailor-plan was lost: slurmstepd had no memory for it");
    return false;
  }
  Arguments arguments = read_arguments(count, words);
  arguments.installed_gpus = installed_gpus();
  const auto prepared = prepare_task(host, arguments, state().option);
  if (!prepared) {
    const Refusal& refusal = prepared.error();
    if (refusal.told_by(host.variable))
      report(refusal.error.message());
    else
      wait_for_teller();
    return false;
  }
  for (const std::string& detail : prepared->details) slurm_verbose("sailor: %s", printable(detail).c_str());
  if (Refusal{{}, Teller::first_task}.told_by(host.variable)) {
    for (const std::string& problem : arguments.problems) report(problem);
    if (!prepared->warning.empty()) report(prepared->warning);
  }
  return true;
}

}  // namespace

}  // namespace sailor::spank

namespace spank = sailor::spank;

#pragma GCC visibility push(default)
extern "C" {

// SPANK_PLUGIN() would give them internal linkage in C++.
extern const char plugin_name[] = "sailor";
extern const char plugin_type[] = "spank";
extern const unsigned int plugin_version = SLURM_VERSION_NUMBER;
extern const unsigned int spank_plugin_version = 1;

int slurm_spank_init(spank_t handle, int count, char** words) {
  return spank::guarded(
      "init", 0,
      [&] {
        const spank_context_t context = spank_context();
        if (context == S_CTX_SLURMD)
          for (const std::string& problem : spank::read_arguments(count, words).problems) spank::report(problem);
        if (context != S_CTX_REMOTE && !spank::on_submit_side()) return 0;
        spank::state() = {};
        if (const spank_err_t problem = spank_option_register(handle, &spank::plan_option); problem != ESPANK_SUCCESS)
          slurm_error("sailor: no option --sailor-plan: %s", spank_strerror(problem));
        return 0;
      },
      spank::report_thrown("init"));
}

int slurm_spank_init_post_opt(spank_t handle, int count, char** words) {
  if (!spank::on_submit_side() || !spank::command_asks_for_plan()) return 0;
  const int settled = spank::guarded(
      "init_post_opt", -1, [&] { return spank::settle_plan(handle, count, words) ? 0 : -1; },
      spank::report_thrown("init_post_opt"));
  if (settled != 0) ::_exit(EXIT_FAILURE);
  return 0;
}

int slurm_spank_task_init(spank_t handle, int count, char** words) {
  if (!spank::task_asks_for_plan(handle)) return 0;
  const int prepared = spank::guarded(
      "task_init", -1, [&] { return spank::prepare(handle, count, words) ? 0 : -1; },
      spank::report_thrown("task_init"));
  if (prepared != 0) ::_exit(EXIT_FAILURE);
  return 0;
}
}
#pragma GCC visibility pop
