// Lower bounds of time and money that need no branches, and no deadline.
#pragma once

#include "planner/bound/pricing.hpp"

namespace sailor::planner {

/// Bounds that hold for every plan of the space, by the closed form.
struct LeastScores {
  double time = 0.0;     ///< seconds per iteration
  double usd = 0.0;      ///< per iteration; 0 where a GPU type has no price
  double product = 0.0;  ///< of the two
};

/// At values v_p of a device of each pool, a plan processes at most the value of its devices divided by
/// PricingProblem::min_price_per_sequence(v) sequences per second. With v_p = the rate of pool p
/// alone this bounds the time, with v_p = the price of its devices the cost. A plan of P USD per second that processes
/// f(P) sequences per second takes at least P (B / f(P))^2 seconds times USD, for a batch of B sequences. The largest
/// f(P) uses up the pools in the order of what they give for the money and grows linearly in between, so that the
/// product is least where a pool has just been used up.
LeastScores least_scores(PricingProblem& pricing, const SearchSpace& space, int global_batch);

}  // namespace sailor::planner
