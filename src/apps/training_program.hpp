// The program that a job starts: sailor-train unless the user names another, and what it says that it can run.
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

/// The values of an option whose words are for another program (--train-option, --sbatch-option): words may hold commas
/// (--exclude=gh1,gh2), at which lists are split, and are joined again here.
std::vector<std::string> passed_on(const Options& options, std::string_view name);

/// A program of this installation; a bare name when it is not beside this one.
std::filesystem::path beside_this_program(const char* name);

/// By --program and --train-option; SAILOR_DEVICE reaches the job, too.
preflight::TrainingProgram training_program(const Options& options, const Environment& environment);

/// Asks it; nothing where it is not Sailor's, and so not to be started for a question.
std::optional<Result<preflight::ProgramAbilities>> ask_about(const preflight::TrainingProgram& program);

}  // namespace sailor::apps
