// libfabric's providers on this node, as its own program reports them: nothing of libfabric is needed to build this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "preflight/rank_facts.hpp"

namespace sailor::preflight {

/// Asks `fi_info`, looked up in PATH. Errors: unavailable (it is not there, fails, is silent, or says nothing
/// readable).
Result<std::vector<FabricProvider>> ask_fabric(Seconds deadline, const std::string& program = "fi_info");

/// The providers in the output of fi_info, by name, with their domains. Other lines are skipped.
std::vector<FabricProvider> parse_fi_info(std::string_view text);

}  // namespace sailor::preflight
