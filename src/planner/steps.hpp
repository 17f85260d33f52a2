// The steps of a search, by which a plan says how it was found (docs/design/planner.md, "How plans are found").
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sailor::planner {

enum class Step {
  coarse,                  ///< powers of two of stages, in three numbers of pipelines
  one_template,            ///< every template in one pool, in every number of pipelines
  many_templates,          ///< mixes of templates in one pool each, by knapsacks
  filled_pools,            ///< all replicas of a stage, then those of the next, over several pools of one type
  two_pools,               ///< templates whose first stages are in one pool and the others in another
  spanning_pools,          ///< templates over all pools of a set, where none fits into one pool
  interleaved,             ///< templates whose stages hold several chunks
  local_search,            ///< changes of a plan that was found, as long as something gets better by the closed form
  local_search_by_events,  ///< the same, compared by the event-driven time
  alike,                   ///< one template with stages anywhere, by when all of its reductions are done
  all_plans,               ///< going through all plans
  hints,                   ///< templates that the bound's relaxation would use
  paper_space,             ///< the search of the paper's space
  part_of_cluster,         ///< the search of a part of the cluster
  other_limits             ///< the search without the limits, or some of them
};
/// "one_template"
std::string_view to_string(Step step);

/// The steps that led to a plan, first to last: a local search follows the step that found the plan that it began from,
/// and the steps of a search within this one follow paper_space, part_of_cluster or other_limits.
using Steps = std::vector<Step>;
/// "templates over two pools, then local search"
std::string describe(const Steps& steps);

}  // namespace sailor::planner
