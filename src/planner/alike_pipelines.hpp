// Template mixes of alike pipelines whose stages may be anywhere, told apart by when all is done: passes, reductions
// and all.
//
// Templates that only balance their stages (templates.hpp) miss pipelines whose first stages have few layers, or hand
// some to devices elsewhere, so that gradients are summed sooner: of the embedding, for example, which is large and
// done last. The more devices there are for a batch, the more of the time that is. Here a pipeline grows from its last
// stage to its first, and of those that begin at the same layer on the same kind of devices the best few go on (label
// setting with a beam). What a label says is a lower bound but for the memory: reductions and messages take as little
// as they can where they are. What is found is priced by the solution pool.
#pragma once

#include <vector>

#include "planner/full_search.hpp"
#include "planner/solution_pool.hpp"
#include "planner/templates.hpp"

namespace sailor::planner {

/// The likely best template mixes of one kind of pipeline, at most a few of each number and micro-batch, best first;
/// none that is no better than `bar`, a score.
std::vector<Group> alike_pipelines(StagePrices& prices, const TemplateRules& rules, OptimizerSharding sharding,
                                   double bar, const StopCheck& stop);

}  // namespace sailor::planner
