// Plans under the interleaved schedule: fleets of one kind of pipeline whose stages hold several chunks of layers.
#pragma once

#include <vector>

#include "planner/archive.hpp"
#include "planner/full_search.hpp"

namespace sailor::planner {

/// Every chain of two stages or more in one place, with up to four chunks in each stage, in every number that the batch
/// allows (micro-batches are a multiple of the stages), unless its passes alone take longer than the best plan.
void search_interleaved(StagePrices& prices, const std::vector<Chain>& chains, OptimizerSharding sharding,
                        Archive& archive, const StopCheck& stop);

}  // namespace sailor::planner
