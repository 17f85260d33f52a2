// Values of enumerations by their names.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/error.hpp"
#include "core/text.hpp"

namespace sailor {

/// The value of an enumeration whose names are `names`, in its order. `what` is named in the error, which has `code`.
template <class Value, class Names>
Result<Value> parse_name(std::string_view what, std::string_view text, const Names& names,
                         ErrorCode code = ErrorCode::invalid_input) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end())
    return fail(code, fmt::format("{} '{}' is not known", what, text),
                fmt::format("use one of: {}", join(names, ", ")));
  return static_cast<Value>(found - names.begin());
}

}  // namespace sailor
