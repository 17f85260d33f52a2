// The program that a job starts: sailor-train unless the user names another one; and what that program says it can run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options.hpp"
#include "preflight/program.hpp"

namespace sailor::apps {

namespace shared {
Option program();       ///< --program FILE
Option train_option();  ///< --train-option OPTION
}  // namespace shared

/// The values of an option that passes them on to another program (--train-option, --sbatch-option). Such a
/// value may contain commas (--exclude=gh1,gh2), at which lists are split; they are joined again here.
std::vector<std::string> passed_on(const std::vector<std::string>& parts);

/// A program of this installation; a bare name if it is not in the folder of this program.
std::filesystem::path beside_this_program(const char* name);

/// The values of shared::program() and shared::train_option().
struct ProgramOptions {
  OptionValue<std::string> program;
  OptionValue<std::vector<std::string>> train_option;
};
/// The program by --program and --train-option; SAILOR_DEVICE also reaches the job.
preflight::TrainingProgram training_program(const ProgramOptions& options, const Environment& environment);

/// Asks the program what it can run; std::nullopt if it is not Sailor's, and so must not be started for a question.
std::optional<Result<preflight::ProgramAbilities>> ask_about(const preflight::TrainingProgram& program);

}  // namespace sailor::apps
