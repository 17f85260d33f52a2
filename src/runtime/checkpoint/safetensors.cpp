#include "runtime/checkpoint/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <tuple>

#include "core/files.hpp"
#include "core/text.hpp"
#include "runtime/checkpoint/json.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t largest_header = 100'000'000;  // limit of the reference implementation

/// Bits of an element; 0 for an unknown type.
int bits_of(std::string_view type) {
  struct Type {
    std::string_view name;
    int bits;
  };
  constexpr std::array<Type, 15> types{{{"BOOL", 8},
                                        {"U8", 8},
                                        {"I8", 8},
                                        {"F8_E5M2", 8},
                                        {"F8_E4M3", 8},
                                        {"I16", 16},
                                        {"U16", 16},
                                        {"F16", 16},
                                        {"BF16", 16},
                                        {"I32", 32},
                                        {"U32", 32},
                                        {"F32", 32},
                                        {"F64", 64},
                                        {"I64", 64},
                                        {"U64", 64}}};
  const auto* found = std::find_if(types.begin(), types.end(), [&](const Type& other) { return other.name == type; });
  return found == types.end() ? 0 : found->bits;
}

float from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero, or mantissa · 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 0x1fu ? 0xffu : exponent + 112;  // 127 - 15
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

/// std::nullopt if a shape or its size is impossible.
std::optional<std::int64_t> elements_of(const nlohmann::ordered_json& extents, Shape& shape) {
  std::int64_t elements = 1;
  constexpr std::int64_t most = std::int64_t{1} << 56;
  if (!extents.is_array() || extents.size() > 16) return std::nullopt;
  for (const auto& extent : extents) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > static_cast<std::uint64_t>(most))
      return std::nullopt;
    shape.push_back(extent.get<std::int64_t>());
    if (shape.back() > 0 && elements > most / shape.back()) return std::nullopt;
    elements *= shape.back();
  }
  return elements;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::int64_t data_bytes,
                                                   std::string_view source_name) {
  const auto refuse = [&](const std::string& what) {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no safetensors file, or damaged: {}", source_name, what),
                "fetch it again, or convert it with the safetensors library");
  };
  const auto root = parse_foreign_json(text);
  if (!root || !root->is_object()) return refuse("its header is no JSON object");
  SafetensorsHeader header;
  std::vector<std::pair<std::int64_t, std::int64_t>> places;
  for (const auto& [key, value] : root->items()) {
    if (key == "__metadata__") continue;
    const std::string name = valid_utf8(key);
    SafetensorsEntry entry;
    const auto elements =
        value.is_object() && value.contains("shape") ? elements_of(value["shape"], entry.shape) : std::nullopt;
    if (!elements) return refuse(fmt::format("tensor '{}' has no proper shape", name));
    if (!value.contains("dtype") || !value["dtype"].is_string())
      return refuse(fmt::format("tensor '{}' has no dtype", name));
    entry.type = value["dtype"].get<std::string>();
    const int bits = bits_of(entry.type);
    if (bits == 0) return refuse(fmt::format("tensor '{}' has the unknown dtype '{}'", name, valid_utf8(entry.type)));
    const auto offsets = value.find("data_offsets");
    if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
        !(*offsets)[1].is_number_unsigned())
      return refuse(fmt::format("tensor '{}' has no proper data_offsets", name));
    const auto begin = (*offsets)[0].get<std::uint64_t>();
    const auto end = (*offsets)[1].get<std::uint64_t>();
    if (begin > end || end > static_cast<std::uint64_t>(data_bytes))
      return refuse(fmt::format("tensor '{}' lies at bytes {} to {} of {}", name, begin, end, data_bytes));
    entry.begin = static_cast<std::int64_t>(begin);
    entry.end = static_cast<std::int64_t>(end);
    if (*elements != (entry.end - entry.begin) / (bits / 8) || (entry.end - entry.begin) % (bits / 8) != 0)
      return refuse(fmt::format("tensor '{}' has {} elements of {} bytes in {} bytes", name, *elements, bits / 8,
                                entry.end - entry.begin));
    places.emplace_back(entry.begin, entry.end);
    header.emplace(key, std::move(entry));
  }
  std::sort(places.begin(), places.end());
  std::int64_t at = 0;
  for (const auto& [begin, end] : places) {
    if (begin != at) return refuse(fmt::format("its tensors overlap or leave a hole at byte {}", std::min(at, begin)));
    at = end;
  }
  if (at != data_bytes) return refuse(fmt::format("its tensors end at byte {} of {}", at, data_bytes));
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(const fs::path& path) {
  auto file = File::open(path);
  if (!file) return fail(file.error());
  const auto size = file->size();
  if (!size) return fail(size.error());
  std::uint64_t length = 0;
  if (*size >= 8) SAILOR_CHECK(file->read(0, &length, sizeof(length)));
  if (*size < 8 || length > static_cast<std::uint64_t>(std::min(*size - 8, largest_header)))
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' is no safetensors file, or truncated: it has {} bytes, and a header of {}",
                            path.string(), *size, length),
                "fetch it again, or convert it with the safetensors library");
  std::string text(length, '\0');
  SAILOR_CHECK(file->read(8, text.data(), text.size()));
  const std::int64_t start = 8 + static_cast<std::int64_t>(length);
  auto header = parse_safetensors_header(text, *size - start, path.string());
  if (!header) return fail(header.error());
  return SafetensorsFile(std::move(*file), std::move(*header), start);
}

Result<std::vector<float>> SafetensorsFile::read(const SafetensorsEntry& entry) const {
  const std::int64_t bytes = entry.end - entry.begin;
  if (entry.type == "F32") {
    std::vector<float> values(static_cast<std::size_t>(bytes) / sizeof(float));
    SAILOR_CHECK(file_.read(start_ + entry.begin, values.data(), static_cast<std::size_t>(bytes)));
    return values;
  }
  if (entry.type != "BF16" && entry.type != "F16")
    return fail(ErrorCode::unavailable, fmt::format("'{}' has weights of type {}", path().string(), entry.type),
                "convert them to F32, BF16 or F16");
  std::vector<std::uint16_t> halves(static_cast<std::size_t>(bytes) / sizeof(std::uint16_t));
  SAILOR_CHECK(file_.read(start_ + entry.begin, halves.data(), static_cast<std::size_t>(bytes)));
  std::vector<float> values(halves.size());
  const bool brain = entry.type == "BF16";
  std::transform(halves.begin(), halves.end(), values.begin(), [&](std::uint16_t half) {
    return brain ? std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16) : from_half(half);
  });
  return values;
}

Result<void> write_safetensors(const fs::path& path, const std::vector<NamedShape>& tensors,
                               const std::function<Result<std::vector<float>>(std::size_t)>& values) {
  nlohmann::ordered_json root;
  root["__metadata__"] = {{"format", "pt"}};  // transformers requires it
  std::int64_t at = 0;
  for (const NamedShape& tensor : tensors) {
    const std::int64_t end = at + element_count(tensor.shape) * static_cast<std::int64_t>(sizeof(float));
    root[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string header = root.dump();
  header.append((8 - header.size() % 8) % 8, ' ');  // aligns the data
  return write_file_atomically(path, [&](const fs::path& temporary) -> Result<void> {
    auto file = File::rewrite(temporary);
    if (!file) return fail(file.error());
    const std::uint64_t length = header.size();
    SAILOR_CHECK(file->append(&length, sizeof(length)));
    SAILOR_CHECK(file->append(header.data(), header.size()));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Result<std::vector<float>> data = values(i);
      if (!data) return fail(data.error());
      if (std::ssize(*data) != element_count(tensors[i].shape))
        return fail(ErrorCode::failure, fmt::format("tensor '{}' has {} values", tensors[i].name, data->size()));
      SAILOR_CHECK(file->append(data->data(), data->size() * sizeof(float)));
    }
    return file->finish();
  });
}

}  // namespace sailor::runtime
