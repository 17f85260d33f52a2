#include "slurm/conf_lines.hpp"

#include <string_view>

#include "core/files.hpp"
#include "core/parse.hpp"
#include "core/text.hpp"

namespace sailor::slurm {

ConfLine parse_conf_line(std::string_view text) {
  ConfLine line;
  while (true) {
    text = trimmed(text);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) return line;
    const std::string key = to_lower(trimmed(text.substr(0, equals)));
    text = trimmed(text.substr(equals + 1));
    const bool quoted = text.starts_with('"');
    if (quoted) text.remove_prefix(1);
    const std::size_t end = quoted ? text.find('"') : text.find_first_of(" \t");
    line[key] = std::string(text.substr(0, end));
    if (end == std::string_view::npos) return line;
    text.remove_prefix(end + 1);
  }
}

namespace {

constexpr std::size_t largest_file = std::size_t{32} << 20;
constexpr int deepest_include = 8;

/// `depth`: number of nested includes.
Result<void> for_lines(const std::filesystem::path& file, int depth, const std::function<void(const ConfLine&)>& use) {
  const auto text = read_text_file(file, largest_file);
  if (!text) return fail(text.error());
  std::string joined;  // a backslash at the end joins lines
  for (const std::string& raw : split(*text, '\n')) {
    std::string_view line = trimmed(std::string_view(raw).substr(0, raw.find('#')));
    const bool goes_on = line.ends_with('\\');
    if (goes_on) line.remove_suffix(1);
    joined += line;
    if (goes_on) continue;
    const std::string whole = std::exchange(joined, {});
    const std::size_t blank = whole.find_first_of(" \t");
    if (blank != std::string::npos && equal_ignoring_case(std::string_view(whole).substr(0, blank), "include")) {
      const std::filesystem::path other(std::string(trimmed(std::string_view(whole).substr(blank))));
      if (depth < deepest_include)
        SAILOR_CHECK(for_lines(other.is_absolute() ? other : file.parent_path() / other, depth + 1, use));
      continue;
    }
    use(parse_conf_line(whole));
  }
  return {};
}

}  // namespace

Result<void> for_conf_lines(const std::filesystem::path& file, const std::function<void(const ConfLine&)>& use) {
  return for_lines(file, 0, use);
}

}  // namespace sailor::slurm
