// Short description of a plan: its pipelines by kind.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace sailor::planner {

/// Pipelines that differ in nothing but zone and number of micro-batches.
struct PipelineKind {
  int count = 0;
  double batch_share = 0.0;  ///< of the global batch, for all `count` pipelines together
  /// "8 x [A100-40 tp4: 13 | V100-16 tp4: 2x6] b8 n4": 8 pipelines of three stages, one of 13 layers on 4 A100-40 and
  /// two of 6 layers on 4 V100-16 each, that run 4 micro-batches of 8 sequences. Zones are named where the plan has
  /// several.
  std::string text;
};

/// The kinds of pipelines of a plan, largest share of the batch first.
std::vector<PipelineKind> pipeline_kinds(const Plan& plan);

/// All kinds on one line, then unusual(): "8 x [A100-40 tp4] b8 n4 + 24 x [V100-16 tp4] b4 n2; all: gpipe".
std::string outline(const Plan& plan);
/// Settings of the whole plan that are not the default, ", gpipe, zero1", or "; all: gpipe, zero1" behind several
/// kinds; empty for 1F1B without optimizer sharding.
std::string unusual(const Plan& plan, bool of_several_kinds);

}  // namespace sailor::planner
