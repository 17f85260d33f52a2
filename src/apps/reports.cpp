#include "apps/reports.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/terminal.hpp"

namespace sailor::apps {

using nlohmann::ordered_json;

namespace {

constexpr const char* published_note =
    "published: layer times and links are figures of others, not measured here (sailor-profile list names them)\n";

/// Predicted and measured value of one figure.
struct Comparison {
  double predicted;
  double measured;
  [[nodiscard]] double error_percent() const { return measured != 0.0 ? (predicted / measured - 1.0) * 100.0 : 0.0; }
};

Comparison compare_time(const simulator::Prediction& prediction, const RunRecord& run) {
  return {prediction.iteration_time.value(), run.iteration_time().median.value()};
}

Comparison compare_memory(const simulator::Prediction& prediction, const RunRecord& run) {
  return {prediction.peak_memory.value(), run.peak_resident_memory().value()};
}

ordered_json memory_to_json(const simulator::RankMemory& memory) {
  return {{"weights_bytes", memory.weights.value()},     {"gradients_bytes", memory.gradients.value()},
          {"optimizer_bytes", memory.optimizer.value()}, {"activations_bytes", memory.activations.value()},
          {"workspace_bytes", memory.workspace.value()}, {"communication_bytes", memory.communication.value()},
          {"base_bytes", memory.base.value()},           {"total_bytes", memory.total().value()}};
}

}  // namespace

ordered_json plan_to_json(const Plan& plan) {
  ordered_json pipelines = ordered_json::array();
  for (const Pipeline& pipeline : plan.pipelines) {
    ordered_json stages = ordered_json::array();
    for (const Stage& stage : pipeline.stages)
      stages.push_back({{"layers", {stage.layers.first, stage.layers.last}},
                        {"gpu", stage.gpu},
                        {"tensor_parallel", stage.tensor_parallel},
                        {"zone", stage.zone},
                        {"recompute", to_string(stage.recompute)}});
    pipelines.push_back(
        {{"count", pipeline.count}, {"micro_batches", pipeline.micro_batches}, {"stages", std::move(stages)}});
  }
  return {{"job",
           {{"model", plan.job.model},
            {"global_batch", plan.job.global_batch},
            {"sequence_length", plan.job.sequence_length},
            {"precision", to_string(plan.job.precision)},
            {"optimizer", to_string(plan.job.optimizer)}}},
          {"micro_batch", plan.micro_batch},
          {"schedule", to_string(plan.schedule)},
          {"data_parallel", plan.data_parallel()},
          {"ranks", plan.ranks()},
          {"pipelines", std::move(pipelines)}};
}

ordered_json prediction_to_json(const simulator::Prediction& prediction) {
  ordered_json stages = ordered_json::array();
  for (const simulator::StagePrediction& stage : prediction.stages) {
    ordered_json row = {{"pipeline", stage.pipeline_entry},
                        {"stage", stage.stage},
                        {"forward_s", stage.forward.value()},
                        {"backward_s", stage.backward.value()},
                        {"link_s", stage.link.value()},
                        {"synchronization_s", stage.synchronization.value()},
                        {"update_s", stage.update.value()},
                        {"memory", memory_to_json(stage.memory)},
                        {"fits", stage.fits()}};
    row["capacity_bytes"] = stage.capacity ? ordered_json(stage.capacity->value()) : ordered_json(nullptr);
    stages.push_back(std::move(row));
  }
  ordered_json inputs = ordered_json::array();
  for (const simulator::EstimatedInput& input : prediction.estimated_inputs)
    inputs.push_back({{"origin", to_string(input.origin)}, {"what", input.what}});
  return {{"iteration_time_s", prediction.iteration_time.value()},
          {"throughput_iterations_per_s", 1.0 / prediction.iteration_time.value()},
          {"pipeline_time_s", prediction.pipeline_time.value()},
          {"synchronization_time_s", prediction.synchronization_time.value()},
          {"update_time_s", prediction.update_time.value()},
          {"bubble_fraction", prediction.bubble_fraction},
          {"peak_memory_bytes", prediction.peak_memory.value()},
          {"fits", prediction.fits},
          {"origin", to_string(prediction.origin)},
          {"estimated_inputs", std::move(inputs)},
          {"cost_usd_per_iteration", prediction.cost_per_iteration.value()},
          {"gpu_cost_usd_per_iteration", prediction.gpu_cost_per_iteration.value()},
          {"egress_cost_usd_per_iteration", prediction.egress_cost_per_iteration.value()},
          {"stages", std::move(stages)}};
}

std::string prediction_report(const Plan& plan, const simulator::Prediction& prediction) {
  std::string text = fmt::format("{}: {}\n\n", plan.job.model, describe(plan));
  const bool capacity_known = std::all_of(prediction.stages.begin(), prediction.stages.end(),
                                          [](const auto& stage) { return stage.capacity.has_value(); });
  const double tokens = static_cast<double>(plan.job.global_batch) * plan.job.sequence_length;
  text += fmt::format("iteration time   {}  ({:.0f} tokens/s)\n", format_time(prediction.iteration_time),
                      tokens / prediction.iteration_time.value());
  text += fmt::format("  pipeline       {}  (bubble {:.1f}%)\n", format_time(prediction.pipeline_time),
                      prediction.bubble_fraction * 100.0);
  text += fmt::format("  reduction      {}\n", format_time(prediction.synchronization_time));
  text += fmt::format("  update         {}\n", format_time(prediction.update_time));
  text += fmt::format("peak memory      {}  ({})\n", format_bytes(prediction.peak_memory),
                      !prediction.fits ? "does not fit"
                      : capacity_known ? "fits"
                                       : "device memory not known: name the nodes with --cluster or --partition");
  text += fmt::format("cost             {} per iteration", format_usd(prediction.cost_per_iteration));
  if (prediction.egress_cost_per_iteration.value() > 0.0)
    text += fmt::format("  (of which {} egress)", format_usd(prediction.egress_cost_per_iteration));
  text += "\n" + estimates_text(prediction.estimated_inputs);
  if (prediction.origin == Origin::published) text += published_note;
  text += "\n";

  Table table({{"pipeline"},
               {"stage"},
               {"layers"},
               {"gpu", Align::left},
               {"tp"},
               {"forward"},
               {"backward"},
               {"link"},
               {"reduce"},
               {"update"},
               {"states"},
               {"activations"},
               {"other"},
               {"total"},
               {"device has"}});
  for (const simulator::StagePrediction& row : prediction.stages) {
    const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(row.pipeline_entry)];
    const Stage& stage = pipeline.stages[static_cast<std::size_t>(row.stage)];
    const simulator::RankMemory& memory = row.memory;
    table.add_row({pipeline.count > 1 ? fmt::format("{} (x{})", row.pipeline_entry, pipeline.count)
                                      : fmt::format("{}", row.pipeline_entry),
                   fmt::format("{}", row.stage), fmt::format("[{}, {})", stage.layers.first, stage.layers.last),
                   stage.gpu, fmt::format("{}", stage.tensor_parallel), format_time(row.forward),
                   format_time(row.backward), format_time(row.link), format_time(row.synchronization),
                   format_time(row.update), format_bytes(memory.weights + memory.gradients + memory.optimizer),
                   format_bytes(memory.activations),
                   format_bytes(memory.workspace + memory.communication + memory.base), format_bytes(memory.total()),
                   row.capacity ? format_bytes(*row.capacity) : "unknown"});
  }
  return text + table.to_string();
}

std::string estimates_text(const std::vector<simulator::EstimatedInput>& inputs) {
  constexpr std::size_t most = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(inputs.size(), most); ++i)
    text += fmt::format("{}: {}\n", to_string(inputs[i].origin), inputs[i].what);
  if (inputs.size() > most) text += fmt::format("and {} more (--format json lists all)\n", inputs.size() - most);
  return text;
}

std::string plans_table(const planner::SearchResult& result) {
  std::set<simulator::EstimatedInput> inputs;
  for (const planner::Candidate& candidate : result.plans)
    inputs.insert(candidate.prediction.estimated_inputs.begin(), candidate.prediction.estimated_inputs.end());
  const auto has = [&](Origin origin) {
    return std::any_of(result.plans.begin(), result.plans.end(),
                       [&](const auto& candidate) { return candidate.prediction.origin == origin; });
  };
  const bool only_measured = inputs.empty() && !has(Origin::published);
  std::vector<Table::Column> columns{{"#"},        {"gpu", Align::left}, {"ranks"}, {"data"},         {"pipeline"},
                                     {"tensor"},   {"micro-batch"},      {"time"},  {"iterations/s"}, {"peak memory"},
                                     {"headroom"}, {"USD/iteration"}};
  if (!only_measured) columns.push_back({"from", Align::left});
  Table table(columns);
  for (std::size_t i = 0; i < result.plans.size(); ++i) {
    const planner::Candidate& candidate = result.plans[i];
    const Plan& plan = candidate.plan;
    const Pipeline& pipeline = plan.pipelines.front();
    std::vector<std::string> row{fmt::format("{}", i + 1),
                                 pipeline.stages.front().gpu,
                                 fmt::format("{}", plan.ranks()),
                                 fmt::format("{}", plan.data_parallel()),
                                 fmt::format("{}", pipeline.stages.size()),
                                 fmt::format("{}", pipeline.stages.front().tensor_parallel),
                                 fmt::format("{}", plan.micro_batch),
                                 format_time(candidate.prediction.iteration_time),
                                 fmt::format("{:#.3g}", 1.0 / candidate.prediction.iteration_time.value()),
                                 format_bytes(candidate.prediction.peak_memory),
                                 fmt::format("{:.0f}%", candidate.memory_headroom * 100.0),
                                 format_usd(candidate.prediction.cost_per_iteration)};
    if (!only_measured) row.emplace_back(to_string(candidate.prediction.origin));
    table.add_row(std::move(row));
  }
  std::string notes = estimates_text({inputs.begin(), inputs.end()});
  if (has(Origin::published)) notes += published_note;
  return table.to_string() + (notes.empty() ? "" : "\n" + notes);
}

std::string comparison_report(const simulator::Prediction& prediction, const RunRecord& run) {
  const TimeStatistics measured = run.iteration_time();
  const Comparison time = compare_time(prediction, run);
  const Comparison memory = compare_memory(prediction, run);
  Table table({{"", Align::left}, {"predicted"}, {"measured"}, {"error"}, {"spread (p10 to p90)"}});
  table.add_row({"iteration time", format_time(prediction.iteration_time), format_time(measured.median),
                 fmt::format("{:+.1f}%", time.error_percent()),
                 fmt::format("{} to {}", format_time(measured.p10), format_time(measured.p90))});
  table.add_row({"peak memory", format_bytes(prediction.peak_memory), format_bytes(run.peak_resident_memory()),
                 fmt::format("{:+.1f}%", memory.error_percent()), "largest over ranks"});
  return table.to_string() + fmt::format("measured: median of {} after {} of warm-up\n",
                                         plural(static_cast<std::size_t>(measured.samples), "iteration"),
                                         plural(static_cast<std::size_t>(run.warm_up_iterations), "iteration"));
}

ordered_json comparison_to_json(const simulator::Prediction& prediction, const RunRecord& run) {
  const TimeStatistics measured = run.iteration_time();
  return {{"measured_iteration_time_s", measured.median.value()},
          {"measured_iteration_time_p10_s", measured.p10.value()},
          {"measured_iteration_time_p90_s", measured.p90.value()},
          {"measured_iterations", measured.samples},
          {"iteration_time_error_percent", compare_time(prediction, run).error_percent()},
          {"measured_peak_memory_bytes", run.peak_resident_memory().value()},
          {"peak_memory_error_percent", compare_memory(prediction, run).error_percent()}};
}

}  // namespace sailor::apps
