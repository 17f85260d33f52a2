// Files of JSON lines to which one process appends.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "core/descriptor.hpp"
#include "core/error.hpp"

namespace sailor {

/// Lines are handed to the system one by one: however the process ends, earlier lines stay. A line that a full disk or
/// a dying writer left unfinished is cut off when the file is opened again.
class LineFile {
 public:
  /// Creates the file if it is missing. `content`: kind of its lines ("metrics"), for messages. Errors: io;
  /// invalid_input if an existing file holds something else (does not begin with {).
  static Result<LineFile> open(const std::filesystem::path& path, const std::string& content);
  /// Last line when the file was opened; empty if there was none.
  [[nodiscard]] const std::string& last_line() const { return last_line_; }
  /// Appends `line`, given without its end. `durable`: it is on the disk when this returns. Errors: io.
  Result<void> add(std::string_view line, bool durable);

 private:
  LineFile(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  std::string path_;
  Descriptor file_;
  std::string last_line_;
};

}  // namespace sailor
