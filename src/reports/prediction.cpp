// What sailor-simulate says about one plan, for people and for programs.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/terminal.hpp"
#include "reports/prediction.hpp"
#include "reports/stage_tables.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;
using simulator::Prediction;
using simulator::RankMemory;
using simulator::StagePrediction;

namespace {

ordered_json memory_to_json(const RankMemory& memory) {
  return {{"weights_bytes", memory.weights.value()},
          {"gradients_bytes", memory.gradients.value()},
          {"optimizer_bytes", memory.optimizer.value()},
          {"copies_bytes", memory.copies.value()},
          {"activations_bytes", memory.activations.value()},
          {"logits_bytes", memory.logits.value()},
          {"workspace_bytes", memory.workspace.value()},
          {"communication_bytes", memory.communication.value()},
          {"base_bytes", memory.base.value()},
          {"total_bytes", memory.total().value()}};
}

std::string cost_lines(const Prediction& prediction) {
  std::string text = fmt::format("cost             {} per iteration\n", format_usd(prediction.cost_per_iteration));
  if (prediction.device_costs.size() + prediction.egress_costs.size() == 0) return text;
  for (const simulator::DeviceCost& row : prediction.device_costs)
    text += fmt::format("  devices        {}  {} {}{}, each {}/h{}\n", format_usd(row.cost), row.devices, row.gpu,
                        row.zone.empty() ? "" : " in " + row.zone, format_usd(Usd(row.price.value())),
                        row.price_is_assumed ? " (assumed)" : "");
  for (const simulator::EgressCost& row : prediction.egress_costs)
    text += fmt::format("  egress         {}  {} from {} to {}\n", format_usd(row.cost), format_bytes(row.amount),
                        row.from, row.to);
  if (const auto hours = prediction.node_hours())
    text += fmt::format("node-hours       {:.3g} per iteration, on {}\n", *hours,
                        plural(static_cast<std::size_t>(*prediction.nodes), "node"));
  return text;
}

}  // namespace

ordered_json prediction_to_json(const Prediction& prediction) {
  ordered_json stages = ordered_json::array();
  for (const StagePrediction& stage : prediction.stages) {
    ordered_json row = {{"pipeline", stage.pipeline_entry},       {"stage", stage.stage},
                        {"forward_s", stage.forward.value()},     {"backward_s", stage.backward.value()},
                        {"link_s", stage.link.value()},           {"synchronization_s", stage.synchronization.value()},
                        {"update_s", stage.update.value()},       {"busy_fraction", stage.busy},
                        {"memory", memory_to_json(stage.memory)}, {"fits", stage.fits()}};
    row["capacity_bytes"] = stage.capacity ? ordered_json(stage.capacity->value()) : ordered_json(nullptr);
    stages.push_back(std::move(row));
  }
  ordered_json inputs = ordered_json::array();
  for (const simulator::EstimatedInput& input : prediction.estimated_inputs)
    inputs.push_back({{"origin", to_string(input.origin)}, {"what", input.what}});
  ordered_json devices = ordered_json::array();
  for (const simulator::DeviceCost& row : prediction.device_costs)
    devices.push_back({{"gpu", row.gpu},
                       {"zone", row.zone},
                       {"devices", row.devices},
                       {"price_usd_per_hour", row.price.value()},
                       {"price_is_assumed", row.price_is_assumed},
                       {"cost_usd_per_iteration", row.cost.value()}});
  ordered_json egress = ordered_json::array();
  for (const simulator::EgressCost& row : prediction.egress_costs)
    egress.push_back({{"from_zone", row.from},
                      {"to_zone", row.to},
                      {"bytes_per_iteration", row.amount.value()},
                      {"cost_usd_per_iteration", row.cost.value()}});
  return {{"iteration_time_s", prediction.iteration_time.value()},
          {"iteration_time_p5_s", prediction.iteration_time_p5.value()},
          {"iteration_time_p95_s", prediction.iteration_time_p95.value()},
          {"closed_form_time_s", prediction.closed_form_time.value()},
          {"throughput_iterations_per_s", 1.0 / prediction.iteration_time.value()},
          {"pipeline_time_s", prediction.pipeline_time.value()},
          {"synchronization_time_s", prediction.synchronization_time.value()},
          {"update_time_s", prediction.update_time.value()},
          {"bubble_fraction", prediction.bubble_fraction},
          {"model_flop_utilization", prediction.utilization ? ordered_json(*prediction.utilization) : ordered_json()},
          {"bound", to_string(prediction.bound)},
          {"straggler", {{"pipeline", prediction.straggler_entry}, {"stage", prediction.straggler_stage}}},
          {"peak_memory_bytes", prediction.peak_memory.value()},
          {"fits", prediction.fits},
          {"crosses_switches", prediction.crosses_switches},
          {"origin", to_string(prediction.origin)},
          {"estimated_inputs", std::move(inputs)},
          {"cost_usd_per_iteration", prediction.cost_per_iteration.value()},
          {"gpu_cost_usd_per_iteration", prediction.gpu_cost_per_iteration.value()},
          {"egress_cost_usd_per_iteration", prediction.egress_cost_per_iteration.value()},
          {"node_hours_per_iteration", prediction.nodes ? ordered_json(*prediction.node_hours()) : ordered_json()},
          {"nodes", prediction.nodes ? ordered_json(*prediction.nodes) : ordered_json()},
          {"device_costs", std::move(devices)},
          {"egress_costs", std::move(egress)},
          {"stages", std::move(stages)}};
}

std::string prediction_report(const Plan& plan, const Prediction& prediction) {
  std::string text = fmt::format("{} in {}: {}\n\n", plan.job.model, to_string(plan.job.precision), describe(plan));
  const bool capacity_known = std::all_of(prediction.stages.begin(), prediction.stages.end(),
                                          [](const auto& stage) { return stage.capacity.has_value(); });
  const double tokens = plan.job.tokens();
  text += fmt::format("iteration time   {}", format_time(prediction.iteration_time));
  if (prediction.iteration_time_p95 > prediction.iteration_time_p5)
    text += fmt::format("  (P5 to P95: {} to {})", format_time(prediction.iteration_time_p5),
                        format_time(prediction.iteration_time_p95));
  text += fmt::format("\n  pipelines      {}  (bubble {:.1f}%)\n", format_time(prediction.pipeline_time),
                      prediction.bubble_fraction * 100.0);
  text += fmt::format("  reduction      {}  (what is not hidden)\n", format_time(prediction.synchronization_time));
  text += fmt::format("  update         {}\n", format_time(prediction.update_time));
  const double tokens_per_s = tokens / prediction.iteration_time.value();
  text += tokens_per_s < 100.0 ? fmt::format("throughput       {:#.3g} tokens/s", tokens_per_s)
                               : fmt::format("throughput       {:.0f} tokens/s", tokens_per_s);
  if (prediction.utilization) {
    const double percent = *prediction.utilization * 100.0;
    text += percent < 1.0 ? fmt::format(", model FLOP utilization {:.2g}%", percent)
                          : fmt::format(", model FLOP utilization {:.1f}%", percent);
  }
  text += fmt::format("\nbound by         {}\n", bound_text(prediction));
  text += fmt::format("straggler        {}\n", straggler_text(plan, prediction));
  if (prediction.crosses_switches)
    text += fmt::format("switches         links across leaf switches count; {} first kept at one\n",
                        plan.keep_together == KeepTogether::pipelines ? "pipelines are" : "replicas of a stage are");
  text += fmt::format("peak memory      {}  ({})\n", format_bytes(prediction.peak_memory),
                      !prediction.fits ? "does not fit"
                      : capacity_known ? "fits"
                                       : "device memory not known: name the nodes with --cluster or --partition");
  text += cost_lines(prediction);
  text += estimates_text(prediction.estimated_inputs);
  if (prediction.origin == Origin::published) text += published_text();
  text += "\nTimes of a micro-batch (forward, backward, link) and of the iteration (reduce, update):\n";
  text += to_text(times_table(plan, prediction));
  text += "\nMemory of a rank:\n";
  return text + to_text(memory_table(plan, prediction));
}

}  // namespace sailor::reports
