// Template mixes for frameworks whose pipelines are all alike (Uniformity::pipelines_alike): one kind of pipeline with
// the same number of micro-batches each, on the devices of several pools. The mixes of the other searches divide the
// batch by speed, so that almost none of them is allowed.
#pragma once

#include <vector>

#include "planner/solution_pool.hpp"
#include "planner/templates.hpp"

namespace sailor::planner {

/// Adds plans of each kind in `columns` (single_pool_templates()) in every number of pipelines that divides the batch
/// and does not fit into one pool. Pools of the fastest devices are filled first.
void search_uniform(StagePrices& prices, const std::vector<PipelineTemplate>& columns, const TemplateMix& common,
                    SolutionPool& solutions, const StopCheck& stop);

}  // namespace sailor::planner
