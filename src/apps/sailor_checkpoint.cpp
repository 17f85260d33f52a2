// sailor-checkpoint: inspects and verifies the checkpoints of sailor-train, and exchanges weights with Hugging Face.
// Needs no MPI at run time. Reads only, except for export and import, which leave no half-written files at their
// targets.
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "apps/options.hpp"
#include "apps/programs.hpp"
#include "core/shell.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "model/model.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/hugging_face.hpp"
#include "runtime/checkpoint/manifest.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;
using runtime::CheckpointEntry;
using runtime::CheckpointReader;

Positional checkpoint_positional() {
  return {.name = "CHECKPOINT", .help = "a checkpoint's folder, or a folder of checkpoints: the newest in it"};
}

// ---- list

struct ListOptions : CommonOptions {
  OptionValue<std::string> folder, format;
};

CommandLine list_line(ListOptions& options) {
  Option format = shared::format();
  format.choices = {"table", "json"};
  return {.program = "sailor-checkpoint list",
          .purpose = "shows the checkpoints of a folder, the newest first",
          .positionals = {positional(options.folder,
                                     {.name = "FOLDER", .help = "where sailor-train keeps its checkpoints"})},
          .options = {option(options.format, format)},
          .examples = {{"sailor-checkpoint list checkpoints", "what is there"},
                       {"sailor-checkpoint list checkpoints --format json", "the same for programs"}},
          .notes =
              "A checkpoint is listed as valid when its manifest is whole and its files have their sizes;\n"
              "sailor-checkpoint verify reads every byte."};
}

nlohmann::ordered_json to_json(const CheckpointEntry& entry) {
  nlohmann::ordered_json json{{"path", valid_utf8(entry.path.string())}, {"valid", entry.is_valid()}};
  if (!entry.is_valid()) {
    json["problem"] = valid_utf8(entry.problem);
    return json;
  }
  json["iteration"] = entry.iteration;
  json["sequence"] = entry.sequence;
  json["model"] = entry.model;
  json["source"] = entry.source;
  json["bytes"] = static_cast<std::int64_t>(entry.bytes.value());
  return json;
}

Result<void> list(const ListOptions& options, const Environment&) {
  const fs::path folder = *options.folder;
  std::error_code code;
  if (!fs::is_directory(folder, code))
    return fail(ErrorCode::not_found,
                fmt::format("{} '{}'", fs::exists(folder, code) ? "a file is no folder:" : "there is no folder",
                            folder.string()),
                "name the folder of the checkpoints");
  const auto entries = runtime::list_checkpoints(folder);
  if (!entries) return fail(entries.error());
  if (entries->empty() && fs::exists(folder / runtime::manifest_name, code))
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' is a checkpoint, not a folder of checkpoints", folder.string()),
                "use sailor-checkpoint verify with it, or name the folder above it");
  if (*options.format == "json") {
    auto json = nlohmann::ordered_json::array();
    for (const CheckpointEntry& entry : *entries) json.push_back(to_json(entry));
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  if (entries->empty()) {
    fmt::print("no checkpoints in '{}'\n", folder.string());
    return {};
  }
  Table table({{"checkpoint", Align::left}, {"iteration"}, {"size"}, {"model", Align::left}, {"source", Align::left}});
  for (const CheckpointEntry& entry : *entries) {
    const std::string name = entry.path.filename().string();
    if (entry.is_valid())
      table.add_row({name, fmt::to_string(entry.iteration), format_bytes(entry.bytes), entry.model, entry.source});
    else
      table.add_row({name, "-", "-", "-", "not valid: " + entry.problem});
  }
  fmt::print("{}", table.to_string());
  suggest_next({fmt::format("sailor-checkpoint verify {}", shell_quote(folder.string()))});
  return {};
}

// ---- verify

struct VerifyOptions : CommonOptions {
  OptionValue<std::string> checkpoint;
};

CommandLine verify_line(VerifyOptions& options) {
  return {
      .program = "sailor-checkpoint verify",
      .purpose = "reads a checkpoint whole and compares it with its checksums",
      .positionals = {positional(options.checkpoint, checkpoint_positional())},
      .examples = {{"sailor-checkpoint verify checkpoints", "the newest one"},
                   {"sailor-checkpoint verify checkpoints/iteration-00000000", "a certain one"}},
      .exit_statuses = {
          {0, "every byte is as it was written"}, {1, "a byte is not, or there is no checkpoint"}, {2, "wrong usage"}}};
}

/// Calls `use` with the named checkpoint, or with the newest one of the named folder; for a folder it tries again if a
/// training has removed that checkpoint meanwhile, since there is a newer one.
Result<void> with_checkpoint(const fs::path& named,
                             const std::function<Result<void>(CheckpointReader& reader, const fs::path& path)>& use) {
  while (true) {
    const auto path = runtime::resolve_checkpoint(named);
    if (!path) return fail(path.error());
    auto reader = CheckpointReader::open(*path);
    Result<void> done = reader ? use(*reader, *path) : fail(reader.error());
    std::error_code code;
    if (done || *path == named || fs::exists(*path, code)) return done;
  }
}

Result<void> verify(const VerifyOptions& options, const Environment&) {
  return with_checkpoint(*options.checkpoint, [](CheckpointReader& reader, const fs::path& path) -> Result<void> {
    SAILOR_CHECK(reader.verify());
    const runtime::Manifest& manifest = reader.manifest();
    fmt::print("{}: good; iteration {}, model {}, {} in {} and {}\n", path.string(), manifest.iteration, manifest.model,
               format_bytes(Bytes(static_cast<double>(manifest.bytes()))), plural(manifest.tensors.size(), "tensor"),
               plural(manifest.files.size(), "file"));
    return {};
  });
}

// ---- export

struct ExportOptions : CommonOptions {
  OptionValue<std::string> checkpoint, to, model, models;
};

CommandLine export_line(ExportOptions& options) {
  return {
      .program = "sailor-checkpoint export",
      .purpose = "writes the weights of a checkpoint for Hugging Face's transformers",
      .positionals = {positional(options.checkpoint, checkpoint_positional())},
      .options = {option(options.to,
                         {.name = "to",
                          .value_name = "FOLDER",
                          .help = "write config.json and model.safetensors there; it is made where it is missing"}),
                  option(
                      options.model,
                      {.name = "model",
                       .value_name = "NAME",
                       .help = "the checkpoint's model, or a .toml file that describes it; default: the name it says"}),
                  option(options.models, shared::models_folder())},
      .examples = {{"sailor-checkpoint export checkpoints --to exported", "the newest one"},
                   {"sailor-checkpoint export checkpoints/iteration-00000000 --model tiny-gpt --to exported",
                    "a certain one, of this model"}},
      .notes =
          "Models that are an OPT, GPT-Neo, GPT-2, LLaMA or Mixtral can be exported, in fp32.\n"
          "from_pretrained(FOLDER) reads them; a tokenizer is not written."};
}

Result<void> export_model(const ExportOptions& options, const Environment& environment) {
  const std::string to = *options.to;
  if (to.empty()) return fail(ErrorCode::usage, "--to is missing", "say where to: --to FOLDER");
  return with_checkpoint(*options.checkpoint, [&](CheckpointReader& reader, const fs::path&) -> Result<void> {
    const std::string name = options.model.has() ? *options.model : reader.manifest().model;
    auto model = find_model(name, models_folder(options.models, environment));
    if (!model) {
      Error error = model.error();
      if (!options.model.has()) error.hint = "say which file describes it: --model FILE.toml";
      return fail(std::move(error));
    }
    SAILOR_CHECK(runtime::export_hugging_face(reader, *model, to));
    fmt::print("{}: {} of iteration {}, {} parameters\n", to, model->name, reader.manifest().iteration,
               model->total_parameters());
    return {};
  });
}

// ---- import

struct ImportOptions : CommonOptions {
  OptionValue<std::string> folder, model, models, output;
};

CommandLine import_line(ImportOptions& options) {
  Option model = shared::model();
  model.help = "the model that the folder has: a name, or a .toml file";
  return {.program = "sailor-checkpoint import",
          .purpose = "makes a checkpoint to start training from out of a model of Hugging Face's transformers",
          .positionals = {positional(
              options.folder,
              {.name = "FOLDER", .help = "has config.json and model.safetensors (or several, and an index)"})},
          .options = {option(options.model, model), option(options.models, shared::models_folder()),
                      option(options.output, {.name = "output",
                                              .letter = 'o',
                                              .value_name = "CHECKPOINT",
                                              .help = "the checkpoint's folder, which must not be there yet"})},
          .examples = {{"sailor-checkpoint import gpt2-tiny --model tiny-gpt --output start/iteration-00000000",
                        "weights to start from"}},
          .notes =
              "Reads F32, BF16 and F16. config.json must describe the model, and every tensor must be known. The\n"
              "checkpoint is of iteration 0, with an optimizer that has seen nothing."};
}

Result<void> import_model(const ImportOptions& options, const Environment& environment) {
  const std::string output = *options.output;
  if (output.empty()) return fail(ErrorCode::usage, "--output is missing", "say where to: --output CHECKPOINT");
  if (options.model->empty())
    return fail(ErrorCode::usage, "--model is missing", "say what the folder has: --model NAME");
  auto model = find_model(*options.model, models_folder(options.models, environment));
  if (!model) return fail(model.error());
  SAILOR_CHECK(runtime::import_hugging_face(*options.folder, *model, output));
  fmt::print("{}: {}, {} parameters\n", output, model->name, model->total_parameters());
  suggest_next({fmt::format("sailor-checkpoint verify {}", shell_quote(output)),
                fmt::format("sailor-submit plan.toml --data PREFIX --iterations N --train-option={}",
                            shell_quote("--start-from=" + output))});
  return {};
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  namespace apps = sailor::apps;
  return apps::run_program(
      argc, argv, {"sailor-checkpoint", apps::purpose_of("sailor-checkpoint"), {}, ""},
      {apps::command(apps::list_line, apps::list), apps::command(apps::verify_line, apps::verify),
       apps::command(apps::export_line, apps::export_model), apps::command(apps::import_line, apps::import_model)});
}
