#include "planner/bound/bound.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>

#include "core/worker_threads.hpp"
#include "planner/bound/bound_work.hpp"
#include "planner/bound/branching.hpp"
#include "planner/bound/device_value.hpp"
#include "planner/bound/least_scores.hpp"
#include "planner/bound/merged_zones.hpp"
#include "planner/bound/pricing.hpp"
#include "planner/bound/restricted_master.hpp"
#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

using simulator::most_above_event_driven;

constexpr int max_rounds = 16;           // of prices that are tried for a branch before it is split
constexpr double refuting = 1.0 - 1e-9;  // of the batch: a plan that just processes it must not be lost by rounding
constexpr double stabilization = 0.3;    // min share of the way from sure prices to the min possible ones
// Targets are tried as shares below the best plan: precision x ratio^i.
constexpr double precision = 0.001;
constexpr double target_ratio = 1.25;
constexpr int targets = 40;
// Branches that are looked at together, by a thread each if there are so many (labels use the other threads): fixed, so
// that the bound is the same for any number of threads.
constexpr std::size_t branches_at_once = 4;
constexpr std::size_t max_hints = 24;
// Of more pools, labels price only relaxations of fewer: branches of all pools are never done with within the work.
constexpr std::size_t max_pools_with_labels = 4;

constexpr int finer_targets = 3;  // to about half the share below the best plan

/// State of one thread.
struct Worker {
  Worker(StagePrices& prices, const std::function<bool()>& stop) : pricing(prices, stop) {}
  explicit Worker(const Worker& first, StagePrices& prices)
      : own_prices(std::in_place, prices.request(), prices.space(), prices.env()),
        pricing(first.pricing, *own_prices) {}

  std::optional<StagePrices> own_prices;
  PricingProblem pricing;
  DualPrices last_prices{};  ///< prices that refuted a branch last
};

/// A branch with what is known of it, and the branches that it was split into: what is found for one target serves for
/// the others.
struct TreeNode {
  OpenBranch branch;
  int refuted_at = std::numeric_limits<int>::max();  ///< first target of which it is known that no plan is below
  int failed_at = -1;                                ///< last target that was not refuted without splitting the branch
  std::vector<TreeNode> children{};

  /// Whether no plan of the branch, or of all its children, is below the target.
  bool is_refuted(int target) {
    if (refuted_at > target && !children.empty() &&
        std::all_of(children.begin(), children.end(), [&](TreeNode& child) { return child.is_refuted(target); }))
      refuted_at = target;
    return refuted_at <= target;
  }
  void forget_failures() {
    failed_at = -1;
    for (TreeNode& child : children) child.forget_failures();
  }
};

class Bounder {
 public:
  Bounder(StagePrices& prices, double best, const std::function<bool()>& stop, std::function<void()> progress)
      : request_(prices.request()),
        space_(prices.space()),
        best_(best),
        stop_(stop),
        progress_(std::move(progress)),
        threads_(request_.effort.threads) {
    workers_.push_back(std::make_unique<Worker>(prices, stop));
    const PricingProblem& pricing = workers_.front()->pricing;
    for (std::size_t i = 1; i < (pricing.any_across() ? branches_at_once : 1); ++i)
      workers_.push_back(std::make_unique<Worker>(*workers_.front(), prices));
    for (const auto& worker : workers_) worker->pricing.use_threads(threads_);
    max_devices_ = std::min(space_.devices(), space_.max_gpus.value_or(space_.devices()));
    latest_ = most_above_event_driven * pricing.latest();  // the limits apply to the event-driven time
    for (const DevicePool& pool : space_.pools) cheapest_ = std::min(cheapest_, pool.price.value() / 3600.0);
    least_ = least_scores(workers_.front()->pricing, space_, request_.job.global_batch);
    branching_.emplace(pricing, space_, by_money());
    if (stopped()) return;  // what was stopped half-way is no bound
    min_ = least_.time;
    if (request_.objective == Objective::cost) min_ = least_.usd;
    if (request_.objective == Objective::throughput_per_usd) min_ = least_.product;
    min_ *= 1.0 - 1e-9;
  }

  /// The score that is proved so far.
  [[nodiscard]] double proved() const { return min_; }

  /// `known`: a score that is proved already; `enough`: one from which on more is of no use. May be called again, to go
  /// on with more work.
  double run(const BoundWork& work_of_bound, double known, double enough) {
    enough_ = enough;
    if (known > min_) {
      min_ = known;
      while (proved_ > 0 && target(proved_ - 1) <= known) --proved_;
    }
    try_targets(work_of_bound.first, false);
    // Then what is left is looked at with labels, which are tighter and dearer.
    if ((pricing().any_inside() || pricing().any_across()) && proved_ > 0) {
      forget_failures();
      try_targets(work_of_bound.with_labels, true);
    }
    if (hints_.empty() && pricing().any_across() && target(proved_) >= enough_ && !stopped()) {
      // The bound was enough at once. Only a target that is given up has hints, so one more is tried.
      limit_ = work() + work_of_bound.first / 8;
      none_below(std::min(proved_, targets / 4));
    }
    return min_;
  }

  /// Hints of the branches at which targets were given up.
  std::vector<Hint> hints() && {
    std::vector<Hint> kept;
    for (Hint& hint : hints_)
      if (kept.size() < max_hints && std::find(kept.begin(), kept.end(), hint) == kept.end())
        kept.push_back(std::move(hint));
    return kept;
  }

 private:
  /// Proves targets, as many as this work allows: no plan is below target(proved_).
  void try_targets(std::uint64_t max_work, bool with_labels) {
    const std::uint64_t before = work();
    // Targets that are easily refuted come first, then those that are not, then those between the two, and at last one
    // after the other with all work that is left: what was found for a target that took too much serves for the next.
    // Up to target(blocked) no more work helps; up to target(refused) it was not shown that no plan is below.
    int blocked = -1;
    while (blocked < proved_ - 2 && target(blocked + 2) >= enough_) ++blocked;
    int refused = blocked;
    int step = space_.pools.size() == 1 ? targets * 2 / 3 : targets / 4;
    bool one_by_one = with_labels;
    int finer = 0;  // targets by which results are more precise than they need be
    for (int round = 0; work() - before < max_work && !stopped(); ++round) {
      if (proved_ - refused <= 1) {
        if (proved_ == 0 || target(proved_) >= enough_ || refused == blocked) break;
        one_by_one = true;
        refused = blocked;
      }
      // A target that takes too long leaves some work for others.
      const std::uint64_t left = max_work - (work() - before);
      limit_ = work() + left / 4 * (one_by_one ? 4 : space_.pools.size() == 1 ? 3 : 1) + 1;
      const bool leaps = refused < 0 && round < 4;
      const int middle = one_by_one ? proved_ - 1 : leaps ? std::max(0, proved_ - step) : (proved_ + refused) / 2;
      step = targets / 5;
      for (const auto& worker : workers_) {
        worker->pricing.set_precision(best_ / target(std::max(0, middle - finer)) - 1.0);
        if (with_labels) worker->pricing.use_labels((limit_ - work()) / workers_.size());
      }
      out_of_work_ = false;
      const bool ok = none_below(middle);
      (ok ? proved_ : refused) = middle;
      if (proved_ < targets) min_ = std::max(min_, target(proved_));
      if (ok || out_of_work_) continue;
      if (with_labels && finer == 0) {
        finer = finer_targets;
        forget_failures();
      } else {
        blocked = middle;
      }
    }
  }

  void forget_failures() {
    unresolved_ = nullptr;
    for (TreeNode& root : roots_) root.forget_failures();
  }

  [[nodiscard]] const PricingProblem& pricing() const { return workers_.front()->pricing; }
  [[nodiscard]] std::uint64_t work() const {
    std::uint64_t sum = 0;
    for (const auto& worker : workers_) sum += worker->pricing.work();
    return sum;
  }
  [[nodiscard]] bool stopped() const { return stop_ && stop_(); }
  [[nodiscard]] double target(int index) const { return best_ / (1.0 + precision * std::pow(target_ratio, index)); }

  [[nodiscard]] bool by_money() const {
    return request_.objective != Objective::throughput || request_.limits.cost || request_.limits.node_hours;
  }

  /// Whether pipelines count by the USD that they take until they are done, and not only by when a branch's plans are
  /// done at the latest. For throughput per USD, the square of the time, it gains nothing.
  [[nodiscard]] bool counts_until_done() const {
    return by_money() && request_.objective != Objective::throughput_per_usd && !pricing().interleaves();
  }
  [[nodiscard]] TimeRange times_of(const OpenBranch& branch) const {
    const bool until_done = counts_until_done() && branch.shortest > 0.0;
    return {.shortest = until_done ? branch.shortest : branch.longest, .longest = branch.longest};
  }

  /// Resources of a better plan of the branch. A plan of T seconds may take this times branch.longest / T, if its
  /// pipelines count until they are done.
  [[nodiscard]] DeviceLimits limits_of(const OpenBranch& branch, double score) const {
    DeviceLimits limits{.nodes = space_.max_nodes ? static_cast<double>(*space_.max_nodes) : infinity};
    if (branch.shortest <= 0.0) return limits;
    const double time = counts_until_done() ? branch.longest : branch.shortest;
    if (request_.limits.node_hours)
      limits.nodes = std::min(
          limits.nodes, most_above_event_driven * *request_.limits.node_hours * 3600.0 / *request_.iterations / time);
    if (request_.limits.cost) limits.usd = most_above_event_driven * request_.limits.cost->value() / time;
    if (request_.objective == Objective::cost) limits.usd = std::min(limits.usd, score / time);
    if (request_.objective == Objective::throughput_per_usd) limits.usd = std::min(limits.usd, score / (time * time));
    return limits;
  }

  struct Look {
    TreeNode* node = nullptr;
    bool is_refuted = false;
    std::vector<OpenBranch> branches{};  ///< the branches that it is split into, for the first time
  };

  /// Max seconds of a plan of a better score.
  [[nodiscard]] double longest_below(double score) const {
    if (request_.objective == Objective::throughput) return std::min(latest_, score);
    // The min price of a single device.
    double longest = request_.objective == Objective::cost ? score / cheapest_ : std::sqrt(score / cheapest_);
    if (request_.objective == Objective::throughput_per_usd && least_.usd > 0.0)
      longest = std::min(longest, score / least_.usd);
    return std::min(latest_, longest);
  }

  /// Whether it is proved that no plan has a score below this target.
  bool none_below(int index) {
    const double score = target(index);
    if (request_.objective != Objective::throughput && cheapest_ <= 0.0) return false;
    const double longest = longest_below(score);
    if (longest < least_.time) return true;
    for (const auto& worker : workers_) worker->last_prices = {};
    if (roots_.empty()) plant();
    // The branch that was not refuted last time is tried first: if it is not refuted again, this ends at once.
    if (unresolved_ != nullptr && unresolved_->refuted_at > index) {
      if (unresolved_->failed_at < index) {
        Look again{unresolved_};
        look_at(*workers_.front(), again, score, longest);
        note(again, index);
      }
      if (unresolved_->refuted_at > index) return false;
    }
    std::vector<TreeNode*> open;
    for (TreeNode& root : roots_) open.push_back(&root);
    while (true) {
      std::vector<Look> looks = next_looks(open, index);  // the last branch first
      if (looks.empty()) return true;
      if (stopped()) return false;
      progress_();
      if (work() >= limit_) {
        out_of_work_ = true;
        note_hints(within(looks.front().node->branch, longest), score);
        return false;
      }
      threads_.for_each(looks.size(),
                        [&](std::size_t i, std::size_t) { look_at(*workers_[i], looks[i], score, longest); });
      for (Look& look : looks) note(look, index);
      for (const Look& look : looks)
        if (!look.is_refuted && look.node->children.empty()) {
          unresolved_ = look.node;
          note_hints(within(look.node->branch, longest), score);
          return false;
        }
      // The next branches are similar: they start from the prices that refuted the first of these.
      const auto refuted = std::find_if(looks.begin(), looks.end(), [](const Look& look) { return look.is_refuted; });
      if (refuted != looks.end()) {
        const DualPrices known = workers_[static_cast<std::size_t>(refuted - looks.begin())]->last_prices;
        for (const auto& worker : workers_)
          if (!known.device.empty()) worker->last_prices = known;
      }
      for (std::size_t i = looks.size(); i-- > 0;)
        if (!looks[i].is_refuted) add_children(*looks[i].node, open);
    }
  }

  /// Where money counts, the roots have all times of plans that are better than the best; else their time is that of
  /// the target.
  void plant() {
    const double shortest = by_money() ? least_.time : 0.0;
    const int max_count = std::min(request_.job.global_batch, max_devices_);
    for (OpenBranch& branch : branching_->all(max_count, request_.pins.data_parallel, shortest, longest_below(best_)))
      roots_.push_back({.branch = std::move(branch)});
  }

  /// Up to as many branches as there are workers, off the end of `open`. Those that are known to fail at the target are
  /// replaced by their children.
  std::vector<Look> next_looks(std::vector<TreeNode*>& open, int index) {
    std::vector<Look> looks;
    while (!open.empty() && looks.size() < workers_.size()) {
      TreeNode& node = *open.back();
      open.pop_back();
      if (node.is_refuted(index)) continue;
      const auto open_children = std::count_if(node.children.begin(), node.children.end(),
                                               [&](TreeNode& child) { return !child.is_refuted(index); });
      if (open_children == 1 || (open_children > 1 && node.failed_at >= index))
        add_children(node, open);
      else
        looks.push_back({&node});
    }
    return looks;
  }
  static void add_children(TreeNode& node, std::vector<TreeNode*>& open) {
    for (TreeNode& child : node.children) open.push_back(&child);
  }

  /// The plans of a branch that are done by a time; where money does not count, those that take as long as that.
  [[nodiscard]] OpenBranch within(OpenBranch branch, double longest) const {
    branch.longest = by_money() ? std::min(branch.longest, longest) : longest;
    return branch;
  }

  void look_at(Worker& worker, Look& look, double score, double longest) const {
    OpenBranch branch = within(look.node->branch, longest);
    look.is_refuted = branch.shortest >= branch.longest || !possible(worker, branch, score);
    if (!by_money()) look.node->branch.longest = longest;
    look.node->branch.prices = std::move(branch.prices);
    if (!look.is_refuted && look.node->children.empty())
      branching_->split(worker.pricing, look.node->branch, look.branches);
  }

  static void note(Look& look, int index) {
    TreeNode& node = *look.node;
    if (look.is_refuted) {
      node.refuted_at = std::min(node.refuted_at, index);  // its children still serve for harder targets
      return;
    }
    node.failed_at = std::max(node.failed_at, index);
    for (OpenBranch& branch : look.branches) node.children.push_back({.branch = std::move(branch)});
  }

  void note_hints(OpenBranch branch, double score) {
    if (hints_.size() >= 4 * max_hints || branch.shortest >= branch.longest) return;
    Worker& worker = *workers_.front();
    worker.pricing.note_hints(&hints_);
    possible(worker, branch, score);
    worker.pricing.note_hints(nullptr);
  }

  /// Whether the devices could process the batch, for the money that a plan of this score may cost. The branch keeps
  /// the best prices that are sure.
  bool possible(Worker& worker, OpenBranch& branch, double score) const {
    PricingProblem& pricing = worker.pricing;
    const double batch = request_.job.global_batch;
    const DeviceLimits limits = limits_of(branch, score);
    if (pricing.interleaves())
      return max_value(space_, pricing.interleaved_prices(branch.longest, branch.plans), limits) >= batch * refuting;
    if (!has_room(branch.plans)) return false;
    return min_value(worker, branch, limits) >= batch * refuting;
  }

  /// Looks for prices at which all devices are worth less than the batch, but no pipeline is worth more than it takes:
  /// between the min prices that the pipelines seen so far allow, and some that are sure. Returns the least value of
  /// all devices at sure prices; infinity if none were found.
  double min_value(Worker& worker, OpenBranch& branch, const DeviceLimits& limits) const {
    PricingProblem& pricing = worker.pricing;
    const double batch = request_.job.global_batch;
    const std::size_t pools = space_.pools.size();
    const double min_pipelines = times_of(branch).shortest / branch.longest * branch.plans.min_pipelines;
    const auto value_of = [&](const DualPrices& prices) {
      return max_value(space_, prices.device, limits) +
             prices.each * (prices.each > 0.0 ? branch.plans.max_pipelines : min_pipelines);
    };
    RestrictedMaster master;
    for (std::size_t p = 0; p < pools; ++p) {
      std::vector<double> here(pools, 0.0);
      here[p] = 1.0;
      master.add_resource(space_.pools[p].devices(), std::move(here));
    }
    const auto add_resource = [&](double amount, auto per_device) {
      std::vector<double> all;
      for (std::size_t p = 0; p < pools; ++p) all.push_back(per_device(p));
      master.add_resource(amount, std::move(all));
    };
    if (space_.max_gpus) add_resource(*space_.max_gpus, [](std::size_t) { return 1.0; });
    if (limits.nodes < infinity)
      add_resource(limits.nodes, [&](std::size_t p) { return 1.0 / space_.pools[p].largest_node(); });
    if (limits.usd < infinity)
      add_resource(limits.usd, [&](std::size_t p) { return space_.pools[p].price.value() / 3600.0; });
    master.set_pipelines(min_pipelines, branch.plans.max_pipelines, 4.0 * batch / min_pipelines);

    DualPrices tried = branch.prices;
    if (tried.device.empty()) tried = worker.last_prices;
    if (tried.device.empty())
      for (std::size_t p = 0; p < pools; ++p) tried.device.push_back(branch.longest * pricing.fluid_rate(p));
    tried.each = std::clamp(tried.each, -4.0 * batch / min_pipelines, batch / branch.plans.max_pipelines);
    if (!scale({.device = std::vector<double>(pools, 0.0), .each = tried.each}, tried, infinity, value_of))
      tried.each = 0.0;
    if (!scale({.device = std::vector<double>(pools, 0.0), .each = tried.each}, tried, infinity, value_of))
      return infinity;
    std::optional<DualPrices> sure;
    double sure_value = infinity;
    double allowed = -infinity;  // value at the min prices that the pipelines seen so far allow
    double toward_sure = 1.0 - stabilization;
    for (int round = 0;; ++round) {
      if (stopped()) return infinity;
      DualPrices raised = tried;
      const bool complete = raise(pricing, branch, raised, value_of, master);
      if (stopped()) return infinity;
      if (complete) {
        const double value = value_of(raised);
        if (value < sure_value) {
          sure_value = value;
          branch.prices = raised;
          sure = raised;
        }
        if (value < batch * refuting) {
          worker.last_prices = raised;
          return value;
        }
      }
      DualPrices min_prices;
      master.solve(min_prices);
      const double value = value_of(min_prices);
      if (value >= batch * (1.0 - 1e-7) || round + 1 >= max_rounds) return sure_value;
      // Where the pipelines found last are no news to the master, the next are looked for closer to its prices.
      toward_sure = value > allowed + 1e-9 * batch ? 1.0 - stabilization : 0.5 * toward_sure;
      allowed = value;
      tried = sure ? *sure : raised;
      if (!scale(min_prices, tried, sure ? toward_sure : infinity, value_of)) return sure_value;
    }
  }

  /// Every pipeline has at least one device where a single zone holds a layer.
  bool has_room(const Branch& plans) const {
    std::vector<int> devices(pricing().zones(), 0);
    for (std::size_t p = 0; p < space_.pools.size(); ++p) devices[pricing().zone(p)] += space_.pools[p].devices();
    return std::all_of(plans.holders.begin(), plans.holders.end(), [&](int holder) {
      return holder < 0 || devices[static_cast<std::size_t>(holder)] >= plans.min_pipelines;
    });
  }

  /// Prices between two, as far towards `high` as everything is worth less than the batch, and at most this share of
  /// the way; false if they never are.
  template <class ValueOf>
  bool scale(const DualPrices& low, DualPrices& high, double furthest, ValueOf value_of) const {
    const double batch = request_.job.global_batch * (1.0 - 1e-6);
    const auto between = [&](double share) {
      DualPrices prices = low;
      for (std::size_t p = 0; p < prices.device.size(); ++p)
        prices.device[p] += share * (high.device[p] - low.device[p]);
      prices.each += share * (high.each - low.each);
      return prices;
    };
    if (value_of(low) >= batch) return false;
    double below = 0.0;
    double above = 1.0;
    while (above < 1e12 && value_of(between(above)) < batch &&
           value_of(between(2.0 * above)) > value_of(between(above))) {
      below = above;
      above *= 2.0;
    }
    for (int step = 0; step < 30; ++step) {
      const double middle = 0.5 * (below + above);
      (value_of(between(middle)) < batch ? below : above) = middle;
    }
    high = between(std::min(below, furthest));
    for (double& price : high.device) price = std::max(price, 0.0);
    return true;
  }

  /// Raises prices of devices until no pipeline is worth more. False if it stopped before, as they are already too
  /// high.
  template <class ValueOf>
  bool raise(PricingProblem& pricing, const OpenBranch& branch, DualPrices& prices, ValueOf value_of,
             RestrictedMaster& master) const {
    const Family& family = branching_->family_of(branch);
    const TimeRange times = times_of(branch);
    ViolatedColumn violated;
    for (const std::size_t p : family.pure) {
      double found = pricing.single(p, times, branch.plans, prices.each, violated);
      if (found > prices.device[p]) {
        prices.device[p] = found;
        master.add_pipeline(violated.sequences, violated.uses);
      }
    }
    for (const std::size_t p : family.pure) {
      const double found = pricing.inside(p, times, branch.plans, prices.each, prices.device[p], violated);
      if (found <= prices.device[p]) continue;
      prices.device[p] = found;
      master.add_pipeline(violated.sequences, violated.uses);
    }
    if (!family.across) return true;
    if (value_of(prices) >= request_.job.global_batch) return false;
    const double largest = *std::max_element(prices.device.begin(), prices.device.end());
    for (double& price : prices.device) price = std::max(price, 1e-4 * largest);
    const double factor = pricing.across(prices.device, times, branch.plans, prices.each, 1.0, violated);
    if (factor <= 1.0) return true;
    master.add_pipeline(violated.sequences, violated.uses);
    for (double& price : prices.device) price *= factor;
    return true;
  }

  const Request& request_;
  const SearchSpace& space_;
  double best_;
  double enough_ = infinity;
  const std::function<bool()>& stop_;
  std::function<void()> progress_;  // something was proved, perhaps
  double min_ = 0.0;                // score that is proved so far
  int proved_ = targets;
  WorkerThreads threads_;
  std::vector<std::unique_ptr<Worker>> workers_;
  int max_devices_ = 1;
  double latest_ = infinity;
  LeastScores least_;
  double cheapest_ = infinity;  // USD per second of a device
  std::uint64_t limit_ = 0;
  bool out_of_work_ = false;  // the last target was given up for lack of work
  std::optional<Branching> branching_{};
  std::vector<TreeNode> roots_{};
  TreeNode* unresolved_ = nullptr;  // the last branch that is not refuted and cannot be split
  std::vector<Hint> hints_;
};

/// A part of the space with its relaxations, of which the best counts.
class PartOfBound {
 public:
  /// `space`: none where the part is the whole.
  PartOfBound(StagePrices& whole, const SearchSpace* space, double best, const std::function<bool()>& stop,
              const std::function<void()>& progress)
      : prices_(space == nullptr ? whole : own_prices_.emplace(whole.request(), *space, whole.env())) {
    for (SearchSpace& merged : merge_zones(prices_)) {
      Relaxation& coarse = relaxations_.emplace_back();
      coarse.space = std::move(merged);
      coarse.prices.emplace(whole.request(), *coarse.space, whole.env());
      coarse.bounder.emplace(*coarse.prices, best, stop, progress);
    }
    relaxations_.emplace_back().bounder.emplace(prices_, best, stop, progress);
  }

  [[nodiscard]] double proved() const {
    double most = 0.0;
    for (const Relaxation& relaxation : relaxations_) most = std::max(most, relaxation.bounder->proved());
    return most;
  }

  /// To prove more, the usual work comes first: so that it never proves less.
  double run(double enough) {
    double known = proved();
    for (const bool prove : {false, true}) {
      if (prove && prices_.request().effort.proof != Proof::thorough) break;
      for (Relaxation& relaxation : relaxations_)
        known = std::max(known, relaxation.bounder->run(work_of(relaxation, prove), known, enough));
    }
    return known;
  }

  /// Only of the part itself: pools of merged zones are none of the cluster.
  std::vector<Hint> hints() && { return std::move(*relaxations_.back().bounder).hints(); }

 private:
  struct Relaxation {
    std::optional<SearchSpace> space{};   ///< none: that of the part
    std::optional<StagePrices> prices{};  ///< the same
    std::optional<Bounder> bounder{};
  };
  /// The part's work is divided among its relaxations. Those of one or two pools get on quickest: they have at least
  /// what they would have as spaces.
  [[nodiscard]] BoundWork work_of(const Relaxation& relaxation, bool prove) const {
    BoundWork work = bound_work(prices_.space(), prove);
    work.first /= relaxations_.size();
    work.with_labels /= relaxations_.size();
    if (relaxations_.size() == 1 || (relaxation.space && relaxation.space->pools.size() > 2)) return work;
    const bool are_many = prices_.space().pools.size() > max_pools_with_labels;
    if (!relaxation.space) return are_many ? BoundWork{.first = work.first} : work;
    const BoundWork own = bound_work(*relaxation.space, prove);
    const std::uint64_t more = are_many ? work.with_labels : 0;
    work.first = std::max(work.first, own.first);
    work.with_labels = std::max(work.with_labels, own.with_labels) + more;
    return work;
  }

  std::optional<StagePrices> own_prices_{};
  StagePrices& prices_;  // those, or of the whole space
  std::deque<Relaxation> relaxations_;
};

}  // namespace

Relaxed relax(StagePrices& prices, double best, const std::function<bool()>& stop,
              const std::function<void(double)>& progress) {
  if (best == infinity || best <= 0.0 || (stop && stop())) return {};
  const std::vector<SearchSpace> spaces = split_for_bounds(prices.space(), prices.env().framework);
  std::deque<PartOfBound> parts;
  const auto proved = [&] {
    double least = parts.size() < spaces.size() ? 0.0 : infinity;
    for (const PartOfBound& part : parts) least = std::min(least, part.proved());
    return least;
  };
  const std::function<void()> report = [&] {
    if (progress) progress(proved());
  };
  for (const SearchSpace& space : spaces)
    parts.emplace_back(prices, spaces.size() > 1 ? &space : nullptr, best, stop, report);
  double enough = infinity;
  Relaxed relaxed;
  for (PartOfBound& part : parts) {
    enough = std::min(enough, part.run(enough));
    std::vector<Hint> hints = std::move(part).hints();
    std::move(hints.begin(), hints.end(), std::back_inserter(relaxed.hints));
  }
  relaxed.min_score = proved();
  return relaxed;
}

}  // namespace sailor::planner
