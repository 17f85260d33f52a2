// Pipelines that cross pools: the first stages in one, the others in another.
#pragma once

#include <vector>

#include "planner/full_search.hpp"
#include "planner/templates.hpp"

namespace sailor::planner {

/// The pipelines of two segments that by `deadline` get through the most for what their devices are worth (sequences
/// per device, by pool), best first; each at least nearly as good as its devices apart, or in different zones.
std::vector<PipelineTemplate> two_pool_templates(StagePrices& prices, const TemplateRules& rules,
                                                 const std::vector<double>& worth, double deadline,
                                                 const StopCheck& stop);

/// For models that fit into no pool: pipelines over all pools of each set, in several orders, whose stages take equal
/// shares of the pools' devices. The quickest for a whole batch first; how many are tried is limited.
std::vector<PipelineTemplate> spanning_templates(StagePrices& prices, const TemplateRules& rules,
                                                 const std::vector<std::vector<std::size_t>>& pool_sets,
                                                 const StopCheck& stop);

}  // namespace sailor::planner
