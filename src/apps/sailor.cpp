// sailor: lists the programs, runs them (`sailor plan ...` is `sailor-plan ...`), and shows the models and GPU types
// that they know. Needs neither Slurm nor MPI.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "apps/programs.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/log.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "model/model.hpp"

namespace sailor::apps {

namespace {

namespace fs = std::filesystem;

Option list_format() {
  Option option = shared::format();
  option.help = "how to write the list to stdout; names: one name a line";
  option.choices = {"table", "json", "names"};
  return option;
}

/// "13.0 billion", "350 million".
std::string count_of_parameters(double count) {
  return count >= 1e9 ? fmt::format("{:.2f} billion", count * 1e-9) : fmt::format("{:.1f} million", count * 1e-6);
}

struct ModelsOptions : CommonOptions {
  OptionValue<std::string> format, models;
};

CommandLine models_line(ModelsOptions& options) {
  return {.program = "sailor models",
          .purpose = "lists the models that plans can name with --model",
          .options = {option(options.format, list_format()), option(options.models, shared::models_folder())},
          .examples = {{"sailor models", "the models that come with Sailor"},
                       {"sailor models --format json", "the same for a program to read"}},
          .notes = "Another model is described by a file: see sailor-model(5)."};
}

Result<void> list_models(const ModelsOptions& options, const Environment& environment) {
  const auto models = load_models(models_folder(options.models, environment));
  if (!models) return fail(models.error());
  Table table({{"model", Align::left},
               {"parameters"},
               {"blocks"},
               {"hidden"},
               {"heads"},
               {"vocabulary"},
               {"tokens"},
               {"aliases", Align::left}});
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Model& model : *models) {
    if (*options.format == "names") fmt::print("{}\n", model.name);
    table.add_row({model.name, count_of_parameters(static_cast<double>(model.total_parameters())),
                   fmt::to_string(model.blocks), fmt::to_string(model.hidden), fmt::to_string(model.attention_heads),
                   fmt::to_string(model.vocabulary), fmt::to_string(model.max_sequence_length),
                   join(model.aliases, ", ")});
    list.push_back({{"name", model.name},
                    {"aliases", model.aliases},
                    {"parameters", model.total_parameters()},
                    {"layers", model.layers()},
                    {"blocks", model.blocks},
                    {"hidden", model.hidden},
                    {"attention_heads", model.attention_heads},
                    {"vocabulary", model.vocabulary},
                    {"max_sequence_length", model.max_sequence_length},
                    {"source", model.source}});
  }
  if (*options.format == "table") fmt::print("{}", table.to_string());
  if (*options.format == "json")
    fmt::print("{}\n", nlohmann::ordered_json{{"schema_version", 1}, {"models", list}}.dump(2));
  return {};
}

struct GpusOptions : CommonOptions {
  OptionValue<std::string> format, gpus;
};

CommandLine gpus_line(GpusOptions& options) {
  return {.program = "sailor gpus",
          .purpose = "lists the GPU types that plans and cluster.toml can name",
          .options = {option(options.format, list_format()), option(options.gpus, shared::gpus_file())},
          .examples = {{"sailor gpus", "the types that come with Sailor"},
                       {"sailor gpus --format names", "their names only"}},
          .notes = "Rates are peak rates without sparsity. Prices are yours to set: see sailor-gpus(5)."};
}

/// "312", or "-" where the device has no such mode.
std::string tera_flop(FlopPerSecond rate) {
  return rate.value() > 0.0 ? fmt::format("{:.4g}", rate.value() * 1e-12) : "-";
}

Result<void> list_gpus(const GpusOptions& options, const Environment& environment) {
  const auto catalogue = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!catalogue) return fail(catalogue.error());
  Table table({{"type", Align::left},
               {"memory"},
               {"bandwidth"},
               {"fp32 TFLOP/s"},
               {"tf32"},
               {"bf16"},
               {"fp16"},
               {"fp8"},
               {"USD/h"},
               {"aliases", Align::left}});
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const GpuType& type : catalogue->types()) {
    if (*options.format == "names") fmt::print("{}\n", type.name);
    table.add_row({type.name, type.memory.value() > 0.0 ? format_bytes(type.memory) : "-",
                   format_bandwidth(type.memory_bandwidth), tera_flop(type.peak_fp32), tera_flop(type.peak_tf32),
                   tera_flop(type.peak_bf16), tera_flop(type.peak_fp16), tera_flop(type.peak_fp8),
                   fmt::format("{:.2f}", type.price.value()), join(type.aliases, ", ")});
    list.push_back({{"name", type.name},
                    {"aliases", type.aliases},
                    {"memory_bytes", type.memory.value()},
                    {"memory_bandwidth_bytes_per_s", type.memory_bandwidth.value()},
                    {"peak_fp32_flop_per_s", type.peak_fp32.value()},
                    {"peak_tf32_flop_per_s", type.peak_tf32.value()},
                    {"peak_bf16_flop_per_s", type.peak_bf16.value()},
                    {"peak_fp16_flop_per_s", type.peak_fp16.value()},
                    {"peak_fp8_flop_per_s", type.peak_fp8.value()},
                    {"price_usd_per_hour", type.price.value()},
                    {"source", type.source}});
  }
  if (*options.format == "table") fmt::print("{}", table.to_string());
  if (*options.format == "json")
    fmt::print("{}\n", nlohmann::ordered_json{{"schema_version", 1}, {"gpus", list}}.dump(2));
  return {};
}

/// The programs, for the overview of `sailor` and `sailor --help`.
std::string program_list() {
  std::size_t widest = 0;
  for (const Program& program : programs()) widest = std::max(widest, program.name.size());
  std::string text = "\nPrograms, each also started as `sailor plan ...`:\n";
  for (const Program& program : programs())
    if (program.name != "sailor") text += fmt::format("  {:<{}}  {}\n", program.name, widest, program.purpose);
  return text;
}

/// Runs sailor-NAME, the one beside this program before one in PATH. Returns only when it cannot be started.
int start_program(const std::string& name, char** arguments) {
  std::error_code code;
  const fs::path here = fs::read_symlink("/proc/self/exe", code).parent_path() / name;
  arguments[0] = const_cast<char*>(name.c_str());  // NOLINT(cppcoreguidelines-pro-type-const-cast): exec's signature
  if (!code && ::access(here.c_str(), X_OK) == 0)
    ::execv(here.c_str(), arguments);
  else
    ::execvp(name.c_str(), arguments);
  return report("sailor",
                Error{ErrorCode::not_found, fmt::format("cannot start {}: {}", name, std::strerror(errno)),
                      "this build may be without it: sailor-train and sailor-check need MPI (SAILOR_MPI=ON says what "
                      "is missing)"});
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  namespace apps = sailor::apps;
  std::vector<std::string> commands;
  for (const apps::Program& program : apps::programs()) {
    if (!program.name.starts_with("sailor-")) continue;
    commands.emplace_back(program.name.substr(7));
    if (argc > 1 && commands.back() == argv[1]) return apps::start_program(std::string(program.name), argv + 1);
  }
  return apps::run_program(
      argc, argv, {"sailor", apps::purpose_of("sailor"), commands, apps::program_list()},
      {apps::command(apps::models_line, apps::list_models), apps::command(apps::gpus_line, apps::list_gpus)});
}
