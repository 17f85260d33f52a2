// The commands of sailor-profile: one file per group.
#pragma once

#include <string>
#include <vector>

#include "apps/options.hpp"

namespace sailor::apps {

/// The command line as it was typed, for provenance. Set by main().
std::string& profile_command_line();

Command layers_command();                ///< measure_layers.cpp
Command links_command();                 ///< measure_links.cpp
Command estimate_command();              ///< estimate_command.cpp
Command model_command();                 ///< model_command.cpp
Command export_command();                ///< export_command.cpp
Command import_command();                ///< import_command.cpp
std::vector<Command> manage_commands();  ///< manage_commands.cpp: list, merge, remove
std::vector<Command> store_commands();   ///< store_commands.cpp: show, check, diff

}  // namespace sailor::apps
