// Reference pages in Markdown, for the documentation.
#include <fmt/format.h>

#include <algorithm>

#include "apps/command_table.hpp"
#include "apps/reference/reference.hpp"
#include "core/text.hpp"

namespace sailor::apps {

namespace {

/// Escapes text for a page or a cell of a table.
std::string markdown(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*' || c == '_' || c == '[' || c == ']' || c == '\\') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string code(std::string_view text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return "`" + result + "`";
}

std::string option_table(const CommandLine& line) {
  std::string text;
  if (!line.positionals.empty()) {
    text += "| argument | meaning |\n| --- | --- |\n";
    for (const Positional& positional : line.positionals)
      text += fmt::format("| {} | {}{} |\n", code(positional.name), markdown(positional.help),
                          positional.required ? "" : " (optional)");
    text += "\n";
  }
  const std::string* group = nullptr;
  for (const Option& option : all_options(line)) {
    if (group == nullptr || *group != option.group)
      text += fmt::format("{}{}:\n\n| option | meaning | default |\n| --- | --- | --- |\n",
                          group == nullptr ? "" : "\n", option.group.empty() ? "Options" : option.group);
    group = &option.group;
    std::string meaning = markdown(option.help);
    if (!option.choices.empty()) {
      std::vector<std::string> choices;
      for (const std::string& choice : option.choices) choices.push_back(code(choice));
      meaning += fmt::format(": {}", join(choices, ", "));
    }
    text += fmt::format("| {} | {} | {} |\n", code(option_with_value(option)), meaning,
                        option.default_value.empty() ? "" : code(option.default_value));
  }
  return text;
}

std::string status_table(const CommandLine& line, std::string_view heading) {
  std::string text = fmt::format("\n{} Exit status\n\n| status | meaning |\n| --- | --- |\n", heading);
  for (const ExitStatus& status : exit_statuses_of(line))
    text += fmt::format("| {} | {} |\n", status.status, markdown(status.meaning));
  return text;
}

std::string rest_of(const CommandLine& line, std::string_view heading) {
  std::string text;
  if (!line.examples.empty()) {
    text += fmt::format("\n{} Examples\n\n```text\n", heading);
    for (const Example& example : line.examples) text += fmt::format("# {}\n{}\n", example.comment, example.command);
    text += "```\n";
  }
  if (!line.notes.empty()) text += "\n" + markdown(line.notes) + "\n";
  return text;
}

std::string usage(const CommandLine& line) {
  std::string text = "```text\n" + line.program + " [options]";
  for (const Positional& positional : line.positionals)
    text += " " + synopsis_of(positional, positional.name + (positional.repeatable ? "..." : ""));
  return text + "\n```\n\n";
}

}  // namespace

std::string markdown_page(const ProgramReference& reference) {
  std::string text =
      fmt::format("# {}\n\n{} {}.\n\n", reference.program, reference.program, markdown(reference.purpose));
  if (!reference.has_commands()) {
    const CommandLine& line = reference.lines.front();
    return text + usage(line) + option_table(line) + status_table(line, "##") + rest_of(line, "##");
  }
  for (const CommandLine& line : reference.lines)
    text += fmt::format("## {}\n\n{} {}.\n\n", line.program, line.program, markdown(line.purpose)) + usage(line) +
            option_table(line) + (line.exit_statuses.empty() ? "" : status_table(line, "###")) + rest_of(line, "###") +
            "\n";
  return text;
}

std::string markdown_page(const FileFormat& format) {
  std::string text = fmt::format("# {}\n\n*{}*\n\n", format.name, format.purpose);
  text += "<!-- Made by `sailor --generate all`; edit src/apps/reference and run the golden tests. -->\n";
  for (const std::string& paragraph : format.paragraphs) text += "\n" + markdown(paragraph) + "\n";
  text += "\nAn example:\n\n```toml\n" + format.example + "```\n";
  for (const FileTable& table : format.tables) {
    text += fmt::format("\n## {}\n\n", table.name.empty() ? "At the beginning" : code(table.name));
    if (!table.about.empty()) text += markdown(table.about) + "\n\n";
    text += "| key | type | default | meaning |\n| --- | --- | --- | --- |\n";
    for (const FileKey& key : table.keys)
      text += fmt::format("| {} | {} | {} | {} |\n", code(key.name), markdown(key.type), markdown(key.default_value),
                          markdown(key.meaning));
  }
  return text;
}

}  // namespace sailor::apps
