#include "slurm/limits.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "core/text.hpp"
#include "slurm/node_records.hpp"

namespace sailor::slurm {

namespace {

/// Parses "8" or "1.50G": memory, counted in MiB, has a suffix where sacctmgr writes it.
std::optional<std::int64_t> parse_amount(std::string_view name, std::string_view text) {
  double value = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || value < 0.0) return std::nullopt;
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  if (suffix.size() > 1) return std::nullopt;
  double unit = 1.0;
  if (suffix.size() == 1) {
    const std::size_t power = std::string_view("KMGTPE").find(suffix[0]);
    if (power == std::string_view::npos) return std::nullopt;
    const double base = name == "mem" ? static_cast<double>(power) - 1.0 : static_cast<double>(power) + 1.0;
    unit = std::pow(1024.0, base);
  }
  constexpr double most = 9e18;
  return static_cast<std::int64_t>(std::min(value * unit, most));
}

}  // namespace

std::int64_t amount_of(const Tres& tres, std::string_view name) {
  const auto found = tres.find(name);
  return found == tres.end() ? 0 : found->second;
}

Result<Tres> parse_tres(std::string_view text, std::string_view program) {
  Tres tres;
  for (const std::string& word : split(text, ',')) {
    const std::size_t equals = word.rfind('=');
    if (equals == std::string::npos) continue;
    const std::string name = word.substr(0, equals);
    const auto amount = parse_amount(name, std::string_view(word).substr(equals + 1));
    if (!amount)
      return fail(ErrorCode::invalid_input, fmt::format("{} says '{}', which is no limit", program, printable(word)));
    tres[name] = *amount;
  }
  return tres;
}

}  // namespace sailor::slurm
