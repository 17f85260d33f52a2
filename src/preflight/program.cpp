#include "preflight/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/parse.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "preflight/preflight.hpp"
#include "slurm/node_records.hpp"

namespace sailor::preflight {

namespace {

using nlohmann::json;

constexpr std::string_view program_name = "sailor-train";

bool names_it(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The words of a list; empty if there is no such list.
std::vector<std::string> words_of(const json& object, const char* key) {
  std::vector<std::string> words;
  if (const auto list = object.find(key); list != object.end() && list->is_array())
    for (const json& word : *list)
      if (word.is_string()) words.push_back(word.get<std::string>());
  return words;
}

/// The last non-empty line: the complaint of a loader or a wrapper.
std::string last_line(std::string_view text) {
  std::string last;
  for (const std::string& line : split(text, '\n'))
    if (!trimmed(line).empty()) last = slurm::printable(trimmed(line));
  return last;
}

/// The kind of device that a stage computes on, as the program names it.
std::string device_of(const TrainingProgram& program, const std::string& gpu, const GpuCatalogue& gpus) {
  const auto type = gpus.find(gpu);
  if (program.device == "cpu") return "cpu";
  if (program.device == "gpu") return "cuda";
  return type ? type->backend : "";
}

/// "CPUs (--device=cpu)"
std::string asked_for(const TrainingProgram& program) {
  return fmt::format("{} (--device={})", program.device == "cpu" ? "CPUs" : "GPUs", slurm::printable(program.device));
}

std::string name_of(const TrainingProgram& program, const ProgramAbilities& abilities) {
  return fmt::format("{}{}", slurm::printable(program.path.string()),
                     abilities.version.empty() ? "" : fmt::format(" ({})", slurm::printable(abilities.version)));
}

}  // namespace

bool is_sailor_train(const std::filesystem::path& path) { return path.filename() == program_name; }

Result<ProgramAbilities> parse_abilities(std::string_view answer) {
  const json object = json::parse(answer, nullptr, false);
  if (object.is_object() && object.contains("program") && object["program"] == program_name) {
    ProgramAbilities abilities;
    if (const auto version = object.find("version"); version != object.end() && version->is_string())
      abilities.version = version->get<std::string>();
    if (const auto devices = object.find("devices"); devices != object.end() && devices->is_array())
      for (const json& device : *devices)
        if (device.is_object() && device.contains("kind") && device["kind"].is_string())
          abilities.devices.emplace_back(device["kind"].get<std::string>(), words_of(device, "precisions"));
    abilities.schedules = words_of(object, "schedules");
    abilities.optimizer_sharding = words_of(object, "optimizer_sharding");
    abilities.recompute = words_of(object, "recompute");
    abilities.options = words_of(object, "options");
    return abilities;
  }
  const std::string_view line = trimmed(answer.substr(0, answer.find('\n')));
  if (line.starts_with(program_name) && line.size() > program_name.size() && line[program_name.size()] == ' ')
    return ProgramAbilities{.version = std::string(line.substr(program_name.size() + 1)),
                            .devices = {{"cpu", {}}},
                            .schedules = {},
                            .optimizer_sharding = {},
                            .recompute = {},
                            .options = {}};
  return fail(ErrorCode::invalid_input, "its answer to --version --format json is not that of sailor-train");
}

Result<ProgramAbilities> ask_program(const TrainingProgram& program, Seconds deadline) {
  const std::string name = slurm::printable(program.path.string());
  if (!program.inside.empty())
    return fail(ErrorCode::unavailable, fmt::format("{} runs inside of {}, which is not there before the job starts",
                                                    name, slurm::printable(program.inside)));
  const auto outcome = run_command(
      {.arguments = {program.path.string(), "--version", "--format", "json"}, .input = {}, .deadline = deadline});
  if (!outcome) return fail(ErrorCode::unavailable, outcome.error().what);
  if (!outcome->succeeded()) {
    const std::string words = last_line(outcome->errors);
    return fail(ErrorCode::unavailable, fmt::format("{} --version: {}{}", name, outcome->how_it_ended(),
                                                    words.empty() ? "" : fmt::format(" ({})", words)));
  }
  auto abilities = parse_abilities(outcome->output);
  if (!abilities) return fail(ErrorCode::unavailable, fmt::format("{}: {}", name, abilities.error().what));
  return abilities;
}

Result<void> check_can_run(const TrainingProgram& program, const ProgramAbilities& abilities, const Plan& plan,
                           const GpuCatalogue& gpus) {
  const std::string name = name_of(program, abilities);
  const auto known = [](const std::vector<std::string>& names, std::string_view wanted) {
    return names.empty() || names_it(names, wanted);
  };
  for (const std::string& option : program.options)
    if (const std::string_view given = std::string_view(option).substr(0, option.find('='));
        given.starts_with("-") && given != "-v" && !known(abilities.options, given))
      return fail(ErrorCode::usage, fmt::format("{} has no option '{}'", name, slurm::printable(std::string(given))),
                  fmt::format("correct --train-option; {} --help lists them", program_name));
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const std::string wanted = device_of(program, stage.gpu, gpus);
      const auto found = std::find_if(abilities.devices.begin(), abilities.devices.end(),
                                      [&](const auto& device) { return device.first == wanted; });
      if (found == abilities.devices.end()) {
        std::vector<std::string> there;
        for (const auto& [kind, precisions] : abilities.devices) there.push_back(kind == "cpu" ? "CPUs" : kind);
        return fail(ErrorCode::unavailable,
                    fmt::format("{} computes on {} only, and the plan is for {}", name,
                                there.empty() ? "nothing" : join(there, ", "),
                                program.device == "plan" ? stage.gpu : asked_for(program)),
                    wanted == "cpu"
                        ? "name a program that computes there with --program FILE"
                        : "build its GPU part beside it (cmake --build FOLDER --target sailor_cuda), name a program "
                          "for these devices with --program FILE, or try the plan out on the nodes' CPUs with "
                          "--train-option=--device=cpu");
      }
      if (const std::string_view precision = to_string(plan.job.precision); !known(found->second, precision))
        return fail(ErrorCode::unavailable,
                    fmt::format("{} computes in {} on {}, and the plan is for {}", name, join(found->second, ", "),
                                found->first == "cpu" ? "CPUs" : found->first, precision),
                    fmt::format("plan with --precision {}", found->second.front()));
      if (const std::string_view recompute = to_string(stage.recompute); !known(abilities.recompute, recompute))
        return fail(ErrorCode::unavailable, fmt::format("{} knows no recompute = \"{}\"", name, recompute),
                    fmt::format("plan with --pin recompute={}", abilities.recompute.front()));
    }
  if (const std::string_view schedule = to_string(plan.schedule); !known(abilities.schedules, schedule))
    return fail(ErrorCode::unavailable, fmt::format("{} knows no schedule \"{}\"", name, schedule),
                fmt::format("plan with --pin schedule={}", abilities.schedules.front()));
  if (const std::string_view sharding = to_string(plan.optimizer_sharding);
      !known(abilities.optimizer_sharding, sharding))
    return fail(ErrorCode::unavailable, fmt::format("{} knows no optimizer_sharding = \"{}\"", name, sharding),
                fmt::format("plan with --pin optimizer_sharding={}", abilities.optimizer_sharding.front()));
  return {};
}

std::vector<Check> check_program(const Subject& subject) {
  const TrainingProgram& program = subject.job.program;
  Check check{.name = "program", .outcome = Outcome::not_checked, .what = {}, .remedy = {}};
  if (subject.plan == nullptr) return {};
  if (const auto& answer = subject.answers.framework) {
    if (answer->trainer.empty()) {
      check.what = fmt::format("the plan is for {}: what that can run is not known", answer->framework);
    } else if (answer->can_run) {
      check.outcome = Outcome::ok;
      check.what = fmt::format("{} can run the plan (sailor-submit --trainer {})", answer->framework, answer->trainer);
    } else {
      check.outcome = Outcome::fail;
      check.what = answer->can_run.error().what;
      check.remedy = answer->can_run.error().hint;
    }
    return {check};
  }
  if (program.path.empty()) return {};
  if (!subject.answers.program) {
    check.what = fmt::format("{} is not Sailor's: what it can run is not known", program.path.string());
    return {check};
  }
  if (!*subject.answers.program) {
    check.outcome = Outcome::warn;
    check.what = "it was not asked what it can run: " + subject.answers.program->error().what;
    check.remedy = "make sure that it can run the plan: sailor-train --version --format json, where the job will run";
    return {check};
  }
  const ProgramAbilities& abilities = **subject.answers.program;
  Result<void> can = check_can_run(program, abilities, *subject.plan, subject.gpus);
  if (can && subject.model != nullptr) can = check_trainable(*subject.model);
  if (!can) {
    check.outcome = Outcome::fail;
    check.what = can.error().what;
    check.remedy = can.error().hint;
    return {check};
  }
  check.outcome = Outcome::ok;
  check.what = fmt::format("{} can run the plan{}", name_of(program, abilities),
                           program.device == "plan" ? "" : " on " + asked_for(program));
  return {check};
}

}  // namespace sailor::preflight
