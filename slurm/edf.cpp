#include "slurm/edf.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "core/text.hpp"
#include "core/toml_reader.hpp"

namespace sailor::slurm {

namespace fs = std::filesystem;

namespace {

constexpr int deepest = 10;  // the container engine's own limit

using Environment = std::map<std::string, std::string>;

std::string value_of(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

/// `text` with ${NAME} replaced; std::nullopt if a variable is not set.
std::optional<std::string> expanded(std::string_view text, const Environment& environment) {
  std::string result;
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    result += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar + 1);
    const bool braces = text.starts_with('{');
    if (braces) text.remove_prefix(1);
    std::size_t end = braces ? text.find('}') : 0;
    const auto in_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    while (!braces && end < text.size() && in_name(text[end])) ++end;
    if (end == std::string_view::npos || end == 0) return std::nullopt;
    const auto found = environment.find(std::string(text.substr(0, end)));
    if (found == environment.end()) return std::nullopt;
    result += found->second;
    text.remove_prefix(end + (braces ? 1 : 0));
  }
  return result;
}

/// The file that srun would take.
Result<fs::path> find_file(const std::string& image, const Environment& environment) {
  std::error_code code;
  if (image.find('/') != std::string::npos || image.ends_with(".toml")) {
    if (fs::exists(image, code)) return fs::path(image);
    return fail(ErrorCode::not_found, fmt::format("there is no EDF '{}'", image), "correct --image");
  }
  std::vector<std::string> folders = split(value_of(environment, "EDF_PATH"), ':');
  if (const std::string home = value_of(environment, "HOME"); folders.empty() && !home.empty())
    folders.push_back(home + "/.edf");
  for (const std::string& folder : folders)
    if (const fs::path file = fs::path(folder) / (image + ".toml"); fs::exists(file, code)) return file;
  return fail(ErrorCode::unavailable, fmt::format("there is no EDF '{}' in EDF_PATH or ~/.edf", image),
              "correct --image, or name the file with its path");
}

/// Names of the files that the file is based on: base_environment is a string, or an array of them.
Result<std::vector<std::string>> bases_of(const fs::path& file) {
  const auto list = TomlDocument::load(file);
  if (!list) return fail(list.error());
  std::vector<std::string> names = list->root().texts_or("base_environment", {});
  if (list->good()) return names;
  const auto one = TomlDocument::load(file);
  if (!one) return fail(one.error());
  names = {one->root().text("base_environment")};
  if (!one->good()) return fail(list->finish().error());
  return names;
}

Result<void> read_file(const fs::path& file, const Environment& environment, int depth, ContainerMounts& mounts) {
  if (depth > deepest)
    return fail(ErrorCode::invalid_input,
                fmt::format("EDF '{}' is based on more than {} others", file.string(), deepest));
  const auto bases = bases_of(file);
  if (!bases) return fail(bases.error());
  for (const std::string& base : *bases) {
    const auto other = find_file(base, environment);
    if (!other) return fail(other.error(), file.string());
    SAILOR_CHECK(read_file(*other, environment, depth + 1, mounts));
  }
  const auto document = TomlDocument::load(file);
  if (!document) return fail(document.error());
  const std::vector<std::string> all = document->root().texts_or("mounts", {});
  if (!document->good()) return document->finish();
  for (const std::string& mount : all) {  // SOURCE:DESTINATION[:FLAGS]
    const auto text = expanded(mount, environment);
    const std::vector<std::string> parts = split(text.value_or(""), ':');
    if (parts.empty())
      mounts.unknown.push_back(mount);
    else
      mounts.inside.push_back(fs::path(parts.size() > 1 ? parts[1] : parts[0]).lexically_normal());
  }
  return {};
}

bool holds(const fs::path& folder, const fs::path& path) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() ||
         (std::next(end) == folder.end() && end->empty());  // "/scratch/" ends with an empty part
}

}  // namespace

Result<ContainerMounts> read_edf_mounts(const std::string& image, const Environment& environment) {
  const auto file = find_file(image, environment);
  if (!file) return fail(file.error());
  ContainerMounts mounts{.file = *file};
  SAILOR_CHECK(read_file(*file, environment, 0, mounts));
  return mounts;
}

std::vector<fs::path> not_mounted(const ContainerMounts& mounts, const std::vector<fs::path>& paths) {
  std::vector<fs::path> missing;
  if (!mounts.unknown.empty()) return missing;
  for (const fs::path& path : paths)
    if (std::none_of(mounts.inside.begin(), mounts.inside.end(),
                     [&](const fs::path& folder) { return holds(folder, path.lexically_normal()); }))
      missing.push_back(path);
  return missing;
}

}  // namespace sailor::slurm
