// Outcome of a check: shared by the checks before a job is queued and those on its nodes.
#pragma once

#include <string_view>

namespace sailor::preflight {

enum class Outcome { ok, warn, fail, not_checked };
/// "ok", "warn", "fail", "not checked"
std::string_view to_string(Outcome outcome);

/// 0 ok, 4 warnings only, 5 a failed check.
int exit_status(Outcome worst);

}  // namespace sailor::preflight
