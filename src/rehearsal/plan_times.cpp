#include "rehearsal/plan_times.hpp"

#include <stdexcept>

namespace sailor::rehearsal {

namespace {

/// Max size of an iteration's gradient norm and loss: a few numbers that all ranks all-reduce, which the simulator
/// ignores.
constexpr Bytes totals{64.0};

}  // namespace

std::size_t PlanTimes::stage_of(int rank) const {
  const RankRole& role = roles_[static_cast<std::size_t>(rank)];
  return costs_.pipelines[static_cast<std::size_t>(role.pipeline_entry)].first_stage +
         static_cast<std::size_t>(role.stage);
}

Seconds PlanTimes::message(int from, int, runtime::MessageKind kind, Bytes) const {
  using runtime::MessageKind;
  if (kind == MessageKind::other) throw std::logic_error("only messages of pipelines have a time in the plan's costs");
  const RankRole& role = roles_[static_cast<std::size_t>(from)];
  const simulator::PipelineCosts& pipeline = costs_.pipelines[static_cast<std::size_t>(role.pipeline_entry)];
  // The boundary after the last stage leads to the first stage, for its next chunk.
  const int boundary =
      kind == MessageKind::activation ? role.stage : (role.stage + pipeline.stages - 1) % pipeline.stages;
  const simulator::BoundaryTimes& times =
      costs_.boundaries[pipeline.first_boundary + static_cast<std::size_t>(boundary)];
  return kind == MessageKind::activation ? times.forward : times.backward;
}

Seconds PlanTimes::collective(runtime::Collective collective, const std::vector<int>& ranks, Bytes amount) const {
  if (collective == runtime::Collective::all_to_all) return {};  // part of the passes
  std::set<std::size_t> holders;
  std::set<int> experts;  // expert-parallel indices
  bool one_group = true;
  const RankRole& first = roles_[static_cast<std::size_t>(ranks.front())];
  for (const int rank : ranks) {
    const RankRole& role = roles_[static_cast<std::size_t>(rank)];
    one_group = one_group && role.pipeline == first.pipeline && role.stage == first.stage &&
                role.context_parallel_index == first.context_parallel_index;
    holders.insert(stage_of(rank));
    experts.insert(role.expert_parallel_index);
  }
  if (one_group || amount <= totals) return {};
  const Seconds all_reduce = rate({holders, divides_experts_ && experts.size() == 1}) * amount.value();
  return collective == runtime::Collective::all_reduce ? all_reduce : all_reduce * 0.5;
}

Seconds PlanTimes::rate(const Reduced& what) const {
  const auto [entry, is_new] = rates_.try_emplace(what);
  if (!is_new) return entry->second;
  Seconds time{};
  Bytes amount{};
  for (const simulator::Reduction& reduction : costs_.reductions) {
    const auto held = costs_.holders_of(reduction);
    if (reduction.experts != what.second || std::set<std::size_t>(held.begin(), held.end()) != what.first) continue;
    time += reduction.time;
    amount += reduction.amount;
  }
  if (amount <= Bytes(0)) throw std::logic_error("the simulator knows nothing of a sum that the trainer makes");
  return entry->second = time / amount.value();
}

}  // namespace sailor::rehearsal
