// Parses small words of other programs' output, files and variables.
#pragma once

#include <optional>
#include <string_view>

namespace sailor {

/// The text without `blanks` at both ends.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r");
/// A whole number of 0 or more, without any other characters.
std::optional<int> parse_count(std::string_view text);

}  // namespace sailor
