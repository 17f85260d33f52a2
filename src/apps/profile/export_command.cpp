// sailor-profile export: a profile store as text. Needs no MPI.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "apps/profile/commands.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "profile/store.hpp"
#include "profile/text.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

namespace {

struct ExportOptions : CommonOptions {
  OptionValue<std::string> store, format, table, model, gpu, comment, output;
};

CommandLine export_line(ExportOptions& options) {
  Option format = shared::format();
  format.default_value = "toml";
  format.choices = {"toml", "csv"};
  Option output = shared::output();
  output.help = "file to write to, instead of stdout; of csv without --table: a folder, one file per table";
  output.writes = true;
  return {
      .program = "sailor-profile export",
      .purpose = "writes a profile store as text",
      .positionals = {positional(
          options.store,
          {.name = "STORE",
           .help = "a folder of *.h5 files, one such file, or the name of a store that comes with Sailor: published"})},
      .options =
          {option(options.format, format),
           option(options.table,
                  {.name = "table", .value_name = "NAME", .help = "only this table", .choices = profile_table_names()}),
           option(options.model, {.name = "model", .value_name = "NAME", .help = "only layers of this model"}),
           option(options.gpu,
                  {.name = "gpu", .value_name = "NAME", .help = "only what was measured on this GPU type"}),
           option(options.comment,
                  {.name = "comment", .value_name = "TEXT", .help = "stands above the TOML, as comment lines"}),
           option(options.output, output)},
      .examples = {{"sailor-profile export store --output store.toml", "all of a store, to edit or to keep in git"},
                   {"sailor-profile export published --model opt-350m-sailor --gpu GH200-96", "a part of one"},
                   {"sailor-profile export store --format csv --table layer_times", "for a spreadsheet"}},
      .notes = "The TOML reads back without loss (sailor-profile import). profiles/README.md describes its form."};
}

/// Drops the sessions that no row refers to.
void drop_unused_sessions(ProfileData& data) {
  std::map<int, int> new_index;
  auto each_row = [&](auto&& visit) {
    for (auto& row : data.layer_times) visit(row.session);
    for (auto& row : data.layer_memory) visit(row.session);
    for (auto& row : data.out_of_memory) visit(row.session);
    for (auto& row : data.links) visit(row.session);
    for (auto& row : data.fits) visit(row.session);
    for (auto& row : data.processes) visit(row.session);
  };
  each_row([&](int session) { new_index[session] = 0; });
  std::vector<Session> kept;
  for (auto& [old, index] : new_index) {
    index = static_cast<int>(kept.size());
    kept.push_back(data.sessions[static_cast<std::size_t>(old)]);
  }
  each_row([&](int& session) { session = new_index.at(session); });
  data.sessions = std::move(kept);
}

/// The rows that the options select. Errors: not_found, with the names that exist.
Result<ProfileData> selected(ProfileData data, const ExportOptions& options) {
  const std::string model = *options.model;
  const std::string gpu = *options.gpu;
  std::set<std::string> models;
  std::set<std::string> gpus;
  for (const LayerTime& row : data.layer_times) models.insert(row.key.model);
  for (const LayerMemory& row : data.layer_memory) models.insert(row.key.model);
  for (const OutOfMemory& row : data.out_of_memory) models.insert(row.key.model);
  for (const LayerTime& row : data.layer_times) gpus.insert(row.key.gpu);
  for (const LayerMemory& row : data.layer_memory) gpus.insert(row.key.gpu);
  for (const LinkMeasurement& row : data.links) gpus.insert({row.key.from.gpu, row.key.to.gpu});
  for (const LinkFit& row : data.fits) gpus.insert({row.key.from.gpu, row.key.to.gpu});
  for (const ProcessMeasurement& row : data.processes) gpus.insert(row.gpu);
  auto check = [&](const char* what, const std::string& name, const std::set<std::string>& known) -> Result<void> {
    if (name.empty() || known.contains(name)) return {};
    return fail(ErrorCode::not_found, fmt::format("{}: the store has nothing of {} '{}'", *options.store, what, name),
                fmt::format("there: {}", join_or_none(known)));
  };
  SAILOR_CHECK(check("model", model, models));
  SAILOR_CHECK(check("GPU", gpu, gpus));

  const bool filtered = !model.empty() || !gpu.empty() || options.table.has();
  auto keep = [&](const char* table, auto& rows, auto&& fits) {
    const bool wanted = !options.table.has() || *options.table == table;
    std::erase_if(rows, [&](const auto& row) { return !wanted || !fits(row); });
  };
  auto layer_fits = [&](const auto& row) {
    return (model.empty() || row.key.model == model) && (gpu.empty() || row.key.gpu == gpu || row.key.gpu == any_gpu);
  };
  auto link_fits = [&](const auto& row) {
    return model.empty() && (gpu.empty() || row.key.from.gpu == gpu || row.key.to.gpu == gpu);
  };
  if (*options.table == "sessions") return data;
  keep("layer_times", data.layer_times, layer_fits);
  keep("layer_memory", data.layer_memory, layer_fits);
  keep("out_of_memory", data.out_of_memory, layer_fits);
  keep("links", data.links, link_fits);
  keep("link_fits", data.fits, link_fits);
  keep("processes", data.processes, [&](const auto& row) { return model.empty() && (gpu.empty() || row.gpu == gpu); });
  if (filtered) drop_unused_sessions(data);
  return data;
}

Result<void> write_csv(const std::vector<std::pair<std::string, std::string>>& files, const ExportOptions& options) {
  if (!options.table.has()) {
    if (!options.output.has()) {
      std::vector<std::string> names;
      for (const auto& [name, text] : files) names.push_back(name);
      return fail(ErrorCode::usage, "a CSV holds one table",
                  fmt::format("use --table NAME (there: {}), or --output FOLDER for one file each", join(names, ", ")));
    }
    const fs::path folder = *options.output;
    SAILOR_CHECK(create_folders(folder));
    for (const auto& [name, text] : files) SAILOR_CHECK(write_file_atomically(folder / (name + ".csv"), text));
    return {};
  }
  const auto file =
      std::find_if(files.begin(), files.end(), [&](const auto& entry) { return entry.first == *options.table; });
  if (file == files.end())
    return fail(ErrorCode::not_found, fmt::format("{}: table '{}' has no such rows", *options.store, *options.table));
  if (options.output.has()) return write_file_atomically(*options.output, file->second);
  fmt::print("{}", file->second);
  return {};
}

Result<void> export_store(const ExportOptions& options, const Environment& environment) {
  // Intervals as stored: an export that is imported again must not differ from its session.
  auto loaded = load_profile(find_store(*options.store, environment), Intervals::as_stored);
  if (!loaded) return fail(loaded.error());
  auto data = selected(*std::move(loaded), options);
  if (!data) return fail(data.error());
  if (*options.format == "csv") return write_csv(to_csv(*data), options);
  const std::string text = to_toml(*data, *options.comment);
  if (options.output.has()) return write_file_atomically(*options.output, text);
  fmt::print("{}", text);
  return {};
}

}  // namespace

Command export_command() { return command(export_line, export_store); }

}  // namespace sailor::apps
