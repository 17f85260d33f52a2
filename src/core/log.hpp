// Messages for people, on stderr: "sailor-plan: warning: ...". Data goes to stdout, never through here.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

#include "core/error.hpp"

namespace sailor {

/// Makes spdlog's default logger write "<program>: <level>: message" to stderr. Call once, in main.
void start_logging(const std::string& program, bool verbose);

/// Writes text to stderr. If stderr is closed or full, nobody can be told, and that is no error of its own.
void say(const std::string& text);

/// Prints "<program>: error: <what>; <hint>" and returns the exit status for the error.
int report(const std::string& program, const Error& error);

}  // namespace sailor
