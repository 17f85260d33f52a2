// Pipelines that labels price (ready_labels.hpp): the part of the pricing problem that asks them, several boxes at
// once.
#include <algorithm>

#include "planner/bound/pricing.hpp"
#include "planner/index.hpp"

namespace sailor::planner {

const std::vector<ReadyMessages>& PricingProblem::messages(const StageProgram& program) {
  std::vector<ReadyMessages>& all = messages_[&program];
  if (!all.empty()) return all;
  for (const StageCandidate& stage : program.candidates())
    for (const StageCandidate& next : program.candidates()) {
      const auto between = [&](bool one_node) {
        return prices_.boundary(stage.pool, stage.tensor_parallel, next.pool, next.tensor_parallel,
                                program.micro_batch(), one_node);
      };
      ReadyMessages& found = all.emplace_back(ReadyMessages{.far = between(false)});
      if (stage.pool == next.pool && stage.tensor_parallel + next.tensor_parallel <= stage.node)
        found.near = between(true);
    }
  return all;
}

// Inside a pool, devices and times of a pipeline do not depend on prices: an answer serves for all of them. Across
// pools, each asks anew.
void PricingProblem::find_ready_worth(StageProgram& program, std::vector<Box>& boxes, double deadline,
                                      const Branch& branch, double each, double needed) {
  if (label_work_left_ == 0) {
    for (Box& box : boxes) box.quickest_of_one = 0.0;
    return;
  }
  const auto& candidates = program.candidates();
  const auto sequences = [&](const Box& box, int count) {
    const double done = box.quickest_of_one + program.level(box.from) * (count - 1);
    return static_cast<double>(count) * program.micro_batch() * until_deadline(done);
  };
  struct Pending {
    KnownReady* known;
    ReadyQuestion question;
  };
  std::vector<Pending> pending;
  std::vector<const KnownReady*> answers;
  for (const Box& box : boxes) {
    const double max_price = (sequences(box, box.max_micro_batches) - each) / std::max(needed, 1e-300) * slack;
    KnownReady& known = ready_[{&program, box.from, box.to, box.min_micro_batches, box.max_micro_batches}];
    answers.push_back(&known);
    if (known.max_price >= max_price && program.inside()) continue;
    const auto same =
        std::find_if(pending.begin(), pending.end(), [&](const Pending& row) { return row.known == &known; });
    if (same != pending.end()) {
      same->question.max_price = known.max_price = std::max(known.max_price, max_price);
      continue;
    }
    const double quickest = program.level(box.from);
    known.max_price = max_price;
    pending.push_back({.known = &known,
                       .question = {.program = program,
                                    .furthest = limits(program, deadline - quickest * (box.min_micro_batches - 1),
                                                       box.min_micro_batches, deadline, branch),
                                    .slowest = program.level(box.to),
                                    .round = quickest,
                                    .min_micro_batches = box.min_micro_batches,
                                    .max_micro_batches = box.max_micro_batches,
                                    .in_flight = program.in_flight_at(box.to, box.min_micro_batches),
                                    .deadline = deadline,
                                    .step = step_ * deadline,
                                    .max_price = max_price,
                                    .price_step = program.inside() ? 0.0 : step_ * max_price,
                                    .max_first_reduction = branch.reduction_up_to,
                                    .crosses = branch.all_cross,
                                    .delay = delay_of(program, branch),
                                    .order = order_,
                                    .reduction =
                                        [&](std::size_t candidate, int first, int last, int devices) {
                                          return reduction(candidates[candidate].pool,
                                                           candidates[candidate].tensor_parallel, first, last,
                                                           at(devices), branch);
                                        },
                                    .messages = messages(program)}});
  }
  const auto price = [&](std::size_t i, std::size_t) {
    pending[i].known->answer = price_ready_pipelines(pending[i].question);
  };
  if (threads_ != nullptr)
    threads_->for_each(pending.size(), price);
  else
    for (std::size_t i = 0; i < pending.size(); ++i) price(i, 0);
  for (const Pending& row : pending) {
    work_ += row.known->answer.work;
    label_work_left_ -= std::min(label_work_left_, row.known->answer.work);
  }
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    Box& box = boxes[i];
    Box best = box;
    best.worth = best.quickest_of_one = 0.0;
    const ReadyAnswer& answer = answers[i]->answer;
    for (const ReadyPipeline& pipeline : answer.pipelines) {
      const double worth = (sequences(box, pipeline.count) - each) / pipeline.price;
      if (worth <= std::max(needed, best.worth)) continue;
      best.worth = worth;
      best.count = pipeline.count;
      best.sequences = sequences(box, pipeline.count);
      best.stages = pipeline.stages;
    }
    box.quickest_of_one = 0.0;
    if (answer.complete && best.worth < box.worth) box = std::move(best);
  }
}

}  // namespace sailor::planner
