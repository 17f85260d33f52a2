// sailor-profile estimate: estimates the cost of layers on a device that was not measured, and the error of such
// estimates. Needs no MPI.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/profile/commands.hpp"
#include "apps/profile/next_commands.hpp"
#include "core/output_fit.hpp"
#include "core/terminal.hpp"
#include "profile/estimate_accuracy.hpp"
#include "profile/layer_costs.hpp"
#include "profile/store.hpp"
#include "simulator/framework.hpp"

namespace sailor::apps {

namespace {

using nlohmann::ordered_json;

struct EstimateOptions : CommonOptions {
  OptionValue<std::string> model, models, gpu, gpus, profile, framework, precision, format;
  OptionValue<int> tensor_parallel, sequence_length;
  OptionValue<std::vector<int>> micro_batches;
  OptionValue<bool> leave_one_out;
};

CommandLine estimate_command_line(EstimateOptions& options) {
  Option model = shared::model();
  model.help += " [--leave-one-out: all models of the store]";
  Option format = shared::format();
  format.choices = {"table", "json"};
  Option profile = shared::profile_store();
  profile.help += "; what it has of the model on other devices is scaled";
  Option framework = shared::framework();
  framework.help =
      "estimate layers as this training framework computes them (a name, or a file *.toml) [default: attention is not "
      "fused, as in the published figures]";
  framework.default_value.clear();
  return {
      .program = "sailor-profile estimate",
      .purpose = "estimates what layers cost on a device that was not measured, and says how good such estimates are",
      .positionals = {},
      .options = {option(options.model, model),
                  option(options.gpu, {.name = "gpu", .value_name = "NAME", .help = "a device of the GPU catalogue"}),
                  option(options.profile, profile), option(options.framework, framework),
                  option(options.leave_one_out,
                         {.name = "leave-one-out",
                          .help = "compare: estimate every measurement of the store as if its device, its micro-batch "
                                  "or its tensor parallel degree were not in it"}),
                  option(options.tensor_parallel, {.name = "tensor-parallel",
                                                   .value_name = "N",
                                                   .help = "ranks that share a layer",
                                                   .default_value = "1",
                                                   .minimum = 1,
                                                   .maximum = 1024}),
                  option(options.micro_batches, {.name = "micro-batches",
                                                 .value_name = "N",
                                                 .help = "micro-batch sizes, sequences",
                                                 .default_value = "1,2,4,8",
                                                 .minimum = 1,
                                                 .maximum = 1 << 20}),
                  option(options.sequence_length,
                         {.name = "sequence-length",
                          .value_name = "N",
                          .help = "tokens per sequence [default: the longest the model allows]",
                          .minimum = 1,
                          .maximum = 1 << 24}),
                  option(options.precision, {.name = "precision",
                                             .value_name = "NAME",
                                             .help = "number format",
                                             .default_value = "fp32",
                                             .choices = precision_choices()}),
                  option(options.format, format), option(options.models, shared::models_folder()),
                  option(options.gpus, shared::gpus_file())},
      .examples = {{"sailor-profile estimate --model opt-350m --gpu H200-141 --precision tf32",
                    "from the catalogue's rates alone"},
                   {"sailor-profile estimate --model tiny-gpt --gpu H200-141 --profile store",
                    "scaled from what the store has of the model"},
                   {"sailor-profile estimate --leave-one-out --profile store",
                    "how far estimates are from the measurements of a store"}},
      .notes = "Errors are estimate / measurement - 1."};
}

std::string percent(double error) { return fmt::format("{:+.0f}%", error * 100.0); }
std::string unsigned_percent(double error) { return fmt::format("{:.0f}%", error * 100.0); }

ordered_json summary_json(const std::vector<double>& errors) {
  const ErrorSummary summary = summarize_errors(errors);
  return {{"points", summary.points},
          {"median_absolute_error", summary.median},
          {"ninety_percent_absolute_error", summary.wide},
          {"bias", summary.bias},
          {"worst_error", summary.worst}};
}

std::string title_of(Basis basis) {
  switch (basis) {
    case Basis::transfer:
      return "Scaled from the other devices of the store, without the device itself";
    case Basis::roofline:
      return "From the catalogue's rates alone";
    case Basis::between_micro_batches:
      return "Between measured micro-batches, one left out";
    case Basis::between_tensor_parallel:
      return "Between measured tensor parallel degrees, one left out";
    case Basis::look_up:
      break;
  }
  return "Measured";
}

std::vector<std::string> cells(const std::vector<double>& errors) {
  const ErrorSummary summary = summarize_errors(errors);
  if (summary.points == 0) return {"", "", "", ""};
  return {unsigned_percent(summary.median), unsigned_percent(summary.wide), percent(summary.bias),
          percent(summary.worst)};
}

std::string accuracy_table(const std::vector<AccuracyRow>& rows, Basis basis) {
  Table table({{"model", Align::left},
               {"device", Align::left},
               {"layer", Align::left},
               {"points"},
               {"forward: median"},
               {"9 of 10"},
               {"bias"},
               {"worst"},
               {"backward: median"},
               {"9 of 10"},
               {"bias"},
               {"worst"}});
  std::map<std::string, AccuracyRow> together;  // blocks of all models, by device; "all": over all devices
  auto add = [&](const std::string& model, const std::string& gpu, LayerKind kind, const AccuracyRow& row) {
    std::vector<std::string> line{model, gpu, std::string(to_string(kind)),
                                  fmt::format("{}", std::max(row.forward.size(), row.backward.size()))};
    for (const auto* errors : {&row.forward, &row.backward})
      for (std::string& cell : cells(*errors)) line.push_back(std::move(cell));
    table.add_row(std::move(line));
  };
  for (const AccuracyRow& row : rows) {
    if (row.basis != basis) continue;
    add(row.model, row.gpu, row.kind, row);
    if (row.kind != LayerKind::block) continue;
    for (const std::string& gpu : {row.gpu, std::string("all")}) {
      AccuracyRow& sum = together[gpu];
      sum.forward.insert(sum.forward.end(), row.forward.begin(), row.forward.end());
      sum.backward.insert(sum.backward.end(), row.backward.begin(), row.backward.end());
    }
  }
  if (together.empty()) return "";
  for (const auto& [gpu, row] : together)
    if (gpu != "all") add("all", gpu, LayerKind::block, row);
  add("all", "all", LayerKind::block, together["all"]);
  return fmt::format("{}\n{}\n", title_of(basis), table.to_string());
}

std::string size_table(const std::vector<SizeAccuracyRow>& rows) {
  Table table({{"model", Align::left},
               {"layer", Align::left},
               {"points"},
               {"activation: median"},
               {"bias"},
               {"worst"},
               {"parameters: worst"}});
  for (const SizeAccuracyRow& row : rows) {
    const ErrorSummary activation = summarize_errors(row.activation);
    const ErrorSummary parameters = summarize_errors(row.parameters);
    table.add_row({row.model, std::string(to_string(row.kind)), fmt::format("{}", activation.points),
                   fmt::format("{:.1f}%", activation.median * 100.0), fmt::format("{:+.1f}%", activation.bias * 100.0),
                   fmt::format("{:+.1f}%", activation.worst * 100.0),
                   parameters.points > 0 ? fmt::format("{:+.1f}%", parameters.worst * 100.0) : ""});
  }
  return table.rows() == 0 ? "" : fmt::format("Memory by formula alone\n{}", table.to_string());
}

Result<void> compare(const EstimateOptions& options, const Environment& environment, const GpuCatalogue& gpus,
                     const Profile& profile, const LayerKernels& kernels) {
  std::set<std::string> names;
  for (const LayerTime& row : profile.data().layer_times) names.insert(row.key.model);
  if (names.empty())
    return fail(ErrorCode::not_found, fmt::format("{} has no layers", *options.profile),
                "measure some with sailor-profile layers");
  std::vector<AccuracyRow> rows;
  std::vector<SizeAccuracyRow> sizes;
  std::optional<std::string> only;
  if (options.model.has()) {
    const auto model = find_model(*options.model, models_folder(options.models, environment));
    if (!model) return fail(model.error());
    only = model->name;
  }
  for (const std::string& name : names) {
    if (only && name != *only) continue;
    auto model = find_model(only ? *options.model : name, models_folder(options.models, environment));
    if (!model) return fail(model.error());
    const LayerCosts costs(*model, profile, gpus, false, kernels);
    for (AccuracyRow& row : leave_one_out(costs)) rows.push_back(std::move(row));
    for (SizeAccuracyRow& row : size_accuracy(costs)) sizes.push_back(std::move(row));
  }
  if (only && !names.contains(*only))
    return fail(ErrorCode::not_found, fmt::format("{} has no layers of {}", *options.profile, *only),
                "leave out --model to see all that it has");
  if (*options.format == "json") {
    ordered_json json = {{"times", ordered_json::array()}, {"sizes", ordered_json::array()}};
    for (const AccuracyRow& row : rows)
      json["times"].push_back({{"model", row.model},
                               {"gpu", row.gpu},
                               {"layer_kind", to_string(row.kind)},
                               {"basis", to_string(row.basis)},
                               {"forward", summary_json(row.forward)},
                               {"backward", summary_json(row.backward)}});
    for (const SizeAccuracyRow& row : sizes)
      json["sizes"].push_back({{"model", row.model},
                               {"layer_kind", to_string(row.kind)},
                               {"activation", summary_json(row.activation)},
                               {"parameters", summary_json(row.parameters)}});
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  for (const Basis basis :
       {Basis::between_micro_batches, Basis::between_tensor_parallel, Basis::transfer, Basis::roofline})
    fmt::print("{}", accuracy_table(rows, basis));
  fmt::print("{}", size_table(sizes));
  return {};
}

Result<void> show_estimates(const EstimateOptions& options, const Environment& environment, const GpuCatalogue& gpus,
                            const Profile& profile, const std::optional<simulator::Framework>& framework) {
  for (const auto* name : OptionList{&options.model, &options.gpu})
    if (!name->has())
      return fail(ErrorCode::usage, fmt::format("option --{} is missing", name->name()),
                  "name a model and a device, or use --leave-one-out");
  auto model = find_model(*options.model, models_folder(options.models, environment));
  if (!model) return fail(model.error());
  const auto gpu = gpus.find(*options.gpu);
  if (!gpu) return fail(gpu.error());
  const auto precision = parse_precision(*options.precision);
  if (!precision) return fail(precision.error());
  if (framework) SAILOR_CHECK(simulator::check_trains(*framework, *precision, frameworks_folder(environment)));
  const LayerCosts costs(*model, profile, gpus, false, framework ? framework->kernels : LayerKernels{});

  Table table({{"layer", Align::left},
               {"micro-batch"},
               {"forward"},
               {"backward"},
               {"update"},
               {"range of forward", Align::left},
               {"parameters"},
               {"activation"}});
  ordered_json json = ordered_json::array();
  std::set<std::string> explanations;
  for (const int micro_batch : *options.micro_batches)
    for (int layer = 0; layer < model->layers(); ++layer) {
      const LayerKind kind = model->layer_kind(layer);
      if (layer > 0 && kind == model->layer_kind(layer - 1)) continue;
      const LayerKey key{
          .model = model->name,
          .gpu = gpu->name,
          .precision = *precision,
          .recompute = Recompute::none,
          .tensor_parallel = *options.tensor_parallel,
          .micro_batch = micro_batch,
          .sequence_length = options.sequence_length.has() ? *options.sequence_length : model->max_sequence_length,
          .kind = kind,
          .first_layer = layer};
      const auto& price = costs.find(key);
      if (!price) return fail(price.error());
      explanations.insert(fmt::format("{}: {}", to_string(price->cost.origin), costs.explain(key, *price)));
      const LayerCost& cost = price->cost;
      table.add_row({std::string(to_string(kind)), fmt::format("{}", micro_batch), format_time(cost.forward.median),
                     format_time(cost.backward.median), format_time(cost.update.median),
                     fmt::format("{} to {}", format_time(cost.forward.low), format_time(cost.forward.high)),
                     fmt::format("{}", cost.parameters), format_bytes(cost.activation)});
      json.push_back({{"layer_kind", to_string(kind)},
                      {"micro_batch", micro_batch},
                      {"basis", to_string(price->basis)},
                      {"sources", price->sources},
                      {"forward_s", cost.forward.median.value()},
                      {"forward_low_s", cost.forward.low.value()},
                      {"forward_high_s", cost.forward.high.value()},
                      {"backward_s", cost.backward.median.value()},
                      {"update_s", cost.update.median.value()},
                      {"parameters", cost.parameters},
                      {"activation_bytes", cost.activation.value()},
                      {"workspace_bytes", cost.workspace.value()}});
    }
  if (*options.format == "json") {
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  fmt::print("{}\n", table.to_string());
  for (const std::string& explanation : explanations) fmt::print("{}", fitted(explanation + "\n"));
  suggest_next({plan_command(*options.model, gpu->name, *options.sequence_length, *options.profile, *options.models)});
  return {};
}

Result<void> estimate(const EstimateOptions& options, const Environment& environment) {
  const auto gpus = GpuCatalogue::load(gpus_file(options.gpus, environment));
  if (!gpus) return fail(gpus.error());
  ProfileData data;
  if (options.profile.has()) {
    auto loaded = load_profile(find_store(*options.profile, environment));
    if (!loaded) return fail(loaded.error());
    data = std::move(*loaded);
  } else if (*options.leave_one_out) {
    return fail(ErrorCode::usage, "option --profile is missing", "name the store whose measurements are compared");
  }
  const Profile profile(std::move(data));
  std::optional<simulator::Framework> given;
  if (options.framework.has()) {
    const auto framework = simulator::find_framework(*options.framework, frameworks_folder(environment));
    if (!framework) return fail(framework.error());
    given = *framework;
  }
  if (!*options.leave_one_out) return show_estimates(options, environment, *gpus, profile, given);
  return compare(options, environment, *gpus, profile, given ? given->kernels : LayerKernels{});
}

}  // namespace

Command estimate_command() { return command(estimate_command_line, estimate); }

}  // namespace sailor::apps
