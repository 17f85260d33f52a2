// sailor-profile import: makes profile stores of their text form, of the files of other projects, and of what other
// programs recorded of a training. Needs no MPI.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>

#include "apps/profile/commands.hpp"
#include "apps/profile/next_commands.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "profile/import.hpp"
#include "profile/store.hpp"
#include "profile/text.hpp"
#include "profile/traces/import_training.hpp"
#include "simulator/framework.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;
using traces::RecordingForm;

namespace {

constexpr const char* date_of_publications = "1970-01-01T00:00:00.000Z";

constexpr std::array all_recording_forms{RecordingForm::torch_trace, RecordingForm::megatron_timers,
                                         RecordingForm::nsys_sqlite};

struct ImportFilesOptions : CommonOptions {
  OptionValue<std::vector<std::string>> file;
  OptionValue<std::string> store, output, format, from, source, session, date, comment, models, gpus;
  OptionValue<std::string> model, gpu, precision, recompute, framework;
  OptionValue<int> micro_batch, sequence_length, tensor_parallel, gradient_accumulation, busy_ranks;
  OptionValue<std::vector<int>> layers;
};

CommandLine import_line(ImportFilesOptions& options) {
  Option output = shared::output();
  output.help = "file to write: a store of one file (*.h5), or the TOML of --format toml";
  output.writes = true;
  Option format = shared::format();
  format.help = "what to write";
  format.default_value = "hdf5";
  format.choices = {"hdf5", "toml"};
  std::vector<std::string> forms;
  for (int form = 0; form <= static_cast<int>(ImportForm::homogeneous); ++form)
    forms.emplace_back(to_string(static_cast<ImportForm>(form)));
  for (const RecordingForm form : all_recording_forms) forms.emplace_back(to_string(form));
  Option framework = shared::framework();
  framework.help =
      "framework that trained (a name, or a file *.toml), by whose estimates the times of a log are divided among "
      "layers";
  framework.default_value = "megatron-core";
  return {
      .program = "sailor-profile import",
      .purpose = "makes a profile store from a trace or log of a training, published measurements, or text",
      .positionals = {positional(
          options.file,
          {.name = "FILE",
           .help =
               "a file, or a folder of *.toml and *.json files; several traces of one training count as repetitions"})},
      .options =
          {option(options.store, {.name = "store", .value_name = "DIR", .help = "profile store to add the rows to"}),
           option(options.output, output),
           option(options.format, format),
           option(options.from, {.name = "from",
                                 .value_name = "FORM",
                                 .help = "form of the files [default: by their content]",
                                 .choices = forms}),
           option(options.model,
                  {.name = "model",
                   .value_name = "NAME",
                   .help = "model of layer times, for files that do not say (a name, or of recordings also a file)"}),
           option(options.gpu,
                  {.name = "gpu", .value_name = "NAME", .help = "GPU type of layer times, for files that do not say"}),
           option(options.precision, {.name = "precision",
                                      .value_name = "NAME",
                                      .help = "number format, for files that do not say [default: of published files "
                                              "tf32 on GPUs that have it, else fp32]",
                                      .choices = precision_choices()}),
           option(options.micro_batch,
                  {.name = "micro-batch",
                   .value_name = "N",
                   .help = "sequences of a micro-batch of a recorded training, for files that do not say",
                   .minimum = 1,
                   .maximum = 1 << 20}),
           option(options.sequence_length, {.name = "sequence-length",
                                            .value_name = "N",
                                            .help = "tokens of a sequence, likewise",
                                            .minimum = 1,
                                            .maximum = 1 << 24}),
           option(options.tensor_parallel, {.name = "tensor-parallel",
                                            .value_name = "N",
                                            .help = "ranks that shared a layer, likewise [default: 1]",
                                            .minimum = 1,
                                            .maximum = 1 << 10}),
           option(options.recompute,
                  {.name = "recompute",
                   .value_name = "WHAT",
                   .help = "what the backward pass of a block computed again [default: as the file shows it]",
                   .choices = {"none", "selective", "full"}}),
           option(
               options.layers,
               {.name = "layers",
                .value_name = "FIRST,LAST",
                .help =
                    "layers that the recorded rank held, from FIRST to before LAST; 0 is the embedding [default: all]",
                .minimum = 0,
                .maximum = 1 << 20}),
           option(options.gradient_accumulation,
                  {.name = "gradient-accumulation",
                   .value_name = "N",
                   .help = "micro-batches of an iteration on one rank, for logs that do not say",
                   .minimum = 1,
                   .maximum = 1 << 20}),
           option(options.busy_ranks, {.name = "busy-ranks",
                                       .value_name = "N",
                                       .help = "ranks that computed on a node at the same time",
                                       .default_value = "1",
                                       .minimum = 1,
                                       .maximum = 1 << 12}),
           option(options.framework, framework),
           option(options.source,
                  {.name = "source",
                   .value_name = "TEXT",
                   .help = "citation of published measurements; of a recording: leave it out if it is your own"}),
           option(options.session, {.name = "session",
                                    .value_name = "ID",
                                    .help = "session that the rows belong to [default: by the content of the files]"}),
           option(options.date,
                  {.name = "date",
                   .value_name = "DATE",
                   .help = "when they were measured, ISO 8601 in UTC; of equal rows in a store the newest counts "
                           "[default: of recordings when the file was written, of others 1970-01-01T00:00:00.000Z]"}),
           option(options.comment,
                  {.name = "comment", .value_name = "TEXT", .help = "stands above the TOML, as comment lines"}),
           option(options.models, shared::models_folder()),
           option(options.gpus, shared::gpus_file())},
      .examples = {{"sailor-profile export store --output store.toml && sailor-profile import store.toml --store copy",
                    "there and back"},
                   {"sailor-profile import store.toml --output store.h5", "a store of one file"},
                   {"sailor-profile import trace.json --model tiny-gpt --gpu cpu --micro-batch 2 --sequence-length 64 "
                    "--precision fp32 --store store",
                    "of torch.profiler's trace of a few steps on a CPU"},
                   {"sailor-profile import train.log --model tiny-gpt --gpu H200-141 --store store",
                    "of the timers in Megatron-LM's log, which says the rest itself"}},
      .notes =
          "Recordings: traces of torch.profiler (*.json, *.json.gz), logs of Megatron-LM with --timing-log-level 2, "
          "and\n"
          "SQLite exports of nsys. docs/guides/profiling.md says how to record them and what becomes of them.\n"
          "Other JSON files: layer times, layer memory and networks in the forms of github.com/eth-easl/sailor;\n"
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

std::optional<RecordingForm> recording_form_of(const ImportFilesOptions& options) {
  for (const RecordingForm form : all_recording_forms)
    if (*options.from == to_string(form)) return form;
  return std::nullopt;
}

Result<std::optional<ImportForm>> form_of(const ImportFilesOptions& options) {
  if (!options.from.has()) return std::nullopt;
  for (int form = 0; form <= static_cast<int>(ImportForm::homogeneous); ++form)
    if (*options.from == to_string(static_cast<ImportForm>(form))) return static_cast<ImportForm>(form);
  return fail(ErrorCode::usage, fmt::format("--from: '{}' is no form", *options.from));
}

/// What the options say of a recorded training.
Result<traces::TrainingFacts> given_facts(const ImportFilesOptions& options) {
  traces::TrainingFacts facts;
  const auto known = [](const OptionValue<int>& option) {
    return option.has() ? std::optional(*option) : std::nullopt;
  };
  facts.micro_batch = known(options.micro_batch);
  facts.sequence_length = known(options.sequence_length);
  facts.tensor_parallel = known(options.tensor_parallel);
  facts.gradient_accumulation = known(options.gradient_accumulation);
  if (options.precision.has()) {
    const auto precision = parse_precision(*options.precision);
    if (!precision) return fail(precision.error());
    facts.precision = *precision;
  }
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
    if (*options.recompute == to_string(recompute)) facts.recompute = recompute;
  if (options.layers.has()) {
    const std::vector<int> layers = *options.layers;
    if (layers.size() != 2)
      return fail(ErrorCode::usage, fmt::format("--layers has {}", plural(layers.size(), "number")),
                  "give the first layer and the one after the last: --layers 0,13");
    facts.layers = LayerRange{layers[0], layers[1]};
  }
  return facts;
}

/// The latest time at which one of the files was written, ISO 8601 in UTC.
std::string date_of(const std::vector<fs::path>& files) {
  std::int64_t seconds = 0;
  for (const fs::path& file : files) {
    std::error_code code;
    const auto written = fs::last_write_time(file, code);
    if (code) continue;
    const auto since_epoch = std::chrono::file_clock::to_sys(written).time_since_epoch();
    seconds = std::max<std::int64_t>(seconds, std::chrono::duration_cast<std::chrono::seconds>(since_epoch).count());
  }
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.000Z", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

/// An id that the same files always have, however large they are.
Result<std::string> id_of(const std::vector<fs::path>& files) {
  std::string hashes;
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    std::string part(std::size_t{1} << 20, '\0');
    while (stream.read(part.data(), static_cast<std::streamsize>(part.size())) || stream.gcount() > 0)
      hashes += content_hash(std::string_view(part).substr(0, static_cast<std::size_t>(stream.gcount())));
    if (!stream.eof()) return fail(ErrorCode::io, fmt::format("cannot read '{}'", file.string()));
  }
  return "import-" + content_hash(hashes);
}

Result<ProfileData> read_recordings(const std::vector<fs::path>& files, RecordingForm form,
                                    const ImportFilesOptions& options, const Environment& environment) {
  if (!options.model.has())
    return fail(ErrorCode::usage, fmt::format("{}: the file does not say which model it is of", files.front().string()),
                "name it with --model");
  const auto model = find_model(*options.model, models_folder(options.models, environment));
  if (!model) return fail(model.error());
  const auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  const auto facts = given_facts(options);
  if (!facts) return fail(facts.error());
  const auto framework = simulator::find_framework(*options.framework, frameworks_folder(environment));
  if (!framework) return fail(framework.error());
  auto data = traces::import_recordings(files, form,
                                        {.model = *model,
                                         .gpus = *gpus,
                                         .gpu = *options.gpu,
                                         .given = *facts,
                                         .kernels = framework->kernels,
                                         .busy_ranks = *options.busy_ranks});
  if (!data) return data;
  Session& session = data->sessions.front();
  if (options.session.has()) {
    session.id = *options.session;
  } else {
    auto id = id_of(files);
    if (!id) return fail(id.error());
    session.id = *std::move(id);
  }
  session.provenance.tool = fmt::format("sailor-profile {}, of a recording of {}", version(), session.provenance.tool);
  session.provenance.command = profile_command_line();
  session.provenance.date = options.date.has() ? *options.date : date_of(files);
  session.provenance.source = *options.source;
  log_info("{}", session.notes);
  return data;
}

/// The form of recordings among the files; std::nullopt: they are stores as text, or publications. Errors: usage
/// (both).
Result<std::optional<RecordingForm>> recording_form(const std::vector<fs::path>& files,
                                                    const ImportFilesOptions& options) {
  if (options.from.has()) return recording_form_of(options);
  std::optional<RecordingForm> form;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto found = traces::recognise_recording(files[i]);
    if (!found) return fail(found.error());
    if (i > 0 && *found != form)
      return fail(ErrorCode::usage,
                  fmt::format("{} is {}, {} is {}", files[0].string(), form ? to_string(*form) : "no recording",
                              files[i].string(), *found ? to_string(**found) : "no recording"),
                  "import files of one form at once");
    form = *found;
  }
  return form;
}

Result<ProfileData> read_files(const ImportFilesOptions& options, const Environment& environment) {
  const auto files = files_to_import(*options.file);
  if (!files) return fail(files.error());
  const auto recording = recording_form(*files, options);
  if (!recording) return fail(recording.error());
  if (*recording) return read_recordings(*files, **recording, options, environment);
  for (const auto* name : OptionList{&options.micro_batch, &options.sequence_length, &options.tensor_parallel,
                                     &options.recompute, &options.layers, &options.gradient_accumulation})
    if (name->has())
      return fail(ErrorCode::usage,
                  fmt::format("--{} is of recorded trainings, and {} is none", name->name(), files->front().string()),
                  fmt::format("leave out --{}, or name the form of the file with --from", name->name()));
  const auto models = load_models(models_folder(options.models, environment));
  if (!models) return fail(models.error());
  const auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  std::optional<Precision> precision;
  if (options.precision.has()) {
    const auto given = parse_precision(*options.precision);
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
                       .model = *options.model,
                       .gpu = *options.gpu,
                       .precision = precision};
  import.session.id = options.session.has() ? *options.session : "import-" + content_hash(all);
  import.session.provenance.source = *options.source;
  import.session.provenance.date = options.date.has() ? *options.date : date_of_publications;
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
    log_info("{} without zones left out: the same stand there inside a zone",
             plural(static_cast<std::size_t>(repeated), "link"));
  return data;
}

/// Whether the text begins as a date of ISO 8601 does: "2026-11-29", with a time behind or not.
bool is_date(std::string_view text) {
  constexpr std::string_view form = "0000-00-00";
  if (text.size() < form.size() || (text.size() > form.size() && text[form.size()] != 'T')) return false;
  for (std::size_t i = 0; i < form.size(); ++i)
    if (form[i] == '-' ? text[i] != '-' : text[i] < '0' || text[i] > '9') return false;
  return true;
}

Result<void> import_files(const ImportFilesOptions& options, const Environment& environment) {
  if (options.date.has() && !is_date(*options.date))
    return fail(ErrorCode::usage, fmt::format("--date '{}' is no date", *options.date),
                "write it as 2026-11-29 or 2026-11-29T12:00:00.000Z");
  const bool toml = *options.format == "toml";
  if (toml && options.store.has())
    return fail(ErrorCode::usage, "--store keeps HDF5 files", "use --output FILE with --format toml");
  if (!toml && options.store.has() == options.output.has())
    return fail(ErrorCode::usage, options.store.has() ? "both --store and --output are given" : "where to?",
                "use --store DIR, --output FILE.h5, or --format toml");
  const auto data = read_files(options, environment);
  if (!data) return fail(data.error());
  if (toml) {
    const std::string text = to_toml(*data, *options.comment);
    if (options.output.has()) return write_file_atomically(*options.output, text);
    fmt::print("{}", text);
    return {};
  }
  std::string path = *options.output;
  if (options.store.has()) {
    const auto added = add_to_store(*options.store, *data);
    if (!added) return fail(added.error());
    path = added->string();
  } else {
    SAILOR_CHECK(save_profile(*data, path));
  }
  log_info("{}: {}, {}, {}", path, plural(data->layer_times.size(), "layer time"),
           plural(data->layer_memory.size(), "layer size"), plural(data->fits.size() + data->links.size(), "link"));
  const std::string& store = options.store.has() ? *options.store : path;
  suggest_next(commands_after_storing(*data, store, *options.models));
  return {};
}

}  // namespace

Command import_command() { return command(import_line, import_files); }

}  // namespace sailor::apps
