// JSON of foreign origin.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace sailor::runtime {

/// Nothing when it is no JSON, or nested deeper than anything that is read here.
inline std::optional<nlohmann::ordered_json> parse_foreign_json(std::string_view text) {
  constexpr int deepest = 16;  // a level costs memory, and a callback cannot stop the parser, only an exception can
  const auto shallow = [](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) {
    if (depth > deepest) throw std::length_error("too deep");
    return true;
  };
  try {
    return nlohmann::ordered_json::parse(text.begin(), text.end(), shallow);
  } catch (const std::length_error&) {
    return std::nullopt;
  } catch (const nlohmann::ordered_json::exception&) {
    return std::nullopt;
  }
}

}  // namespace sailor::runtime
