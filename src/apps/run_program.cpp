// The frame of every main(). Exceptions, errors and a closed stdout end here: the caller of a program sees a
// message "<program>: error: ..." and an exit status, never a stack trace.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <string_view>
#include <system_error>

#include "apps/options.hpp"
#include "apps/reference/reference.hpp"
#include "core/log.hpp"
#include "core/output_fit.hpp"
#include "core/parse.hpp"
#include "core/text.hpp"

extern char** environ;  // POSIX

namespace sailor::apps {

namespace {

/// Without this, a file or an MPI socket that gets the number of a closed stdout or stderr would receive our messages.
/// Closed streams stay unusable: /dev/null is opened in the wrong mode.
void hold_standard_streams() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(number, F_GETFD) < 0)
      (void)!::open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // takes the lowest free number
}

/// Whether the reader of our output (`| head`) has gone, so that no message is needed.
bool reader_has_gone(const std::error_code& code) { return code.value() == EPIPE; }

/// Data that did not reach stdout is a failure, even if the disk filled up at the last byte.
int finish_output(const std::string& program, int status) {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return status;
  // The reason of an earlier failure is no longer in errno.
  const std::error_code code(flushed ? EIO : errno, std::generic_category());
  if (!reader_has_gone(code))
    say(fmt::format("{}: error: cannot write to standard output: {}\n", program,
                    flushed ? "what was printed before has not all arrived" : code.message()));
  return status == 0 ? 1 : status;
}

int guarded(const std::string& program, const std::function<int()>& body) {
  hold_standard_streams();
  // A file over the limit of `ulimit -f` then becomes an error of write(), like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return finish_output(program, body());
  } catch (const std::system_error& error) {
    // fmt::print says this of any stream, and programs print to standard output only.
    const bool of_output = std::string_view(error.what()).starts_with("cannot write to file");
    if (!reader_has_gone(error.code()))
      say(fmt::format("{}: error: {}\n", program,
                      of_output ? "cannot write to standard output: " + error.code().message() : error.what()));
  } catch (const std::bad_alloc&) {
    say(program + ": error: out of memory\n");
  } catch (const std::exception& error) {
    say(fmt::format("{}: error: unexpected: {}\n", program, error.what()));
  } catch (...) {
    say(program + ": error: unexpected exception of unknown type\n");
  }
  return 1;
}

/// False on all but one rank of a job, by the variables of the launcher, before MPI runs.
bool is_first_task(const Environment& environment) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const auto rank = environment.find(name); rank != environment.end()) return rank->second == "0";
  return true;
}

// Titles of columns, in the tables of all programs, that narrow terminals lose first, and last.
constexpr std::string_view detail_columns =
    "95% of repetitions,buffers,cold backward,cold forward,copies,date,device,did not fit,fits,from,from layer,"
    "headroom,heads,hidden,host,it expects,iterations,lasts,logits,messages,node-h/iteration,ranks that send,"
    "repetition,samples,spread,wall time,workspace,zones";
constexpr std::string_view key_columns =
    "A,B,B/A (geometric mean),activation,activations,at 1 MiB,backward,bandwidth,busy,change,check,decision,device has,"
    "error,forward,iterations/s per USD,layer,message,micro-batch,peak memory,tensor parallel,time,total,"
    "verdict,vocabulary,whole training";

/// Makes output fit a terminal; COLUMNS replaces the terminal's own width. Files, pipes and terminals of unknown width,
/// such as those that mpirun makes, get all of it.
void fit_output_to_terminal(const CommandLine& line, const Environment& environment) {
  auto columns = terminal_width(STDOUT_FILENO);
  if (!columns) return;
  if (const auto variable = environment.find("COLUMNS"); variable != environment.end())
    if (const auto wanted = parse_count(variable->second); wanted && *wanted > 0)
      columns = static_cast<std::size_t>(*wanted);
  std::vector<std::string> formats;
  for (const Option& option : line.options)
    if (option.name == "format")
      for (const char* whole : {"csv", "json"})
        if (std::find(option.choices.begin(), option.choices.end(), whole) != option.choices.end())
          formats.emplace_back(whole);
  fit_output({.columns = *columns,
              .how_to_see_all = formats.empty() ? "| cat" : fmt::format("--format {}", join(formats, " or ")),
              .detail_columns = split(detail_columns, ','),
              .key_columns = split(key_columns, ',')});
}

int run_command(const std::string& program, const Command& command, const std::vector<std::string>& arguments) {
  const CommandLine& line = command.line;
  start_logging(program, false);
  const Environment environment = capture_environment();
  fit_output_to_terminal(line, environment);
  const auto parsed = parse_options(line, arguments, environment);
  if (!parsed) {
    if (line.one_per_rank && !is_first_task(environment)) return exit_status(parsed.error().code);
    return report(program, parsed.error());
  }
  if (!*parsed) return 0;
  start_logging(program, *line.common->verbose);
  const auto status = command.body(environment);
  if (status) return *status;
  std::fflush(stdout);  // data first, so that the message comes last on a terminal
  return report(program, status.error());
}

/// Handles `--generate KIND` as the first argument of any program; std::nullopt for other arguments.
std::optional<int> generated(const ProgramReference& reference, const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front() != "--generate") return std::nullopt;
  const auto text = generate(reference, arguments);
  if (!text) return report(reference.program, text.error());
  fmt::print("{}", *text);
  return 0;
}

std::string overview(const CommandFamily& family, const std::vector<Command>& commands) {
  const std::string& program = family.program;
  std::string text = fmt::format("{0}: {1}\n\nUsage: {0} COMMAND [options]\n\nCommands:\n", program, family.purpose);
  std::size_t widest = 0;
  for (const Command& command : commands) widest = std::max(widest, command.line.program.size() - program.size() - 1);
  for (const Command& command : commands) {
    const std::string name = command.line.program.substr(program.size() + 1);
    text += fmt::format("  {:<{}}  {}\n", name, widest, command.line.purpose);
  }
  text += family.more + "\nExamples:\n";
  for (const Command& command : commands)
    if (!command.line.examples.empty()) {
      const Example& example = command.line.examples.front();
      text += fmt::format("  # {}\n  {}\n", example.comment, example.command);
    }
  return text + fmt::format("\n{} COMMAND --help explains a command.\n", program);
}

}  // namespace

Environment capture_environment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      environment.emplace(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
  }
  return environment;
}

namespace {

/// The value of the variable, else `share/sailor/NAME` beside the program's prefix, else `source`.
std::string shared_folder(const Environment& environment, const char* variable, const char* name, const char* source) {
  namespace fs = std::filesystem;
  if (const auto found = environment.find(variable); found != environment.end() && !found->second.empty())
    return found->second;
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);
  if (!code) {
    const fs::path installed = program.parent_path().parent_path() / "share" / "sailor" / name;
    if (fs::is_directory(installed, code)) return installed.string();
  }
  return source;
}

}  // namespace

std::string profiles_folder(const Environment& environment) {
  return shared_folder(environment, "SAILOR_PROFILES", "profiles", SAILOR_SOURCE_PROFILES);
}

std::string sites_folder(const Environment& environment) {
  return shared_folder(environment, "SAILOR_SITES", "sites", SAILOR_SOURCE_SITES);
}

std::string find_store(const std::string& name, const Environment& environment) {
  namespace fs = std::filesystem;
  std::error_code code;
  if (name.empty() || name.find('/') != std::string::npos || fs::exists(name, code)) return name;
  std::vector<fs::path> folders;
  if (const auto found = environment.find("SAILOR_PROFILES"); found != environment.end() && !found->second.empty())
    folders.emplace_back(found->second);
  if (const fs::path program = fs::read_symlink("/proc/self/exe", code); !code) {
    const fs::path prefix = program.parent_path().parent_path();
    folders.push_back(prefix / "share" / "sailor" / "profiles");
    folders.push_back(prefix / "profiles");  // for a build folder
  }
  for (const fs::path& folder : folders)
    if (const fs::path file = folder / (name + ".h5"); fs::is_regular_file(file, code)) return file.string();
  return name;
}

std::string models_folder(const OptionValue<std::string>& models, const Environment& environment) {
  return models.has() ? *models : profiles_folder(environment) + "/models";
}

std::string frameworks_folder(const Environment& environment) { return profiles_folder(environment) + "/frameworks"; }

std::string gpus_file(const OptionValue<std::string>& gpus, const Environment& environment) {
  return gpus.has() ? *gpus : profiles_folder(environment) + "/gpus.toml";
}

int run_program(int argc, char** argv, const Command& command) {
  const CommandLine& line = command.line;
  return guarded(line.program, [&] {
    const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    if (const auto status = generated({line.program, line.purpose, {line}}, arguments)) return *status;
    return run_command(line.program, command, arguments);
  });
}

int run_program(int argc, char** argv, const CommandFamily& family, const std::vector<Command>& commands) {
  const std::string& program = family.program;
  return guarded(program, [&] {
    std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
    ProgramReference reference{program, family.purpose, {}};
    for (const Command& command : commands) reference.lines.push_back(command.line);
    if (const auto status = generated(reference, arguments)) return *status;
    const std::string hint = fmt::format("see {} --help", program);
    if (arguments.empty() && !family.more.empty()) arguments = {"--help"};
    if (arguments.empty()) return report(program, Error{ErrorCode::usage, "which command?", hint});
    const std::string name = arguments.front();
    if (name == "--help" || name == "-h" || name == "help") {
      fmt::print("{}", overview(family, commands));
      return 0;
    }
    if (name == "--version" || name == "-V") {
      fmt::print("{}", version_text(program, arguments, {}, nullptr));
      return 0;
    }
    std::vector<std::string> known;
    for (const Command& command : commands) {
      known.push_back(command.line.program.substr(program.size() + 1));
      if (known.back() != name) continue;
      arguments.erase(arguments.begin());
      return run_command(program, command, arguments);
    }
    known.insert(known.end(), family.other_commands.begin(), family.other_commands.end());
    const auto near = closest(name, known);
    return report(program,
                  Error{ErrorCode::usage, fmt::format("unknown command '{}' (known: {})", name, join(known, ", ")),
                        near ? fmt::format("did you mean '{}'? ({})", *near, hint) : hint});
  });
}

}  // namespace sailor::apps
