// What is said of the stages of a predicted plan: two tables, and what bounds the iteration.
#pragma once

#include <string>
#include <vector>

#include "core/terminal.hpp"
#include "plan/plan.hpp"
#include "simulator/simulator.hpp"

namespace sailor::reports {

/// A row per stage. Consecutive stages with the same cells share a row; of very many rows the first and last are there,
/// with a row of "..." between them. Columns that are zero or empty in all rows are left out.
struct StageTable {
  std::vector<Table::Column> columns{};
  std::vector<std::vector<std::string>> rows{};
  std::string same{};        ///< columns that are equal in all rows: "gpu cpu, tp 1"; may be empty
  std::size_t left_out = 0;  ///< number of rows in the middle that are left out
};

/// Times of a micro-batch (forward, backward, link) and of the iteration (reduce, update).
StageTable times_table(const Plan& plan, const simulator::Prediction& prediction);
/// Memory of a rank of each stage.
StageTable memory_table(const Plan& plan, const simulator::Prediction& prediction);
/// As text, with the values that are equal in all rows below.
std::string to_text(const StageTable& table);

/// The stage of a prediction's row.
const Stage& stage_of(const Plan& plan, const simulator::StagePrediction& row);
/// "0", or "0 (x4)" of a pipeline with identical copies.
std::string pipeline_text(const Plan& plan, const simulator::StagePrediction& row);
/// "[0, 9)", or all chunks of the stage: "[0, 3) [6, 9)".
std::string layers_text(const Stage& stage);
/// What bounds the iteration, in words.
std::string bound_text(const simulator::Prediction& prediction);
/// The stage that ends last, as a reader finds it in the tables.
std::string straggler_text(const Plan& plan, const simulator::Prediction& prediction);

}  // namespace sailor::reports
