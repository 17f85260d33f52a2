// Pipelines that cross pools: the first stages in one, the others in another.
#pragma once

#include <vector>

#include "planner/full_search.hpp"
#include "planner/templates.hpp"

namespace sailor::planner {

/// Pipelines of two segments, sorted by the sequences that they process by `deadline` over those that their devices are
/// worth (`worth`: sequences per device, by pool), best first. Templates that process less than 97% of what their
/// devices are worth are left out; across zones, where they may save reductions between them, less than 70%.
std::vector<PipelineTemplate> two_pool_templates(StagePrices& prices, const TemplateRules& rules,
                                                 const std::vector<double>& worth, double deadline,
                                                 const StopCheck& stop);

/// For models that fit into no single pool: pipelines over all pools of each set, in several orders, whose stages take
/// equal shares of the pools' devices. Sorted by the time of a whole batch; the number that is tried is limited.
std::vector<PipelineTemplate> spanning_templates(StagePrices& prices, const TemplateRules& rules,
                                                 const std::vector<std::vector<std::size_t>>& pool_sets,
                                                 const StopCheck& stop);

}  // namespace sailor::planner
