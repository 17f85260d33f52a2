// The option table of sailor-submit.
#pragma once

#include "apps/options.hpp"

namespace sailor::apps {

CommandLine submit_command_line();

}  // namespace sailor::apps
