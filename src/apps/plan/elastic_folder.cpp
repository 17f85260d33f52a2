#include "apps/plan/elastic_folder.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/text.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

Result<void> check_elastic_folder(const fs::path& folder) {
  std::error_code code;
  if (fs::is_regular_file(folder / "controller.json", code)) return {};
  return fail(ErrorCode::not_found,
              fmt::format("no elastic training runs in '{}': it has no controller.json", folder.string()),
              "name the folder that sailor-submit --elastic has printed");
}

Result<ElasticState> read_elastic_state(const fs::path& folder) {
  ElasticState state;
  // A new start of the job has moved the journal of the one before away.
  const fs::path journal = folder / "journal.jsonl";
  if (std::error_code code; !fs::exists(journal, code)) return state;
  constexpr std::size_t largest = std::size_t{1} << 30;
  const auto text = read_text_file(journal, largest);
  if (!text) return fail(text.error());
  // From its end: the last lines count, of which the very last may be half written.
  std::string_view rest = *text;
  rest = rest.substr(0, rest.rfind('\n') + 1);
  for (bool last = true; !rest.empty(); last = false) {
    rest.remove_suffix(1);
    const std::size_t begin = rest.rfind('\n') + 1;  // npos + 1 is 0
    const auto line = nlohmann::json::parse(rest.substr(begin), nullptr, false);
    rest = rest.substr(0, begin);
    const std::string what = line.is_object() ? line.value("what", "") : "";
    if (last) state.ended = what == "ended";
    if (what != "epoch") continue;
    auto plan = parse_plan(line.value("plan", ""), journal.string());
    if (!plan) return fail(plan.error());
    state.plan = *std::move(plan);
    if (const auto members = line.find("members"); members != line.end() && members->is_array())
      for (const auto& member : *members)
        if (member.is_object()) state.nodes.push_back(member.value("host", ""));
    break;
  }
  return state;
}

Result<void> exclude_nodes(const fs::path& folder, const std::vector<std::string>& add,
                           const std::vector<std::string>& take_back) {
  const fs::path file = folder / "exclude";
  std::set<std::string> nodes;
  if (std::error_code code; fs::exists(file, code)) {
    const auto text = read_text_file(file);
    if (!text) return fail(text.error());
    for (std::string& node : split(*text, '\n')) nodes.insert(std::move(node));
  }
  nodes.insert(add.begin(), add.end());
  for (const std::string& node : take_back) nodes.erase(node);
  std::string lines;
  for (const std::string& node : nodes) lines += node + "\n";
  return write_file_atomically(file, lines);
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
