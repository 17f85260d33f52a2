// sailor-profile list, merge and remove: list the sessions of a store and change them. Needs no MPI.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/profile/commands.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "profile/manage.hpp"
#include "profile/store.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

namespace {

/// Reports leftover temporary files, which are not part of a store.
void mention_temporary_files(const fs::path& store) {
  std::vector<std::string> stale;
  for (const TemporaryFile& file : temporary_files(store))
    if (file.stale) stale.push_back(file.path.filename().string());
  if (!stale.empty())
    log_warning("'{}' holds {} of killed writers, which may be deleted: {}", store.string(),
                plural(stale.size(), "temporary file"), join(stale, ", "));
}

// ---- list

struct ListOptions : CommonOptions {
  OptionValue<std::string> store, format;
};

CommandLine list_line(ListOptions& options) {
  Option format = shared::format();
  format.choices = {"table", "json"};
  return {
      .program = "sailor-profile list",
      .purpose = "lists the sessions of a profile store",
      .positionals = {positional(options.store, {.name = "STORE", .help = "a folder of *.h5 files, or one such file"})},
      .options = {option(options.format, format)},
      .examples = {{"sailor-profile list store", "what was measured when and where"},
                   {"sailor-profile list store --format json", "the same for programs"},
                   {"sailor-profile list store/20260102T030405Z-nid001-77-0badcafe.h5", "of one file"}},
      .notes = "Of rows with one key those of the newest session count; 'used' says how many of a session's do."};
}

/// The measurements of one session.
struct Summary {
  Session session{};
  std::set<std::string> models{};
  std::set<std::string> gpus{};
  std::size_t rows = 0;
  std::size_t used_rows = 0;  ///< rows that no newer session replaces
  std::vector<std::string> files{};
};

void add_rows(Summary& summary, const ProfileData& data, int session) {
  auto each = [&](const auto& rows, auto names) {
    for (const auto& row : rows)
      if (row.session == session) {
        names(row);
        ++summary.rows;
      }
  };
  auto layer = [&](const auto& row) {
    summary.models.insert(row.key.model);
    summary.gpus.insert(row.key.gpu);
  };
  auto link = [&](const auto& row) { summary.gpus.insert({row.key.from.gpu, row.key.to.gpu}); };
  each(data.layer_times, layer);
  each(data.layer_memory, layer);
  each(data.out_of_memory, layer);
  each(data.links, link);
  each(data.fits, link);
  each(data.processes, [&](const auto& row) { summary.gpus.insert(row.gpu); });
}

Result<void> list(const ListOptions& options, const Environment& environment) {
  const fs::path store = find_store(*options.store, environment);
  auto files = load_store_files(store);
  if (!files) return fail(files.error());
  std::map<std::string, Summary> by_id;
  std::vector<ProfileData> contents;
  for (StoreFile& file : *files) {
    for (std::size_t i = 0; i < file.data.sessions.size(); ++i) {
      Summary& summary = by_id[file.data.sessions[i].id];
      add_rows(summary, file.data, static_cast<int>(i));
      summary.files.push_back(file.path.filename().string());
    }
    contents.push_back(std::move(file.data));
  }
  const ProfileData merged = merge_profiles(std::move(contents));
  std::vector<Summary> summaries;
  for (std::size_t i = 0; i < merged.sessions.size(); ++i) {
    Summary& summary = by_id.at(merged.sessions[i].id);
    Summary used;
    add_rows(used, merged, static_cast<int>(i));
    summary.session = merged.sessions[i];
    summary.used_rows = used.rows;
    summaries.push_back(std::move(summary));
  }
  if (*options.format == "json") {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Summary& summary : summaries) {
      const Provenance& from = summary.session.provenance;
      json.push_back({{"id", summary.session.id},
                      {"date", from.date},
                      {"host", from.host},
                      {"device", from.device},
                      {"models", summary.models},
                      {"gpus", summary.gpus},
                      {"rows", summary.rows},
                      {"used_rows", summary.used_rows},
                      {"source", from.source},
                      {"files", summary.files}});
    }
    fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    Table table({{"session", Align::left},
                 {"date", Align::left},
                 {"host", Align::left},
                 {"device", Align::left},
                 {"models", Align::left},
                 {"GPUs", Align::left},
                 {"rows"},
                 {"used"},
                 {"source", Align::left}});
    auto or_none = [](const std::string& text) { return text.empty() ? std::string("-") : text; };
    for (const Summary& summary : summaries) {
      const Provenance& from = summary.session.provenance;
      table.add_row({summary.session.id, or_none(from.date), or_none(from.host), or_none(from.device),
                     or_none(join(summary.models, ", ")), or_none(join(summary.gpus, ", ")),
                     fmt::to_string(summary.rows), fmt::to_string(summary.used_rows), or_none(from.source)});
    }
    fmt::print("{}", table.to_string());
  }
  mention_temporary_files(store);
  return {};
}

// ---- merge

struct MergeOptions : CommonOptions {
  OptionValue<std::vector<std::string>> store;
  OptionValue<std::string> output;
};

CommandLine merge_line(MergeOptions& options) {
  return {
      .program = "sailor-profile merge",
      .purpose = "joins profile stores: all their sessions, and of each measurement the newest counts",
      .positionals = {positional(options.store, {.name = "STORE", .help = "a folder of *.h5 files, or one such file"})},
      .options = {option(options.output,
                         {.name = "output",
                          .letter = 'o',
                          .value_name = "OUT",
                          .help = "*.h5: one file, replaced in one step, with the rows that count; else a folder, to "
                                  "which the sessions that it lacks are added as they are. May be one of the stores"})},
      .examples = {{"sailor-profile merge store --output all.h5", "a folder as one file, to hand on"},
                   {"sailor-profile merge store all.h5 --output everything", "several stores in one folder"},
                   {"sailor-profile merge all.h5 --output store", "add to a store what it lacks"}},
      .notes =
          "The same again changes nothing. Other programs may read and add to the stores meanwhile; what they\n"
          "add to a store after it was read is not in OUT."};
}

Result<void> merge(const MergeOptions& options, const Environment& environment) {
  if (!options.output.has())
    return fail(ErrorCode::usage, "merge needs a place for the result", "use --output FILE.h5 or --output FOLDER");
  std::vector<fs::path> stores;
  for (const std::string& name : *options.store) stores.emplace_back(find_store(name, environment));
  const fs::path output = *options.output;
  std::error_code code;
  const bool to_file = !fs::is_directory(output, code) && output.extension() == ".h5";
  auto result = to_file ? merge_into_file(stores, output) : merge_into_folder(stores, output);
  if (!result) return fail(result.error());
  for (const fs::path& store : stores) mention_temporary_files(store);
  log_info("{}: {}, {} of them new", output.string(), plural(static_cast<std::size_t>(result->sessions), "session"),
           result->added);
  return {};
}

// ---- remove

struct RemoveOptions : CommonOptions {
  OptionValue<std::string> store, session;
};

CommandLine remove_line(RemoveOptions& options) {
  return {
      .program = "sailor-profile remove",
      .purpose = "removes a session and its rows from a profile store",
      .positionals = {positional(options.store, {.name = "STORE", .help = "a folder of *.h5 files, or one such file"})},
      .options = {option(options.session, {.name = "session",
                                           .value_name = "ID",
                                           .help = "session to remove, as sailor-profile list names it; its beginning "
                                                   "is enough when no other session begins so"})},
      .examples = {{"sailor-profile remove copy --session 20260102T030405Z-nid001", "by the beginning of its id"}},
      .notes =
          "A file that holds nothing else is deleted; another is written anew and replaced in one step. In a\n"
          "folder, rows of older sessions that the removed ones replaced count again; a merged file has them\n"
          "no more."};
}

Result<void> remove(const RemoveOptions& options, const Environment&) {
  if (!options.session.has())
    return fail(ErrorCode::usage, "which session is to go?", "use --session ID; sailor-profile list shows them");
  const fs::path store = *options.store;
  auto removed = remove_session(store, *options.session);
  if (!removed) return fail(removed.error());
  for (const fs::path& file : removed->removed_files)
    log_info("removed session {}: deleted '{}'", removed->id, file.string());
  for (const fs::path& file : removed->rewritten_files)
    log_info("removed session {}: {} rows, from '{}'", removed->id, removed->rows, file.string());
  mention_temporary_files(store);
  return {};
}

}  // namespace

std::vector<Command> manage_commands() {
  return {command(list_line, list), command(merge_line, merge), command(remove_line, remove)};
}

}  // namespace sailor::apps
