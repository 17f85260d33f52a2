#include "planner/each_degree.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/explain.hpp"
#include "planner/search_space.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

namespace {

constexpr int long_sequence = 8192;  // tokens from which context parallelism is tried
constexpr int max_context_parallel = 16;

struct Degrees {
  int context = 1;
  int expert = 1;
  bool operator==(const Degrees&) const = default;
};
constexpr Degrees undivided;

std::string text_of(const Degrees& degrees) { return fmt::format("{} with {}", degrees.context, degrees.expert); }

Request with_degrees(Request request, const Degrees& degrees) {
  request.pins.context_parallel = degrees.context;
  request.pins.expert_parallel = degrees.expert;
  return request;
}

/// 1, 2, 4, ... up to `most`, as far as they divide `number`.
std::vector<int> degrees_that_divide(int number, int most) {
  std::vector<int> degrees{1};
  while (degrees.back() * 2 <= most && number % (degrees.back() * 2) == 0) degrees.push_back(degrees.back() * 2);
  return degrees;
}

/// Tries degrees of context and expert parallelism one after the other.
class DegreeSearch {
 public:
  DegreeSearch(const Request& request, const simulator::Environment& env, const SearchOne& search_one)
      : request_(request), env_(env), search_one_(search_one) {
    int devices = 0;
    for (const NodeGroup& group : considered_nodes(request, *env.cluster, env.gpus).groups)
      devices += std::min(group.count * group.gpus_per_node, 1024);
    const bool may_try = request.space == Space::full && !env.measured_only;
    const Pins& pins = request.pins;
    const int sequence = request.job.sequence_length;
    if (may_try && env.framework.supports_context_parallel && !pins.context_parallel)
      all_contexts_ = degrees_that_divide(sequence / 2, std::min(devices, max_context_parallel));
    std::erase_if(all_contexts_,
                  [&](int context) { return !can_exchange(env.model, env.framework.kernels, 1, context); });
    contexts_ = sequence >= long_sequence ? all_contexts_ : std::vector{1};
    if (pins.context_parallel) contexts_ = {*pins.context_parallel};
    const int experts = env.model.experts.count;
    if (may_try && env.framework.supports_expert_parallel && experts > 0)
      experts_ = degrees_that_divide(experts, std::min(devices, experts));
    if (pins.expert_parallel) experts_ = {*pins.expert_parallel};
  }

  Result<SearchResult> run() {
    auto result = search();
    if (result || result.error().code != ErrorCode::infeasible || contexts_.size() >= all_contexts_.size())
      return result;
    contexts_ = all_contexts_;  // nothing fits without context parallelism
    auto again = search();
    return again ? std::move(again) : std::move(result);
  }

 private:
  Result<SearchResult> search() {
    if (contexts_.size() * experts_.size() == 1) {
      auto only = search_one_(with_degrees(request_, {contexts_.front(), experts_.front()}));
      if (only && env_.model.experts.count > 0 && !request_.pins.expert_parallel)
        only->degrees =
            fmt::format("Not tried: expert_parallel, which {}.",
                        env_.measured_only ? "nobody measured" : "framework " + env_.framework.name + " does not have");
      return only;
    }
    std::vector<Candidate> found;
    std::optional<Degrees> best;
    double best_score = infinity;
    std::optional<Error> failure;
    const double pairs = static_cast<double>(contexts_.size() * experts_.size());
    for (const int context : contexts_)
      for (const int expert : experts_) {
        Request brief = with_degrees(request_, {context, expert});
        brief.effort.brief = true;
        brief.pareto = false;
        brief.max_plans = 1;
        if (request_.effort.time) brief.effort.time = *request_.effort.time / (2.0 * pairs);
        auto one = search_one_(brief);
        if (!one) {
          if (!failure) failure = one.error();
          continue;
        }
        const simulator::Prediction& prediction = one->plans.front().prediction;
        const double score = score_of(request_.objective, prediction.iteration_time, prediction.cost_per_iteration);
        if (score < best_score) {
          best_score = score;
          best = {context, expert};
        }
        found.push_back(std::move(one->plans.front()));
      }
    if (!best) return fail(*failure);
    // Degrees of 1 are searched in full as well, so that trying more degrees never gives a worse plan.
    std::vector<Degrees> in_full{*best};
    if (*best != undivided && contexts_.front() == 1 && experts_.front() == 1) in_full.push_back(undivided);
    auto result = search_in_full(*best, in_full.size());
    if (!result) return result;
    result->degrees = fmt::format("Tried: context_parallel {} with expert_parallel {}; each briefly, {} in full.",
                                  fmt::join(contexts_, ", "), fmt::join(experts_, ", "), text_of(*best));
    if (in_full.size() > 1) {
      if (auto other = search_in_full(undivided, in_full.size())) {
        result->degrees.insert(result->degrees.rfind(" in full"), " and " + text_of(undivided));
        result->degrees += bound_text(*other, *result);
        add(std::move(*other), *result);
      }
    }
    std::erase_if(found, [&](const Candidate& candidate) {
      const Degrees degrees{candidate.plan.context_parallel, candidate.plan.expert_parallel};
      return std::find(in_full.begin(), in_full.end(), degrees) != in_full.end();
    });
    add_plans(std::move(found), *result);
    result->bound.gap = infinity;
    result->bound.bound = request_.objective == Objective::cost ? 0.0 : infinity;
    return result;
  }

  /// `searches`: how many such searches share the time.
  Result<SearchResult> search_in_full(const Degrees& degrees, std::size_t searches) const {
    Request full = with_degrees(request_, degrees);
    if (request_.effort.time) full.effort.time = *request_.effort.time / (2.0 * static_cast<double>(searches));
    return search_one_(full);
  }

  /// The sentence that says what is proved of the plans of `other`, compared with the best of both.
  [[nodiscard]] std::string bound_text(const SearchResult& other, const SearchResult& result) const {
    if (!std::isfinite(other.bound.gap) || other.bound.bound <= 0.0) return "";
    const bool is_cost = request_.objective == Objective::cost;
    const double found =
        is_cost ? std::min(other.bound.found, result.bound.found) : std::max(other.bound.found, result.bound.found);
    const double gap = is_cost ? found / other.bound.bound - 1.0 : other.bound.bound / found - 1.0;
    if (gap <= 0.0) return " Of the plans that divide neither sequences nor experts, none is better than the first.";
    return fmt::format(
        " Of the plans that divide neither sequences nor experts, none is more than {} better than the first.",
        at_most(gap));
  }

  void add(SearchResult other, SearchResult& result) const {
    result.considered += other.considered;
    result.did_not_fit += other.did_not_fit;
    result.not_priced += other.not_priced;
    if (result.why_not_priced.empty()) result.why_not_priced = std::move(other.why_not_priced);
    if (other.stop != Stop::done) result.stop = other.stop;
    add_plans(std::move(other.plans), result);
  }

  /// Best first; of a front, only what nothing else is better than in both time and cost.
  void add_plans(std::vector<Candidate> plans, SearchResult& result) const {
    std::move(plans.begin(), plans.end(), std::back_inserter(result.plans));
    const auto time = [](const Candidate& one) { return one.prediction.iteration_time; };
    const auto cost = [](const Candidate& one) { return one.prediction.cost_per_iteration; };
    if (request_.pareto) {
      std::stable_sort(result.plans.begin(), result.plans.end(), [&](const Candidate& a, const Candidate& b) {
        return std::pair(time(a), cost(a)) < std::pair(time(b), cost(b));
      });
      std::optional<Usd> least;
      std::erase_if(result.plans, [&](const Candidate& one) {
        if (least && cost(one) >= *least) return true;
        least = cost(one);
        return false;
      });
      return;
    }
    const auto score = [&](const Candidate& one) { return score_of(request_.objective, time(one), cost(one)); };
    std::stable_sort(result.plans.begin(), result.plans.end(),
                     [&](const Candidate& a, const Candidate& b) { return score(a) < score(b); });
    if (result.plans.size() > request_.max_plans) result.plans.resize(request_.max_plans);
  }

  const Request& request_;
  const simulator::Environment& env_;
  const SearchOne& search_one_;
  std::vector<int> all_contexts_{1};
  std::vector<int> contexts_{1};
  std::vector<int> experts_{1};
};

}  // namespace

Result<SearchResult> search_each_degree(const Request& request, const simulator::Environment& environment,
                                        const SearchOne& search) {
  return DegreeSearch(request, environment, search).run();
}

}  // namespace sailor::planner
