// Reads JSON from users, with the path of keys in every error: "file: pipeline_list[0].dp: must be an integer".
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "model/model.hpp"

namespace sailor {

/// A value and its location: "file: pipeline_list[0].dp".
class JsonValue {
 public:
  JsonValue(const nlohmann::json& json, std::string_view file, std::string path)
      : json_(json), file_(file), path_(std::move(path)) {}

  [[nodiscard]] tl::unexpected<Error> invalid(const std::string& what, std::string hint = {}) const {
    return fail(ErrorCode::invalid_input, where() + ": " + what, std::move(hint));
  }
  [[nodiscard]] std::string where() const {
    return path_.empty() ? std::string(file_) : fmt::format("{}: {}", file_, path_);
  }
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }

  [[nodiscard]] Result<JsonValue> at(const char* key) const {
    if (!json_.is_object()) return invalid(fmt::format("must be an object, not {}", json_.type_name()));
    const auto found = json_.find(key);
    if (found == json_.end()) return invalid(fmt::format("key '{}' is missing", key));
    return JsonValue(*found, file_, path_.empty() ? key : fmt::format("{}.{}", path_, key));
  }
  /// The integer of the key, between these limits.
  [[nodiscard]] Result<int> integer_at(const char* key, std::int64_t smallest, std::int64_t largest) const {
    const auto value = at(key);
    if (!value) return fail(value.error());
    return value->integer(smallest, largest);
  }
  [[nodiscard]] JsonValue operator[](std::size_t index) const {
    return {json_[index], file_, fmt::format("{}[{}]", path_, index)};
  }
  /// The number of elements of a non-empty array.
  [[nodiscard]] Result<std::size_t> size() const {
    if (!json_.is_array()) return invalid(fmt::format("must be an array, not {}", json_.type_name()));
    if (json_.empty()) return invalid("is empty");
    return json_.size();
  }
  [[nodiscard]] Result<int> integer(std::int64_t smallest, std::int64_t largest) const {
    // Some of the original's planners write 4.0.
    const bool whole = json_.is_number_integer() ||
                       (json_.is_number_float() && std::floor(json_.get<double>()) == json_.get<double>());
    if (!whole) return invalid("must be an integer");
    const double value = json_.get<double>();
    if (value < static_cast<double>(smallest) || value > static_cast<double>(largest))
      return invalid(fmt::format("is {} but must be from {} to {}", json_.dump(), smallest, largest));
    return static_cast<int>(value);
  }
  [[nodiscard]] Result<double> positive_number() const {
    const double value = json_.is_number() ? json_.get<double>() : 0.0;
    if (!(value > 0.0) || !std::isfinite(value)) return invalid("must be a number above 0");
    return value;
  }
  [[nodiscard]] Result<std::string> text() const {
    if (!json_.is_string()) return invalid(fmt::format("must be a string, not {}", json_.type_name()));
    return json_.get<std::string>();
  }

 private:
  const nlohmann::json& json_;
  std::string_view file_;
  std::string path_;
};

/// The array of a pipeline's key, with one entry for each stage.
inline Result<JsonValue> per_stage(const JsonValue& pipeline, const char* key, std::size_t stages) {
  auto array = pipeline.at(key);
  if (!array) return array;
  const auto size = array->size();
  if (!size) return fail(size.error());
  if (*size != stages)
    return array->invalid(fmt::format("is of {} but num_stages is {}", plural(*size, "stage"), stages));
  return array;
}

/// The range of an array of consecutive layers: [3, 4, 5].
inline Result<LayerRange> layer_range_of(const JsonValue& layers) {
  const auto count = layers.size();
  if (!count) return fail(count.error());
  LayerRange range;
  for (std::size_t i = 0; i < *count; ++i) {
    const auto layer = layers[i].integer(0, 1 << 24);
    if (!layer) return fail(layer.error());
    if (i == 0)
      range.first = *layer;
    else if (*layer != range.last)
      return layers[i].invalid(fmt::format("layer {} follows layer {}", *layer, range.last - 1),
                               "a stage holds layers that follow one another");
    range.last = *layer + 1;
  }
  return range;
}

/// "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the part in brackets.
inline std::string reason_of_json_error(const std::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return valid_utf8(end == std::string::npos ? text : text.substr(end + 2));
}

/// Errors: invalid_input with line and column.
inline Result<nlohmann::json> parse_json(std::string_view text, std::string_view source_name) {
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::invalid_input, fmt::format("{}: {}", source_name, reason_of_json_error(error)));
  }
}

}  // namespace sailor
