// Makes the best plans better by exchanging parts of them.
#pragma once

#include <vector>

#include "planner/archive.hpp"
#include "planner/full_search.hpp"

namespace sailor::planner {

/// By which time plans are compared.
enum class RefineBy {
  closed_form,
  events,  ///< as they are printed: from the plans that are, and with those that are not much worse by the closed form
};

/// From each of the best plans: other kinds of pipelines for a group, one pipeline more or less, groups left out or
/// added on devices that are free, layers moved to the neighbouring stage; as long as something gets better. `chains`:
/// kinds of pipelines in one place.
void refine(StagePrices& prices, const ChainRules& rules, const std::vector<Chain>& chains, RefineBy by,
            Archive& archive, const StopCheck& stop);

}  // namespace sailor::planner
