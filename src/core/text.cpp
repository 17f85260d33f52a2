#include "core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <system_error>
#include <utility>

namespace sailor {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before;  // the row before the previous one
  std::vector<std::size_t> above(b.size() + 1);
  std::iota(above.begin(), above.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::vector<std::size_t> row(b.size() + 1, i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = above[j] + (lower(a[i]) == lower(b[j]) ? 0 : 1);
      row[j + 1] = std::min({replaced, above[j + 1] + 1, row[j] + 1});
      if (i > 0 && j > 0 && lower(a[i]) == lower(b[j - 1]) && lower(a[i - 1]) == lower(b[j]))
        row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
    before = std::exchange(above, std::move(row));
  }
  return above.back();
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string to_lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), lower);
  return result;
}

bool matches(std::string_view pattern, std::string_view name) {
  const std::string wanted = to_lower(pattern);
  const std::string text = to_lower(name);
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string::npos;  // the last one seen, which matches text up to `taken`
  std::size_t taken = 0;
  while (t < text.size()) {
    if (p < wanted.size() && wanted[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < wanted.size() && wanted[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return wanted.find_first_not_of('*', p) == std::string::npos;
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string join_texts(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) text += separator;
    text += part;
  }
  return text;
}

void append_formatted(std::string& text, fmt::string_view format, fmt::format_args args) {
  fmt::vformat_to(std::back_inserter(text), format, args);
}

std::string name_some(const std::vector<std::string>& names) {
  constexpr std::size_t shown = 8;
  const std::size_t listed = names.size() <= shown + 1 ? names.size() : shown;
  std::string text;
  for (std::size_t i = 0; i < listed; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return listed == names.size() ? text : text + " and " + std::to_string(names.size() - listed) + " more";
}

bool begins_json_object(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

std::string valid_utf8(std::string_view text) {
  // Smallest code point by length: longer forms of smaller ones are not allowed.
  constexpr std::array<std::uint32_t, 5> smallest{0, 0, 0x80, 0x800, 0x10000};
  std::string valid;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    std::size_t length = 0;  // 0: no first byte of a character
    if (first < 0x80) length = 1;
    if (first >= 0xC0 && first < 0xE0) length = 2;
    if (first >= 0xE0 && first < 0xF0) length = 3;
    if (first >= 0xF0 && first < 0xF8) length = 4;
    bool good = length > 0 && length <= text.size();
    std::uint32_t point = length == 1 ? first : first & (0x7FU >> length);
    for (std::size_t i = 1; good && i < length; ++i) {
      const auto next = static_cast<unsigned char>(text[i]);
      good = (next & 0xC0U) == 0x80U;
      point = (point << 6U) | (next & 0x3FU);
    }
    good = good && point >= smallest[length] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
    valid += good ? text.substr(0, length) : std::string_view("\xEF\xBF\xBD");
    text.remove_prefix(good ? length : 1);
  }
  return valid;
}

std::string system_message(int number) { return std::generic_category().message(number); }

std::optional<std::string> closest(std::string_view text, const std::vector<std::string>& known) {
  std::optional<std::string> best;
  // At least one letter must match.
  std::size_t best_distance = std::min(std::max<std::size_t>(1, text.size() / 3) + 1, text.size());
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(text, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view text, const std::vector<std::string>& known, std::string_view otherwise) {
  const auto near = closest(text, known);
  return near ? fmt::format("did you mean '{}'?", *near) : std::string(otherwise);
}

}  // namespace sailor
