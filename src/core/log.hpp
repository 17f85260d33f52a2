// Messages for people, on stderr: "sailor-plan: warning: ...". Data goes to stdout, never through here.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/error.hpp"

namespace sailor {

enum class LogLevel { debug, info, warning, error };

/// Makes messages begin with "<program>: <level>: "; those of LogLevel::debug are shown if `verbose`. Call once, in
/// main.
void start_logging(const std::string& program, bool verbose);

/// Whether messages of this level are shown.
bool is_logged(LogLevel level);
/// Writes "<program>: <level>: <message>" to stderr, if messages of this level are shown. Any thread may call it.
void write_log(LogLevel level, const std::string& message);

/// The same for a message that is formatted, as fmt::format() does, only if it is shown.
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (is_logged(LogLevel::debug)) write_log(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  write_log(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

/// Writes text to stderr. If stderr is closed or full, nobody can be told, and that is no error of its own.
void say(const std::string& text);

/// Prints "<program>: error: <what>; <hint>" and returns the exit status for the error.
int report(const std::string& program, const Error& error);

}  // namespace sailor
