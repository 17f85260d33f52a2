#include "core/parse.hpp"

#include <charconv>

namespace sailor {

std::string_view trimmed(std::string_view text, std::string_view blanks) {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::optional<int> parse_count(std::string_view text) {
  int count = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (problem != std::errc() || end != text.data() + text.size() || count < 0) return std::nullopt;
  return count;
}

}  // namespace sailor
