// Small operations on text that the standard library lacks.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace sailor {

/// Compares text, ignoring the case of ASCII letters.
bool equal_ignoring_case(std::string_view a, std::string_view b);
std::string to_lower(std::string_view text);
/// Whether `name` matches `pattern`; * stands for anything, letters compare without case.
bool matches(std::string_view pattern, std::string_view name);
/// Whether it matches one of them.
bool matches_any(const std::vector<std::string>& patterns, std::string_view name);
/// "a,b,,c" -> {"a", "b", "c"}: empty parts vanish.
std::vector<std::string> split(std::string_view text, char separator);
/// As join(), of texts.
std::string join_texts(std::span<const std::string> parts, std::string_view separator);
/// {"a", "b"} and ", " -> "a, b". `parts` is any range; what is no text is formatted as "{}" does.
template <class Range>
std::string join(const Range& parts, std::string_view separator) {
  static_assert(!std::is_convertible_v<const Range&, std::string_view>, "one text is not a range of parts");
  if constexpr (std::is_convertible_v<const Range&, std::span<const std::string>>) {
    return join_texts(parts, separator);
  } else {
    std::vector<std::string> texts;
    for (const auto& part : parts)
      if constexpr (std::is_convertible_v<decltype(part), std::string_view>)
        texts.emplace_back(part);
      else
        texts.push_back(fmt::to_string(part));
    return join_texts(texts, separator);
  }
}
/// "a, b", or "none" where there are none.
template <class Range>
std::string join_or_none(const Range& names) {
  return names.empty() ? "none" : join(names, ", ");
}
/// Appends what fmt::vformat() makes.
void append_formatted(std::string& text, fmt::string_view format, fmt::format_args args);
/// text += fmt::format(...), without a string in between.
template <class... Args>
void append(std::string& text, fmt::format_string<const Args&...> format, const Args&... args) {
  append_formatted(text, format, fmt::make_format_args(args...));
}
/// The first of many names: "gh1, gh2, gh3 and 61 more".
std::string name_some(const std::vector<std::string>& names);
/// The system's message for an error number (errno).
std::string system_message(int number);
/// Whether the text begins with a brace, as JSON objects do and TOML cannot.
bool begins_json_object(std::string_view text);
/// The text with every byte that is not part of valid UTF-8 replaced by U+FFFD: file names may hold any bytes, TOML and
/// JSON may not.
std::string valid_utf8(std::string_view text);
/// The name among `known` that is closest to `text` (edit distance at most a third of its length), for hints.
std::optional<std::string> closest(std::string_view text, const std::vector<std::string>& known);
/// The hint of an error about a name: "did you mean 'gh200'?", where one is close, else `otherwise`.
std::string did_you_mean(std::string_view text, const std::vector<std::string>& known, std::string_view otherwise);

}  // namespace sailor
