#include "simulator/closed_form.hpp"

#include <algorithm>

namespace sailor::simulator {

namespace {

/// For one kind of time per pass and boundary: the total through the pipeline, and the longest time on one stage or
/// link.
struct Way {
  Seconds through{};
  Seconds longest{};
};

/// `link_time`: the longest time that one micro-batch occupies a link, when transfers overlap.
template <class PassTime, class BoundaryTime, class LinkTime>
Way way(const PipelineTimes& pipeline, PassTime pass_time, BoundaryTime boundary_time, LinkTime link_time) {
  const auto stages = static_cast<std::size_t>(pipeline.stages);
  const bool blocks = !pipeline.overlaps_transfers;
  Way result;
  for (std::size_t i = 0; i < stages; ++i) {
    const Seconds pass = pass_time(pipeline.passes[i]);
    const Seconds behind = i + 1 < stages ? boundary_time(pipeline.boundaries[i]) : Seconds{};
    const Seconds before = i > 0 ? boundary_time(pipeline.boundaries[i - 1]) : Seconds{};
    result.through += pass + behind;
    result.longest = std::max(result.longest, blocks ? pass + before + behind : pass);
  }
  if (!blocks)
    for (const BoundaryTimes& boundary : pipeline.boundaries)
      result.longest = std::max(result.longest, link_time(boundary));
  return result;
}

LinearTime interleaved(const PipelineTimes& pipeline) {
  const auto stages = static_cast<std::size_t>(pipeline.stages);
  Seconds all{};
  Seconds slowest{};
  for (std::size_t i = 0; i < stages; ++i) {
    Seconds stage{};
    for (std::size_t v = i; v < pipeline.passes.size(); v += stages)
      stage += pipeline.passes[v].forward + pipeline.passes[v].backward;
    all += stage;
    slowest = std::max(slowest, stage);
  }
  Seconds quickest_chunk = slowest;  // min over the chunks of the time on their slowest stage
  for (std::size_t first = 0; first < pipeline.passes.size(); first += stages) {
    Seconds longest{};
    for (std::size_t v = first; v < first + stages; ++v)
      longest = std::max(longest, pipeline.passes[v].forward + pipeline.passes[v].backward);
    quickest_chunk = std::min(quickest_chunk, longest);
  }
  Seconds transfers{};
  for (const BoundaryTimes& boundary : pipeline.boundaries) transfers += boundary.forward + boundary.backward;
  const Seconds filled = slowest + (all - slowest + transfers) / pipeline.chunks;
  const Seconds in_groups = all + transfers + quickest_chunk * (pipeline.stages - 1) - slowest * (pipeline.stages - 1);
  return {.first = std::max(filled, in_groups), .per_micro_batch = slowest};
}

/// Under 1F1B stage i has at most `stages - i` micro-batches in flight, and starts a new one when another is back from
/// the later stages: this bounds its rate. It matters when transfers overlap; blocking ones keep the stage busy.
Seconds longest_round(const PipelineTimes& pipeline) {
  const auto stages = static_cast<std::size_t>(pipeline.stages);
  Seconds round{};
  Seconds longest{};
  for (std::size_t i = stages; i-- > 0;) {
    round += pipeline.passes[i].forward + pipeline.passes[i].backward;
    if (i + 1 < stages) round += pipeline.boundaries[i].forward + pipeline.boundaries[i].backward;
    longest = std::max(longest, round / static_cast<double>(stages - i));
  }
  return longest;
}

}  // namespace

LinearTime linear_form(const PipelineTimes& pipeline) {
  if (pipeline.schedule == Schedule::interleaved_1f1b) return interleaved(pipeline);
  if (pipeline.schedule == Schedule::gpipe) {
    const auto activation = [](const BoundaryTimes& c) { return c.forward; };
    const auto gradient = [](const BoundaryTimes& c) { return c.backward; };
    const Way forward = way(
        pipeline, [](const PassTimes& t) { return t.forward; }, activation, activation);
    const Way backward = way(
        pipeline, [](const PassTimes& t) { return t.backward; }, gradient, gradient);
    return {.first = forward.through + backward.through, .per_micro_batch = forward.longest + backward.longest};
  }
  Way both = way(
      pipeline, [](const PassTimes& t) { return t.forward + t.backward; },
      [](const BoundaryTimes& c) { return c.forward + c.backward; },
      [](const BoundaryTimes& c) { return std::max(c.forward, c.backward); });  // each direction is a link of its own
  if (pipeline.overlaps_transfers) both.longest = std::max(both.longest, longest_round(pipeline));
  return {.first = both.through, .per_micro_batch = both.longest};
}

Seconds closed_form(const PipelineTimes& pipeline) {
  const LinearTime time = linear_form(pipeline);
  return time.first + time.per_micro_batch * (pipeline.micro_batches - 1);
}

}  // namespace sailor::simulator
