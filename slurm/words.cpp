#include "slurm/words.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <optional>
#include <vector>

#include "core/shell.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

namespace {

constexpr std::string_view harmless_to_shells = "_@%+=:./-";
constexpr double seconds_per_day = 86400.0;
constexpr std::uint32_t most_days = 36500;

bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool consists_of(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_alphanumeric(c) || others.find(c) != std::string_view::npos; });
}

/// Unlike core's split(), this keeps empty parts: "1::2" is not a time.
std::vector<std::string_view> split_all(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<double> parse_field(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || number > most_days * 24 * 60) return std::nullopt;
  return number;
}

std::optional<double> parse_seconds(std::string_view text) {
  const std::size_t dash = text.find('-');
  std::vector<double> fields;
  for (const std::string_view part : split_all(dash == std::string_view::npos ? text : text.substr(dash + 1), ':')) {
    const auto field = parse_field(part);
    if (!field) return std::nullopt;
    fields.push_back(*field);
  }
  if (fields.size() > 3) return std::nullopt;
  if (dash != std::string_view::npos) {
    const auto days = parse_field(text.substr(0, dash));
    if (!days || *days > most_days) return std::nullopt;
    fields.resize(3, 0.0);  // hours come first after the days
    return *days * seconds_per_day + fields[0] * 3600 + fields[1] * 60 + fields[2];
  }
  if (fields.size() == 1) return fields[0] * 60;
  if (fields.size() == 2) return fields[0] * 60 + fields[1];
  return fields[0] * 3600 + fields[1] * 60 + fields[2];
}

}  // namespace

std::string shell_quote(std::string_view word) { return sailor::shell_quote(word); }

Result<std::string> sbatch_quote(std::string_view what, std::string_view value) {
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return fail(ErrorCode::invalid_input,
                fmt::format("{} holds a control character, which an #SBATCH line cannot hold", what),
                "use a value without newlines and tabs");
  // Lists are common, and easier to read without quotes.
  if (!value.empty() && consists_of(value, fmt::format("{},", harmless_to_shells))) return std::string(value);
  return shell_quote(value);
}

Result<std::string> check_name(std::string_view what, std::string_view value) {
  if (value.empty()) return fail(ErrorCode::invalid_input, fmt::format("{} is empty", what));
  if (value.size() > 128) return fail(ErrorCode::invalid_input, fmt::format("{} is longer than 128 characters", what));
  if (value.front() == '-' || !consists_of(value, "._+@:=-"))
    return fail(ErrorCode::invalid_input,
                fmt::format("{} {} has characters that Slurm does not take", what, printable(shell_quote(value))),
                "use letters, digits and . _ + @ : = - (not first)");
  return std::string(value);
}

Result<Seconds> parse_time_limit(std::string_view text) {
  const auto seconds = parse_seconds(text);
  if (!seconds)
    return fail(ErrorCode::invalid_input, fmt::format("time '{}' is not one that Slurm reads", text),
                "write minutes, MM:SS, H:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS");
  if (*seconds <= 0) return fail(ErrorCode::invalid_input, fmt::format("time '{}' is no time at all", text));
  return Seconds(*seconds);
}

std::string format_time_limit(Seconds time) {
  const auto total = static_cast<std::int64_t>(std::ceil(time.value()));
  const std::int64_t days = total / 86400;
  const std::string clock = fmt::format("{:02}:{:02}:{:02}", total / 3600 % 24, total / 60 % 60, total % 60);
  return days > 0 ? fmt::format("{}-{}", days, clock) : clock;
}

std::string format_clock(std::int64_t unix_s) {
  const std::time_t time = unix_s;
  std::tm local{};
  if (::localtime_r(&time, &local) == nullptr) return std::to_string(unix_s);
  return fmt::format("{:%Y-%m-%d %H:%M}", local);
}

}  // namespace sailor::slurm
