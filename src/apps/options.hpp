// The command lines of all programs: one table of options defines the command line, the SAILOR_* environment, the TOML
// keys of --config, the defaults, the units and the help text.
//
// Precedence: command line > environment > --config file > default; --print-config shows each value and its source.
// Boost's guessing of abbreviated options is off. The environment is captured once, in main.
//
// Each program has a struct of typed values, derived from CommonOptions, and a function that describes them:
//
//   struct SampleOptions : CommonOptions {
//     OptionValue<std::string> plan, model;
//     OptionValue<int> nodes;
//   };
//   CommandLine command_line(SampleOptions& options) {
//     return {.program = "sailor-sample",
//             .positionals = {positional(options.plan, {.name = "PLAN", .help = "plan file"})},
//             .options = {option(options.model, shared::model()), option(options.nodes, shared::nodes())}};
//   }
//   Result<void> run(const SampleOptions& options, const Environment& environment);  // *options.nodes
//   int main(int argc, char** argv) { return run_program(argc, argv, command(command_line, run)); }
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace sailor::apps {

enum class OptionType { flag, text, integer, number };
enum class ValueSource { default_value, config_file, environment, command_line };

/// The value of an option or a positional, whatever its type.
class AnyOptionValue {
 public:
  AnyOptionValue() = default;
  AnyOptionValue(const AnyOptionValue&) = delete;  // the table of options points to it
  AnyOptionValue& operator=(const AnyOptionValue&) = delete;
  virtual ~AnyOptionValue() = default;

  [[nodiscard]] const std::string& name() const { return name_; }  ///< "micro-batch"; of a positional: "PLAN"
  /// Whether there is a value, be it the default.
  [[nodiscard]] bool has() const { return !words().empty(); }
  /// Whether it was set, and not by the default.
  [[nodiscard]] bool given() const { return has() && source_ != ValueSource::default_value; }
  /// Whether it was set on the command line.
  [[nodiscard]] bool typed() const { return has() && source_ == ValueSource::command_line; }
  /// The value, unconverted; of a list the last element; "" when there is none.
  [[nodiscard]] std::string text() const { return has() ? words_.back() : std::string(); }

  /// For the table of options: the name, and later the checked values.
  void set_name(std::string name) { name_ = std::move(name); }
  void assign(std::vector<std::string> words, ValueSource source);

 protected:
  void check_declared() const;  // a value that no table has is a programming error: aborts

 private:
  virtual void convert(const std::vector<std::string>& words) = 0;  // they are checked: it cannot fail
  [[nodiscard]] const std::vector<std::string>& words() const {
    check_declared();
    return words_;
  }

  std::string name_;
  std::vector<std::string> words_;
  ValueSource source_ = ValueSource::default_value;
};

/// The value of an option: bool (a flag), std::string, std::int64_t, int, double, or for options that may be given
/// several times std::vector of std::string or int. Without a value it is false, "", 0 or empty.
template <typename T>
class OptionValue : public AnyOptionValue {
 public:
  const T& operator*() const {
    check_declared();
    return value_;
  }
  const T* operator->() const { return &**this; }

 private:
  void convert(const std::vector<std::string>& words) override;
  T value_{};
};

/// One option. `name` is the long name ("micro-batch"); the environment variable is SAILOR_MICRO_BATCH, the TOML
/// key micro_batch.
struct Option {
  std::string name{};
  char letter = 0;                     ///< short form, or 0
  std::string value_name{};            ///< "FILE", "N"; empty for flags
  std::string help{};                  ///< one sentence, with the unit
  std::string default_value{};         ///< empty: none
  std::vector<std::string> choices{};  ///< non-empty: the only values
  double minimum = -1e300;
  double maximum = 1e300;
  std::string group{};  ///< --help heading above consecutive options that share it; empty: "Options"
  bool writes = false;  ///< a file that the command writes: an error (usage) where that is another file of the command
  // option() sets the following.
  OptionType type = OptionType::text;
  bool repeatable = false;          ///< may be given several times or as a comma-separated list
  AnyOptionValue* value = nullptr;  ///< where the value goes
  bool narrow = false;              ///< an integer that must fit an int
};

/// Options of several types, for a check that is the same for all of them.
using OptionList = std::initializer_list<const AnyOptionValue*>;

/// The row of the table whose values go to `value`.
template <typename T>
Option option(OptionValue<T>& value, Option row);

struct Positional {
  std::string name{};  ///< "PLAN"
  std::string help{};
  bool required = true;
  bool repeatable = false;          ///< only the last one, not counting one behind "--"
  bool behind_dashes = false;       ///< the last one: all that follows the first "--", and nothing else
  AnyOptionValue* value = nullptr;  ///< where its values go; positional() sets it, and whether it is repeatable
};

/// The positional whose values go to `value`: one, or several to a vector.
Positional positional(OptionValue<std::string>& value, Positional row);
Positional positional(OptionValue<std::vector<std::string>>& value, Positional row);

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

/// The options that every program has.
struct CommonOptions {
  OptionValue<std::string> config;
  OptionValue<bool> print_config, verbose;
  /// The text that --print-config prints: "name = value  # who set it" for every option, valid TOML.
  std::string effective_values;
};

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
  CommonOptions* common = nullptr;  ///< of the struct that the rows point into; command() sets it
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

/// Parses the arguments into the values that the rows point to; adds --help, --version, --config, --print-config,
/// --verbose to the table. If --help, --version or --print-config is given, it prints to stdout and returns false: the
/// program must exit with 0. `line.common` must be set, as command() does. Errors have code `usage`.
Result<bool> parse_options(const CommandLine& line, const std::vector<std::string>& arguments,
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
/// The value of --models (see shared::models_folder()), else `models` in the profiles folder.
std::string models_folder(const OptionValue<std::string>& models, const Environment& environment);
/// The folder `frameworks` in the profiles folder, where --framework (see shared::framework()) is looked up.
std::string frameworks_folder(const Environment& environment);
/// The value of --gpus (see shared::gpus_file()), else `gpus.toml` in the profiles folder.
std::string gpus_file(const OptionValue<std::string>& gpus, const Environment& environment);

/// A program, or a sub-command of one: its command line, and what it does. `line` points into values that `body` owns:
/// a copy of it must not outlive the command.
struct Command {
  CommandLine line;
  std::function<Result<int>(const Environment&)> body;  ///< returns the exit status
};
/// Makes the command with the table `line(options)` that runs `body(options, environment)`. If `body` returns
/// Result<void>, the exit status is 0.
template <typename Options, typename Status>
Command command(CommandLine (*line)(Options& options),
                Result<Status> (*body)(const Options& options, const Environment& environment)) {
  static_assert(std::is_same_v<Status, int> || std::is_void_v<Status>);
  const auto options = std::make_shared<Options>();
  Command made{line(*options), [options, body](const Environment& environment) -> Result<int> {
                 auto done = body(*options, environment);
                 if (!done) return tl::unexpected(std::move(done.error()));
                 if constexpr (std::is_void_v<Status>)
                   return 0;
                 else
                   return *done;
               }};
  made.line.common = options.get();
  return made;
}

/// Runs the command as the main() of a program: captures arguments and environment, starts logging, catches exceptions,
/// and turns an error into a message and an exit status.
int run_program(int argc, char** argv, const Command& command);
/// A program with sub-commands: `sailor-profile layers ...`.
struct CommandFamily {
  std::string program{};
  std::string purpose{};
  std::vector<std::string> other_commands{};  ///< further commands of the program, for hints
  std::string more{};  ///< last lines of the overview; if not empty, no arguments print the overview
};
/// As above, for a program with sub-commands.
int run_program(int argc, char** argv, const CommandFamily& family, const std::vector<Command>& commands);

}  // namespace sailor::apps
