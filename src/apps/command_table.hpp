// How the names of an option are derived from each other; shared by the parser and the help text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/options.hpp"

namespace sailor::apps {

/// The program's options and those that every program has.
std::vector<Option> all_options(const CommandLine& line);
/// "micro-batch" -> "SAILOR_MICRO_BATCH"
std::string environment_name(std::string_view option);
/// "micro-batch" -> "micro_batch"
std::string toml_key(std::string_view option);
/// --help, --version, --config, --print-config: on the command line only (a path also as SAILOR_CONFIG).
bool not_configurable(std::string_view option);

}  // namespace sailor::apps
