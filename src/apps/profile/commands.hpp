// The commands of sailor-profile: one file per group.
#pragma once

#include <string>
#include <vector>

#include "apps/options.hpp"

namespace sailor::apps {

/// The command line as it was typed, for provenance. Set by main().
std::string& profile_command_line();

SubCommand layers_command();                ///< measure_layers.cpp
SubCommand links_command();                 ///< measure_links.cpp
SubCommand estimate_command();              ///< estimate_command.cpp
SubCommand model_command();                 ///< model_command.cpp
SubCommand export_command();                ///< export_command.cpp
SubCommand import_command();                ///< import_command.cpp
std::vector<SubCommand> manage_commands();  ///< manage_commands.cpp: list, merge, remove
std::vector<SubCommand> store_commands();   ///< store_commands.cpp: show, check, diff

}  // namespace sailor::apps
