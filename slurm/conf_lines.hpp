// Lines of Slurm's configuration files.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace sailor::slurm {

/// A line of a configuration file: "NodeName=gh[1-4] Gres=gpu:gh200:4", keys in lower case.
using ConfLine = std::map<std::string, std::string>;

/// Words of the form key=value, the value in double quotes if it holds blanks.
ConfLine parse_conf_line(std::string_view text);

/// Calls `use` with every line of the file and of those that it includes; a backslash at the end continues a line, and
/// values may be in double quotes. Errors: those of reading.
Result<void> for_conf_lines(const std::filesystem::path& file, const std::function<void(const ConfLine&)>& use);

}  // namespace sailor::slurm
