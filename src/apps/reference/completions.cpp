// Completions for bash, zsh and fish.
//
// The placeholder of an option determines its values: FILE, STORE and others are paths; NAME of --model comes from
// `sailor models`, NAME of --partition from sinfo. Any other value is typed by the user.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/command_table.hpp"
#include "apps/programs.hpp"
#include "apps/reference/reference.hpp"
#include "core/text.hpp"

namespace sailor::apps {

namespace {

enum class ValueKind { none, words, files, folders, command };

struct Value {
  ValueKind kind = ValueKind::none;
  std::string words{};  ///< the words, or for ValueKind::command, a command that prints one word per line
};

Value value_of(const Option& option) {
  if (!option.choices.empty()) return {ValueKind::words, join(option.choices, " ")};
  if (option.type != OptionType::text) return {};
  if (option.name == "model") return {ValueKind::command, "sailor models --format names"};
  if (option.name == "gpu") return {ValueKind::command, "sailor gpus --format names"};
  if (option.name == "partition") return {ValueKind::command, "sinfo --noheader --format=%R"};
  constexpr std::array files{"FILE", "STORE", "PLAN", "CSV", "PREFIX", "RUN|CASES", "CORPUS", "PATH", "TOML"};
  constexpr std::array folders{"DIR", "FOLDER"};
  const auto is_any = [&](const auto& names) {
    return std::find(names.begin(), names.end(), option.value_name) != names.end();
  };
  if (is_any(files)) return {ValueKind::files, ""};
  if (is_any(folders)) return {ValueKind::folders, ""};
  return {};
}

/// The first words of a help text, as menus have no room for all of it.
std::string summary(std::string_view help) {
  const std::size_t end = std::min({help.find(": "), help.find("; "), help.find(" ["), help.find(" (")});
  return std::string(help.substr(0, end));
}

std::string function_name(std::string_view program) {
  std::string name(program);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == ' '; }, '_');
  return "_" + name;
}

std::string command_name(const ProgramReference& reference, const CommandLine& line) {
  return line.program == reference.program ? "" : line.program.substr(reference.program.size() + 1);
}

/// The names by which `sailor` runs the programs: "plan" for sailor-plan.
std::vector<std::string> run_by_sailor() {
  std::vector<std::string> names;
  for (const Program& program : programs())
    if (program.name.starts_with("sailor-")) names.emplace_back(program.name.substr(7));
  return names;
}

// ---- bash

std::string bash_line(const CommandLine& line) {
  std::string options;
  std::string cases;
  for (const Option& option : all_options(line)) {
    options += (options.empty() ? "" : " ") + ("--" + option.name);
    if (option.type == OptionType::flag) continue;
    const Value value = value_of(option);
    const std::string pattern =
        option.letter != 0 ? fmt::format("-{} | --{}", option.letter, option.name) : "--" + option.name;
    std::string action;
    switch (value.kind) {
      case ValueKind::words:
        action = fmt::format("_sailor_words \"{}\"", value.words);
        break;
      case ValueKind::command:
        action = fmt::format("_sailor_words \"$({} 2>/dev/null)\"", value.words);
        break;
      case ValueKind::files:
        action = "_sailor_paths -f";
        break;
      case ValueKind::folders:
        action = "_sailor_paths -d";
        break;
      case ValueKind::none:
        action = ":";
        break;
    }
    cases += fmt::format("    {}) {}; return ;;\n", pattern, action);
  }
  return fmt::format(
      "  case $prev in\n{}  esac\n"
      "  if [[ $cur == -* ]]; then mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$cur\")\n"
      "  else _sailor_paths -f; fi\n",
      cases, options);
}

constexpr std::string_view bash_helpers = R"(
# The words that continue the last one of a list with commas.
_sailor_words() {
  local start=""
  [[ $cur == *,* ]] && start=${cur%,*},
  mapfile -t COMPREPLY < <(compgen -P "$start" -W "$1" -- "${cur##*,}")
}
_sailor_paths() {
  mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
  compopt -o filenames 2>/dev/null
}
# Sets cur and prev; "--format=js" is three words of bash, and "--format js" two.
_sailor_current() {
  cur=${COMP_WORDS[COMP_CWORD]}
  prev=${COMP_WORDS[COMP_CWORD - 1]}
  COMPREPLY=()
  if [[ $cur == = ]]; then cur=""
  elif [[ $prev == = ]] && ((COMP_CWORD >= 2)); then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi
}
)";

// ---- zsh

/// Escapes text inside '...' and inside the brackets or the message of an _arguments specification.
std::string zsh_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'')
      result += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\')
      result += std::string("\\") + c;
    else
      result += c;
  }
  return result;
}

std::string zsh_value(const Option& option) {
  const Value value = value_of(option);
  const std::string list = option.repeatable ? "_values -s , " : "";
  switch (value.kind) {
    case ValueKind::words:
      return option.repeatable ? fmt::format("_values -s , value {}", value.words) : fmt::format("({})", value.words);
    case ValueKind::command:
      return fmt::format("{{compadd -- ${{(f)\"$({} 2>/dev/null)\"}}}}", value.words);
    case ValueKind::files:
      return "_files";
    case ValueKind::folders:
      return "_files -/";
    case ValueKind::none:
      return " ";
  }
  return " ";
}

std::string zsh_line(const CommandLine& line) {
  std::string text = "  _arguments -s";
  for (const Option& option : all_options(line)) {
    const std::string help = zsh_text(summary(option.help));
    const std::string name = "--" + option.name;
    const std::string value =
        option.type == OptionType::flag
            ? ""
            : fmt::format(":{}:{}", zsh_text(option.value_name.empty() ? "VALUE" : option.value_name),
                          zsh_value(option));
    const std::string equals = option.type == OptionType::flag ? "" : "=";
    const std::string repeated = option.repeatable ? "*" : "";
    if (option.letter != 0) {
      const std::string both = fmt::format("(-{} {})", option.letter, name);
      text += fmt::format(" \\\n    '{}'{{-{}{},{}{}}}'[{}]{}'", option.repeatable ? "*" : both, option.letter,
                          equals.empty() ? "" : "+", name, equals, help, value);
    } else {
      text += fmt::format(" \\\n    '{}{}{}[{}]{}'", repeated, name, equals, help, value);
    }
  }
  for (const Positional& positional : line.positionals) {
    if (positional.behind_dashes) continue;  // zsh takes one list of arguments
    text += fmt::format(" \\\n    '{}:{}:{}'", positional.repeatable ? "*" : "", zsh_text(positional.name),
                        positional.name == "COMMAND" ? "_command_names -e" : "_files");
  }
  return text + "\n";
}

// ---- fish

std::string fish_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return "'" + result + "'";
}

std::string fish_line(const std::string& program, const std::string& condition, const CommandLine& line) {
  std::string text;
  for (const Option& option : all_options(line)) {
    text += fmt::format("complete -c {}{} -l {}", program, condition, option.name);
    if (option.letter != 0) text += fmt::format(" -s {}", option.letter);
    const Value value = value_of(option);
    if (option.type != OptionType::flag) {
      switch (value.kind) {
        case ValueKind::words:
          text += option.repeatable ? fmt::format(" -x -a '(__fish_append , {})'", value.words)
                                    : fmt::format(" -x -a {}", fish_text(value.words));
          break;
        case ValueKind::command:
          text += fmt::format(" -x -a '({} 2>/dev/null)'", value.words);
          break;
        case ValueKind::files:
          text += " -r -F";
          break;
        case ValueKind::folders:
          text += " -x -a '(__fish_complete_directories)'";
          break;
        case ValueKind::none:
          text += " -x";
          break;
      }
    }
    text += fmt::format(" -d {}\n", fish_text(summary(option.help)));
  }
  return text;
}

}  // namespace

std::string bash_completion(const ProgramReference& reference) {
  const std::string function = function_name(reference.program);
  std::string text =
      fmt::format("# bash completion for {}, made by `{} --generate bash`\n", reference.program, reference.program);
  text += bash_helpers;
  text += fmt::format("{}() {{\n  local cur prev\n  _sailor_current\n", function);
  if (!reference.has_commands()) {
    text += bash_line(reference.lines.front());
  } else {
    std::vector<std::string> names;
    std::string cases;
    for (const CommandLine& line : reference.lines) {
      names.push_back(command_name(reference, line));
      cases += fmt::format("  {})\n{}  ;;\n", names.back(), bash_line(line));
    }
    if (reference.program == "sailor") {
      const std::vector<std::string> others = run_by_sailor();
      names.insert(names.end(), others.begin(), others.end());
      cases += fmt::format(
          "  {})\n"
          "    COMP_WORDS=(\"sailor-${{COMP_WORDS[1]}}\" \"${{COMP_WORDS[@]:2}}\")\n"
          "    COMP_CWORD=$((COMP_CWORD - 1))\n"
          "    local function=_${{COMP_WORDS[0]//-/_}}\n"
          "    declare -F \"$function\" >/dev/null || source \"${{BASH_SOURCE[0]%/*}}/${{COMP_WORDS[0]}}\"\n"
          "    \"$function\"\n  ;;\n",
          join(others, " | "));
    }
    text += fmt::format(
        "  if ((COMP_CWORD == 1)); then\n"
        "    mapfile -t COMPREPLY < <(compgen -W '{} --help --version' -- \"$cur\")\n    return\n  fi\n"
        "  case ${{COMP_WORDS[1]}} in\n{}  esac\n",
        join(names, " "), cases);
  }
  return text + fmt::format("}}\ncomplete -F {} {}\n", function, reference.program);
}

std::string zsh_completion(const ProgramReference& reference) {
  const std::string function = function_name(reference.program);
  std::string text = fmt::format("#compdef {0}\n# made by `{0} --generate zsh`\n\n", reference.program);
  if (!reference.has_commands()) {
    text += fmt::format("{}() {{\n{}}}\n\n", function, zsh_line(reference.lines.front()));
  } else {
    std::string names;
    std::string cases;
    for (const CommandLine& line : reference.lines) {
      const std::string name = command_name(reference, line);
      names += fmt::format("    '{}:{}'\n", name, zsh_text(summary(line.purpose)));
      cases += fmt::format("  ({})\n  {} ;;\n", name, zsh_line(line));
    }
    if (reference.program == "sailor") {
      for (const Program& program : programs())
        if (program.name.starts_with("sailor-"))
          names += fmt::format("    '{}:{}'\n", program.name.substr(7), zsh_text(summary(program.purpose)));
      cases += fmt::format("  ({}) words[1]=sailor-$words[1]; _normal ;;\n", join(run_by_sailor(), "|"));
    }
    text += fmt::format(
        "{}() {{\n"
        "  local -a commands=(\n{}  )\n"
        "  if ((CURRENT == 2)); then\n    _describe command commands\n    return\n  fi\n"
        "  shift words\n  ((CURRENT--))\n  case $words[1] in\n{}  esac\n}}\n\n",
        function, names, cases);
  }
  return text + fmt::format("{} \"$@\"\n", function);
}

std::string fish_completion(const ProgramReference& reference) {
  const std::string& program = reference.program;
  std::string text = fmt::format("# fish completion for {0}, made by `{0} --generate fish`\n", program);
  if (!reference.has_commands()) return text + fish_line(program, "", reference.lines.front());
  text += fmt::format("complete -c {} -n __fish_use_subcommand -f\n", program);
  const auto add = [&](std::string_view name, std::string_view purpose) {
    text += fmt::format("complete -c {} -n __fish_use_subcommand -a {} -d {}\n", program, name,
                        fish_text(summary(purpose)));
  };
  for (const CommandLine& line : reference.lines) {
    const std::string name = command_name(reference, line);
    add(name, line.purpose);
    text += fish_line(program, fmt::format(" -n '__fish_seen_subcommand_from {}'", name), line);
  }
  if (program == "sailor")
    for (const Program& other : programs()) {
      if (!other.name.starts_with("sailor-")) continue;
      add(other.name.substr(7), other.purpose);
      text += fmt::format(
          "complete -c sailor -n 'test (count (commandline -opc)) -ge 2; and test (commandline -opc)[2] = {0}' -f -a "
          "'(complete -C \"{1} \"(string join \" \" -- (commandline -opc)[3..-1] (commandline -ct)))'\n",
          other.name.substr(7), other.name);
    }
  return text;
}

}  // namespace sailor::apps
