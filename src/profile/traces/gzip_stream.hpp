// Reads a file that may be compressed with gzip. Private to this folder.
#pragma once

#include <filesystem>
#include <istream>
#include <memory>
#include <streambuf>
#include <string>

#include "core/error.hpp"

namespace sailor::traces {

class GzipStream {
 public:
  /// Errors: io, unavailable (compressed, but built without zlib).
  static Result<GzipStream> open(const std::filesystem::path& file);
  [[nodiscard]] std::istream& stream() { return *stream_; }
  /// What is wrong with the compressed data; empty: nothing so far.
  [[nodiscard]] std::string problem() const;

 private:
  struct Buffer;
  std::shared_ptr<std::streambuf> buffer_;
  std::unique_ptr<std::istream> stream_;
};

}  // namespace sailor::traces
