#include "elastic/adapted_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace sailor::elastic {

namespace {

/// Divides `batch` sequences among the pipelines, each of which may stand for several that belong together, in
/// proportion to `weights`: each share a non-empty multiple of its micro-batches. False if that is not possible.
bool divide_batch(int batch, std::vector<Pipeline>& pipelines, const std::vector<double>& weights, const Plan& plan) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto size_of = [&](const Pipeline& pipeline) { return plan.micro_batch_of(pipeline) * pipeline.count; };
  int left = batch;
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    const int size = size_of(pipelines[i]);
    pipelines[i].micro_batches = std::max(1, static_cast<int>(batch * weights[i] / total / size));
    left -= pipelines[i].micro_batches * size;
  }
  // The remainder, positive or negative, goes to the pipelines that are furthest from their share.
  while (left != 0) {
    std::size_t best = pipelines.size();
    double best_distance = 0.0;
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      const int size = size_of(pipelines[i]);
      if (left > 0 ? size > left : pipelines[i].micro_batches == 1) continue;
      const double share = batch * weights[i] / total;
      const double distance = (pipelines[i].micro_batches * size - share) / share * (left > 0 ? 1.0 : -1.0);
      if (best == pipelines.size() || distance < best_distance) {
        best = i;
        best_distance = distance;
      }
    }
    if (best == pipelines.size()) return false;
    const int step = left > 0 ? 1 : -1;
    pipelines[best].micro_batches += step;
    left -= step * size_of(pipelines[best]);
  }
  return true;
}

/// Merges equal pipelines into one entry.
std::vector<Pipeline> folded(const std::vector<Pipeline>& pipelines) {
  std::vector<Pipeline> entries;
  for (const Pipeline& pipeline : pipelines) {
    const auto alike = std::find_if(entries.begin(), entries.end(), [&](const Pipeline& entry) {
      return entry.micro_batches == pipeline.micro_batches && entry.micro_batch == pipeline.micro_batch &&
             entry.stages == pipeline.stages;
    });
    if (alike != entries.end())
      alike->count += pipeline.count;
    else
      entries.push_back(pipeline);
  }
  return entries;
}

}  // namespace

Result<Plan> adapt_plan(const Plan& plan, std::span<const MemberFacts> members) {
  std::vector<Pipeline> chosen;
  std::vector<double> weights;
  const auto with = [&](const std::vector<Pipeline>& pipelines) {
    Plan made = plan;
    made.pipelines = pipelines;
    made.sharding_degree = 0;  // all replicas, however many they are
    made.prediction.reset();
    made.prediction_is_stale = false;
    return made;
  };
  // Copies that divide the experts of their layers among them come and go together.
  const int together = plan.copies_together();
  const auto try_adding = [&](const Pipeline& entry) {
    Pipeline one = entry;
    one.count = together;
    std::vector<Pipeline> more = chosen;
    more.push_back(one);
    if (!assign_ranks(with(more), members)) return false;
    const double weight = static_cast<double>(entry.micro_batches) * plan.micro_batch_of(entry) * together;
    std::vector<double> more_weights = weights;
    more_weights.push_back(weight);
    std::vector<Pipeline> divided = more;
    if (!divide_batch(plan.job.global_batch, divided, more_weights, plan)) return false;
    chosen = std::move(more);
    weights = std::move(more_weights);
    return true;
  };
  // First the pipelines that the plan has, then further copies of them.
  for (const Pipeline& entry : plan.pipelines)
    for (int copy = 0; copy < entry.count; copy += together)
      if (!try_adding(entry)) break;
  for (const Pipeline& entry : plan.pipelines)
    while (try_adding(entry)) {
    }
  if (chosen.empty()) {
    const std::string there = describe_devices(members);
    return fail(ErrorCode::infeasible,
                together == 1
                    ? fmt::format("no pipeline of the plan finds its devices among {}", there)
                    : fmt::format("{} pipelines of the plan divide experts among them, and {} are too few devices for "
                                  "all of them",
                                  together, there),
                "with --profile the controller plans anew for any devices");
  }
  (void)divide_batch(plan.job.global_batch, chosen, weights, plan);
  Plan made = with(folded(chosen));
  // Ranks count from 0 in the order of the entries, whichever ranks were wanted before.
  return made;
}

}  // namespace sailor::elastic
