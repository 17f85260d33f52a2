#include "preflight/outcome.hpp"

#include <array>
#include <cstddef>

namespace sailor::preflight {

std::string_view to_string(Outcome outcome) {
  constexpr std::array<std::string_view, 4> names{"ok", "warn", "fail", "not checked"};
  return names[static_cast<std::size_t>(outcome)];
}

int exit_status(Outcome worst) {
  if (worst == Outcome::fail) return 5;
  return worst == Outcome::warn ? 4 : 0;
}

}  // namespace sailor::preflight
