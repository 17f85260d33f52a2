#include "apps/written_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace sailor::apps {

Result<void> check_written_files(const std::vector<WrittenFile>& written, const std::vector<std::string>& others) {
  namespace fs = std::filesystem;
  std::error_code code;
  std::vector<fs::path> accepted;
  for (const WrittenFile& file : written) {
    const fs::path path = fs::absolute(file.path, code).lexically_normal();
    if (fs::exists(path, code) && !fs::is_regular_file(path, code)) continue;
    const auto replaces = [&](const std::string& other) { return fs::equivalent(path, other, code); };
    if (std::find(accepted.begin(), accepted.end(), path) != accepted.end() ||
        std::any_of(others.begin(), others.end(), replaces))
      return fail(ErrorCode::usage,
                  fmt::format("--{} '{}' would replace another file of this command", file.option, file.path),
                  "name another file");
    accepted.push_back(path);
  }
  return {};
}

}  // namespace sailor::apps
