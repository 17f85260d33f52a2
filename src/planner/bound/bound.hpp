// Bound on how good any plan of the full space can be: a relaxation, solved by branch and bound over sets of plans.
//
// Given a time T, a pipeline q that is done by T with n_q micro-batches of b_q sequences and takes r_qp devices of pool
// p is worth b_q n_q. With prices y_p >= 0 per device and e per pipeline such that no pipeline is worth more than sum_p
// r_qp y_p + e, all pipelines together process at most sum_p N_p y_p + e R sequences (a Lagrangian bound; Gilmore &
// Gomory 1961 for the columns). When that is less than the batch, no plan of R pipelines is done by T. N_p is less
// where limits on devices, nodes or USD per second bind; money is bounded through them over ranges of T, in which a
// pipeline counts by the USD that it takes until it is done (TimeRange in pricing.hpp).
// - Prices: violated columns are kept, and a linear program gives the min prices that they allow
//   (restricted_master.cpp). The next prices tried lie between those and the best prices that are known to be valid
//   (stabilization).
// - Branches: the pools that hold whole pipelines or, where there are many pools, the zones that hold some layers;
//   ranges of R, of the longest reduction of a first stage, and of T (branching.hpp).
// - Pipelines of one stage are treated exactly, all others by ranges of their numbers of micro-batches and slowest
//   stages (pricing.cpp), with a dynamic program over the layers for the min price of stages none of which is slower
//   (stages.cpp).
// Why a pipeline cannot be worth more:
// - It is done after S + (n - 1) t, S from end to end and back, t the slowest stage, all messages included; those
//   between two pools take as long as their quickest link, but in labels (ready_labels.hpp), which know both pools.
// - A stage's reductions begin after its passes: not before every layer has been passed forward n times and those from
//   its first on backward (where they overlap, see ReductionOrder). Their time is at least that of the quickest way to
//   all-reduce its gradients over R replicas.
//   So most stages of many layers are too slow (StageLimits).
// - A layer that is held in several zones is all-reduced over a link between them; one that is held in a single zone
//   has all its stages there. Every pipeline holds every layer, so that this holds for all of them.
// - A stage's passes, with those of the stages before it, and its reductions are done within a limit on the time, event
//   by event (stages_in_time() in pricing.cpp).
// A target is proved when none of its branches is left; how many are tried is limited by work, not by the clock. The
// tree is kept for the next target.
// Everything left out makes the bound weaker, never wrong. It bounds the closed form.
#pragma once

#include <functional>
#include <vector>

#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// A pipeline across pools, or inside one if labels found it, that the relaxation would use: it may lead to a better
/// plan.
struct Hint {
  std::vector<TemplateStage> stages;
  int micro_batch = 1;
  bool operator==(const Hint&) const = default;
};

struct Relaxed {
  double min_score = 0.0;  ///< score_of() that a plan of the space has at least
  std::vector<Hint> hints;
};

/// `best`: the score of a plan that was found. Once `stop`, which several threads call, returns true, the result is
/// what was proved so far. `progress` is called now and then with the proved score.
Relaxed relax(StagePrices& prices, double best, const std::function<bool()>& stop = {},
              const std::function<void(double proved)>& progress = {});

}  // namespace sailor::planner
