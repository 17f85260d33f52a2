// Lists of nodes as Slurm writes them: "node[01-04,7],gpu9".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace sailor {

/// The names, in order. Numbers keep their leading zeros; a name may hold several brackets ("rack[1-2]n[1-8]"). Errors:
/// invalid_input (brackets that do not match, ranges that run backwards, more than a million names).
Result<std::vector<std::string>> expand_host_list(std::string_view text);

}  // namespace sailor
