// Finds out what the program of a job can run, by asking that very program before the job is queued.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/plan.hpp"

namespace sailor::preflight {

/// What a build of sailor-train reports of itself (`sailor-train --version --format json`). Empty lists: not reported.
struct ProgramAbilities {
  std::string version;
  /// Kinds of devices ("cpu"), each with its precisions.
  std::vector<std::pair<std::string, std::vector<std::string>>> devices;
  std::vector<std::string> schedules;
  std::vector<std::string> optimizer_sharding;
  std::vector<std::string> recompute;
  std::vector<std::string> options;  ///< "--data" and so on
};

/// How the program of a job is started, as far as it matters to what it can run.
struct TrainingProgram {
  std::filesystem::path path;          ///< a bare name: srun looks for it in PATH
  std::string device = "plan";         ///< --device: "cpu" and "gpu" compute there, regardless of the plan
  std::string inside{};                ///< container image that it is started in, where it may be another program;
                                       ///< empty: none
  std::vector<std::string> options{};  ///< further options that the user passes to it: "--clip-norm=0.5"
};

/// Whether the program is sailor-train, which can be asked; another program is the user's own affair.
bool is_sailor_train(const std::filesystem::path& path);

/// Parses the program's answer; the line "sailor-train 0.1.0" of a version that did not know --format json means CPUs.
/// Errors: invalid_input (neither).
Result<ProgramAbilities> parse_abilities(std::string_view answer);

/// Asks the program. Errors: unavailable, with the reason why it cannot be asked from here (an image, another
/// architecture, libraries that only the nodes have, not in PATH, no answer until the deadline).
Result<ProgramAbilities> ask_program(const TrainingProgram& program, Seconds deadline);

/// Errors: unavailable, with what the program lacks and what to do; usage (an option that it does not have).
Result<void> check_can_run(const TrainingProgram& program, const ProgramAbilities& abilities, const Plan& plan,
                           const GpuCatalogue& gpus);

}  // namespace sailor::preflight
