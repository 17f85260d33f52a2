// Manual pages, shell completions and documentation pages, generated from the tables that the programs themselves parse
// with: `sailor-plan --generate man` prints the manual page, and the build calls it for every program.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "core/error.hpp"

namespace sailor::apps {

/// A program with its command lines: one of the same name, or one for each of its commands ("sailor-profile layers").
struct ProgramReference {
  std::string program{};
  std::string purpose{};
  std::vector<CommandLine> lines{};
  [[nodiscard]] bool has_commands() const { return lines.size() != 1 || lines.front().program != program; }
};

/// One key of a file format.
struct FileKey {
  std::string name{};           ///< "tensor_parallel"; NAME stands for keys that the file's author chooses
  std::string type{};           ///< "integer", "list of strings", ...
  std::string default_value{};  ///< "required", or what a missing key means
  std::string meaning{};        ///< with the unit
};

/// A table of a file format; `name` is "" for the keys at the beginning, "[job]", or "[[pipelines.stages]]".
struct FileTable {
  std::string name{};
  std::string about{};  ///< a paragraph before the keys; may be empty
  std::vector<FileKey> keys{};
};

/// A TOML file that Sailor reads: page 5 of the manual, and a page of the documentation.
struct FileFormat {
  std::string name{};     ///< name of the manual page: "plan.toml", "sailor-site"
  std::string purpose{};  ///< one line
  std::vector<std::string> paragraphs{};
  std::vector<FileTable> tables{};
  std::string example{};  ///< a complete file
  std::vector<std::string> see_also{};
};
std::span<const FileFormat> file_formats();

/// The manual page in man(7), which groff and mandoc render.
std::string manual_page(const ProgramReference& reference);
std::string manual_page(const FileFormat& format);
/// The page in Markdown.
std::string markdown_page(const ProgramReference& reference);
std::string markdown_page(const FileFormat& format);
std::string bash_completion(const ProgramReference& reference);
std::string zsh_completion(const ProgramReference& reference);
std::string fish_completion(const ProgramReference& reference);

/// The exit statuses of a command line; those that every program has if it names none.
std::vector<ExitStatus> exit_statuses_of(const CommandLine& line);
/// An option as in a usage line, without the program: "--format table|json".
std::string option_with_value(const Option& option);

/// The output of `--generate KIND`: man, markdown, bash, zsh, fish. With `--generate all FOLDER` it writes all of them
/// below FOLDER, as they are installed below share/; `sailor` also writes the pages of the file formats. Errors: usage,
/// io.
Result<std::string> generate(const ProgramReference& reference, const std::vector<std::string>& arguments);

}  // namespace sailor::apps
