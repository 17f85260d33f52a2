// The stages that pipelines of a branch have time for: how far each may reach, by its first layer.
#include <algorithm>
#include <cmath>

#include "planner/bound/pricing.hpp"
#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr int few_steps = 32;  // different numbers of micro-batches between two powers of two, at most

}  // namespace

// The passes of a stage of layers [first, last) end no earlier than its pipeline has got the last micro-batch to the
// end and back to `first`; its reductions begin then, or when it is back to `last`, where they overlap the passes.
const StageLimits& PricingProblem::limits(StageProgram& program, double left, int micro_batches, double deadline,
                                          const Branch& branch) {
  left = std::ceil(left / deadline * steps_) * deadline / steps_;
  // Only few different numbers, so that cached results serve again.
  int step = 1;
  while (micro_batches / step >= few_steps) step *= 2;
  micro_batches = deadline > latest_ ? micro_batches - micro_batches % step : 0;
  const int layers = prices_.layers();
  const auto& candidates = program.candidates();
  work_ += candidates.size() * at(layers);
  const auto [entry, is_new] = limits_.try_emplace({&program, left, micro_batches});
  StageLimits& found = entry->second;
  if (!is_new) return found;
  found = furthest_stages(candidates.size(), layers, [&](std::size_t o, int first, int last) {
    const double time = left - program.through_to(order_.passed_from(first, last)) * (1.0 - 1e-12);
    return reduction(candidates[o].pool, candidates[o].tensor_parallel, first, last, 0, branch) <=
           (first == 0 ? std::min(time, branch.reduction_up_to) : time);
  });
  if (micro_batches == 0) return found;
  const StageLimits in_time = stages_in_time(program, micro_batches, branch);
  for (std::size_t i = 0; i < found.size(); ++i) found[i] = std::min(found[i], in_time[i]);
  return found;
}

// A stage's devices are busy for all its passes, after the first micro-batch has come to it and before the last has
// gone back from it; then come its reductions, those of the first stage, and the longest of all first stages, for which
// the stages from longest_first_stage() on have to be passed back. Event by event no plan is quicker than that, though
// it may be quicker than the closed form, which adds all stages up.
StageLimits PricingProblem::stages_in_time(const StageProgram& program, int micro_batches, const Branch& branch) {
  const int layers = prices_.layers();
  const auto& candidates = program.candidates();
  work_ += candidates.size() * at(layers);
  const auto after = [&](double taken) { return order_.overlaps ? order_.after * taken : taken; };
  const auto taken_by = [&](const StageCandidate& candidate, int first, int last) {
    return after(reduction(candidate.pool, candidate.tensor_parallel, first, last, 0, branch));
  };
  double of_first = infinity;
  for (const StageCandidate& candidate : candidates) of_first = std::min(of_first, taken_by(candidate, 0, 1));
  const int longest_first = branch.reduction_over > 0.0 ? longest_first_stage(branch) : layers + 1;
  StageLimits found(candidates.size() * at(layers));
  for (std::size_t o = 0; o < candidates.size(); ++o) {
    const auto is_in_time = [&](int first, int last) {
      const double forward = program.forward_before(first);
      double besides = std::max(program.pass_before(first) + of_first, forward + taken_by(candidates[o], first, last));
      if ((order_.overlaps ? first : last) >= longest_first)
        besides = std::max(besides, forward + branch.reduction_over);
      return micro_batches * candidates[o].time[0][at(first) * at(layers + 1) + at(last)] + besides <= latest_ * slack;
    };
    int furthest = 0;  // no stage that begins later is held to less: so prices from a layer on fall with the layer
    for (int first = 0; first < layers; ++first) {
      furthest = std::max(furthest, first);
      while (furthest < layers && is_in_time(first, furthest + 1)) ++furthest;
      found[o * at(layers) + at(first)] = furthest;
    }
  }
  return found;
}

}  // namespace sailor::planner
