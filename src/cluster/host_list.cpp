#include "cluster/host_list.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

namespace sailor {

namespace {

constexpr std::size_t most_names = 1'000'000;

tl::unexpected<Error> invalid(std::string_view text, std::string_view why) {
  return fail(ErrorCode::invalid_input, fmt::format("node list '{}': {}", text, why),
              "write names and ranges, such as node[01-04,7],gpu9");
}

/// Expands the inside of a bracket, "01-04,7".
Result<std::vector<std::string>> expand_ranges(std::string_view ranges, std::string_view text) {
  std::vector<std::string> numbers;
  while (true) {
    const std::string_view range = ranges.substr(0, ranges.find(','));
    const std::size_t dash = range.find('-');
    const std::string_view from = range.substr(0, dash);
    const std::string_view to = dash == std::string_view::npos ? from : range.substr(dash + 1);
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    for (const auto& [word, number] : {std::pair(from, &first), std::pair(to, &last)}) {
      const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), *number);
      if (code != std::errc{} || end != word.data() + word.size())
        return invalid(text, fmt::format("'{}' in brackets is no number or range of numbers", range));
    }
    if (last < first) return invalid(text, fmt::format("the range {} runs backwards", range));
    if (last - first >= most_names || numbers.size() + (last - first) >= most_names)
      return invalid(text, fmt::format("it has more than {} names", most_names));
    for (std::uint64_t number = first; number <= last; ++number)
      numbers.push_back(fmt::format("{:0{}}", number, from.size()));
    if (range.size() == ranges.size()) return numbers;
    ranges.remove_prefix(range.size() + 1);
  }
}

/// Expands one name, with any number of brackets, and appends the result to `names`.
Result<void> expand_name(std::string_view name, std::string_view text, std::vector<std::string>& names) {
  std::vector<std::string> found{""};
  while (!name.empty()) {
    const std::size_t open = name.find('[');
    const std::string_view plain = name.substr(0, open);
    if (plain.find(']') != std::string_view::npos) return invalid(text, "']' without '['");
    for (std::string& one : found) one += plain;
    if (open == std::string_view::npos) break;
    const std::size_t close = name.find(']', open);
    if (close == std::string_view::npos) return invalid(text, "'[' without ']'");
    const auto numbers = expand_ranges(name.substr(open + 1, close - open - 1), text);
    if (!numbers) return fail(numbers.error());
    if (found.size() * numbers->size() > most_names)
      return invalid(text, fmt::format("it has more than {} names", most_names));
    std::vector<std::string> longer;
    longer.reserve(found.size() * numbers->size());
    for (const std::string& one : found)
      for (const std::string& number : *numbers) longer.push_back(one + number);
    found = std::move(longer);
    name.remove_prefix(close + 1);
  }
  if (names.size() + found.size() > most_names)
    return invalid(text, fmt::format("it has more than {} names", most_names));
  names.insert(names.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
  return {};
}

}  // namespace

Result<std::vector<std::string>> expand_host_list(std::string_view text) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth > 1 || depth < 0) return invalid(text, depth > 1 ? "'[' inside of brackets" : "']' without '['");
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    if (depth > 0) return invalid(text, "'[' without ']'");
    if (i == begin) return invalid(text, "a name is empty");
    SAILOR_CHECK(expand_name(text.substr(begin, i - begin), text, names));
    begin = i + 1;
  }
  return names;
}

}  // namespace sailor
