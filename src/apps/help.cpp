// The text of --help: purpose, usage, arguments, options, other ways to set them, examples.
#include <fmt/format.h>

#include <algorithm>

#include "apps/command_table.hpp"
#include "apps/options.hpp"
#include "core/output_fit.hpp"
#include "core/text.hpp"

namespace sailor::apps {

namespace {

constexpr std::size_t widest_left_column = 30;
constexpr char unbreakable_space = '\x01';  // replaced by a space after the lines are broken

/// Columns of a page, on a terminal no more than it has.
std::size_t page_width() {
  constexpr std::size_t widest = 96;
  const std::size_t columns = output_fit().columns;
  return columns == 0 ? widest : std::clamp<std::size_t>(columns, 60, widest);
}

/// Two columns; the right one is wrapped between words.
std::string entry(const std::string& left, const std::string& right, std::size_t column) {
  std::string text = "  " + left;
  std::size_t position = text.size();
  if (position + 2 > column) {
    text += "\n";
    position = 0;
  }
  bool first = true;
  for (const std::string& word : split(right, ' ')) {
    if (!first && position + 1 + word.size() > page_width()) {
      text += "\n";
      position = 0;
      first = true;
    }
    if (first) {
      text += std::string(column - position, ' ');
      position = column;
    } else {
      text += ' ';
      ++position;
    }
    text += word;
    position += word.size();
    first = false;
  }
  std::replace(text.begin(), text.end(), unbreakable_space, ' ');
  return text + "\n";
}

std::string left_of(const Option& option) {
  std::string text =
      option.letter != 0 ? fmt::format("-{}, --{}", option.letter, option.name) : fmt::format("    --{}", option.name);
  if (option.type == OptionType::flag) return text;
  const std::string value = option.value_name.empty() ? "VALUE" : option.value_name;
  return text + " " + value + (option.repeatable ? ",..." : "");
}

std::string right_of(const Option& option) {
  std::string text = option.help;
  if (!option.choices.empty()) text += fmt::format(": {}", join(option.choices, ", "));
  if (!option.default_value.empty()) text += fmt::format(" [default:{}{}]", unbreakable_space, option.default_value);
  return text;
}

}  // namespace

std::string synopsis_of(const Positional& positional, const std::string& shown_name) {
  const std::string name = (positional.behind_dashes ? "-- " : "") + shown_name;
  return positional.required ? name : "[" + name + "]";
}

std::string help_text(const CommandLine& line) {
  const std::vector<Option> options = all_options(line);
  std::string usage = fmt::format("Usage: {} [options]", line.program);
  for (const Positional& positional : line.positionals)
    usage += " " + synopsis_of(positional, positional.name + (positional.repeatable ? "..." : ""));
  std::string text = fitted(fmt::format("{}: {}\n\n{}\n", line.program, line.purpose, usage));

  std::size_t column = 0;
  auto make_room = [&](std::size_t width) {
    if (width <= widest_left_column) column = std::max(column, width + 4);
  };
  for (const Option& option : options) make_room(left_of(option).size());
  for (const Positional& positional : line.positionals) make_room(positional.name.size());

  if (!line.positionals.empty()) text += "\nArguments:\n";
  for (const Positional& positional : line.positionals) text += entry(positional.name, positional.help, column);
  const std::string* group = nullptr;
  for (const Option& option : options) {
    if (group == nullptr || *group != option.group)
      text += fmt::format("\n{}:\n", option.group.empty() ? "Options" : option.group);
    group = &option.group;
    text += entry(left_of(option), right_of(option), column);
  }

  const std::string sample = line.options.empty() ? "verbose" : line.options.front().name;
  text +=
      fitted(fmt::format("\nEnvironment: each option is also read from SAILOR_<NAME> ({} for --{}); in a\n"
                         "--config file the key is {}. Command line > environment > file > default.\n",
                         environment_name(sample), sample, toml_key(sample)));

  // Commands stay whole, to be copied.
  if (!line.examples.empty()) text += "\nExamples:\n";
  for (const Example& example : line.examples) text += fmt::format("  # {}\n  {}\n", example.comment, example.command);
  if (!line.notes.empty()) text += fitted(fmt::format("\n{}\n", line.notes));
  if (!line.exit_statuses.empty()) text += "\nExit status:\n";
  for (const ExitStatus& status : line.exit_statuses)
    text += entry(fmt::format("{}", status.status), status.meaning, 6);
  return text;
}

}  // namespace sailor::apps
