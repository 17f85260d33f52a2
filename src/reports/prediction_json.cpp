#include "reports/prediction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/terminal.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;

namespace {

/// Predicted and measured value of one figure.
struct Comparison {
  double predicted;
  double measured;
  [[nodiscard]] double error_percent() const { return measured != 0.0 ? (predicted / measured - 1.0) * 100.0 : 0.0; }
};

Comparison compare_time(const simulator::Prediction& prediction, Seconds measured) {
  return {prediction.iteration_time.value(), measured.value()};
}

Comparison compare_memory(const simulator::Prediction& prediction, Bytes measured) {
  return {prediction.peak_memory.value(), measured.value()};
}

/// [first, last], or a list of them where the stage holds several chunks.
ordered_json layers_to_json(const Stage& stage) {
  if (stage.later_chunks.empty()) return {stage.layers.first, stage.layers.last};
  ordered_json chunks = ordered_json::array();
  for (int i = 0; i < stage.chunks(); ++i)
    chunks.push_back(ordered_json::array({stage.chunk(i).first, stage.chunk(i).last}));
  return chunks;
}

}  // namespace

ordered_json plan_to_json(const Plan& plan) {
  ordered_json pipelines = ordered_json::array();
  for (const Pipeline& pipeline : plan.pipelines) {
    ordered_json stages = ordered_json::array();
    for (const Stage& stage : pipeline.stages)
      stages.push_back({{"layers", layers_to_json(stage)},
                        {"gpu", stage.gpu},
                        {"tensor_parallel", stage.tensor_parallel},
                        {"zone", stage.zone},
                        {"recompute", to_string(stage.recompute)}});
    pipelines.push_back({{"count", pipeline.count},
                         {"micro_batches", pipeline.micro_batches},
                         {"micro_batch", plan.micro_batch_of(pipeline)},
                         {"stages", std::move(stages)}});
  }
  return {{"job",
           {{"model", plan.job.model},
            {"global_batch", plan.job.global_batch},
            {"sequence_length", plan.job.sequence_length},
            {"precision", to_string(plan.job.precision)},
            {"optimizer", to_string(plan.job.optimizer)}}},
          {"micro_batch", plan.micro_batch},
          {"schedule", to_string(plan.schedule)},
          {"optimizer_sharding", to_string(plan.optimizer_sharding)},
          {"sharding_degree", plan.sharding_degree},
          {"data_parallel", plan.data_parallel()},
          {"context_parallel", plan.context_parallel},
          {"expert_parallel", plan.expert_parallel},
          {"ranks", plan.ranks()},
          {"pipelines", std::move(pipelines)}};
}

std::string estimates_text(const std::vector<simulator::EstimatedInput>& inputs) {
  constexpr std::size_t most = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(inputs.size(), most); ++i)
    text += fmt::format("{}: {}\n", to_string(inputs[i].origin), inputs[i].what);
  if (inputs.size() > most) text += fmt::format("and {} more (--format json lists all)\n", inputs.size() - most);
  return text;
}

std::string published_text() {
  return "published: layer times and links are figures of others, not measured here (sailor-profile list names them)\n";
}

std::string comparison_report(const simulator::Prediction& prediction, const RunRecord& run) {
  const TimeStatistics measured = run.iteration_time();
  const Comparison time = compare_time(prediction, measured.median);
  const Comparison memory = compare_memory(prediction, run.peak_resident_memory());
  Table table({{"", Align::left}, {"predicted"}, {"measured"}, {"error"}, {"spread (p10 to p90)"}});
  table.add_row({"iteration time", format_time(prediction.iteration_time), format_time(measured.median),
                 fmt::format("{:+.1f}%", time.error_percent()),
                 fmt::format("{} to {}", format_time(measured.p10), format_time(measured.p90))});
  table.add_row({"peak memory", format_bytes(prediction.peak_memory), format_bytes(run.peak_resident_memory()),
                 fmt::format("{:+.1f}%", memory.error_percent()), "largest over ranks"});
  const bool is_outside =
      measured.median < prediction.iteration_time_p5 || measured.median > prediction.iteration_time_p95;
  return table.to_string() +
         fmt::format("measured: median of {} after {} of warm-up\n",
                     plural(static_cast<std::size_t>(measured.samples), "iteration"),
                     plural(static_cast<std::size_t>(run.warm_up_iterations), "iteration")) +
         fmt::format("predicted: from {} to {} (P5 to P95){}\n", format_time(prediction.iteration_time_p5),
                     format_time(prediction.iteration_time_p95),
                     is_outside
                         ? "; the measured time lies outside: were nodes busy with other work, then or while they "
                           "were profiled?"
                         : "");
}

ordered_json comparison_to_json(const simulator::Prediction& prediction, const RunRecord& run) {
  const TimeStatistics measured = run.iteration_time();
  return {{"measured_iteration_time_s", measured.median.value()},
          {"measured_iteration_time_p10_s", measured.p10.value()},
          {"measured_iteration_time_p90_s", measured.p90.value()},
          {"measured_iterations", measured.samples},
          {"iteration_time_error_percent", compare_time(prediction, measured.median).error_percent()},
          {"measured_peak_memory_bytes", run.peak_resident_memory().value()},
          {"peak_memory_error_percent", compare_memory(prediction, run.peak_resident_memory()).error_percent()}};
}

std::string comparison_report(const simulator::Prediction& prediction, std::optional<Seconds> time,
                              std::optional<Bytes> memory) {
  Table table({{"", Align::left}, {"predicted"}, {"measured"}, {"error"}});
  if (time)
    table.add_row({"iteration time", format_time(prediction.iteration_time), format_time(*time),
                   fmt::format("{:+.1f}%", compare_time(prediction, *time).error_percent())});
  if (memory)
    table.add_row({"peak memory", format_bytes(prediction.peak_memory), format_bytes(*memory),
                   fmt::format("{:+.1f}%", compare_memory(prediction, *memory).error_percent())});
  return table.to_string();
}

ordered_json comparison_to_json(const simulator::Prediction& prediction, std::optional<Seconds> time,
                                std::optional<Bytes> memory) {
  ordered_json json{{"measured_iteration_time_s", nullptr},
                    {"iteration_time_error_percent", nullptr},
                    {"measured_peak_memory_bytes", nullptr},
                    {"peak_memory_error_percent", nullptr}};
  if (time) {
    json["measured_iteration_time_s"] = time->value();
    json["iteration_time_error_percent"] = compare_time(prediction, *time).error_percent();
  }
  if (memory) {
    json["measured_peak_memory_bytes"] = memory->value();
    json["peak_memory_error_percent"] = compare_memory(prediction, *memory).error_percent();
  }
  return json;
}

}  // namespace sailor::reports
