// Interleaved pipelines in one pool, of frameworks with one tensor-parallel degree: the part of the pricing problem
// that prices them by their number of stages, whatever layers each of these holds.
#include <algorithm>
#include <cmath>

#include "planner/bound/pricing.hpp"
#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr double margin = 1.0 + 1e-9;  // against rounding

}  // namespace

void PricingProblem::add_interleaved(const std::vector<StageCandidate>& candidates, int micro_batch) {
  for (const StageCandidate& candidate : candidates) {
    Interleaved row{.micro_batch = micro_batch,
                    .tensor_parallel = candidate.tensor_parallel,
                    .message = std::min(candidate.near, candidate.far)};
    for (const double time : candidate.layer) {
      row.work += time;
      row.longest_layer = std::max(row.longest_layer, time);
      const auto alike = std::count_if(candidate.layer.begin(), candidate.layer.end(),
                                       [&](double other) { return std::abs(other - time) <= time * (margin - 1.0); });
      if (alike <= row.blocks) continue;
      row.blocks = static_cast<int>(alike);
      row.block = time;
    }
    for_each_table(prices_, candidate, micro_batch, [&](const StageTable& table) {
      for (int layer = 0; layer < prices_.layers(); ++layer)
        if (const double whole = table.time(layer, layer + 1); whole > 0.0)
          row.backward = std::max(row.backward, (table.backward[at(layer) + 1] - table.backward[at(layer)]) / whole);
    });
    if (row.work < infinity && row.message < infinity) interleaved_.push_back(row);
  }
}

/// Min time of the slowest of so many stages: all blocks but those that take another time have to fit, in whole
/// numbers, beside the longest layer on one of the stages.
double PricingProblem::least_slowest(const Interleaved& row, int stages) {
  double time = std::max(row.work / stages, row.longest_layer);
  if (row.block <= 0.0) return time;
  const auto blocks_in = [&](double seconds) { return std::floor(seconds / row.block * margin); };
  const bool apart = row.longest_layer > row.block * margin;  // no block itself
  while (blocks_in(time) * (stages - (apart ? 1 : 0)) + (apart ? blocks_in(time - row.longest_layer) : 0.0) <
         row.blocks) {
    double next = (blocks_in(time) + 1.0) * row.block;
    if (apart) next = std::min(next, row.longest_layer + (blocks_in(time - row.longest_layer) + 1.0) * row.block);
    time = next;
  }
  return time;
}

std::vector<double> PricingProblem::interleaved_prices(double deadline, const Branch& branch) {
  if (!interleaved_.empty()) return {max_interleaved(deadline, branch)};
  // Devices are busy no longer than until the deadline.
  std::vector<double> prices = fluid_rates();
  if (prices.empty()) prices.assign(space_.pools.size(), 1.0);
  const double each = fluid_price(prices);
  for (double& price : prices) price *= deadline / each;
  return prices;
}

/// Min time of the reductions of an n-th of all layers.
double PricingProblem::reduction_of_share(int tensor_parallel, int parts, const Branch& branch) {
  const auto [entry, is_new] =
      reductions_of_shares_.try_emplace(std::array{branch.min_pipelines, tensor_parallel, parts});
  if (is_new) entry->second = reduction_of(0, tensor_parallel, 1, amounts_before_.back() / parts, branch);
  return entry->second;
}

// Of the only pool, for each of its devices. By the closed form a pipeline of p stages and v chunks is done after n t +
// (A - t + X) / v (simulator/closed_form.hpp): n micro-batches, a multiple of p; t the slowest stage, A and X all
// passes and messages of one micro-batch. There are p v - 1 messages, and the time is linear in 1 / v, v from 2 to
// layers / p. A <= p t, so that no stage is slower than t >= A / p.
//
// The reductions of a stage begin after its passes, or with the last backward pass of its last chunk where they
// overlap. That is before the end of the pipeline by no more than the backward passes of the first chunks of the stages
// before it and, in the latter case, its own. On average over the stages, that is (p - 1) / 2 or (p + 1) / 2 times t
// and the share of backward passes in a layer's time, and their reductions take a p-th of those of all layers. The
// messages among these passes take less than X / v, as those between the same stages are sent for every chunk. Where
// weights are gathered after the step, half of the longest reductions, those of a p-th of the layers at least, follows
// all passes.
double PricingProblem::max_interleaved(double deadline, const Branch& branch) {
  double worth = 0.0;
  const int layers = prices_.layers();
  const bool alike = prices_.env().framework.uniformity.pipelines_alike;
  const auto wanted = request_.pins.pipeline_parallel;
  for (const Interleaved& row : interleaved_) {
    const int most_stages = std::min(layers / 2, space_.devices() / row.tensor_parallel);
    for (int stages = wanted.value_or(2); stages <= wanted.value_or(most_stages); ++stages) {
      const int most_pipelines = std::min(branch.max_pipelines, space_.devices() / (stages * row.tensor_parallel));
      if (alike && most_pipelines < branch.min_pipelines) continue;
      ++work_;
      const double least = least_slowest(row, stages);
      const double max_chunks = layers / stages;
      // All but (n - 1 / v) t.
      const auto fixed = [&](double chunks) { return (row.work + (stages * chunks - 1.0) * row.message) / chunks; };
      const auto most_of = [&](double chunks) { return std::floor((deadline - fixed(chunks)) / least + 1.0 / chunks); };
      const double most =
          std::min<double>(std::max(most_of(2.0), most_of(max_chunks)), request_.job.global_batch / row.micro_batch);
      if (most < stages) continue;
      const bool reduces = branch.min_pipelines > 1 && counts_reductions();
      const double of_all = reduces ? reduction_of_share(row.tensor_parallel, 1, branch) / stages : 0.0;
      const double of_one = reduces ? reduction_of_share(row.tensor_parallel, stages, branch) : 0.0;
      for (double count = std::floor(most * margin / stages) * stages; count >= stages; count -= stages) {
        ++work_;
        const auto slowest_of = [&](double chunks) {
          return (deadline - fixed(chunks) - order_.after * of_one) / (count - 1.0 / chunks);
        };
        const double slowest = std::max(slowest_of(2.0), slowest_of(max_chunks));
        if (slowest * margin < least) continue;
        const double ahead = 0.5 * (order_.overlaps ? stages + 1 : stages - 1);
        // Linear in the time of the slowest stage: possible if it is at the shortest or the longest.
        const auto ends = [&](double time) {
          return (count - 1.0 / max_chunks) * time + row.work / max_chunks - row.backward * ahead * time + of_all;
        };
        if (of_all > 0.0 && std::min(ends(least), ends(slowest)) > deadline * margin) continue;
        // Pipelines that are all alike must process the batch together.
        if (!alike || count * row.micro_batch * most_pipelines >= request_.job.global_batch)
          worth = std::max(worth, count * row.micro_batch / (stages * row.tensor_parallel));
        break;
      }
    }
  }
  return worth;
}

}  // namespace sailor::planner
