#include "apps/profile_tables.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/terminal.hpp"

namespace sailor::apps {

namespace {

std::array<std::pair<const char*, const std::string*>, 7> fields_of(const Provenance& provenance) {
  return {{{"tool", &provenance.tool},
           {"command", &provenance.command},
           {"host", &provenance.host},
           {"device", &provenance.device},
           {"versions", &provenance.versions},
           {"date", &provenance.date},
           {"source", &provenance.source}}};
}

/// What is the same in all rows stands once, above them.
std::string captioned(Table& table, const std::vector<std::string_view>& foldable) {
  const std::string caption = table.fold_constant_columns(foldable);
  return (caption.empty() ? "" : "all: " + caption + "\n") + table.to_string();
}

std::string layer_table(const std::vector<LayerMeasurement>& layers) {
  Table table({{"model", Align::left},
               {"gpu", Align::left},
               {"layer", Align::left},
               {"precision", Align::left},
               {"recompute", Align::left},
               {"tensor parallel"},
               {"sequence"},
               {"micro-batch"},
               {"busy ranks"},
               {"forward"},
               {"backward"},
               {"update"},
               {"spread"},
               {"samples"},
               {"activation"},
               {"output"},
               {"workspace"}});
  for (const LayerMeasurement& row : layers)
    table.add_row({row.key.model, row.key.gpu, std::string(to_string(row.key.kind)),
                   std::string(to_string(row.key.precision)), std::string(to_string(row.key.recompute)),
                   fmt::to_string(row.key.tensor_parallel), fmt::to_string(row.key.sequence_length),
                   fmt::to_string(row.key.micro_batch), fmt::to_string(row.key.busy_ranks),
                   format_time(row.forward.median), format_time(row.backward.median), format_time(row.update.median),
                   fmt::format("{:.0f}%", 100.0 * row.forward.relative_spread()), fmt::to_string(row.forward.samples),
                   format_bytes(row.activation), format_bytes(row.output), format_bytes(row.workspace)});
  return captioned(table, {"model", "gpu", "precision", "recompute", "tensor parallel", "sequence", "busy ranks"});
}

std::string link_table(const std::vector<LinkMeasurement>& links) {
  Table table({{"from", Align::left},
               {"to", Align::left},
               {"scope", Align::left},
               {"operation", Align::left},
               {"ranks"},
               {"message"},
               {"time"},
               {"bandwidth"},
               {"spread"},
               {"samples"}});
  for (const LinkMeasurement& row : links) {
    const bool timed = row.time.median.value() > 0.0;
    table.add_row({row.from_gpu, row.to_gpu, std::string(to_string(row.scope)), std::string(to_string(row.operation)),
                   fmt::to_string(row.ranks), format_bytes(row.message), format_time(row.time.median),
                   timed ? format_bandwidth(BytesPerSecond(row.message.value() / row.time.median.value())) : "-",
                   fmt::format("{:.0f}%", 100.0 * row.time.relative_spread()), fmt::to_string(row.time.samples)});
  }
  return captioned(table, {"from", "to", "scope", "ranks"});
}

std::string process_table(const std::vector<ProcessMeasurement>& processes) {
  Table table({{"gpu", Align::left}, {"framework", Align::left}, {"base memory"}});
  for (const ProcessMeasurement& row : processes)
    table.add_row({row.gpu, row.framework, format_bytes(row.base_memory)});
  return table.to_string();
}

void put_times(nlohmann::ordered_json& row, const std::string& name, const TimeStatistics& times) {
  row[name + "_median_s"] = times.median.value();
  row[name + "_p10_s"] = times.p10.value();
  row[name + "_p90_s"] = times.p90.value();
  row[name + "_samples"] = times.samples;
}

}  // namespace

std::string profile_tables(const ProfileData& data) {
  std::string text;
  auto add = [&](const std::string& title, const std::string& table) {
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", title, table);
  };
  if (!data.layers.empty())
    add("Layers (per micro-batch on one rank; spread: (p90 - p10) / median of forward)", layer_table(data.layers));
  if (!data.links.empty()) add("Links (a message one way; a sum on its slowest rank)", link_table(data.links));
  if (!data.processes.empty()) add("Processes (resident before the first tensor)", process_table(data.processes));
  return text;
}

std::string provenance_text(const Provenance& provenance) {
  std::string text;
  for (const auto& [name, value] : fields_of(provenance))
    if (!value->empty()) text += fmt::format("{}: {}\n", name, *value);
  return text;
}

std::string profile_json(const ProfileData& data) {
  nlohmann::ordered_json root;
  for (const auto& [name, value] : fields_of(data.provenance)) root["provenance"][name] = *value;
  root["layers"] = nlohmann::ordered_json::array();
  for (const LayerMeasurement& layer : data.layers) {
    nlohmann::ordered_json row;
    row["model"] = layer.key.model;
    row["gpu"] = layer.key.gpu;
    row["precision"] = to_string(layer.key.precision);
    row["recompute"] = to_string(layer.key.recompute);
    row["tensor_parallel"] = layer.key.tensor_parallel;
    row["micro_batch"] = layer.key.micro_batch;
    row["sequence_length"] = layer.key.sequence_length;
    row["busy_ranks"] = layer.key.busy_ranks;
    row["layer_kind"] = to_string(layer.key.kind);
    put_times(row, "forward", layer.forward);
    put_times(row, "backward", layer.backward);
    put_times(row, "update", layer.update);
    row["parameters"] = layer.parameters;
    row["activation_bytes"] = layer.activation.value();
    row["output_bytes"] = layer.output.value();
    row["workspace_bytes"] = layer.workspace.value();
    root["layers"].push_back(std::move(row));
  }
  root["links"] = nlohmann::ordered_json::array();
  for (const LinkMeasurement& link : data.links) {
    nlohmann::ordered_json row;
    row["from_gpu"] = link.from_gpu;
    row["to_gpu"] = link.to_gpu;
    row["scope"] = to_string(link.scope);
    row["operation"] = to_string(link.operation);
    row["ranks"] = link.ranks;
    row["message_bytes"] = link.message.value();
    put_times(row, "time", link.time);
    root["links"].push_back(std::move(row));
  }
  root["processes"] = nlohmann::ordered_json::array();
  for (const ProcessMeasurement& process : data.processes) {
    nlohmann::ordered_json row;
    row["gpu"] = process.gpu;
    row["framework"] = process.framework;
    row["base_memory_bytes"] = process.base_memory.value();
    root["processes"].push_back(std::move(row));
  }
  // Text from a file may be no UTF-8.
  return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sailor::apps
