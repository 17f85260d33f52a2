#include "reports/stage_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

namespace sailor::reports {

using simulator::Bound;
using simulator::Prediction;
using simulator::RankMemory;
using simulator::StagePrediction;

namespace {

constexpr std::size_t most_stage_rows = 40;  ///< of a table

const Pipeline& pipeline_of(const Plan& plan, const StagePrediction& row) {
  return plan.pipelines[static_cast<std::size_t>(row.pipeline_entry)];
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
    rows_.push_back({.pipeline = pipeline_text(plan, row),
                     .entry = row.pipeline_entry,
                     .first = row.stage,
                     .last = row.stage,
                     .first_layer = stage.layers.first,
                     .end_layer = stage.layers.last,
                     .chunks = stage.chunks(),
                     .layers = layers_text(stage),
                     .cells = std::move(cells)});
  }

  /// The table. Columns that are equal in all rows and named in `folded` are in StageTable::same instead.
  [[nodiscard]] StageTable to_table(std::vector<Table::Column> columns, const std::vector<std::string_view>& folded) {
    columns.insert(columns.begin(), {{"pipeline"}, {"stage"}, {"layers"}});
    for (Row& row : rows_) {
      const bool several = row.last > row.first;
      row.cells.insert(
          row.cells.begin(),
          {row.pipeline, several ? fmt::format("{}-{}", row.first, row.last) : fmt::format("{}", row.first),
           several ? fmt::format("[{}, {})", row.first_layer, row.end_layer) : row.layers});
    }
    StageTable table;
    const std::vector<std::size_t> shown = choose_columns(columns, folded, table);
    table.left_out = rows_.size() > most_stage_rows ? rows_.size() - most_stage_rows : 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (table.left_out > 0 && i == most_stage_rows / 2) {
        table.rows.emplace_back(shown.size(), "...");
        i += table.left_out;
      }
      std::vector<std::string>& cells = table.rows.emplace_back();
      for (const std::size_t c : shown) cells.push_back(rows_[i].cells[c]);
    }
    return table;
  }

 private:
  /// Indices of the columns to show; sets their titles, and StageTable::same.
  std::vector<std::size_t> choose_columns(const std::vector<Table::Column>& columns,
                                          const std::vector<std::string_view>& folded, StageTable& table) const {
    std::vector<std::size_t> shown;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string& first = rows_.front().cells[c];
      const bool one_value =
          std::all_of(rows_.begin(), rows_.end(), [&](const Row& row) { return row.cells[c] == first; });
      if (one_value && (first.empty() || first == "0 B" || first == "0 s")) continue;
      const bool may_fold = std::find(folded.begin(), folded.end(), columns[c].title) != folded.end();
      if (one_value && may_fold && rows_.size() > 1)
        table.same += fmt::format("{}{} {}", table.same.empty() ? "" : ", ", columns[c].title, first);
      else
        shown.push_back(c);
    }
    for (const std::size_t c : shown) table.columns.push_back(columns[c]);
    return shown;
  }

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

}  // namespace

const Stage& stage_of(const Plan& plan, const StagePrediction& row) {
  return pipeline_of(plan, row).stages[static_cast<std::size_t>(row.stage)];
}

std::string pipeline_text(const Plan& plan, const StagePrediction& row) {
  const int count = pipeline_of(plan, row).count;
  return count > 1 ? fmt::format("{} (x{})", row.pipeline_entry, count) : fmt::format("{}", row.pipeline_entry);
}

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

std::string layers_text(const Stage& stage) {
  std::string text;
  for (int chunk = 0; chunk < stage.chunks(); ++chunk)
    text += fmt::format("{}[{}, {})", chunk == 0 ? "" : " ", stage.chunk(chunk).first, stage.chunk(chunk).last);
  return text;
}

StageTable times_table(const Plan& plan, const Prediction& prediction) {
  StageRows rows;
  for (const StagePrediction& row : prediction.stages) {
    const Stage& stage = stage_of(plan, row);
    rows.add(plan, row,
             {stage.gpu, stage.zone, fmt::format("{}", stage.tensor_parallel),
              stage.recompute == Recompute::none ? std::string() : std::string(to_string(stage.recompute)),
              format_time(row.forward), format_time(row.backward), format_time(row.link),
              format_time(row.synchronization), format_time(row.update), fmt::format("{:.0f}%", row.busy * 100.0)});
  }
  return rows.to_table({{"gpu", Align::left},
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

StageTable memory_table(const Plan& plan, const Prediction& prediction) {
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
  return rows.to_table({{"weights"},
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

std::string to_text(const StageTable& table) {
  Table rows(table.columns);
  for (const std::vector<std::string>& row : table.rows) rows.add_row(row);
  std::string text = rows.to_string();
  if (!table.same.empty()) text += fmt::format("all: {}\n", table.same);
  if (table.left_out > 0)
    text += fmt::format("{} in the middle left out (--format json has all stages)\n", plural(table.left_out, "row"));
  return text;
}

}  // namespace sailor::reports
