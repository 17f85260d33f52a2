// The search of the paper's space (search_space.hpp): the best plan by the closed form, and a bound on all others.
//
// A plan has P stages, micro-batches of b sequences and D pipelines: a triple. Its pipelines are made from templates
// (paper/templates.hpp): every (stage, GPU type) has one tensor-parallel degree, and B/b mod D of the pipelines get one
// micro-batch more. Equal pipelines are one entry of the plan; entries come in any order, and the order decides which
// stages share a node.
//
// Plans are pruned by bounds only:
// 1. A triple's own bound: the quickest way through, the slowest of the stages at their quickest, the min price.
// 2. For a deadline: D templates that keep it, with the devices that there are, as a linear relaxation (any prices of
//    devices prove that there are too few of them: Lagrangian bound, Held & Karp 1971), and the cheapest templates that
//    keep it.
// 3. Branch and bound over how many pipelines are of which template, each plan priced exactly, in every order of up to
//    six entries. Complete unless there are too many; then the bound of (2) for the triple remains.
// Of the paper's heuristics, H1 (tensor parallelism within a node) is part of what a plan is. None of the others is
// used.
#pragma once

#include "planner/full_search.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// thorough: on up to 64 devices, all plans may be tried, with up to 300 times the work. quick: as on more devices.
enum class PaperEffort { thorough, quick };

/// Adds the best plans to `solutions`. Returns the min score (score_of()) that a plan of the space could have: that of
/// the best plan found if the search is complete; infinite if it is complete and no plan keeps the limits.
double search_paper(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop, PaperEffort effort);

}  // namespace sailor::planner
