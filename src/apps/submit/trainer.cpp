#include "apps/submit/trainer.hpp"

#include <fmt/format.h>
#include <initializer_list>
#include <utility>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/plan/handover_format.hpp"
#include "handover/handover.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view of_sailor = "sailor";
constexpr std::string_view deepspeed_file = "ds_config.json";

/// "--pipeline_model" and "--pipeline-model" are the same to most parsers.
std::string with_hyphens(std::string_view word) {
  std::string text(word);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

/// Whether a word of a command line is about `setting`: "--seq-length", "data.seq_length", "activation-checkpoint:".
bool is_about(std::string_view word, std::string_view setting) {
  const std::string name = with_hyphens(setting);
  const std::string said = with_hyphens(word);
  if (name.ends_with(':')) return said.starts_with(name);
  return said.starts_with(name) && (said.size() == name.size() || said[name.size()] == '=');
}

Result<void> check_arguments(const std::vector<std::string>& command, const std::vector<std::string>& settings) {
  for (const std::string& word : command)
    for (const std::string& setting : settings)
      if (is_about(word, setting))
        return fail(ErrorCode::usage, fmt::format("the plan decides '{}' of the command", word),
                    "leave it out, or make another plan");
  return {};
}

/// Refuses scripts that are not there, which are most often mistyped.
Result<void> check_scripts(const SubmitOptions& options, const std::vector<std::string>& command) {
  if (*options.remote_data || options.image.has()) return {};
  for (std::size_t i = 0; i < std::min<std::size_t>(command.size(), 2); ++i) {
    const bool is_path = (i == 0 && command[i].find('/') != std::string::npos) || command[i].ends_with(".py");
    if (std::error_code code; is_path && !fs::exists(command[i], code))
      return fail(ErrorCode::not_found, fmt::format("there is no file '{}'", command[i]),
                  "correct the command, or use --remote-data if only the nodes see it");
  }
  return {};
}

/// NeMo's command line asks before it starts, which no rank of a job can answer.
Result<void> check_confirmation(const std::vector<std::string>& command) {
  if (fs::path(command.front()).filename() != "nemo") return {};
  for (const char* yes : {"--yes", "-y", "--no-confirm"})
    if (std::find(command.begin(), command.end(), yes) != command.end()) return {};
  return fail(ErrorCode::usage, "nemo would ask on every rank whether to start", "add --yes to the command");
}

/// Puts the path of DeepSpeed's file for its name, or adds the option.
void name_file(const fs::path& file, std::vector<std::string>& command) {
  const auto is_named = [&](std::string& word) {
    const std::size_t equals = word.find('=');
    const std::size_t value = equals == std::string::npos ? 0 : equals + 1;
    if (std::string_view(word).substr(value) != deepspeed_file) return false;
    word.replace(value, std::string::npos, file.string());
    return true;
  };
  if (std::count_if(command.begin(), command.end(), is_named) > 0) return;
  command.insert(command.end(), {"--deepspeed_config", file.string()});
}

}  // namespace

Option trainer_option() {
  Option option{.name = "trainer",
                .value_name = "NAME",
                .help =
                    "who trains: sailor-train, or a program of another framework, which stands behind '--' and gets "
                    "what the plan says as the framework's arguments",
                .default_value = std::string(of_sailor),
                .choices = {std::string(of_sailor)}};
  for (std::string& name : handover::format_choices())
    if (handover::parse_format(name) != handover::Format::torchtitan_toml) option.choices.push_back(std::move(name));
  return option;
}

bool is_for_framework(const SubmitOptions& options) { return *options.trainer != of_sailor; }

Result<void> check_trainer_options(const SubmitOptions& options) {
  const std::string trainer = *options.trainer;
  const std::vector<std::string>& command = *options.command;
  if (!is_for_framework(options)) {
    if (options.torch_port.given())
      return fail(ErrorCode::usage, "--torch-port is for programs of PyTorch", "name their framework with --trainer");
    if (command.empty()) return {};
    return fail(ErrorCode::usage, fmt::format("'{}' behind '--' is a command of another framework", command.front()),
                "say which with --trainer, or leave it out: the job runs sailor-train");
  }
  if (command.empty())
    return fail(ErrorCode::usage, fmt::format("--trainer {} needs the program that is to train", trainer),
                "write it behind '--', with its arguments: -- python pretrain.py ...");
  // Options that mean something to sailor-train and its checkpoints only, and what to do instead.
  const std::initializer_list<std::pair<const AnyOptionValue*, const char*>> for_sailor_train{
      {&options.data, "name the data in the command behind '--', as the framework takes it"},
      {&options.iterations,
       "say the length in the command behind '--' (--train-iters, --training.steps, "
       "trainer.max_steps, ...)"},
      {&options.learning_rate, "say it in the command behind '--', as the framework takes it"},
      {&options.seed, "say it in the command behind '--', as the framework takes it"},
      {&options.checkpoints, "the framework keeps its own: name their folder in the command behind '--'"},
      {&options.elastic, "leave it out: only sailor-train goes on without nodes that are lost"},
      {&options.retries, "leave it out: another start counts sailor-train's checkpoints"},
      {&options.train_option, "write the framework's options behind '--'"},
      {&options.program, "write the program and its arguments behind '--'"}};
  for (const auto& [option, instead] : for_sailor_train)
    if (option->given())
      return fail(ErrorCode::usage,
                  fmt::format("--{} is for sailor-train, not for --trainer {}", option->name(), trainer), instead);
  if (*options.when_stopped != "end")
    return fail(ErrorCode::usage,
                fmt::format("--when-stopped {} needs checkpoints of sailor-train", *options.when_stopped),
                fmt::format("leave it out with --trainer {}; --stop-lead has it told before the time limit", trainer));
  if (const std::string placer = *options.placer; placer != "auto" && placer != "launcher")
    return fail(ErrorCode::usage,
                fmt::format("--placer {}: with --trainer {} sailor-launch places the ranks, as it sets PyTorch's "
                            "variables",
                            placer, trainer),
                "leave --placer out");
  if (options.plan->size() > 1)
    return fail(ErrorCode::usage,
                fmt::format("--trainer {} takes one plan: its script has the plan's arguments", trainer),
                "submit the plans one by one");
  return {};
}

Result<void> set_framework(const SubmitOptions& options, Submission& submission) {
  const std::string trainer = *options.trainer;
  const handover::Format format = handover::parse_format(trainer).value();  // a choice of trainer_option()
  slurm::SbatchRequest& request = submission.request;
  std::error_code code;
  slurm::FrameworkProgram program{.framework = std::string(handover::framework_of(format)),
                                  .command = *options.command,
                                  .directory = fs::current_path(code)};
  if (code) return fail(ErrorCode::io, fmt::format("the working directory is not known: {}", code.message()));
  auto settings = checked_handover("--trainer " + trainer, format, submission.plan, submission.model, "sailor-submit",
                                   handover::Ranks::as_numbered);
  if (!settings) return fail(settings.error());
  if (format == handover::Format::nemo) {
    // sailor-launch shows every process the one GPU that is its own.
    program.last_words = {fmt::format("trainer.num_nodes={}", submission.plan.ranks()), "trainer.devices=1"};
    settings->settings.insert(settings->settings.end(), {"trainer.num_nodes", "trainer.devices"});
    SAILOR_CHECK(check_confirmation(program.command));
  }
  if (format == handover::Format::deepspeed) {
    program.file = deepspeed_file;
    program.title = fmt::format("DeepSpeed's configuration for the plan: {}", deepspeed_file);
    name_file(request.run_directory / program.file, program.command);
  } else {
    SAILOR_CHECK(check_arguments(program.command, settings->settings));
    program.title = settings->header.substr(2, settings->header.find('\n') - 2);
  }
  SAILOR_CHECK(check_scripts(options, program.command));
  program.settings = std::move(settings->body);
  program.array = std::move(settings->array);
  program.ranks_by_stage = settings->ranks_by_stage;
  if (options.torch_port.has()) program.port = *options.torch_port;
  submission.program.path = program.command.front();
  request.program = submission.program.path;
  request.runs_sailor_train = false;
  request.framework = std::move(program);
  return {};
}

}  // namespace sailor::apps
