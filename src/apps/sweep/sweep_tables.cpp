#include "apps/sweep/sweep_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/files.hpp"
#include "core/log.hpp"
#include "core/output_fit.hpp"
#include "core/process.hpp"
#include "core/terminal.hpp"

namespace sailor::apps::sweep {

namespace {

using nlohmann::ordered_json;

/// The formatted value; "-" if it is not known.
template <class T, class Format>
std::string known(const std::optional<T>& value, Format format) {
  return value ? format(*value) : std::string("-");
}

std::string four_digits(double value) { return fmt::format("{:.4g}", value); }

template <class T>
ordered_json value_of(const std::optional<T>& value) {
  if (!value) return nullptr;
  if constexpr (std::is_arithmetic_v<T>)
    return *value;
  else
    return value->value();
}

ordered_json score_json(const SweepScore& score) {
  return {{"iteration_time_s", value_of(score.iteration_time)},
          {"throughput_iterations_per_s", value_of(score.throughput)},
          {"cost_usd_per_iteration", value_of(score.cost)},
          {"egress_cost_usd_per_iteration", value_of(score.egress_cost)},
          {"peak_memory_bytes", value_of(score.peak_memory)},
          {"fits", value_of(score.fits)}};
}

ordered_json row_json(const SweepRow& row) {
  ordered_json json{{"planner", row.planner},
                    {"model", row.model},
                    {"cluster", row.cluster},
                    {"constraint", row.constraint},
                    {"repetition", row.repetition},
                    {"status", to_string(row.status)},
                    {"why", row.why}};
  json.update(score_json(row.judged));
  json["expected"] = {{"throughput_iterations_per_s", value_of(row.expected_throughput)},
                      {"cost_usd_per_iteration", value_of(row.expected_cost)}};
  json["gpus"] = value_of(row.gpus);
  json["gpu_types"] = row.gpu_types;
  json["description"] = row.description;
  json["proposed"] = value_of(row.proposed);
  json["did_not_fit"] = value_of(row.did_not_fit);
  json["rejected_by_limits"] = value_of(row.rejected_by_limits);
  json["artifact"] = score_json(row.artifact);
  json["simulator"] = score_json(row.simulator);
  json["out_of_time"] = value_of(row.out_of_time);
  json["notes"] = row.notes;
  json["measured"] = {{"search_time_s", value_of(row.search_time)},
                      {"wall_time_s", value_of(row.wall_time)},
                      {"processor_time_s", value_of(row.processor_time)},
                      {"peak_resident_memory_bytes", value_of(row.peak_resident_memory)}};
  return json;
}

std::string table_text(const Sweep& sweep, const std::vector<SweepRow>& rows) {
  Table table({{"planner", Align::left},
               {"model", Align::left},
               {"cluster", Align::left},
               {"constraint", Align::left},
               {"repetition"},
               {"iterations/s"},
               {"USD/iteration"},
               {"peak memory"},
               {"devices", Align::left},
               {"did not fit"},
               {"wall time"},
               {"remark", Align::left}});
  for (const SweepRow& row : rows)
    table.add_row({row.planner, row.model, row.cluster, row.constraint, std::to_string(row.repetition),
                   known(row.judged.throughput, four_digits), known(row.judged.cost, format_usd),
                   known(row.judged.peak_memory, format_bytes), row.gpu_types.empty() ? "-" : row.gpu_types,
                   known(row.did_not_fit, [](std::int64_t count) { return std::to_string(count); }),
                   known(row.wall_time, format_time),
                   row.status == SweepStatus::plan ? "" : fmt::format("{}: {}", to_string(row.status), row.why)});
  const std::string common = table.fold_constant_columns({"model", "cluster", "constraint", "repetition"});
  const auto count = [&](SweepStatus status) {
    return std::count_if(rows.begin(), rows.end(), [&](const SweepRow& row) { return row.status == status; });
  };
  return fitted(fmt::format("{}{}\n\n{}\n{}: {} with a plan, {} without, {} failed\n", sweep.experiment.title,
                            common.empty() ? "" : fmt::format(" ({})", common), table.to_string(),
                            plural(rows.size(), "point"), count(SweepStatus::plan), count(SweepStatus::no_plan),
                            count(SweepStatus::failed)));
}

}  // namespace

Result<void> write_tables(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& tool,
                          const std::string& command) {
  const SweepRecord record{
      .provenance = {.tool = tool,
                     .command = command,
                     .host = host_name(),
                     .device = fmt::format("{} hardware threads", std::thread::hardware_concurrency()),
                     .versions = {},
                     .date = {},
                     .source = fmt::format("answers rest on program and measurements {}", sweep.inputs)},
      .experiment_toml = sweep.experiment.text,
      .rows = rows};
  const auto file = [&](const char* ending) { return sweep.folder / (sweep.experiment.name + ending); };
  SAILOR_CHECK(save_sweep(record, file(".h5")));
  SAILOR_CHECK(write_file_atomically(file(".csv"), sweep_csv(rows)));
  log_info("wrote {} and {}", file(".h5").string(), file(".csv").filename().string());
  return {};
}

std::string report(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& format) {
  if (format == "csv") return sweep_csv(rows);
  if (format != "json") return table_text(sweep, rows);
  ordered_json points = ordered_json::array();
  for (const SweepRow& row : rows) points.push_back(row_json(row));
  return ordered_json({{"experiment", sweep.experiment.name},
                       {"title", sweep.experiment.title},
                       {"folder", sweep.folder.string()},
                       {"points", std::move(points)}})
             .dump(2) +
         "\n";
}

int exit_status_of(const std::vector<SweepRow>& rows) {
  if (std::any_of(rows.begin(), rows.end(), [](const SweepRow& row) { return row.status == SweepStatus::failed; }))
    return 1;
  return std::any_of(rows.begin(), rows.end(), [](const SweepRow& row) { return row.status == SweepStatus::plan; }) ? 0
                                                                                                                    : 3;
}

}  // namespace sailor::apps::sweep
