// sailor-profile model: shows how Sailor understands a model, layer by layer, before anything is planned with it.
#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/profile/commands.hpp"
#include "core/output_fit.hpp"
#include "core/terminal.hpp"
#include "model/model.hpp"

namespace sailor::apps {

namespace {

using nlohmann::ordered_json;

struct ModelOptions : CommonOptions {
  OptionValue<std::string> model, models, format;
  OptionValue<int> sequence_length;
};

CommandLine model_command_line(ModelOptions& options) {
  return {
      .program = "sailor-profile model",
      .purpose = "shows the layers, parameters and FLOP of a model",
      .options = {option(options.model, shared::model()),
                  option(options.sequence_length,
                         {.name = "sequence-length",
                          .value_name = "N",
                          .help =
                              "tokens per sequence, which attention depends on [default: the longest the model allows]",
                          .minimum = 1,
                          .maximum = 1 << 24}),
                  option(options.format, {.name = "format",
                                          .value_name = "FORMAT",
                                          .help = "how to write the result to stdout",
                                          .default_value = "table",
                                          .choices = {"table", "json"}}),
                  option(options.models, shared::models_folder())},
      .examples = {{"sailor-profile model --model llama-3-8b", "a model that comes with Sailor"},
                   {"sailor-profile model --model config.json --sequence-length 1024", "one of Hugging Face's"}},
      .notes =
          "FLOP are of matrix products and of the causal half of attention, of the forward pass; the backward "
          "pass has twice as many. Active: with as many experts as a token goes through."};
}

/// Visits the ranges of consecutive layers that cost the same.
template <class Visit>
void for_groups(const Model& model, Visit visit) {
  for (int layer = 0; layer < model.layers();) {
    const int end = model.alike_until(layer);
    visit(layer, end);
    layer = end;
  }
}

Result<void> show_model(const ModelOptions& options, const Environment& environment) {
  if (!options.model.has()) return fail(ErrorCode::usage, "option --model is missing", "name a model");
  const auto model = find_model(*options.model, models_folder(options.models, environment));
  if (!model) return fail(model.error());
  const int length = options.sequence_length.has() ? *options.sequence_length : model->max_sequence_length;
  const auto flop_of = [&](int layer) { return model->layer_forward_flop(layer, 1.0, length).value(); };
  double flop = 0.0;
  for (int layer = 0; layer < model->layers(); ++layer) flop += flop_of(layer);
  const auto trainable = check_trainable(*model);

  if (*options.format == "json") {
    ordered_json groups = ordered_json::array();
    for_groups(*model, [&](int first, int last) {
      groups.push_back({{"layers", {first, last}},
                        {"layer_kind", to_string(model->layer_kind(first))},
                        {"parameters_per_layer", model->layer_parameters(first)},
                        {"forward_flop_per_token", flop_of(first)}});
    });
    const ordered_json json = {{"model", model->name},
                               {"parameters", model->total_parameters()},
                               {"active_parameters", model->active_parameters()},
                               {"sequence_length", length},
                               {"forward_flop_per_token", flop},
                               {"trained_by_sailor_train", trainable.has_value()},
                               {"layers", groups}};
    fmt::print("{}\n", json.dump(2));
    return {};
  }
  Table table({{"layers", Align::left}, {"kind", Align::left}, {"parameters of one"}, {"MFLOP per token"}});
  for_groups(*model, [&](int first, int last) {
    table.add_row({last == first + 1 ? fmt::format("{}", first) : fmt::format("{} to {}", first, last - 1),
                   std::string(to_string(model->layer_kind(first))), fmt::format("{}", model->layer_parameters(first)),
                   fmt::format("{:.3f}", flop_of(first) / 1e6)});
  });
  fmt::print("{}", fitted(fmt::format(
                       "{}\n{}\n{} parameters, {} active; {:.3f} GFLOP per token forward at {} tokens per sequence\n",
                       model->name, table.to_string(), model->total_parameters(), model->active_parameters(),
                       flop / 1e9, length)));
  if (!trainable) fmt::print("{}", fitted(trainable.error().message() + "\n"));
  return {};
}

}  // namespace

Command model_command() { return command(model_command_line, show_model); }

}  // namespace sailor::apps
