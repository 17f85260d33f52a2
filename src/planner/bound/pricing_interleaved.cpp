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
    const std::vector<double>& times = candidate.layer;
    const auto are_alike = [](double time, double other) { return std::abs(other - time) <= time * (margin - 1.0); };
    for (const double time : times) {
      row.work += time;
      row.longest_layer = std::max(row.longest_layer, time);
      const auto alike =
          std::count_if(times.begin(), times.end(), [&](double other) { return are_alike(time, other); });
      if (alike <= row.blocks) continue;
      row.blocks = static_cast<int>(alike);
      row.block.time = time;
    }
    for (int layer = 1; layer + 1 < prices_.layers(); ++layer)
      if (!are_alike(row.block.time, times[at(layer)])) ++row.others;
    const DevicePool& pool = space_.pools[candidate.pool];
    row.memory = (pool.memory - pool.base).value();
    for_each_table(prices_, candidate, micro_batch, [&](const StageTable& table) {
      for (int layer = 0; layer < prices_.layers(); ++layer) {
        const double time = times[at(layer)];
        if (const double whole = table.time(layer, layer + 1); whole > 0.0)
          row.backward = std::max(row.backward, (table.backward[at(layer) + 1] - table.backward[at(layer)]) / whole);
        if (are_alike(row.block.time, time)) {
          lower(row.block, table, layer, time, micro_batch);
        } else if (layer == 0) {
          lower(row.first, table, layer, time, micro_batch);
        } else if (layer + 1 == prices_.layers()) {
          lower(row.last, table, layer, time, micro_batch);
        }
      }
    });
    if (row.work < infinity && row.message < infinity) interleaved_.push_back(std::move(row));
  }
}

/// Lowers what layers take to what this one does.
void PricingProblem::lower(HeldLayer& held, const StageTable& table, int layer, double time, int micro_batch) const {
  if (held.states.empty())
    held = {.time = time,
            .fixed = infinity,
            .activation = infinity,
            .exchanged = infinity,
            .states = std::vector<HeldLayer::State>(space_.sharding.size(), {.whole = infinity, .shared = infinity})};
  // With several chunks every stage has a neighbour on both sides.
  held.fixed = std::min(held.fixed, prices_.fixed(table, layer, layer + 1, micro_batch, 2));
  held.activation = std::min(held.activation, table.activations[at(layer) + 1] - table.activations[at(layer)] +
                                                  (layer + 1 == prices_.layers() ? table.logits : 0.0));
  held.exchanged = std::min(held.exchanged, amounts_before_[at(layer) + 1] - amounts_before_[at(layer)]);
  for (std::size_t i = 0; i < held.states.size(); ++i) {
    const OptimizerSharding sharding = space_.sharding[i];
    const auto states = [&](double replicas) {
      // Whole gradients or weights of one layer serve all of a stage.
      return shards_gradients(sharding) ? 0.0 : prices_.states(table, layer, layer + 1, {sharding, replicas});
    };
    const double shared = sharding == OptimizerSharding::none ? 0.0 : 2.0 * (states(1.0) - states(2.0));
    held.states[i].whole = std::min(held.states[i].whole, states(1.0) - shared);
    held.states[i].shared = std::min(held.states[i].shared, shared);
  }
}

/// The seconds of what each stage has to hold beside blocks, and the number of those that it has memory for. The first
/// layer is always on the first stage and the last one on the last. `chunks`: of a stage; 1: of any number.
/// `one_round`: as many micro-batches as stages, so that all forward passes come first (Megatron-LM). Else, when the
/// warm-up and one more forward pass are over, stage i (0-based) keeps p micro-batches of all its chunks but the last,
/// and at least min(p, 2 (p - 1 - i) + 1) of the last (plan/schedule.hpp). Every chunk holds a layer.
std::vector<PricingProblem::StageLimit> PricingProblem::stage_limits(const Interleaved& row, int stages, int chunks,
                                                                     bool one_round, int replicas) {
  static const HeldLayer nothing;
  std::vector<StageLimit> limits;
  for (int stage = 0; stage < stages; ++stage) {
    const HeldLayer& other = stage == 0 ? row.first : stage + 1 == stages ? row.last : nothing;
    const int of_last_chunk = one_round ? stages : std::min(stages, 2 * (stages - 1 - stage) + 1);
    const bool holds_first = stage == 0 && !row.first.states.empty();
    const int in_other_chunks = std::max(0, chunks - 1 - (holds_first ? 1 : 0) - row.others);  // blocks, at least
    StageLimit limit{.blocks = 0, .beside = other.time};
    for (std::size_t i = 0; i < row.block.states.size(); ++i) {
      const auto taken = [&](const HeldLayer& layer) {
        return layer.states.empty() ? 0.0 : layer.states[i].of(replicas) + of_last_chunk * layer.activation;
      };
      const double left = (row.memory - std::max(row.block.fixed, other.fixed) - taken(other) -
                           in_other_chunks * (stages - of_last_chunk) * row.block.activation) *
                          margin;
      const double each = taken(row.block);
      if (left < in_other_chunks * each) continue;
      limit.blocks = std::max(limit.blocks, each * row.blocks <= left ? row.blocks : static_cast<int>(left / each));
    }
    limits.push_back(limit);
  }
  return limits;
}

PricingProblem::HeldBlocks PricingProblem::held_by(double time, const Interleaved& row,
                                                   const std::vector<StageLimit>& limits) {
  HeldBlocks held;
  for (const StageLimit& limit : limits) {
    const double left = (time - limit.beside) * margin;
    int blocks = left < 0.0 ? -1 : row.blocks;
    if (left >= 0.0 && row.block.time > 0.0)
      blocks = static_cast<int>(std::min<double>(left / row.block.time, row.blocks));
    if (blocks < limit.blocks) held.next = std::min(held.next, limit.beside + (blocks + 1) * row.block.time);
    held.most.push_back(std::clamp(blocks, 0, limit.blocks));
  }
  return held;
}

/// Min time of the slowest stage within these limits, of all stages: all blocks have to fit, in whole numbers, beside
/// what else the stages hold. Infinite if they do not.
double PricingProblem::least_slowest(const Interleaved& row, const std::vector<StageLimit>& limits) {
  double time = std::max(row.work / static_cast<double>(limits.size()), row.longest_layer);
  if (row.block.time <= 0.0) return time;
  while (true) {
    const HeldBlocks held = held_by(time, row, limits);
    if (held.all() >= row.blocks) return time;
    if (held.next == infinity) return infinity;
    time = std::max(time, held.next);
  }
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

/// Min time of the reductions of the first layer and of so many blocks or more: measured, more bytes may take less
/// time.
double PricingProblem::reduction_of_first(const Interleaved& row, int blocks, const Branch& branch) {
  const std::array key{branch.min_pipelines, row.tensor_parallel, blocks};
  if (const auto known = reductions_of_first_.find(key); known != reductions_of_first_.end()) return known->second;
  const double own =
      reduction_of(0, row.tensor_parallel, 1, row.first.exchanged + blocks * row.block.exchanged, branch);
  const double more = blocks < row.blocks ? reduction_of_first(row, blocks + 1, branch)
                                          : reduction_of_share(row.tensor_parallel, 1, branch);
  return reductions_of_first_[key] = std::min(own, more);
}

/// Whether the reductions of the first stages, of every number of them, can end by the deadline, if the slowest stage
/// takes between `shortest` and `longest`. The first k stages hold the first layer and the blocks that the others have
/// no time or memory for. Their reductions begin, on average, no more than (k - 1) / 2 (where they overlap backward
/// passes, (k + 1) / 2) backward passes of a stage before the passes end: see max_interleaved().
bool PricingProblem::can_end(const Interleaved& row, const std::vector<StageLimit>& limits, double shortest,
                             double longest, int micro_batches, int chunks, double deadline, const Branch& branch) {
  const int stages = static_cast<int>(limits.size());
  const double left = deadline * margin - row.work / chunks;
  double from = shortest;
  while (true) {
    const HeldBlocks held = held_by(from, row, limits);
    const double to = std::min(longest, held.next);  // no stage has time for another block before
    double low = from;
    double high = std::max(to, from);
    int of_others = held.all();
    for (int k = 1; k <= stages; ++k) {
      ++work_;
      of_others -= held.most[at(k) - 1];
      const double reduction = reduction_of_first(row, std::max(0, row.blocks - of_others), branch) / k;
      const double times = micro_batches - 1.0 / chunks - row.backward * 0.5 * (order_.overlaps ? k + 1 : k - 1);
      if (times > 0.0) {
        high = std::min(high, (left - reduction) / times);
      } else if (times < 0.0) {
        low = std::max(low, (left - reduction) / times);
      } else if (reduction > left) {
        high = -infinity;
      }
    }
    if (low <= high * margin) return true;
    if (to >= longest) return false;
    from = std::max(to, from * margin);
  }
}

// Of the only pool, for each of its devices. By the closed form a pipeline of p stages and v chunks is done after n t +
// (A - t + X) / v (simulator/closed_form.hpp): n micro-batches, a multiple of p; t the slowest stage, A and X all
// passes and messages of one micro-batch. There are p v - 1 messages, and v is from 2 to layers / p. A <= p t, so that
// no stage is slower than t >= A / p.
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
      const std::vector<StageLimit> of_more = stage_limits(row, stages, 1, false, branch.max_pipelines);
      const double least_of_more = least_slowest(row, of_more);
      if (least_of_more == infinity) continue;
      const double least_of_one_round = least_slowest(row, stage_limits(row, stages, 1, true, branch.max_pipelines));
      const int max_chunks = layers / stages;
      // All but (n - 1 / v) t.
      const auto fixed = [&](double chunks) { return (row.work + (stages * chunks - 1.0) * row.message) / chunks; };
      const auto most_of = [&](double chunks) {
        return std::floor((deadline - fixed(chunks)) / least_of_more + 1.0 / chunks);
      };
      const int all = request_.job.global_batch / row.micro_batch;
      const double most = std::min<double>(std::max(most_of(2.0), most_of(max_chunks)), all);
      if (most < stages) continue;
      const bool reduces = branch.min_pipelines > 1 && counts_reductions();
      const double of_all = reduces ? reduction_of_share(row.tensor_parallel, 1, branch) / stages : 0.0;
      const double of_one = reduces ? reduction_of_share(row.tensor_parallel, stages, branch) : 0.0;
      for (double count = std::floor(most * margin / stages) * stages; count >= stages; count -= stages) {
        const double least = count > stages ? least_of_more : least_of_one_round;
        const double ahead = 0.5 * (order_.overlaps ? stages + 1 : stages - 1);
        const auto is_possible = [&](int chunks) {
          const double slowest = (deadline - fixed(chunks) - order_.after * of_one) / (count - 1.0 / chunks);
          if (slowest * margin < least) return false;
          // Linear in the time of the slowest stage: possible if it is at the shortest or the longest.
          const auto ends = [&](double time) {
            return (count - 1.0 / chunks) * time + row.work / chunks - row.backward * ahead * time + of_all;
          };
          if (of_all > 0.0 && std::min(ends(least), ends(slowest)) > deadline * margin) return false;
          ++work_;
          const std::vector<StageLimit> limits =
              stage_limits(row, stages, chunks, count <= stages, branch.max_pipelines);
          const double shortest = least_slowest(row, limits);
          if (slowest * margin < shortest) return false;
          return of_all <= 0.0 || can_end(row, limits, shortest, std::max(shortest, slowest), static_cast<int>(count),
                                          chunks, deadline, branch);
        };
        bool any = false;
        for (int chunks = 2; chunks <= max_chunks && !any; ++chunks) {
          ++work_;
          any = is_possible(chunks);
        }
        if (!any) continue;
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
