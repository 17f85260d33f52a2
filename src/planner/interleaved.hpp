// Plans under the interleaved schedule: template mixes of one kind of pipeline whose stages hold several chunks of
// layers.
#pragma once

#include <vector>

#include "planner/full_search.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// Tries every template of two stages or more in one pool, with up to 16 chunks in each stage, of as equal numbers of
/// layers as there can be and such that the slowest stage takes as little time as possible, in every number of
/// pipelines that the batch allows (micro-batches are a multiple of the stages), unless its passes alone take longer
/// than the best plan.
void search_interleaved(StagePrices& prices, const std::vector<PipelineTemplate>& columns, OptimizerSharding sharding,
                        SolutionPool& solutions, const StopCheck& stop);

}  // namespace sailor::planner
