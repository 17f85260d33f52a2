// Files that a command writes.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"

namespace sailor::apps {

struct WrittenFile {
  std::string option{};  ///< without dashes
  std::string path{};
};

/// Refuses a file that would replace one of the others of the command, or another that it writes. What is no regular
/// file (/dev/null, a folder) may be named more than once. Errors: usage.
Result<void> check_written_files(const std::vector<WrittenFile>& written, const std::vector<std::string>& others);

}  // namespace sailor::apps
