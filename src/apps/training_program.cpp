#include "apps/training_program.hpp"

#include <algorithm>
#include <system_error>

namespace sailor::apps {

namespace fs = std::filesystem;

namespace shared {

Option program() {
  return {.name = "program",
          .value_name = "FILE",
          .help = "what the job runs [default: the sailor-train beside this program, else the one in PATH]"};
}

Option train_option() {
  return {.name = "train-option",
          .value_name = "OPTION",
          .help = "further option of sailor-train, such as --train-option=--weight-decay=0"};
}

}  // namespace shared

std::vector<std::string> passed_on(const std::vector<std::string>& parts) {
  std::vector<std::string> joined;
  for (const std::string& part : parts) {
    if (joined.empty() || part.starts_with("-"))
      joined.push_back(part);
    else
      joined.back() += "," + part;
  }
  return joined;
}

fs::path beside_this_program(const char* name) {
  std::error_code code;
  const fs::path beside = fs::read_symlink("/proc/self/exe", code).parent_path() / name;
  return !code && fs::exists(beside, code) ? beside : fs::path(name);
}

preflight::TrainingProgram training_program(const ProgramOptions& options, const Environment& environment) {
  preflight::TrainingProgram program;
  program.path = options.program.has() ? fs::path(*options.program) : beside_this_program("sailor-train");
  // A bare name is looked up in PATH by srun.
  if (program.path.has_parent_path()) program.path = fs::absolute(program.path).lexically_normal();
  if (const auto device = environment.find("SAILOR_DEVICE"); device != environment.end())
    program.device = device->second;
  program.options = passed_on(*options.train_option);
  for (const std::string& argument : program.options)
    if (constexpr std::string_view option = "--device="; argument.starts_with(option))
      program.device = argument.substr(option.size());
  return program;
}

std::optional<Result<preflight::ProgramAbilities>> ask_about(const preflight::TrainingProgram& program) {
  constexpr Seconds deadline{15};
  if (!preflight::is_sailor_train(program.path)) return std::nullopt;
  return preflight::ask_program(program, deadline);
}

}  // namespace sailor::apps
