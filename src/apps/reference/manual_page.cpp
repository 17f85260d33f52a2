// Manual pages in man(7). See https://man.openbsd.org/man.7 for what is portable between groff and mandoc.
#include <fmt/format.h>

#include <algorithm>

#include "apps/command_table.hpp"
#include "apps/programs.hpp"
#include "apps/reference/reference.hpp"

namespace sailor::apps {

namespace {

/// Escapes text for a page: nothing in it is a request, and quotation marks and dashes stay the same when they are
/// copied.
std::string roff(std::string_view text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";
    line_begins = c == '\n';
    switch (c) {
      case '\\':
        result += "\\e";
        break;
      case '-':
        result += "\\-";
        break;
      case '\'':
        result += "\\(aq";
        break;
      case '`':
        result += "\\(ga";
        break;
      case '^':
        result += "\\(ha";
        break;
      case '~':
        result += "\\(ti";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string bold(std::string_view text) { return fmt::format("\\fB{}\\fR", roff(text)); }
std::string italic(std::string_view text) { return fmt::format("\\fI{}\\fR", roff(text)); }

std::string upper_case(std::string text) {
  for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

std::string header(const std::string& name, int section, const std::string& purpose) {
  return fmt::format(
      ".\\\" Made by the program itself from the table of its options: see CONTRIBUTING.md.\n"
      ".TH {} {} {} \"Sailor {}\" \"Sailor\"\n.SH NAME\n{} \\- {}\n",
      upper_case(name), section, SAILOR_RELEASE_DATE, version(), roff(name), roff(purpose));
}

std::string option_names(const Option& option) {
  std::string text = option.letter != 0 ? bold(fmt::format("-{}", option.letter)) + ", " : "";
  text += bold("--" + option.name);
  if (option.type != OptionType::flag)
    text += " " + italic(option.value_name.empty() ? "VALUE" : option.value_name) + (option.repeatable ? ",..." : "");
  return text;
}

std::string option_meaning(const Option& option) {
  std::string text = roff(option.help);
  if (!option.choices.empty()) {
    std::string separator = ": ";
    for (const std::string& choice : option.choices) {
      text += separator + bold(choice);
      separator = ", ";
    }
  }
  if (!option.default_value.empty()) text += " [default:\\ " + bold(option.default_value) + "]";
  return text;
}

std::string synopsis(const CommandLine& line) {
  std::string text = ".SY " + roff(line.program) + "\n[\\fIoptions\\fR]\n";
  for (const Positional& positional : line.positionals) {
    text += synopsis_of(positional, italic(positional.name) + (positional.repeatable ? "\\&..." : "")) + "\n";
  }
  return text + ".YS\n";
}

std::string arguments_and_options(const CommandLine& line, std::string_view heading) {
  std::string text;
  for (const Positional& positional : line.positionals)
    text += fmt::format(".TP\n{}\n{}\n", italic(positional.name), roff(positional.help));
  const std::string* group = nullptr;
  for (const Option& option : all_options(line)) {
    if (!heading.empty() && (group == nullptr || *group != option.group))
      text += fmt::format("{} {}\n", heading, roff(option.group.empty() ? "Options" : option.group));
    group = &option.group;
    text += fmt::format(".TP\n{}\n{}\n", option_names(option), option_meaning(option));
  }
  return text;
}

std::string examples(const CommandLine& line) {
  std::string text;
  for (const Example& example : line.examples)
    text += fmt::format(".PP\n{}:\n.PP\n.in +4n\n.EX\n{}\n.EE\n.in\n", roff(example.comment), roff(example.command));
  return text;
}

std::string notes(const CommandLine& line) { return line.notes.empty() ? "" : ".PP\n" + roff(line.notes) + "\n"; }

std::string statuses(const CommandLine& line) {
  std::string text;
  for (const ExitStatus& status : exit_statuses_of(line))
    text += fmt::format(".TP\n{}\n{}\n", status.status, roff(status.meaning));
  return text;
}

std::string variables(const CommandLine& line) {
  const std::string sample = line.options.empty() ? "verbose" : line.options.front().name;
  return fmt::format(
      ".PP\nEach option is also read from the variable \\fBSAILOR_\\fINAME\\fR ({} for {}), and from the key of a {} "
      "file "
      "({}). The command line counts more than the environment, which counts more than the file, which counts more "
      "than "
      "the default; {} shows who set what.\n"
      ".TP\n\\fBSAILOR_CONFIG\\fR\nthe file of {}\n"
      ".TP\n\\fBSAILOR_PROFILES\\fR\nfolder of the GPU catalogue, models, frameworks and stores that come with Sailor\n"
      ".TP\n\\fBSAILOR_SITES\\fR\nfolder of site files\n",
      bold(environment_name(sample)), bold("--" + sample), bold("--config"), bold(toml_key(sample)),
      bold("--print-config"), bold("--config"));
}

std::string see_also(const std::string& name) {
  std::string text = ".SH SEE ALSO\n";
  std::string separator;
  for (const Program& program : programs()) {
    if (program.name == name) continue;
    text += separator + bold(program.name) + "(1)";
    separator = ",\n";
  }
  for (const FileFormat& format : file_formats()) {
    if (format.name == name) continue;
    text += separator + bold(format.name) + "(5)";
    separator = ",\n";
  }
  return text + "\n";
}

/// Breaks the lines of running text: mandoc wants none over 80 bytes, and people read diffs between versions.
std::string filled(const std::string& page) {
  constexpr std::size_t width = 78;
  std::string text;
  bool verbatim = false;
  bool after_heading = false;  // a paragraph begins there anyway
  for (std::size_t begin = 0; begin < page.size();) {
    const std::size_t end = std::min(page.find('\n', begin), page.size());
    std::string line = page.substr(begin, end - begin);
    begin = end + 1;
    if (line == ".PP" && after_heading) continue;
    after_heading = line.starts_with(".SH ") || line.starts_with(".SS ");
    if (line == ".EX") verbatim = true;
    if (line == ".EE") verbatim = false;
    while (!verbatim && !line.starts_with('.') && line.size() > width) {
      std::size_t space = line.rfind(' ', width);
      while (space != std::string::npos && space > 0 && line[space - 1] == '\\')
        space = line.rfind(' ', space - 1);  // "\ " is a space that is not broken
      if (space == std::string::npos) space = line.find(' ', width);
      if (space == std::string::npos || space == 0) break;
      text += line.substr(0, space) + "\n";
      line.erase(0, space + 1);
      if (line.starts_with('.') || line.starts_with('\'')) line.insert(0, "\\&");
    }
    text += line + "\n";
  }
  return text;
}

/// The page of a program, with unbroken lines.
std::string unfilled_page(const ProgramReference& reference) {
  std::string text = header(reference.program, 1, reference.purpose) + ".SH SYNOPSIS\n";
  for (const CommandLine& line : reference.lines) text += synopsis(line);
  if (!reference.has_commands()) {
    const CommandLine& line = reference.lines.front();
    if (!line.notes.empty()) text += ".SH DESCRIPTION\n" + notes(line);
    text += ".SH OPTIONS\n" + arguments_and_options(line, ".SS") + ".SH EXIT STATUS\n" + statuses(line) +
            ".SH ENVIRONMENT\n" + variables(line);
    if (!line.examples.empty()) text += ".SH EXAMPLES\n" + examples(line);
    return text + see_also(reference.program);
  }
  text += ".SH COMMANDS\n";
  for (const CommandLine& line : reference.lines) {
    text += fmt::format(".SS {}\n{}.\n", roff(line.program), roff(line.purpose));
    text += notes(line) + arguments_and_options(line, "");
    if (!line.exit_statuses.empty()) text += ".PP\nExit status:\n" + statuses(line);
    if (!line.examples.empty()) text += examples(line);
  }
  if (!reference.lines.empty())
    text += ".SH EXIT STATUS\n" + statuses(CommandLine{}) + ".SH ENVIRONMENT\n" + variables(reference.lines.front());
  return text + see_also(reference.program);
}

std::string unfilled_page(const FileFormat& format) {
  std::string text = header(format.name, 5, format.purpose) + ".SH DESCRIPTION\n";
  for (const std::string& paragraph : format.paragraphs) text += ".PP\n" + roff(paragraph) + "\n";
  text += ".SH KEYS\n";
  for (const FileTable& table : format.tables) {
    text += fmt::format(".SS {}\n", table.name.empty() ? "At the beginning" : roff(table.name));
    if (!table.about.empty()) text += ".PP\n" + roff(table.about) + "\n";
    for (const FileKey& key : table.keys)
      text += fmt::format(".TP\n{} ({}; {})\n{}\n", bold(key.name), roff(key.type), roff(key.default_value),
                          roff(key.meaning));
  }
  text += ".SH EXAMPLES\n.EX\n" + roff(format.example) + ".EE\n";
  return text + see_also(format.name);
}

}  // namespace

std::string manual_page(const ProgramReference& reference) { return filled(unfilled_page(reference)); }
std::string manual_page(const FileFormat& format) { return filled(unfilled_page(format)); }

}  // namespace sailor::apps
