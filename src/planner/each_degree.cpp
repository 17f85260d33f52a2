#include "planner/each_degree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.hpp"
#include "planner/considered_nodes.hpp"
#include "planner/explain.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

namespace {

constexpr int long_sequence = 8192;  // tokens from which context parallelism is tried
constexpr int max_context_parallel = 16;

constexpr int max_nodes_of_group = 4;  // that sharding groups are tried for: beyond a node, shards save memory only

struct Degrees {
  int context = 1;
  int expert = 1;
  int sharding = 0;  // Plan::sharding_degree
  bool operator==(const Degrees&) const = default;
};
constexpr Degrees undivided;

Request with_degrees(Request request, const Degrees& degrees) {
  request.pins.context_parallel = degrees.context;
  request.pins.expert_parallel = degrees.expert;
  if (degrees.sharding > 0) request.pins.sharding_degree = degrees.sharding;
  return request;
}

std::string sharding_name(int degree) { return degree == 0 ? "all replicas" : fmt::to_string(degree); }

/// 1, 2, 4, ... up to `most`, as far as they divide `number`.
std::vector<int> degrees_that_divide(int number, int most) {
  std::vector<int> degrees{1};
  while (degrees.back() * 2 <= most && number % (degrees.back() * 2) == 0) degrees.push_back(degrees.back() * 2);
  return degrees;
}

/// Tries degrees of context and expert parallelism, and of sharding, one after the other.
class DegreeSearch {
 public:
  DegreeSearch(const Request& request, const simulator::Environment& env, const SearchOne& search_one)
      : request_(request), env_(env), search_one_(search_one) {
    int devices = 0;
    int node = 1;
    for (const NodeGroup& group : considered_nodes(request, *env.cluster, env.gpus).groups) {
      devices += std::min(group.count * group.gpus_per_node, 1024);
      node = std::max(node, group.gpus_per_node);
    }
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
    if (pins.sharding_degree) shardings_ = {*pins.sharding_degree};
    if (request.space == Space::full && tries_groups())
      for (int degree = 2; degree < devices && degree <= max_nodes_of_group * node; ++degree)
        if (std::has_single_bit(static_cast<unsigned>(degree)) ||
            (degree % node == 0 && std::has_single_bit(static_cast<unsigned>(degree / node))))
          shardings_.push_back(degree);
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
  /// Whether groups are tried: they pay where weights are gathered in every pass. Others can be pinned.
  [[nodiscard]] bool tries_groups() const {
    const Pins& pins = request_.pins;
    return env_.framework.supports_sharding_degree && !pins.sharding_degree &&
           env_.framework.supports(OptimizerSharding::zero3) &&
           pins.optimizer_sharding.value_or(OptimizerSharding::zero3) == OptimizerSharding::zero3;
  }

  Result<SearchResult> search() {
    const std::size_t tried = contexts_.size() * experts_.size() + shardings_.size() - 1;
    if (tried == 1) {
      auto only = search_one_(with_degrees(request_, {contexts_.front(), experts_.front(), shardings_.front()}));
      if (only && env_.model.experts.count > 0 && !request_.pins.expert_parallel)
        only->degrees =
            fmt::format("Not tried: expert_parallel, which {}.",
                        env_.measured_only ? "nobody measured" : "framework " + env_.framework.name + " does not have");
      return only;
    }
    std::vector<Candidate> found;
    std::optional<Degrees> best;
    double best_score = infinity;
    const auto try_briefly = [&](const std::vector<Degrees>& all, bool gives_up) {
      std::vector<Request> requests;
      for (const Degrees& degrees : all) {
        Request& brief = requests.emplace_back(with_degrees(request_, degrees));
        brief.effort.brief = true;
        brief.effort.gives_up = brief.effort.gives_up || gives_up;
        brief.pareto = false;
        brief.max_plans = 1;
        if (request_.effort.time) brief.effort.time = *request_.effort.time / (2.0 * static_cast<double>(tried));
      }
      auto results = search_side_by_side(std::move(requests), search_one_);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!results[i] || is_one_group(results[i]->plans.front().plan)) continue;
        Candidate& one = results[i]->plans.front();
        const double score =
            score_of(request_.objective, one.prediction.iteration_time, one.prediction.cost_per_iteration);
        if (score < best_score) {
          best_score = score;
          best = all[i];
        }
        found.push_back(std::move(one));
      }
    };
    std::vector<Degrees> divisions;
    for (const int context : contexts_)
      for (const int expert : experts_) divisions.push_back({context, expert, shardings_.front()});
    try_briefly(divisions, false);
    const Degrees least{contexts_.front(), experts_.front(), shardings_.front()};
    if (!best) return search_one_(in_full(least, 1));
    // Groups need more memory than sharding over all: where nothing fits without them nothing fits with them.
    std::vector<Degrees> groups;
    for (std::size_t i = 1; i < shardings_.size(); ++i)
      if (shardings_[i] % std::lcm(best->context, best->expert) == 0)
        groups.push_back({best->context, best->expert, shardings_[i]});
    try_briefly(groups, true);
    // The least degrees are searched in full as well, so that trying more of them never gives a worse plan.
    std::vector<Degrees> thorough{*best};
    if (*best != least) thorough.push_back(least);
    std::vector<Request> requests;
    for (const Degrees& degrees : thorough) requests.push_back(in_full(degrees, thorough.size()));
    auto results = search_side_by_side(std::move(requests), search_one_);
    auto result = std::move(results.front());
    if (!result) return result;
    for (Candidate& candidate : result->plans)
      if (is_one_group(candidate.plan)) candidate.plan.sharding_degree = 0;
    result->degrees = tried_text();
    std::string searched = text_of(*best);
    std::optional<Bound> bound;
    if (*best == undivided) bound = result->bound;
    if (thorough.size() > 1 && results.back()) {
      searched += ", and " + text_of(least);
      if (least == undivided) bound = results.back()->bound;
      add(std::move(*results.back()), *result);
    }
    result->degrees += fmt::format(". Searched in full: {}.", searched);
    if (bound && !covers_all()) result->degrees += bound_text(*bound, *result);
    std::erase_if(found, [&](const Candidate& candidate) {
      const Plan& plan = candidate.plan;
      const Degrees degrees{plan.context_parallel, plan.expert_parallel, plan.sharding_degree};
      return std::find(thorough.begin(), thorough.end(), degrees) != thorough.end();
    });
    add_plans(std::move(found), *result);
    set_bound(covers_all() ? bound : std::nullopt, *result);
    return result;
  }

  [[nodiscard]] double best_found(const Bound& bound, const SearchResult& result) const {
    const bool is_cost = request_.objective == Objective::cost;
    return is_cost ? std::min(bound.found, result.bound.found) : std::max(bound.found, result.bound.found);
  }

  /// `bound`: that of all plans, beside the best plan that its search found; std::nullopt: none is known.
  void set_bound(const std::optional<Bound>& bound, SearchResult& result) const {
    const bool is_cost = request_.objective == Objective::cost;
    if (!bound) {
      result.bound.gap = infinity;
      result.bound.bound = is_cost ? 0.0 : infinity;
      return;
    }
    const double found = best_found(*bound, result);
    const double gap = is_cost ? 1.0 - bound->bound / found : bound->bound / found - 1.0;
    result.bound = {.found = found, .bound = bound->bound, .gap = std::max(0.0, gap)};
  }

  /// Whether the plan's only sharding group is all replicas: it is found without sharding_degree, too.
  [[nodiscard]] bool is_one_group(const Plan& plan) const {
    return shardings_.size() > 1 && plan.sharding_degree > 0 && plan.sharding_groups() == 1;
  }
  [[nodiscard]] bool divides() const { return contexts_.size() * experts_.size() > 1; }

  /// Whether the bound of the plans without sharding groups is one of those with groups, too: it counts passes without
  /// what they exchange, which are no quicker with groups, and no rank needs less memory; but reductions after the
  /// passes may be quicker. Where going through all plans may be the proof, what passes exchange is counted.
  [[nodiscard]] bool covers_all() const {
    const std::vector<OptimizerSharding>& shardings = env_.framework.shardings;
    return !divides() && env_.framework.uniformity.any() &&
           (env_.framework.overlaps_reduction || std::all_of(shardings.begin(), shardings.end(), shards_weights));
  }

  /// The degrees of which several are tried, by their keys: "expert_parallel 4".
  [[nodiscard]] std::string text_of(const Degrees& degrees) const {
    std::vector<std::string> parts;
    if (contexts_.size() > 1) parts.push_back(fmt::format("context_parallel {}", degrees.context));
    if (experts_.size() > 1) parts.push_back(fmt::format("expert_parallel {}", degrees.expert));
    if (shardings_.size() > 1) parts.push_back("sharding_degree " + sharding_name(degrees.sharding));
    return join(parts, " with ");
  }

  [[nodiscard]] std::string tried_text() const {
    std::vector<std::string> parts;
    if (contexts_.size() > 1) parts.push_back(fmt::format("context_parallel {}", join(contexts_, ", ")));
    if (experts_.size() > 1) parts.push_back(fmt::format("expert_parallel {}", join(experts_, ", ")));
    std::string text = fmt::format("Tried briefly: {}", join(parts, " with "));
    if (shardings_.size() == 1) return text;
    std::vector<std::string> names;
    for (const int degree : shardings_) names.push_back(sharding_name(degree));
    return text + fmt::format("{}sharding_degree {}", divides() ? "; for the best of them " : "", join(names, ", "));
  }

  /// `searches`: how many such searches share the time.
  [[nodiscard]] Request in_full(const Degrees& degrees, std::size_t searches) const {
    Request full = with_degrees(request_, degrees);
    full.effort.bounds_groups = covers_all() && shardings_.size() > 1;
    if (request_.effort.time) full.effort.time = *request_.effort.time / (2.0 * static_cast<double>(searches));
    return full;
  }

  /// The sentence that says what `bound`, of the plans without division, proves, compared with the best of all.
  [[nodiscard]] std::string bound_text(const Bound& bound, const SearchResult& result) const {
    if (!std::isfinite(bound.gap) || bound.bound <= 0.0) return "";
    const bool is_cost = request_.objective == Objective::cost;
    const double found = best_found(bound, result);
    const double gap = is_cost ? found / bound.bound - 1.0 : bound.bound / found - 1.0;
    const std::string_view which = shardings_.size() == 1
                                       ? "divide neither sequences nor experts"
                                       : (divides() ? "divide neither sequences nor experts and shard over all replicas"
                                                    : "shard over all replicas");
    if (gap <= 0.0) return fmt::format(" Of the plans that {}, none is better than the first.", which);
    return fmt::format(" Of the plans that {}, none is more than {} better than the first.", which, at_most(gap));
  }

  void add(SearchResult other, SearchResult& result) const {
    result.considered += other.considered;
    result.did_not_fit += other.did_not_fit;
    result.not_priced += other.not_priced;
    if (result.why_not_priced.empty()) result.why_not_priced = std::move(other.why_not_priced);
    if (other.stop != Stop::done) result.stop = other.stop;
    add_plans(std::move(other.plans), result);
  }

  static void remove_repeated(std::vector<Candidate>& plans) {
    std::set<std::string> known;
    std::erase_if(plans, [&](const Candidate& one) { return !known.insert(plan_fingerprint(one.plan)).second; });
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
    remove_repeated(result.plans);
    if (result.plans.size() > request_.max_plans) result.plans.resize(request_.max_plans);
  }

  const Request& request_;
  const simulator::Environment& env_;
  const SearchOne& search_one_;
  std::vector<int> all_contexts_{1};
  std::vector<int> contexts_{1};
  std::vector<int> experts_{1};
  std::vector<int> shardings_{0};
};

}  // namespace

Result<SearchResult> search_each_degree(const Request& request, const simulator::Environment& environment,
                                        const SearchOne& search) {
  return DegreeSearch(request, environment, search).run();
}

}  // namespace sailor::planner
