// Derives the names of an option from each other; shared by the parser and the help text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/options.hpp"

namespace sailor::apps {

/// Options of the program, and those that every program has.
std::vector<Option> all_options(const CommandLine& line);
/// "micro-batch" -> "SAILOR_MICRO_BATCH"
std::string environment_name(std::string_view option);
/// "micro-batch" -> "micro_batch"
std::string toml_key(std::string_view option);
/// Whether the option is accepted on the command line only: --help, --version, --config (its path also as
/// SAILOR_CONFIG), --print-config.
bool not_configurable(std::string_view option);

}  // namespace sailor::apps
