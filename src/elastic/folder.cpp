#include "elastic/folder.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <sstream>
#include <system_error>

#include "core/files.hpp"
#include "core/text.hpp"

namespace sailor::elastic {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

/// The content of controller.json; no object if it is missing or cannot be read.
Json announcement(const fs::path& folder) {
  const auto text = read_text_file(folder / "controller.json");
  return text ? Json::parse(*text, nullptr, false) : Json();
}

}  // namespace

runtime::Addresses find_controller(const fs::path& folder) {
  const Json told = announcement(folder);
  if (!told.is_object() || !told.contains("addresses") || !told["addresses"].is_string()) return {};
  return told["addresses"].get<std::string>();
}

bool is_training_done(const fs::path& folder) {
  const Json told = announcement(folder);
  return told.is_object() && told.contains("done") && told["done"] == true;
}

Result<void> announce_end(const fs::path& folder) {
  return write_file_atomically(folder / "controller.json", Json{{"schema_version", 1}, {"done", true}}.dump(2) + "\n");
}

Result<void> announce_controller(const fs::path& folder, const runtime::Addresses& addresses) {
  return write_file_atomically(
      folder / "controller.json",
      Json{{"schema_version", 1}, {"addresses", addresses}, {"process", static_cast<std::int64_t>(::getpid())}}.dump(
          2) +
          "\n");
}

Result<void> check_folder(const fs::path& folder) {
  std::error_code code;
  if (fs::is_regular_file(folder / "controller.json", code)) return {};
  return fail(ErrorCode::not_found,
              fmt::format("no elastic training runs in '{}': it has no controller.json", folder.string()),
              "name the folder that sailor-submit --elastic has printed");
}

namespace {

/// The nodes that FOLDER/exclude names; none where there is no such file.
Result<std::set<std::string>> listed_nodes(const fs::path& folder) {
  std::set<std::string> nodes;
  const fs::path file = folder / "exclude";
  if (std::error_code code; !fs::exists(file, code)) return nodes;
  const auto text = read_text_file(file);
  if (!text) return fail(text.error());
  std::istringstream lines(*text);
  for (std::string node; lines >> node;) nodes.insert(node);
  return nodes;
}

}  // namespace

Result<std::set<std::string>> excluded_nodes(const fs::path& folder) {
  auto nodes = listed_nodes(folder);
  if (!nodes) return nodes;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder / "leaving", code))
    nodes->insert(entry.path().filename().string());
  return nodes;
}

Result<void> exclude_nodes(const fs::path& folder, const std::vector<std::string>& add,
                           const std::vector<std::string>& take_back) {
  auto nodes = listed_nodes(folder);
  if (!nodes) return fail(nodes.error());
  nodes->insert(add.begin(), add.end());
  for (const std::string& node : take_back) nodes->erase(node);
  return write_file_atomically(folder / "exclude", fmt::format("{}{}", join(*nodes, "\n"), nodes->empty() ? "" : "\n"));
}

std::optional<PlanRequest> next_request(const fs::path& folder) {
  std::error_code code;
  std::string oldest;
  for (const auto& entry : fs::directory_iterator(folder / "requests", code)) {
    const std::string name = entry.path().filename().string();
    // A name that begins with a dot is a file that is being written.
    if (name.ends_with(".toml") && !name.starts_with(".") && (oldest.empty() || name < oldest)) oldest = name;
  }
  if (oldest.empty()) return std::nullopt;
  return PlanRequest{.name = oldest, .plan = load_plan(folder / "requests" / oldest)};
}

Result<fs::path> request_plan(const fs::path& folder, const Plan& plan, const std::string& asker, std::time_t time) {
  const fs::path requests = folder / "requests";
  SAILOR_CHECK(create_folders(requests, ""));
  // A unique name: two processes that ask, or two changes within a second, do not overwrite each other's request.
  const std::string name = fmt::format("{}-{:%Y%m%dT%H%M%SZ}-{}.toml", asker, fmt::gmtime(time), random_digits(4));
  SAILOR_CHECK(save_plan(plan, requests / name));
  return requests / name;
}

void answer_request(const fs::path& folder, const PlanRequest& request, bool is_taken) {
  const fs::path path = folder / "requests" / request.name;
  fs::path answered = path;
  answered.replace_extension(is_taken ? ".taken" : ".refused");
  std::error_code code;
  fs::rename(path, answered, code);
  if (code) fs::remove(path, code);  // it must not be read again and again
}

Result<JsonLines> JsonLines::open(const fs::path& path) {
  auto file = LineFile::open(path, "JSON lines");
  if (!file) return fail(file.error());
  auto lines = read_json_lines(path);
  if (!lines) return fail(lines.error());
  return JsonLines(*std::move(file), *std::move(lines));
}

Result<void> JsonLines::add(const Json& line, bool durable) { return file_.add(line.dump(), durable); }

Result<std::vector<Json>> read_json_lines(const fs::path& path) {
  const auto text = read_text_file(path);
  if (!text) return fail(text.error());
  std::vector<Json> lines;
  std::size_t begin = 0;
  for (std::size_t end = text->find('\n'); end != std::string::npos; end = text->find('\n', begin)) {
    Json line = Json::parse(text->substr(begin, end - begin), nullptr, false);
    if (!line.is_object())
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}' has something else than JSON objects, line {}", path.string(), lines.size() + 1),
                  "name another folder, or move this file away");
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

std::string to_text(const EpochPayload& payload) {
  return Json{{"plan", payload.plan}, {"copies", payload.copies}, {"begun_unix_ms", payload.begun_unix_ms}}.dump();
}

Result<EpochPayload> parse_payload(const std::string& text) {
  const Json told = Json::parse(text, nullptr, false);
  if (!told.is_object() || !told.contains("plan") || !told["plan"].is_string())
    return fail(ErrorCode::invalid_input, "the controller's words for an epoch have no plan",
                "start the same version of all programs");
  return EpochPayload{.plan = told["plan"].get<std::string>(),
                      .copies = told.value("copies", false),
                      .begun_unix_ms = told.value("begun_unix_ms", std::int64_t{0})};
}

Json journal_line(std::uint64_t job, std::uint64_t epoch, const std::vector<runtime::MemberInfo>& by_rank, int needed,
                  const std::string& plan) {
  Json members = Json::array();
  for (const runtime::MemberInfo& member : by_rank)
    members.push_back({{"host", member.facts.host},
                       {"gpu", member.facts.gpu},
                       {"zone", member.facts.zone},
                       {"memory", member.facts.memory.value()},
                       {"process", member.facts.process},
                       {"data", member.facts.data}});
  return {{"what", "epoch"}, {"job", job}, {"epoch", epoch}, {"members", members}, {"needed", needed}, {"plan", plan}};
}

std::optional<JournalledEpoch> last_epoch(const std::vector<Json>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (line->value("what", "") != "epoch") continue;
    JournalledEpoch found;
    found.members.job = line->value("job", std::uint64_t{0});
    found.members.epoch = line->value("epoch", std::uint64_t{0});
    found.members.needed = line->value("needed", -1);
    found.plan = line->value("plan", "");
    for (const Json& member : line->value("members", Json::array()))
      found.members.members.push_back({.host = member.value("host", ""),
                                       .wanted_rank = -1,
                                       .gpu = member.value("gpu", ""),
                                       .zone = member.value("zone", ""),
                                       .memory = Bytes(member.value("memory", 0.0)),
                                       .process = member.value("process", std::int64_t{0}),
                                       .data = member.value("data", "")});
    return found;
  }
  return std::nullopt;
}

bool was_stopped(const std::vector<Json>& lines) {
  return !lines.empty() && lines.back().value("what", "") == "stopped";
}

bool has_ended(const std::vector<Json>& lines) { return !lines.empty() && lines.back().value("what", "") == "ended"; }

Result<JournalState> read_journal_state(const fs::path& folder) {
  JournalState state;
  // A new start of the job has moved the journal of the previous start away.
  const fs::path journal = folder / "journal.jsonl";
  if (std::error_code code; !fs::exists(journal, code)) return state;
  const auto lines = read_json_lines(journal);
  if (!lines) return fail(lines.error());
  try {
    state.ended = has_ended(*lines);
    const auto epoch = last_epoch(*lines);
    if (!epoch) return state;
    auto plan = parse_plan(epoch->plan, journal.string());
    if (!plan) return fail(plan.error());
    state.plan = *std::move(plan);
    for (const runtime::MemberFacts& member : epoch->members.members) state.nodes.push_back(member.host);
  } catch (const Json::exception& error) {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is no journal: {}", journal.string(), error.what()),
                "name the folder that sailor-submit --elastic has printed");
  }
  return state;
}

std::optional<Seconds> last_planned_change(const fs::path& folder) {
  const auto events = read_json_lines(folder / "events.jsonl");
  if (!events) return std::nullopt;
  for (auto event = events->rbegin(); event != events->rend(); ++event) try {
      if (event->value("what", "") == "goes_on" && event->value("why", "").starts_with("planned change"))
        return Seconds(event->value("seconds", 0.0));
    } catch (const Json::exception&) {  // a line of somebody else
    }
  return std::nullopt;
}

}  // namespace sailor::elastic
