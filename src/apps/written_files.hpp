// Checks the files that a command is asked to write.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"

namespace sailor::apps {

struct WrittenFile {
  std::string option{};  ///< without dashes
  std::string path{};
};

/// Refuses a file that would replace one of the others of the command, or another that it writes. Paths that exist and
/// are not regular files (/dev/null, a folder) are not checked. Errors: usage.
Result<void> check_written_files(const std::vector<WrittenFile>& written, const std::vector<std::string>& others);

}  // namespace sailor::apps
