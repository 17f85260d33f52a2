// Template mixes of alike pipelines whose stages may be anywhere, compared by the end of everything: passes and
// reductions.
//
// Templates that only balance their stages (templates.hpp) miss pipelines whose first stages have few layers, or run
// some of them on devices elsewhere, so that gradients are all-reduced sooner: those of the embedding, for example,
// which is large and done last. The more devices share a batch, the larger that part of the time is. Here a pipeline
// grows from its last stage to its first, and of the partial pipelines that begin at the same layer on the same kind of
// devices the best few are extended (label setting with a beam). A label's times are lower bounds:
// reductions and messages take the min time that is possible where they are. The solution pool prices what is found.
#pragma once

#include <vector>

#include "planner/full_search.hpp"
#include "planner/solution_pool.hpp"
#include "planner/templates.hpp"

namespace sailor::planner {

/// The likely best template mixes of one kind of pipeline, at most a few for each number of pipelines and micro-batch
/// size, best first; only those whose score may be better than `bar`. `is_brief`: with a fraction of the usual work.
std::vector<Group> alike_pipelines(StagePrices& prices, const TemplateRules& rules, OptimizerSharding sharding,
                                   double bar, bool is_brief, const StopCheck& stop);

}  // namespace sailor::planner
