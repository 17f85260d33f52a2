// JSON from untrusted files.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace sailor::runtime {

/// std::nullopt if the text is not JSON, or is nested deeper than anything that is read here.
inline std::optional<nlohmann::ordered_json> parse_foreign_json(std::string_view text) {
  constexpr int deepest = 16;  // each level costs memory; a callback can stop the parser only by an exception
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
