// The implementation of --generate.
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <span>

#include "apps/command_table.hpp"
#include "apps/reference/reference.hpp"
#include "core/files.hpp"
#include "core/text.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;

struct GeneratedKind {
  const char* name;
  std::string (*make)(const ProgramReference&);
};

constexpr std::array kinds{
    GeneratedKind{"man", [](const ProgramReference& reference) { return manual_page(reference); }},
    GeneratedKind{"markdown", [](const ProgramReference& reference) { return markdown_page(reference); }},
    GeneratedKind{"bash", bash_completion},
    GeneratedKind{"zsh", zsh_completion},
    GeneratedKind{"fish", fish_completion},
};

/// The path below share/ where man-db, bash-completion, zsh and fish look.
fs::path place_of(std::string_view kind, const std::string& program) {
  if (kind == "man") return fs::path("man") / "man1" / (program + ".1");
  if (kind == "bash") return fs::path("bash-completion") / "completions" / program;
  if (kind == "zsh") return fs::path("zsh") / "site-functions" / ("_" + program);
  if (kind == "fish") return fs::path("fish") / "vendor_completions.d" / (program + ".fish");
  return fs::path("doc") / "sailor" / "programs" / (program + ".md");
}

Result<void> write_below(const fs::path& folder, const fs::path& place, const std::string& text) {
  const fs::path file = folder / place;
  SAILOR_CHECK(create_folders(file.parent_path()));
  return write_file_atomically(file, text);
}

}  // namespace

std::vector<ExitStatus> exit_statuses_of(const CommandLine& line) {
  if (!line.exit_statuses.empty()) return line.exit_statuses;
  return {{0, "done"}, {1, "failure"}, {2, "wrong usage"}};
}

std::string option_with_value(const Option& option) {
  std::string text =
      option.letter != 0 ? fmt::format("-{}, --{}", option.letter, option.name) : fmt::format("--{}", option.name);
  if (option.type == OptionType::flag) return text;
  return text + " " + (option.value_name.empty() ? "VALUE" : option.value_name) + (option.repeatable ? ",..." : "");
}

Result<std::string> generate(const ProgramReference& reference, const std::vector<std::string>& arguments) {
  const std::string kind = arguments.size() > 1 ? arguments[1] : "";
  if (kind == "all" && arguments.size() == 3) {
    const fs::path folder = arguments[2];
    for (const GeneratedKind& known : kinds)
      SAILOR_CHECK(write_below(folder, place_of(known.name, reference.program), known.make(reference)));
    if (reference.program == "sailor")
      for (const FileFormat& format : file_formats()) {
        SAILOR_CHECK(write_below(folder, fs::path("man") / "man5" / (format.name + ".5"), manual_page(format)));
        SAILOR_CHECK(
            write_below(folder, fs::path("doc") / "sailor" / "files" / (format.name + ".md"), markdown_page(format)));
      }
    return std::string();
  }
  std::vector<std::string> names;
  for (const GeneratedKind& known : kinds) {
    if (kind == known.name && arguments.size() == 2) return known.make(reference);
    names.emplace_back(known.name);
  }
  return fail(ErrorCode::usage, fmt::format("--generate cannot make '{}'", join(std::span(arguments).subspan(1), " ")),
              fmt::format("use one of: {}, or: all FOLDER", join(names, ", ")));
}

}  // namespace sailor::apps
