#include "apps/plan/elastic_folder.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "core/files.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

Result<void> check_elastic_folder(const fs::path& folder) {
  std::error_code code;
  if (fs::is_regular_file(folder / "controller.json", code)) return {};
  return fail(ErrorCode::not_found,
              fmt::format("no elastic training runs in '{}': it has no controller.json", folder.string()),
              "name the folder that sailor-submit --elastic has printed");
}

Result<fs::path> request_plan(const fs::path& folder, const Plan& plan, std::time_t time) {
  const fs::path requests = folder / "requests";
  std::error_code code;
  fs::create_directories(requests, code);
  if (code) return fail(ErrorCode::io, fmt::format("cannot make '{}': {}", requests.string(), code.message()));
  // A name of its own: two watchers, or two changes within a second, do not overwrite each other's request.
  const std::string name = fmt::format("watch-{:%Y%m%dT%H%M%SZ}-{}.toml", fmt::gmtime(time), random_digits(4));
  SAILOR_CHECK(save_plan(plan, requests / name));
  return requests / name;
}

}  // namespace sailor::apps
