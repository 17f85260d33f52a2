// How good any plan of the full space could be: a relaxation, solved by branch and bound over parts of all plans.
//
// For times up to T a pipeline q that is done with n_q micro-batches of b_q sequences and takes r_qp devices of place p
// is worth b_q n_q. With prices y_p >= 0 of devices and e of being a pipeline, such that no pipeline is worth more than
// sum_p r_qp y_p + e, all together get through sum_p N_p y_p + e R at most (a Lagrangian bound; Gilmore & Gomory 1961
// for the columns). When that is less than the batch, no plan of R pipelines is done by T. N_p is less where limits on
// devices, nodes or USD per second bind; money is bounded through them over short ranges of T.
// - Parts: the places that hold whole pipelines, ranges of R, of the longest reduction of a first stage, and of T
//   (bound.cpp).
// - Pipelines of one stage exactly, all others by ranges of their slowest stage (bound_worth.cpp), by a dynamic program
//   over the layers for the least price of stages none of which is slower (bound_stages.cpp).
// A target is reported when no part of it is left; how many are tried is limited by work, not by the clock. Everything
// left out makes the bound weaker, never wrong. It bounds the closed form.
#pragma once

#include "planner/archive.hpp"

namespace sailor::planner {

/// A pipeline that the relaxation would like to use: where a better plan may be found.
struct Hint {
  std::vector<ChainStage> stages;
  int micro_batch = 1;
  bool operator==(const Hint&) const = default;
};

struct Relaxed {
  double least_score = 0.0;  ///< score_of() that a plan of the space has at least
  std::vector<Hint> hints;
};

/// `best`: the score of a plan that was found.
Relaxed relax(StagePrices& prices, double best);

}  // namespace sailor::planner
