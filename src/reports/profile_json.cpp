// A profile as JSON: the names are those of the store's schema.
#include <nlohmann/json.hpp>
#include <utility>

#include "reports/profile_tables.hpp"

namespace sailor::reports {

namespace {

using nlohmann::ordered_json;

void put_times(ordered_json& row, const std::string& name, const TimeStatistics& times) {
  row[name + "_median_s"] = times.median.value();
  row[name + "_p10_s"] = times.p10.value();
  row[name + "_p90_s"] = times.p90.value();
  row[name + "_low_s"] = times.low.value();
  row[name + "_high_s"] = times.high.value();
  row[name + "_samples"] = times.samples;
}

void put_key(ordered_json& row, const LayerKey& key) {
  row["model"] = key.model;
  row["gpu"] = key.gpu;
  row["precision"] = to_string(key.precision);
  row["recompute"] = to_string(key.recompute);
  row["tensor_parallel"] = key.tensor_parallel;
  row["micro_batch"] = key.micro_batch;
  row["sequence_length"] = key.sequence_length;
  row["busy_ranks"] = key.busy_ranks;
  row["layer_kind"] = to_string(key.kind);
  row["first_layer"] = key.first_layer;
}

void put_key(ordered_json& row, const LinkKey& key) {
  row["from_gpu"] = key.from.gpu;
  row["from_zone"] = key.from.zone;
  row["from_ranks"] = key.from.ranks;
  row["to_gpu"] = key.to.gpu;
  row["to_zone"] = key.to.zone;
  row["to_ranks"] = key.to.ranks;
  row["scope"] = to_string(key.scope);
  row["operation"] = to_string(key.operation);
  row["ranks"] = key.ranks;
}

void put_fields(ordered_json& row, const LayerTime& layer) {
  put_key(row, layer.key);
  put_times(row, "forward", layer.forward);
  put_times(row, "backward", layer.backward);
  put_times(row, "update", layer.update);
  put_times(row, "cold_forward", layer.cold_forward);
  put_times(row, "cold_backward", layer.cold_backward);
}

void put_fields(ordered_json& row, const LayerMemory& layer) {
  put_key(row, layer.key);
  row["parameters"] = layer.parameters;
  row["activation_bytes"] = layer.activation.value();
  row["output_bytes"] = layer.output.value();
  row["input_bytes"] = layer.input.value();
  row["workspace_bytes"] = layer.workspace.value();
}

void put_fields(ordered_json& row, const OutOfMemory& failure) {
  put_key(row, failure.key);
  row["needed_bytes"] = failure.needed.value();
  row["available_bytes"] = failure.available.value();
}

void put_fields(ordered_json& row, const LinkMeasurement& link) {
  put_key(row, link.key);
  row["message_bytes"] = link.message.value();
  put_times(row, "time", link.time);
}

void put_fields(ordered_json& row, const LinkFit& fit) {
  put_key(row, fit.key);
  row["quadratic_gb_per_s"] = fit.curve.quadratic;
  row["linear_gb_per_s"] = fit.curve.linear;
  row["constant_gb_per_s"] = fit.curve.constant;
  row["largest_bandwidth_bytes_per_s"] = fit.curve.largest_bandwidth.value();
  row["smallest_message_bytes"] = fit.curve.smallest_message.value();
  row["largest_message_bytes"] = fit.curve.largest_message.value();
  row["latency_s"] = fit.curve.latency.value();
  row["median_error"] = fit.median_error;
  row["largest_error"] = fit.largest_error;
  row["points"] = fit.points;
}

void put_fields(ordered_json& row, const ProcessMeasurement& process) {
  row["gpu"] = process.gpu;
  row["framework"] = process.framework;
  row["base_memory_bytes"] = process.base_memory.value();
}

template <class Row>
ordered_json rows_of(const std::vector<Row>& rows) {
  ordered_json array = ordered_json::array();
  for (const Row& row : rows) {
    ordered_json object;
    put_fields(object, row);
    object["session"] = row.session;
    array.push_back(std::move(object));
  }
  return array;
}

}  // namespace

std::string profile_json(const ProfileData& data) {
  ordered_json root;
  root["sessions"] = ordered_json::array();
  for (const Session& session : data.sessions) {
    const Provenance& provenance = session.provenance;
    root["sessions"].push_back({{"id", session.id},
                                {"tool", provenance.tool},
                                {"command", provenance.command},
                                {"host", provenance.host},
                                {"device", provenance.device},
                                {"versions", provenance.versions},
                                {"date", provenance.date},
                                {"source", provenance.source},
                                {"lowest_clock_hz", session.lowest_clock_hz},
                                {"highest_clock_hz", session.highest_clock_hz},
                                {"slowdown", session.slowdown},
                                {"notes", session.notes}});
  }
  root["layer_times"] = rows_of(data.layer_times);
  root["layer_memory"] = rows_of(data.layer_memory);
  root["out_of_memory"] = rows_of(data.out_of_memory);
  root["links"] = rows_of(data.links);
  root["link_fits"] = rows_of(data.fits);
  root["processes"] = rows_of(data.processes);
  // Text from a file may be invalid UTF-8.
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sailor::reports
