// sailor-profile export and import: convert between profile stores, their text form, and the files of other projects.
// Needs no MPI.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "apps/profile/commands.hpp"
#include "apps/profile/next_commands.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "profile/import.hpp"
#include "profile/store.hpp"
#include "profile/text.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

namespace {

Option comment_option() {
  return {.name = "comment", .value_name = "TEXT", .help = "stands above the TOML, as comment lines"};
}

// ---- export

CommandLine export_line() {
  Option format = shared::format();
  format.default_value = "toml";
  format.choices = {"toml", "csv"};
  Option output = shared::output();
  output.help = "file to write to, instead of stdout; of csv without --table: a folder, one file per table";
  return {
      .program = "sailor-profile export",
      .purpose = "writes a profile store as text",
      .positionals = {{.name = "STORE",
                       .help = "a folder of *.h5 files, one such file, or the name of a store that comes with "
                               "Sailor: published"}},
      .options = {format,
                  {.name = "table", .value_name = "NAME", .help = "only this table", .choices = profile_table_names()},
                  {.name = "model", .value_name = "NAME", .help = "only layers of this model"},
                  {.name = "gpu", .value_name = "NAME", .help = "only what was measured on this GPU type"},
                  comment_option(),
                  output},
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
Result<ProfileData> selected(ProfileData data, const Options& options) {
  const std::string model = options.text("model");
  const std::string gpu = options.text("gpu");
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
    return fail(ErrorCode::not_found,
                fmt::format("{}: the store has nothing of {} '{}'", options.positional("STORE").front(), what, name),
                fmt::format("there: {}", known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
  };
  SAILOR_CHECK(check("model", model, models));
  SAILOR_CHECK(check("GPU", gpu, gpus));

  const bool filtered = !model.empty() || !gpu.empty() || options.has("table");
  auto keep = [&](const char* table, auto& rows, auto&& fits) {
    const bool wanted = !options.has("table") || options.text("table") == table;
    std::erase_if(rows, [&](const auto& row) { return !wanted || !fits(row); });
  };
  auto layer_fits = [&](const auto& row) {
    return (model.empty() || row.key.model == model) && (gpu.empty() || row.key.gpu == gpu || row.key.gpu == any_gpu);
  };
  auto link_fits = [&](const auto& row) {
    return model.empty() && (gpu.empty() || row.key.from.gpu == gpu || row.key.to.gpu == gpu);
  };
  if (options.text("table") == "sessions") return data;
  keep("layer_times", data.layer_times, layer_fits);
  keep("layer_memory", data.layer_memory, layer_fits);
  keep("out_of_memory", data.out_of_memory, layer_fits);
  keep("links", data.links, link_fits);
  keep("link_fits", data.fits, link_fits);
  keep("processes", data.processes, [&](const auto& row) { return model.empty() && (gpu.empty() || row.gpu == gpu); });
  if (filtered) drop_unused_sessions(data);
  return data;
}

Result<void> write_csv(const std::vector<std::pair<std::string, std::string>>& files, const Options& options) {
  if (!options.has("table")) {
    if (!options.has("output")) {
      std::vector<std::string> names;
      for (const auto& [name, text] : files) names.push_back(name);
      return fail(
          ErrorCode::usage, "a CSV holds one table",
          fmt::format("use --table NAME (there: {}), or --output FOLDER for one file each", fmt::join(names, ", ")));
    }
    const fs::path folder = options.text("output");
    std::error_code code;
    fs::create_directories(folder, code);
    if (!fs::is_directory(folder))
      return fail(ErrorCode::io, fmt::format("cannot make the folder '{}'{}", folder.string(),
                                             code ? ": " + code.message() : ": it is a file"));
    for (const auto& [name, text] : files) SAILOR_CHECK(write_file_atomically(folder / (name + ".csv"), text));
    return {};
  }
  const auto file =
      std::find_if(files.begin(), files.end(), [&](const auto& entry) { return entry.first == options.text("table"); });
  if (file == files.end())
    return fail(ErrorCode::not_found, fmt::format("{}: table '{}' has no such rows",
                                                  options.positional("STORE").front(), options.text("table")));
  if (options.has("output")) return write_file_atomically(options.text("output"), file->second);
  fmt::print("{}", file->second);
  return {};
}

Result<void> export_store(const Options& options, const Environment& environment) {
  // Intervals as stored: an export that is imported again must not differ from its session.
  auto loaded = load_profile(find_store(options.positional("STORE").front(), environment), Intervals::as_stored);
  if (!loaded) return fail(loaded.error());
  auto data = selected(*std::move(loaded), options);
  if (!data) return fail(data.error());
  if (options.text("format") == "csv") return write_csv(to_csv(*data), options);
  const std::string text = to_toml(*data, options.text("comment"));
  if (options.has("output")) return write_file_atomically(options.text("output"), text);
  fmt::print("{}", text);
  return {};
}

// ---- import

CommandLine import_line() {
  Option output = shared::output();
  output.help = "file to write: a store of one file (*.h5), or the TOML of --format toml";
  Option format = shared::format();
  format.help = "what to write";
  format.default_value = "hdf5";
  format.choices = {"hdf5", "toml"};
  std::vector<std::string> forms;
  for (int form = 0; form <= static_cast<int>(ImportForm::homogeneous); ++form)
    forms.emplace_back(to_string(static_cast<ImportForm>(form)));
  return {
      .program = "sailor-profile import",
      .purpose = "makes a profile store of text, or of measurements that others published",
      .positionals = {{.name = "FILE", .help = "a file, or a folder of *.toml and *.json files", .repeatable = true}},
      .options = {{.name = "store", .value_name = "DIR", .help = "profile store to add the rows to"},
                  output,
                  format,
                  {.name = "from",
                   .value_name = "FORM",
                   .help = "form of the files [default: by their content]",
                   .choices = forms},
                  {.name = "model", .value_name = "NAME", .help = "model of layer times, for files that do not say"},
                  {.name = "gpu", .value_name = "NAME", .help = "GPU type of layer times, for files that do not say"},
                  {.name = "precision",
                   .value_name = "NAME",
                   .help = "precision of what JSON files hold [default: tf32 on GPUs that have it, else fp32]",
                   .choices = precision_choices()},
                  {.name = "source", .value_name = "TEXT", .help = "citation of what JSON files hold"},
                  {.name = "session",
                   .value_name = "ID",
                   .help = "session that the rows of JSON files belong to [default: by the content of the files]"},
                  {.name = "date",
                   .value_name = "DATE",
                   .help = "when they were measured, ISO 8601 in UTC; of equal rows in a store the newest counts",
                   .default_value = "1970-01-01T00:00:00.000Z"},
                  comment_option(),
                  shared::models_folder(),
                  shared::gpus_file()},
      .examples = {{"sailor-profile export store --output store.toml && sailor-profile import store.toml --store copy",
                    "there and back"},
                   {"sailor-profile import store.toml --output store.h5", "a store of one file"}},
      .notes =
          "JSON files: layer times, layer memory and networks in the forms of github.com/eth-easl/sailor;\n"
          "profiles/README.md (\"Published figures\") says what becomes of each number."};
}

/// The files that the arguments name; a folder stands for the *.toml and *.json files in it.
Result<std::vector<fs::path>> files_to_import(const std::vector<std::string>& arguments) {
  std::vector<fs::path> files;
  for (const std::string& argument : arguments) {
    std::error_code code;
    if (!fs::is_directory(argument, code)) {
      files.emplace_back(argument);
      continue;
    }
    std::vector<fs::path> found;
    for (fs::directory_iterator entry(argument, code), end; !code && entry != end; entry.increment(code))
      if (entry->path().extension() == ".toml" || entry->path().extension() == ".json") found.push_back(entry->path());
    if (code) return fail(ErrorCode::io, fmt::format("cannot list '{}': {}", argument, code.message()));
    if (found.empty())
      return fail(ErrorCode::not_found, fmt::format("folder '{}' has no *.toml and no *.json file", argument));
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

Result<std::optional<ImportForm>> form_of(const Options& options) {
  if (!options.has("from")) return std::nullopt;
  for (int form = 0; form <= static_cast<int>(ImportForm::homogeneous); ++form)
    if (options.text("from") == to_string(static_cast<ImportForm>(form))) return static_cast<ImportForm>(form);
  return fail(ErrorCode::usage, fmt::format("--from: '{}' is no form", options.text("from")));
}

Result<ProfileData> read_files(const Options& options, const Environment& environment) {
  const auto files = files_to_import(options.positional("FILE"));
  if (!files) return fail(files.error());
  const auto models = load_models(models_folder(options, environment));
  if (!models) return fail(models.error());
  const auto gpus = GpuCatalogue::load(gpus_file(options, environment));
  if (!gpus) return fail(gpus.error());
  std::optional<Precision> precision;
  if (options.has("precision")) {
    const auto given = parse_precision(options.text("precision"));
    if (!given) return fail(given.error());
    precision = *given;
  }
  const auto form = form_of(options);
  if (!form) return fail(form.error());

  std::vector<std::string> contents;
  std::string all;
  for (const fs::path& file : *files) {
    auto content = read_text_file(file);
    if (!content) return fail(content.error());
    all += *content;
    contents.push_back(*std::move(content));
  }
  ImportOptions import{.models = *models,
                       .gpus = *gpus,
                       .form = *form,
                       .model = options.text("model"),
                       .gpu = options.text("gpu"),
                       .precision = precision};
  import.session.id = options.has("session") ? options.text("session") : "import-" + content_hash(all);
  import.session.provenance.source = options.text("source");
  import.session.provenance.date = options.text("date");
  std::vector<ProfileData> parts;
  for (std::size_t i = 0; i < files->size(); ++i) {
    auto part = import_profile(contents[i], (*files)[i].string(), import);
    if (!part) return fail(part.error());
    const bool cited = std::none_of(part->sessions.begin(), part->sessions.end(), [&](const Session& session) {
      return session.id == import.session.id && session.provenance.source.empty();
    });
    if (!cited)
      return fail(ErrorCode::usage, fmt::format("{}: whose measurements are these?", (*files)[i].string()),
                  "cite them with --source TEXT");
    parts.push_back(*std::move(part));
  }
  ProfileData data = merge_profiles(std::move(parts));
  if (const int repeated = remove_repeated_links(data); repeated > 0)
    spdlog::info("{} without zones left out: the same stand there inside a zone",
                 plural(static_cast<std::size_t>(repeated), "link"));
  return data;
}

Result<void> import_files(const Options& options, const Environment& environment) {
  const bool toml = options.text("format") == "toml";
  if (toml && options.has("store"))
    return fail(ErrorCode::usage, "--store keeps HDF5 files", "use --output FILE with --format toml");
  if (!toml && options.has("store") == options.has("output"))
    return fail(ErrorCode::usage, options.has("store") ? "both --store and --output are given" : "where to?",
                "use --store DIR, --output FILE.h5, or --format toml");
  const auto data = read_files(options, environment);
  if (!data) return fail(data.error());
  if (toml) {
    const std::string text = to_toml(*data, options.text("comment"));
    if (options.has("output")) return write_file_atomically(options.text("output"), text);
    fmt::print("{}", text);
    return {};
  }
  std::string path = options.text("output");
  if (options.has("store")) {
    const auto added = add_to_store(options.text("store"), *data);
    if (!added) return fail(added.error());
    path = added->string();
  } else {
    SAILOR_CHECK(save_profile(*data, path));
  }
  spdlog::info("{}: {}, {}, {}", path, plural(data->layer_times.size(), "layer time"),
               plural(data->layer_memory.size(), "layer size"), plural(data->fits.size() + data->links.size(), "link"));
  const std::string& store = options.has("store") ? options.text("store") : path;
  suggest_next(commands_after_storing(*data, store, options.text("models")));
  return {};
}

}  // namespace

std::vector<SubCommand> text_commands() { return {{export_line(), export_store}, {import_line(), import_files}}; }

}  // namespace sailor::apps
