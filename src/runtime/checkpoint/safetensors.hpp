// The safetensors format (huggingface.co/docs/safetensors): 8 bytes with the length of a JSON header, the header, and
// the tensors' bytes, little-endian. Files are untrusted: everything in them is checked before it is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runtime/checkpoint/folder.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {

struct SafetensorsEntry {
  std::string type;  ///< "F32"
  Shape shape;
  std::int64_t begin = 0;  ///< bytes after the header
  std::int64_t end = 0;
};
using SafetensorsHeader = std::map<std::string, SafetensorsEntry>;

/// The header of a file with `data_bytes` bytes after it. The tensors must fill these without holes or overlaps.
/// Errors: invalid_input; `source_name` stands for the file in messages.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::int64_t data_bytes,
                                                   std::string_view source_name);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  [[nodiscard]] const SafetensorsHeader& tensors() const { return header_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  /// Reads a tensor of type F32, BF16 or F16; errors (unavailable) for other types.
  [[nodiscard]] Result<std::vector<float>> read(const SafetensorsEntry& entry) const;

 private:
  SafetensorsFile(File file, SafetensorsHeader header, std::int64_t start)
      : file_(std::move(file)), header_(std::move(header)), start_(start) {}
  File file_;
  SafetensorsHeader header_;
  std::int64_t start_ = 0;  // of the data, in bytes from the beginning of the file
};

struct NamedShape {
  std::string name;
  Shape shape;
};

/// Writes F32 tensors to `path` atomically; `values` is called for each in turn.
Result<void> write_safetensors(const std::filesystem::path& path, const std::vector<NamedShape>& tensors,
                               const std::function<Result<std::vector<float>>(std::size_t)>& values);

}  // namespace sailor::runtime
