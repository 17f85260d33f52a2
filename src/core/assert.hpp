// SAILOR_ASSERT(condition, message): an invariant of our own code. A condition that input can make false is an error
// (error.hpp), not an assertion.
//
// The CMake option SAILOR_ASSERTIONS, off in release builds, turns assertions on: a failed one prints file, line,
// message and condition to stderr and aborts. Without it neither the condition nor the message is evaluated; both must
// compile. The message is a text or fmt::format(...); it is made only when the assertion fails. To be used in source
// files only: programs that include our installed headers are compiled without the option.
#pragma once

#include <string_view>

namespace sailor {

/// Prints the failed assertion and aborts.
[[noreturn]] void assertion_failed(std::string_view file, int line, std::string_view condition,
                                   std::string_view message) noexcept;

}  // namespace sailor

#ifdef SAILOR_ASSERTIONS
#define SAILOR_ASSERT(condition, message)                                  \
  do {                                                                     \
    if (!(condition)) [[unlikely]]                                         \
      ::sailor::assertion_failed(__FILE__, __LINE__, #condition, message); \
  } while (false)
#else
#define SAILOR_ASSERT(condition, message)                  \
  do {                                                     \
    if (false && !(condition)) static_cast<void>(message); \
  } while (false)
#endif
