#include "core/assert.hpp"

#include <cstdio>
#include <cstdlib>

namespace sailor {

// Without fmt, which may allocate: memory may be what is broken.
void assertion_failed(std::string_view file, int line, std::string_view condition, std::string_view message) noexcept {
  // The path inside the source tree: the folder of the tree says nothing to the reader.
  if (const std::size_t source = file.rfind("/src/"); source != std::string_view::npos) file.remove_prefix(source + 1);
  const auto length = [](std::string_view text) { return static_cast<int>(text.size()); };
  std::fprintf(stderr, "sailor: assertion failed at %.*s:%d: %.*s (%.*s); this is a bug in Sailor, please report it\n",
               length(file), file.data(), line, length(message), message.data(), length(condition), condition.data());
  std::abort();
}

}  // namespace sailor
