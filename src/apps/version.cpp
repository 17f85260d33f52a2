// The output of --version, for people and for programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/options.hpp"
#include "core/text.hpp"
#include "sailor_commit.hpp"  // made by cmake/SailorCommit.cmake

namespace sailor::apps {

namespace {

bool asks_for_json(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i] == "--format=json" ||
        (arguments[i] == "--format" && i + 1 < arguments.size() && arguments[i + 1] == "json"))
      return true;
  return false;
}

}  // namespace

std::string_view version() { return SAILOR_VERSION; }

std::string version_text(const std::string& program, const std::vector<std::string>& arguments,
                         const Environment& environment, const CommandLine* line) {
  const std::vector<std::string> features = split(SAILOR_FEATURES, ' ');
  const std::string commit = SAILOR_COMMIT;
  if (!asks_for_json(arguments))
    return fmt::format("{} {} ({}with {})\n", program, version(), commit.empty() ? "" : "commit " + commit + ", ",
                       features.empty() ? "no optional part" : join(features, ", "));
  nlohmann::ordered_json json = {{"program", program},
                                 {"version", version()},
                                 {"architecture", SAILOR_ARCHITECTURE},
                                 {"commit", commit},
                                 {"features", features}};
  if (line != nullptr) {
    nlohmann::ordered_json& options = json["options"] = nlohmann::ordered_json::array();
    for (const Option& option : line->options) options.push_back("--" + option.name);
    if (line->abilities) json.update(nlohmann::ordered_json::parse(line->abilities(environment)));
  }
  return json.dump(2) + "\n";
}

}  // namespace sailor::apps
