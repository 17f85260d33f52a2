// The option table of sailor-plan.
#pragma once

#include <vector>

#include "apps/options.hpp"

namespace sailor::apps {

std::vector<Option> plan_options();
std::vector<Example> plan_examples();

}  // namespace sailor::apps
