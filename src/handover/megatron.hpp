// The parts of the writer for Megatron-Core.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "handover/grid.hpp"
#include "handover/handover.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::handover {

/// The releases of Megatron-Core whose arguments are written: --pipeline-model-parallel-layout came with the oldest.
inline constexpr std::string_view oldest_release = "0.13";
/// The oldest with attention sinks and with windows in some blocks only.
inline constexpr std::string_view oldest_release_with_patterns = "0.15";
inline constexpr std::string_view newest_release = "0.16";

/// An argument with its values, as on a command line.
struct Argument {
  std::string name;  ///< "--num-layers"
  std::string value{};
};

/// The layers of every (virtual) stage, as --pipeline-model-parallel-layout takes them: "Et*7|t*8|t*8|t*7L".
std::string pipeline_layout(const Grid& grid);

/// Checks the grid and everything else but the architecture. Errors: unavailable.
Result<Grid> megatron_grid(const Plan& plan, const Model& model, std::string_view framework);

/// Checks the order of ranks (megatron_numbers_by_stage()). Errors: those of check_order_by_stage().
Result<void> check_megatron_order(const Plan& plan, const Grid& grid, Ranks ranks, std::string_view framework,
                                  std::string_view format);
/// The order of ranks, as a sentence for the header.
std::string megatron_order_text(const Grid& grid);

/// Lists what the model needs and Megatron-Core does not have, whoever configures it.
std::vector<std::string> missing_in_core(const Model& model);
/// The architecture. `precision` is for advice only. Errors: unavailable, naming everything that the arguments cannot
/// express.
Result<std::vector<Argument>> architecture_arguments(const Model& model, const Grid& grid, Precision precision);

}  // namespace sailor::handover
