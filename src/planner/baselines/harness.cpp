#include "planner/baselines/harness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/cluster_nodes.hpp"
#include "plan/node_placement.hpp"

namespace sailor::planner::baselines {

namespace harness_detail {

struct NamedScope {
  std::string_view name;
  Scope scope;
};
constexpr std::array named_scopes{NamedScope{"aceso", Scope::one_offer},     NamedScope{"amp", Scope::one_zone},
                                  NamedScope{"atlas", Scope::one_type},      NamedScope{"flashflex", Scope::one_zone},
                                  NamedScope{"galvatron", Scope::one_offer}, NamedScope{"metis", Scope::one_zone},
                                  NamedScope{"oobleck", Scope::one_offer},   NamedScope{"piper", Scope::one_offer},
                                  NamedScope{"varuna", Scope::one_offer}};

/// Offers that are alike in a key, in the order of the first of each.
template <class Key>
std::vector<std::vector<Offer>> grouped(const std::vector<Offer>& offers, Key key) {
  std::vector<std::vector<Offer>> sets;
  for (const Offer& offer : offers) {
    const auto same =
        std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return key(set.front()) == key(offer); });
    if (same != sets.end())
      same->push_back(offer);
    else
      sets.push_back({offer});
  }
  return sets;
}

/// The last zone of each GPU type, all under the name of the last zone (simulations/simulator.py:111).
std::vector<Offer> overwritten(const std::vector<Offer>& offers) {
  std::vector<Offer> given;
  for (const Offer& offer : offers) {
    const auto same =
        std::find_if(given.begin(), given.end(), [&](const Offer& other) { return other.gpu == offer.gpu; });
    if (same != given.end())
      *same = offer;
    else
      given.push_back(offer);
  }
  for (Offer& offer : given) offer.zone = offers.back().zone;
  return given;
}

std::string text_of(const std::vector<Offer>& offers) {
  std::vector<std::string> parts;
  for (const Offer& offer : offers)
    parts.push_back(offer.zone.empty() ? fmt::format("{} {}", offer.gpus, offer.gpu)
                                       : fmt::format("{} {} in {}", offer.gpus, offer.gpu, offer.zone));
  return join(parts, ", ");
}

/// Number of devices by GPU type and zone.
using Devices = std::map<std::pair<std::string, std::string>, int>;

/// Devices that are used but not offered: "132 A100-40 in us-central1-c of 128"; std::nullopt if all are offered.
std::optional<std::string> not_there(const PlanList& list, const std::vector<Offer>& offers) {
  Devices there;
  Devices taken;
  for (const Offer& offer : offers) there[{offer.gpu, offer.zone}] += offer.gpus;
  for (const ListPipeline& pipeline : list.pipelines)
    for (const ListStage& stage : pipeline.stages)
      for (const Replica& replica : stage.replicas) {
        const int machines = static_cast<int>(replica.machines.size());
        for (int i = 0; i < machines; ++i)
          taken[{replica.machines[i].gpu, replica.machines[i].zone}] +=
              replica.tensor_parallel / machines + (i < replica.tensor_parallel % machines ? 1 : 0);
      }
  for (const auto& [place, count] : taken)
    if (count > there[place])
      return fmt::format("{} {}{} of {}", count, place.first, place.second.empty() ? "" : " in " + place.second,
                         there[place]);
  return std::nullopt;
}

std::string_view name_of(Judge judge) {
  return judge == Judge::simulator ? "the simulator" : "the artifact's evaluator";
}

/// Judges the proposals of one set of offers.
class Court {
 public:
  Court(const Problem& problem, const Judging& judging) : problem_(problem), judging_(judging) {
    if (judging.simulated.cluster != nullptr) nodes_ = placement_nodes(judging.simulated.cluster->groups);
  }

  void judge(Proposals&& proposals, HarnessAnswer& answer) {
    answer.proposed = proposals.plans.size();
    // Only the first problem of each kind is noted.
    bool told_missing = false;
    bool told_not_judged = false;
    for (Proposal& proposal : proposals.plans) {
      // An interrupted search returns the best so far.
      if (answer.plans.size() >= judging_.max_plans || (!answer.plans.empty() && problem_.is_over())) break;
      const bool counts = answer.plans.empty();
      JudgedPlan judged{.proposal = std::move(proposal), .plan = {}, .why_no_plan = {}};
      auto plan = to_plan(judged.proposal.plan, problem_.job);
      if (plan)
        judged.plan = *std::move(plan);
      else
        judged.why_no_plan = plan.error().what;
      if (const auto missing = what_is_missing(judged)) {
        answer.not_available += counts ? 1 : 0;
        if (!std::exchange(told_missing, true))
          answer.notes.push_back(fmt::format("a plan takes more than there is: {}{}", *missing,
                                             kept() ? "; it is judged all the same, as published" : ""));
        if (!kept()) continue;
      }
      const auto fits = ask_judge(judged);
      if (!fits) {
        answer.not_judged += counts ? 1 : 0;
        if (!std::exchange(told_not_judged, true))
          answer.notes.push_back(fmt::format("{} cannot judge {}: {}", name_of(judging_.judge),
                                             describe(judged.proposal.plan), fits.error().what));
        continue;
      }
      if (!*fits)
        answer.did_not_fit += counts ? 1 : 0;
      else if (!keeps_limits(judged))
        answer.rejected_by_limits += counts ? 1 : 0;
      else
        answer.plans.push_back(std::move(judged));
    }
    for (JudgedPlan& judged : answer.plans) ask_other(judged);
  }

 private:
  [[nodiscard]] bool kept() const { return problem_.faults == Faults::kept; }

  [[nodiscard]] std::optional<std::string> what_is_missing(const JudgedPlan& judged) const {
    if (auto missing = not_there(judged.proposal.plan, problem_.offers)) return missing;
    if (kept() || !judged.plan || nodes_.empty()) return std::nullopt;
    const auto places = place_on_nodes(*judged.plan, nodes_);
    if (!places) return places.error().what;
    std::set<int> in_use;
    for (const RankPlace& place : *places) in_use.insert(place.node);
    if (judging_.max_nodes && static_cast<int>(in_use.size()) > *judging_.max_nodes)
      return fmt::format("{} nodes, but a job may have {}", in_use.size(), *judging_.max_nodes);
    return std::nullopt;
  }

  void ask_artifact(JudgedPlan& judged) const {
    // The artifact judges Aceso's plans by an evaluator of operators, all others by that of layers.
    if (problem_.faults == Faults::kept && judged.proposal.own_score)
      judged.artifact = *judged.proposal.own_score;
    else
      judged.artifact = evaluate(judged.proposal.plan, problem_.inputs, problem_.job, problem_.faults);
  }
  void ask_simulator(JudgedPlan& judged) const {
    judged.simulator = predict_list(judged.proposal.plan, problem_.job, judging_.simulated, judging_.memory_margin);
  }
  void ask_other(JudgedPlan& judged) const {
    if (judging_.judge == Judge::simulator)
      ask_artifact(judged);
    else
      ask_simulator(judged);
  }

  /// Asks the judge; true if the plan fits.
  Result<bool> ask_judge(JudgedPlan& judged) const {
    if (judging_.judge == Judge::simulator) {
      ask_simulator(judged);
      if (!judged.simulator) return fail(judged.simulator.error());
      judged.iteration_time = judged.simulator->iteration_time;
      judged.cost = judged.simulator->cost;
      judged.peak_memory = judged.simulator->peak_memory;
      judged.is_bound = judged.simulator->is_bound;
      return judged.simulator->fits;
    }
    ask_artifact(judged);
    if (!judged.artifact) return fail(judged.artifact.error());
    judged.iteration_time = judged.artifact->iteration_time;
    judged.cost = judged.artifact->cost;
    judged.peak_memory = judged.artifact->peak_memory;
    return judged.artifact->fits;
  }

  /// Whether the plan keeps the limits, up to rounding.
  [[nodiscard]] bool keeps_limits(const JudgedPlan& judged) const {
    constexpr double rounding = 1e-9;
    if (problem_.max_cost && judged.cost > *problem_.max_cost * (1.0 + rounding)) return false;
    return !problem_.min_throughput ||
           1.0 / judged.iteration_time.value() >= *problem_.min_throughput * (1.0 - rounding);
  }

  const Problem& problem_;
  const Judging& judging_;
  std::vector<PlacementNode> nodes_;
};

/// Whether the first plan of one answer is better than that of another; any is better than none.
bool is_better(const HarnessAnswer& a, const HarnessAnswer& b, Objective objective) {
  if (a.plans.empty() || b.plans.empty()) return !a.plans.empty();
  return objective == Objective::cost ? a.plans.front().cost < b.plans.front().cost
                                      : a.plans.front().iteration_time < b.plans.front().iteration_time;
}

void add_counts(const HarnessAnswer& from, HarnessAnswer& to) {
  to.proposed += from.proposed;
  to.did_not_fit += from.did_not_fit;
  to.rejected_by_limits += from.rejected_by_limits;
  to.not_available += from.not_available;
  to.not_judged += from.not_judged;
  to.notes.insert(to.notes.end(), from.notes.begin(), from.notes.end());
}

}  // namespace harness_detail

Scope scope_of(std::string_view planner) {
  const auto& scopes = harness_detail::named_scopes;
  const auto found =
      std::find_if(scopes.begin(), scopes.end(), [&](const auto& entry) { return entry.name == planner; });
  return found == scopes.end() ? Scope::everything : found->scope;
}

std::vector<std::vector<Offer>> offer_sets(Scope scope, const std::vector<Offer>& offers, Faults faults) {
  if (offers.empty()) return {};
  std::vector<std::vector<Offer>> sets;
  switch (scope) {
    case Scope::everything:
      return {offers};
    case Scope::one_zone:
      if (faults == Faults::kept) return {harness_detail::overwritten(offers)};
      return harness_detail::grouped(offers, [](const Offer& offer) { return offer.zone; });
    case Scope::one_type:
      sets = harness_detail::grouped(offers, [](const Offer& offer) { return offer.gpu; });
      break;
    case Scope::one_offer:
      for (const Offer& offer : offers) sets.push_back({offer});
      break;
  }
  if (faults == Faults::kept) sets.resize(1);
  return sets;
}

std::vector<Offer> offers_of(const std::vector<NodeGroup>& groups) {
  std::vector<Offer> offers;
  for (const NodeGroup& group : groups) {
    const auto same = std::find_if(offers.begin(), offers.end(), [&](const Offer& offer) {
      return offer.gpu == group.gpu && offer.zone == group.zone && offer.gpus_per_node == group.gpus_per_node;
    });
    if (same != offers.end())
      same->gpus += group.count * group.gpus_per_node;
    else
      offers.push_back({.gpu = group.gpu,
                        .zone = group.zone,
                        .gpus = group.count * group.gpus_per_node,
                        .gpus_per_node = group.gpus_per_node});
  }
  return offers;
}

std::vector<Offer> offers_of(const PlanList& list) {
  std::vector<Offer> offers;
  for (const ListPipeline& pipeline : list.pipelines)
    for (const ListStage& stage : pipeline.stages)
      for (const Replica& replica : stage.replicas)
        for (const Machine& machine : replica.machines) {
          auto same = std::find_if(offers.begin(), offers.end(), [&](const Offer& offer) {
            return offer.gpu == machine.gpu && offer.zone == machine.zone &&
                   offer.gpus_per_node == machine.gpus_per_node;
          });
          if (same == offers.end())
            same =
                offers.insert(same, {.gpu = machine.gpu, .zone = machine.zone, .gpus_per_node = machine.gpus_per_node});
          same->gpus += machine.gpus_per_node;
        }
  return offers;
}

Result<HarnessAnswer> ask(const Baseline& baseline, const Problem& problem, const Judging& judging) {
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::duration<double>;
  const auto start = Clock::now();
  Problem posed = problem;
  // The time that is left is divided among the sets of offers that are left.
  std::optional<double> end;  // seconds since the start
  posed.is_over = [&problem, &end, start] {
    return problem.is_over() || (end && Duration(Clock::now() - start).count() >= *end);
  };
  const std::vector<std::vector<Offer>> sets = offer_sets(scope_of(baseline.name()), problem.offers, problem.faults);
  if (sets.empty())
    return fail(ErrorCode::infeasible, "no devices are offered to the planner",
                "check the partition, the states of the nodes (--availability), and pins of GPU types and zones");
  harness_detail::Court court(problem, judging);
  HarnessAnswer best;
  HarnessAnswer none;  // counts of sets without an accepted plan
  Duration searching{};
  bool out_of_time = false;
  std::size_t asked = 0;
  for (const std::vector<Offer>& set : sets) {
    const double gone = Duration(Clock::now() - start).count();
    if (asked > 0 && (problem.is_over() || (problem.time_limit && gone >= problem.time_limit->value()))) {
      out_of_time = true;
      break;
    }
    if (problem.time_limit)
      end = gone + (problem.time_limit->value() - gone) / static_cast<double>(sets.size() - asked);
    ++asked;
    posed.offers = set;
    HarnessAnswer answer;
    answer.offers = set;
    const auto before = Clock::now();
    auto proposals = baseline.plan(posed);
    searching += Clock::now() - before;
    if (!proposals) {
      // If there are several sets, some may lack measurements.
      if (proposals.error().code != ErrorCode::infeasible && sets.size() == 1) return fail(proposals.error());
      answer.notes.push_back(fmt::format("{}: {}", harness_detail::text_of(set), proposals.error().message()));
    } else {
      out_of_time = out_of_time || proposals->out_of_time;
      answer.notes = proposals->notes;
      court.judge(*std::move(proposals), answer);
    }
    if (answer.plans.empty())
      harness_detail::add_counts(answer, none);
    else if (harness_detail::is_better(answer, best, problem.objective))
      best = std::move(answer);
  }
  if (best.plans.empty()) {
    best = std::move(none);
    best.offers = problem.offers;
  }
  best.search_time = Seconds(searching.count());
  best.out_of_time = out_of_time;
  const std::string considered = harness_detail::text_of(best.offers);
  if (sets.size() > 1 && !best.plans.empty())
    best.notes.push_back(fmt::format("{} can use one {} at a time: the best of {} is {}", baseline.title(),
                                     scope_of(baseline.name()) == Scope::one_zone   ? "zone"
                                     : scope_of(baseline.name()) == Scope::one_type ? "GPU type"
                                                                                    : "offer",
                                     asked, considered));
  else if (sets.size() == 1 && considered != harness_detail::text_of(problem.offers) && problem.faults == Faults::kept)
    best.notes.push_back(fmt::format("{} is given {} only, as the artifact does it", baseline.title(),
                                     harness_detail::text_of(sets.front())));
  if (out_of_time) best.notes.emplace_back("the search ended before it was done: with more time it may propose better");
  return best;
}

}  // namespace sailor::planner::baselines
