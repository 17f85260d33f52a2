// What sailor-simulate says about one plan, for people and for programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/terminal.hpp"
#include "reports/prediction.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;
using simulator::Bound;
using simulator::Prediction;
using simulator::RankMemory;
using simulator::StagePrediction;

namespace {

constexpr std::size_t most_rows = 40;  ///< of a table

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

const Pipeline& pipeline_of(const Plan& plan, const StagePrediction& row) {
  return plan.pipelines[static_cast<std::size_t>(row.pipeline_entry)];
}

const Stage& stage_of(const Plan& plan, const StagePrediction& row) {
  return pipeline_of(plan, row).stages[static_cast<std::size_t>(row.stage)];
}

std::string pipeline_text(const Plan& plan, const StagePrediction& row) {
  const int count = pipeline_of(plan, row).count;
  return count > 1 ? fmt::format("{} (x{})", row.pipeline_entry, count) : fmt::format("{}", row.pipeline_entry);
}

/// What bounds the iteration, in words.
std::string bound_text(const Prediction& prediction) {
  switch (prediction.bound) {
    case Bound::compute: {
      double busiest = 0.0;
      for (const StagePrediction& stage : prediction.stages) busiest = std::max(busiest, stage.busy);
      return fmt::format("computation (the busiest stage computes {:.0f}% of the time)", busiest * 100.0);
    }
    case Bound::transfers:
      return "messages between stages";
    case Bound::reduction:
      return "the reduction of gradients between pipelines";
    case Bound::bubble:
      return "the bubble (few micro-batches for the number of stages)";
  }
  return "";
}

/// The stage that ends last, as a reader finds it in the tables.
std::string straggler_text(const Plan& plan, const Prediction& prediction) {
  for (const StagePrediction& row : prediction.stages)
    if (row.pipeline_entry == prediction.straggler_entry && row.stage == prediction.straggler_stage) {
      const Stage& stage = stage_of(plan, row);
      const std::string of_pipeline =
          plan.pipelines.size() > 1 ? fmt::format(" of pipeline {}", row.pipeline_entry) : std::string();
      const std::string in_zone = stage.zone.empty() ? "" : " in " + stage.zone;
      return fmt::format("stage {}{} on {}{}", row.stage, of_pipeline, stage.gpu, in_zone);
    }
  return "";
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

/// Rows of a table of stages: consecutive stages with the same cells share a row.
class StageRows {
 public:
  /// Adds a stage; `cells` come after the columns pipeline, stage and layers.
  void add(const Plan& plan, const StagePrediction& row, std::vector<std::string> cells) {
    const Stage& stage = stage_of(plan, row);
    if (!rows_.empty()) {
      Row& last = rows_.back();
      if (last.entry == row.pipeline_entry && last.last + 1 == row.stage && last.cells == cells &&
          stage.chunks() == 1 && last.chunks == 1) {
        last.last = row.stage;
        last.end_layer = stage.layers.last;
        return;
      }
    }
    std::vector<std::string> chunks;
    for (int chunk = 0; chunk < stage.chunks(); ++chunk)
      chunks.push_back(fmt::format("[{}, {})", stage.chunk(chunk).first, stage.chunk(chunk).last));
    rows_.push_back({.pipeline = pipeline_text(plan, row),
                     .entry = row.pipeline_entry,
                     .first = row.stage,
                     .last = row.stage,
                     .first_layer = stage.layers.first,
                     .end_layer = stage.layers.last,
                     .chunks = stage.chunks(),
                     .layers = fmt::format("{}", fmt::join(chunks, " ")),
                     .cells = std::move(cells)});
  }

  /// The table without columns that are zero or empty in all rows. Columns that are equal in all rows and named in
  /// `folded` are in a line below instead.
  [[nodiscard]] std::string to_string(std::vector<Table::Column> columns, const std::vector<std::string_view>& folded) {
    columns.insert(columns.begin(), {{"pipeline"}, {"stage"}, {"layers"}});
    for (Row& row : rows_) {
      const bool several = row.last > row.first;
      row.cells.insert(
          row.cells.begin(),
          {row.pipeline, several ? fmt::format("{}-{}", row.first, row.last) : fmt::format("{}", row.first),
           several ? fmt::format("[{}, {})", row.first_layer, row.end_layer) : row.layers});
    }
    std::vector<std::size_t> shown;
    std::vector<std::string> same;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string& first = rows_.front().cells[c];
      const bool one_value =
          std::all_of(rows_.begin(), rows_.end(), [&](const Row& row) { return row.cells[c] == first; });
      if (one_value && (first.empty() || first == "0 B" || first == "0 s")) continue;
      const bool may_fold = std::find(folded.begin(), folded.end(), columns[c].title) != folded.end();
      if (one_value && may_fold && rows_.size() > 1)
        same.push_back(fmt::format("{} {}", columns[c].title, first));
      else
        shown.push_back(c);
    }
    std::vector<Table::Column> titles;
    for (const std::size_t c : shown) titles.push_back(columns[c]);
    Table table(titles);
    const std::size_t left_out = rows_.size() > most_rows ? rows_.size() - most_rows : 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      std::vector<std::string> cells;
      if (left_out > 0 && i == most_rows / 2) {
        table.add_row(std::vector<std::string>(shown.size(), "..."));
        i += left_out;
      }
      for (const std::size_t c : shown) cells.push_back(rows_[i].cells[c]);
      table.add_row(std::move(cells));
    }
    std::string text = table.to_string();
    if (!same.empty()) text += fmt::format("all: {}\n", fmt::join(same, ", "));
    if (left_out > 0)
      text += fmt::format("{} in the middle left out (--format json has all stages)\n", plural(left_out, "row"));
    return text;
  }

 private:
  struct Row {
    std::string pipeline;
    int entry;
    int first;  // stage
    int last;
    int first_layer;
    int end_layer;
    int chunks;
    std::string layers;
    std::vector<std::string> cells;
  };
  std::vector<Row> rows_;
};

std::string times_table(const Plan& plan, const Prediction& prediction) {
  StageRows rows;
  for (const StagePrediction& row : prediction.stages) {
    const Stage& stage = stage_of(plan, row);
    rows.add(plan, row,
             {stage.gpu, stage.zone, fmt::format("{}", stage.tensor_parallel),
              stage.recompute == Recompute::none ? std::string() : std::string(to_string(stage.recompute)),
              format_time(row.forward), format_time(row.backward), format_time(row.link),
              format_time(row.synchronization), format_time(row.update), fmt::format("{:.0f}%", row.busy * 100.0)});
  }
  return rows.to_string({{"gpu", Align::left},
                         {"zone", Align::left},
                         {"tp"},
                         {"recompute", Align::left},
                         {"forward"},
                         {"backward"},
                         {"link"},
                         {"reduce"},
                         {"update"},
                         {"busy"}},
                        {"pipeline", "gpu", "zone", "tp", "recompute"});
}

std::string memory_table(const Plan& plan, const Prediction& prediction) {
  StageRows rows;
  for (const StagePrediction& row : prediction.stages) {
    const RankMemory& memory = row.memory;
    rows.add(plan, row,
             {format_bytes(memory.weights), format_bytes(memory.gradients), format_bytes(memory.optimizer),
              format_bytes(memory.copies), format_bytes(memory.activations), format_bytes(memory.logits),
              format_bytes(memory.workspace), format_bytes(memory.communication), format_bytes(memory.base),
              format_bytes(memory.total()), row.capacity ? format_bytes(*row.capacity) : std::string(),
              row.fits() ? "" : "too much"});
  }
  return rows.to_string({{"weights"},
                         {"gradients"},
                         {"optimizer"},
                         {"copies"},
                         {"activations"},
                         {"logits"},
                         {"workspace"},
                         {"buffers"},
                         {"base"},
                         {"total"},
                         {"device has"},
                         {"", Align::left}},
                        {"pipeline", "layers", "base", "device has"});
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
  text += times_table(plan, prediction);
  text += "\nMemory of a rank:\n";
  return text + memory_table(plan, prediction);
}

}  // namespace sailor::reports
