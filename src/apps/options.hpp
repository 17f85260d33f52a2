// The command lines of all programs: one table of options defines the command line, the SAILOR_* environment, the TOML
// keys of --config, the defaults, the units and the help text.
//
// Precedence: command line > environment > --config file > default; --print-config shows each value and its source.
// Boost's guessing of abbreviated options is off. The environment is captured once, in main.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace sailor::apps {

enum class OptionType { flag, text, integer, number };

/// One option. `name` is the long name ("micro-batch"); the environment variable is SAILOR_MICRO_BATCH, the TOML
/// key micro_batch.
struct Option {
  std::string name{};
  char letter = 0;  ///< short form, or 0
  OptionType type = OptionType::text;
  std::string value_name{};            ///< "FILE", "N"; empty for flags
  std::string help{};                  ///< one sentence, with the unit
  std::string default_value{};         ///< empty: none
  bool repeatable = false;             ///< may be given several times or as a comma-separated list
  std::vector<std::string> choices{};  ///< non-empty: the only values
  double minimum = -1e300;
  double maximum = 1e300;
  std::string group{};  ///< --help heading above consecutive options that share it; empty: "Options"
};

struct Positional {
  std::string name{};  ///< "PLAN"
  std::string help{};
  bool required = true;
  bool repeatable = false;     ///< only the last one, not counting one behind "--"
  bool behind_dashes = false;  ///< the last one: all that follows the first "--", and nothing else
};

/// The positional as a synopsis shows it: "PLAN...", "[-- COMMAND...]".
std::string synopsis_of(const Positional& positional, const std::string& shown_name);

/// An exit status of the program.
struct ExitStatus {
  int status = 0;
  std::string meaning{};
};

struct Example {
  std::string command{};  ///< without the leading "$ "
  std::string comment{};
};

using Environment = std::map<std::string, std::string>;

/// The command line of a program or sub-command.
struct CommandLine {
  std::string program{};  ///< "sailor-plan" or "sailor-profile layers"
  std::string purpose{};  ///< one line
  std::vector<Positional> positionals{};
  std::vector<Option> options{};
  std::vector<Example> examples{};
  std::vector<ExitStatus> exit_statuses{};  ///< empty: 0 done, 1 failure, 2 wrong usage
  std::string notes{};                      ///< printed last; may be empty
  bool one_per_rank = false;                ///< started by srun or mpirun: only rank 0 reports command line errors
  /// Returns what this build can do, as a JSON object for `--version --format json`; may be null.
  std::function<std::string(const Environment&)> abilities{};
};

enum class ValueSource { default_value, config_file, environment, command_line };

/// Parsed and checked values.
class Options {
 public:
  [[nodiscard]] bool given(std::string_view name) const;  ///< set, and not by a default
  [[nodiscard]] bool typed(std::string_view name) const;  ///< set on the command line
  [[nodiscard]] bool has(std::string_view name) const;    ///< has a value
  [[nodiscard]] bool flag(std::string_view name) const;
  [[nodiscard]] std::string text(std::string_view name) const;      ///< "" when there is none
  [[nodiscard]] std::int64_t integer(std::string_view name) const;  ///< 0 when there is none
  [[nodiscard]] double number(std::string_view name) const;         ///< 0 when there is none
  [[nodiscard]] std::vector<std::string> texts(std::string_view name) const;
  [[nodiscard]] std::vector<int> integers(std::string_view name) const;
  [[nodiscard]] const std::vector<std::string>& positional(std::string_view name) const;
  /// "name = value  # who set it" for every option, valid TOML.
  [[nodiscard]] std::string print_config() const;

 private:
  friend class Parser;
  struct Value {
    Option option;
    std::vector<std::string> values;
    ValueSource source = ValueSource::default_value;
  };
  [[nodiscard]] const Value& find(std::string_view name) const;  // an unknown name is a programming error: aborts
  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, std::vector<std::string>, std::less<>> positionals_;
};

/// The process environment. Must be called in main only.
Environment capture_environment();

/// "0.1.0".
std::string_view version();

/// The output of --version: "sailor-train 0.1.0 (commit a8124f6c1, with MPI, SLURM)"; with `--format json` among the
/// arguments an object with program, version, architecture, commit and features, the names of its options, and the
/// members of the object that CommandLine::abilities (may be null) returns. `line` is null for a program with several
/// commands.
std::string version_text(const std::string& program, const std::vector<std::string>& arguments,
                         const Environment& environment, const CommandLine* line);

/// The text of --help.
std::string help_text(const CommandLine& line);

/// Parses the arguments; adds --help, --version, --config, --print-config, --verbose to the table. If --help, --version
/// or --print-config is given, it prints to stdout and returns std::nullopt: the program must exit with 0. Errors have
/// code `usage`.
Result<std::optional<Options>> parse_options(const CommandLine& line, const std::vector<std::string>& arguments,
                                             const Environment& environment);

/// Options that several programs share.
namespace shared {
Option model();          ///< --model NAME
Option models_folder();  ///< --models DIR, default: profiles/models of the installation
Option framework();      ///< --framework NAME, default: sailor
Option gpus_file();      ///< --gpus FILE, default: profiles/gpus.toml of the installation
Option profile_store();  ///< --profile STORE
/// --site NAME; `what`: the content of the file that the program uses
Option site(const std::string& what = "what Slurm does not know of the cluster");
Option node_facts();  ///< --node-facts FILE, that sailor-launch --write-node-facts has written
Option partition();   ///< -p/--partition
Option account();     ///< -A/--account
Option time_limit();  ///< -t/--time
Option nodes();       ///< -N/--nodes
Option format();      ///< --format table|json|toml
Option output();      ///< -o/--output FILE
}  // namespace shared

/// The folder with models/, gpus.toml: SAILOR_PROFILES, else `share/sailor/profiles` beside the program's prefix,
/// else `profiles` of the source tree that the program was built from.
std::string profiles_folder(const Environment& environment);
/// The folder of site files: SAILOR_SITES, else `share/sailor/sites` beside the program's prefix, else `slurm/sites` of
/// the source tree that the program was built from.
std::string sites_folder(const Environment& environment);
/// The profile store at this path. A bare name ("published") without a file or folder of that name is the NAME.h5 that
/// was built with the programs: in SAILOR_PROFILES, `profiles` of the build folder, or `share/sailor/profiles`.
std::string find_store(const std::string& name, const Environment& environment);
/// --models (see shared::models_folder()), else `models` in the profiles folder.
std::string models_folder(const Options& options, const Environment& environment);
/// The folder `frameworks` in the profiles folder, where --framework (see shared::framework()) is looked up.
std::string frameworks_folder(const Environment& environment);
/// --gpus (see shared::gpus_file()), else `gpus.toml` in the profiles folder.
std::string gpus_file(const Options& options, const Environment& environment);

/// Runs `body` as the main() of a program: captures arguments and environment, starts logging, catches exceptions, and
/// turns an error into a message and an exit status.
int run_program(int argc, char** argv, const CommandLine& line,
                Result<void> (*body)(const Options& options, const Environment& environment));
/// The same for a program whose exit status says more than whether it failed.
int run_program(int argc, char** argv, const CommandLine& line,
                Result<int> (*body)(const Options& options, const Environment& environment));
/// The same for a program with sub-commands: `sailor-profile layers ...`.
struct SubCommand {
  CommandLine line;
  Result<void> (*body)(const Options& options, const Environment& environment);
};
struct CommandFamily {
  std::string program{};
  std::string purpose{};
  std::vector<std::string> other_commands{};  ///< further commands of the program, for hints
  std::string more{};  ///< last lines of the overview; if not empty, no arguments print the overview
};
int run_program(int argc, char** argv, const CommandFamily& family, const std::vector<SubCommand>& commands);

}  // namespace sailor::apps
