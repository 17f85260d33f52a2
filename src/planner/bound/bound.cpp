#include "planner/bound/bound.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "planner/bound/worth.hpp"

namespace sailor::planner {

namespace {

constexpr std::size_t most_exhaustive_places = 4;  // up to here plans are told apart by where whole pipelines are
// Of the batch, that go into the price of being one of few pipelines; negative: of being one of many, each small.
constexpr double shares[] = {0.0, 0.5, 0.85, 0.97, -1.0, -4.0};
constexpr int direction_rounds = 3;  // of prices against pipelines across places
// Targets are tried as shares below the best plan: precision x ratio^i.
constexpr double precision = 0.001;
constexpr double target_ratio = 1.25;
constexpr int targets = 40;
// Parts of all plans are split no further than this.
constexpr double narrow_deadlines = 1.002;
constexpr double narrow_pipelines = 1.01;
constexpr double narrow_reductions = 0.002;  // of the deadline
constexpr std::size_t most_hints = 24;

/// So that the bound takes no longer than the search for plans.
std::uint64_t work_limit(std::size_t places) {
  if (places == 1) return 2'000'000;
  return places < 5 ? 12'000'000 * static_cast<std::uint64_t>(places) : 500'000'000;
}

/// Plans that take between two times, of one PlanPart.
struct Part {
  std::size_t family = 0;
  PlanPart plans;
  double shortest = 0.0;
  double longest = 0.0;
};

class Bounder {
 public:
  Bounder(StagePrices& prices, double best)
      : request_(prices.request()), space_(prices.space()), best_(best), worth_(prices) {
    most_devices_ = std::min(space_.devices(), space_.most_gpus.value_or(space_.devices()));
    const auto& limits = request_.limits;
    if (limits.throughput) latest_ = std::min(latest_, 1.0 / *limits.throughput);
    if (limits.wall_time) latest_ = std::min(latest_, limits.wall_time->value() / *request_.iterations);
    double rate = 0.0;
    double cheapest = never;
    for (std::size_t p = 0; p < space_.places.size(); ++p) {
      rate += worth_.fluid_rate(p) * space_.places[p].devices();
      cheapest = std::min(cheapest, space_.places[p].price.value() / 3600.0);
    }
    if (worth_.interleaves() || worth_.any_across()) rate = worth_.mixed_rate() * space_.devices();
    earliest_ = rate > 0.0 ? request_.job.global_batch / rate : 0.0;
    cheapest_ = cheapest;
    last_share_ = 0;
    make_families();
  }

  double run() {
    if (best_ == never || best_ <= 0.0) return 0.0;
    // Without any search: all devices always at the work that they are quickest at.
    const double batch = request_.job.global_batch;
    const double least_usd = worth_.mixed_rate() > 0.0 ? batch * cheapest_ / worth_.mixed_rate() : 0.0;
    double sure = earliest_;
    if (request_.objective == Objective::cost) sure = least_usd;
    if (request_.objective == Objective::throughput_per_usd) sure = earliest_ * least_usd;
    sure *= 1.0 - 1e-9;
    const std::uint64_t most = work_limit(space_.places.size());
    // From targets that are easily refuted to those that are not, then between the two. Nothing below target(proved) is
    // possible; up to target(refused) it was not shown.
    int proved = targets;
    int refused = -1;
    int step = targets / 10;
    while (proved - refused > 1 && worth_.work() < most) {
      limit_ = worth_.work() + (most - worth_.work() + 1) / 2;  // a target that takes too long leaves some for others
      const int middle = refused < 0 ? std::max(0, proved - step) : (proved + refused) / 2;
      step = targets / 5;
      const bool ok = none_below(target(middle));
      (ok ? proved : refused) = middle;
    }
    return std::max(sure, proved == targets ? 0.0 : target(proved));
  }

  std::vector<Hint> hints() && {
    std::vector<Hint> kept;
    for (Hint& hint : hints_)
      if (kept.size() < most_hints && std::find(kept.begin(), kept.end(), hint) == kept.end())
        kept.push_back(std::move(hint));
    return kept;
  }

 private:
  [[nodiscard]] double target(int index) const { return best_ / (1.0 + precision * std::pow(target_ratio, index)); }

  struct Family {
    std::vector<std::size_t> pure;  // places of whole pipelines
    bool across = false;            // besides pipelines across places
  };

  void make_families() {
    const std::size_t count = space_.places.size();
    const bool across = worth_.any_across();
    std::vector<std::size_t> all;
    for (std::size_t p = 0; p < count; ++p) all.push_back(p);
    if (count > most_exhaustive_places || worth_.interleaves()) {
      families_.push_back({.pure = all, .across = across});
      unlinked_ = true;
      return;
    }
    for (std::size_t bits = across ? 0 : 1; bits < std::size_t{1} << count; ++bits) {
      Family family{.pure = {}, .across = across};
      for (std::size_t p = 0; p < count; ++p)
        if (bits >> p & 1) family.pure.push_back(p);
      families_.push_back(std::move(family));
    }
  }

  [[nodiscard]] bool by_money() const {
    return request_.objective != Objective::throughput || request_.limits.cost || request_.limits.node_hours;
  }

  /// USD per second that a better plan of the part may spend.
  [[nodiscard]] double most_usd(const Part& part, double score) const {
    double usd = never;
    if (part.shortest <= 0.0) return usd;
    if (request_.limits.cost) usd = request_.limits.cost->value() / part.shortest;
    if (request_.objective == Objective::cost) usd = std::min(usd, score / part.shortest);
    if (request_.objective == Objective::throughput_per_usd)
      usd = std::min(usd, score / (part.shortest * part.shortest));
    return usd;
  }

  /// Whether it is proved that no plan has a score below this.
  bool none_below(double score) {
    double longest = latest_;
    if (request_.objective == Objective::throughput) longest = std::min(longest, score);
    // A single device costs this much.
    if (request_.objective != Objective::throughput) {
      if (cheapest_ <= 0.0) return false;
      longest =
          std::min(longest, request_.objective == Objective::cost ? score / cheapest_ : std::sqrt(score / cheapest_));
    }
    if (longest < earliest_) return true;
    const double shortest = by_money() ? earliest_ : 0.0;
    const int most = std::min(request_.job.global_batch, most_devices_);
    std::vector<Part> open;
    for (std::size_t f = 0; f < families_.size(); ++f) {
      const auto pinned = request_.pins.data_parallel;
      for (int least = 1; least <= most; least *= 2) {
        PlanPart plans{.pure = unlinked_ ? std::vector<std::size_t>{} : families_[f].pure,
                       .least_pipelines = pinned.value_or(least),
                       .most_pipelines = pinned.value_or(std::min(most, 2 * least - 1))};
        if (plans.most_pipelines <= most)
          open.push_back({.family = f, .plans = std::move(plans), .shortest = shortest, .longest = longest});
        if (pinned) break;
      }
    }
    // What could not be refuted last time is tried first: it is refused again at once, if so.
    if (stubborn_) {
      Part again = *stubborn_;
      again.longest = std::min(std::max(again.longest, by_money() ? 0.0 : longest), longest);
      if (!by_money()) again.longest = longest;
      if (again.shortest < again.longest && possible(again, score)) return false;
    }
    while (!open.empty()) {
      const Part part = open.back();
      open.pop_back();
      if (worth_.work() >= limit_) return false;
      if (!possible(part, score)) continue;
      if (!split(part, open)) {
        stubborn_ = part;
        if (hints_.size() < 4 * most_hints) {
          worth_.note_hints(&hints_);
          possible(part, score);
          worth_.note_hints(nullptr);
        }
        return false;
      }
    }
    return true;
  }

  /// Into two, where it is widest for what that costs the bound. False when it is narrow.
  bool split(const Part& part, std::vector<Part>& open) {
    const PlanPart& plans = part.plans;
    Part low = part;
    Part high = part;
    const double deadlines = by_money() ? part.longest / part.shortest : 1.0;
    const double pipelines = (plans.most_pipelines + 1.0) / plans.least_pipelines;
    const double largest = worth_.longest_reduction(plans);
    const double up_to = std::min(plans.reduction_up_to, std::max(largest, plans.reduction_over));
    const double reductions =
        plans.most_pipelines < 2 || up_to <= plans.reduction_over ? 0.0 : (up_to - plans.reduction_over) / part.longest;
    const double by_deadlines = deadlines > narrow_deadlines ? std::log(deadlines) / 1.0 : 0.0;
    const double by_pipelines =
        plans.most_pipelines > plans.least_pipelines && pipelines > narrow_pipelines ? std::log(pipelines) / 3.0 : 0.0;
    const double by_reductions = reductions > narrow_reductions ? reductions / 1.5 : 0.0;
    if (by_deadlines <= 0.0 && by_pipelines <= 0.0 && by_reductions <= 0.0) return false;
    if (by_deadlines >= by_pipelines && by_deadlines >= by_reductions) {
      low.longest = high.shortest = std::sqrt(part.longest * part.shortest);
    } else if (by_pipelines >= by_reductions) {
      const int middle =
          std::clamp(static_cast<int>(std::sqrt(static_cast<double>(plans.least_pipelines) * plans.most_pipelines)),
                     plans.least_pipelines, plans.most_pipelines - 1);
      low.plans.most_pipelines = middle;
      high.plans.least_pipelines = middle + 1;
    } else {
      low.plans.reduction_up_to = high.plans.reduction_over = 0.5 * (plans.reduction_over + up_to);
    }
    open.push_back(low);
    open.push_back(high);
    return true;
  }

  /// Could the devices get through the batch, for what a plan of this score may cost?
  bool possible(const Part& part, double score) {
    const double usd = most_usd(part, score);
    double nodes = space_.most_nodes ? static_cast<double>(*space_.most_nodes) : never;
    if (request_.limits.node_hours && part.shortest > 0.0)
      nodes = std::min(nodes, *request_.limits.node_hours * 3600.0 / *request_.iterations / part.shortest);
    const double batch = request_.job.global_batch;
    constexpr std::size_t count = std::size(shares);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t s = (last_share_ + i) % count;
      if (!enough(part, usd, nodes,
                  batch * shares[s] / (shares[s] > 0.0 ? part.plans.most_pipelines : part.plans.least_pipelines))) {
        last_share_ = s;
        return false;
      }
    }
    return true;
  }

  bool enough(const Part& part, double usd, double nodes, double each) {
    const Family& family = families_[part.family];
    const double deadline = part.longest;
    const double budget =
        request_.job.global_batch - each * (each > 0.0 ? part.plans.most_pipelines : part.plans.least_pipelines);
    const std::size_t places = space_.places.size();
    const auto sum_of = [&](const std::vector<double>& prices) { return filled(prices, usd, nodes); };
    std::vector<double> worth(places, 0.0);
    if (worth_.interleaves()) {
      for (std::size_t p = 0; p < places; ++p) worth[p] = deadline * worth_.mixed_rate();
      return sum_of(worth) >= request_.job.global_batch;
    }
    // Prices that all pipelines together cannot pay for: what pipelines of one stage need, the rest of the budget
    // spread in some direction. Raised where other pipelines turn out to be worth more.
    std::vector<double> direction(places, 0.0);
    for (std::size_t p = 0; p < places; ++p) {
      const bool pure = std::find(family.pure.begin(), family.pure.end(), p) != family.pure.end();
      if (pure) worth[p] = worth_.single(p, deadline, part.plans, each);
      if (pure || family.across) direction[p] = worth[p] > 0.0 ? worth[p] : 0.8 * deadline * worth_.fluid_rate(p);
    }
    std::vector<double> prices;
    std::vector<double> uses;
    std::vector<bool> known(places, false);
    int round = 0;
    while (true) {
      if (!spread(worth, direction, budget, sum_of, prices)) return true;
      bool raised = false;
      for (const std::size_t p : family.pure) {
        if (known[p]) continue;
        const double found = worth_.inside(p, deadline, part.plans, each, prices[p]);
        if (found <= prices[p]) continue;
        worth[p] = found;
        direction[p] = std::max(direction[p], found);
        known[p] = raised = true;
        break;
      }
      if (raised) continue;
      if (!family.across) return false;
      const double largest = *std::max_element(prices.begin(), prices.end());
      if (largest <= 0.0) return true;
      for (double& price : prices) price = std::max(price, 1e-4 * largest);
      if (sum_of(prices) >= budget) {
        const double factor = budget / sum_of(prices) * (1.0 - 1e-9);
        for (double& price : prices) price *= factor;
        for (std::size_t p = 0; p < places; ++p)
          if (prices[p] < worth[p]) return true;
      }
      if (worth_.across(prices, deadline, part.plans, each, 1.0, uses) <= 1.0) return false;
      if (++round >= direction_rounds) return true;
      double all = 0.0;
      for (std::size_t p = 0; p < uses.size(); ++p) all += uses[p] * prices[p];
      if (all <= 0.0) return true;
      // What the pipeline uses that was worth too much becomes dearer.
      for (std::size_t p = 0; p < places; ++p)
        direction[p] = std::max(direction[p], prices[p]) * (1.0 + 0.4 * uses[p] * prices[p] / all);
    }
  }

  /// Prices of at least `worth`, the rest of the budget in `direction`. False when `worth` alone takes all.
  template <class SumOf>
  static bool spread(const std::vector<double>& worth, const std::vector<double>& direction, double budget,
                     SumOf sum_of, std::vector<double>& prices) {
    const auto set = [&](double scale) {
      prices = worth;
      for (std::size_t p = 0; p < prices.size(); ++p) prices[p] = std::max(prices[p], scale * direction[p]);
      return sum_of(prices);
    };
    if (set(0.0) >= budget) return false;
    double low = 0.0;
    double high = 1.0;
    while (set(high) < budget) {
      if (high > 1e30) return true;  // nothing there to be worth anything
      low = high;
      high *= 4.0;
    }
    for (int step = 0; step < 40; ++step) {
      const double middle = 0.5 * (low + high);
      (set(middle) < budget ? low : high) = middle;
    }
    set(low);
    return true;
  }

  /// Of devices worth so much each, the best under the limits on their number and price.
  double filled(const std::vector<double>& worth, double usd_per_second, double nodes) const {
    const auto fill = [&](double left, auto price_of) {
      std::vector<std::pair<double, std::size_t>> order;
      for (std::size_t p = 0; p < worth.size(); ++p) {
        const double price = price_of(p);
        order.emplace_back(price > 0.0 ? worth[p] / price : never, p);
      }
      std::sort(order.rbegin(), order.rend());
      double sum = 0.0;
      for (const auto& [rate, p] : order) {
        const double price = price_of(p);
        double devices = space_.places[p].devices();
        if (price > 0.0) devices = std::min(devices, std::max(left, 0.0) / price);
        sum += devices * worth[p];
        left -= devices * price;
      }
      return sum;
    };
    double least = 0.0;
    for (std::size_t p = 0; p < worth.size(); ++p) least += worth[p] * space_.places[p].devices();
    if (space_.most_gpus) least = std::min(least, fill(*space_.most_gpus, [](std::size_t) { return 1.0; }));
    if (nodes < never)
      least = std::min(least, fill(nodes, [&](std::size_t p) { return 1.0 / space_.places[p].largest_node(); }));
    if (usd_per_second < never)
      least =
          std::min(least, fill(usd_per_second, [&](std::size_t p) { return space_.places[p].price.value() / 3600.0; }));
    return least;
  }

  const Request& request_;
  const SearchSpace& space_;
  double best_;
  PipelineWorth worth_;
  int most_devices_ = 1;
  double latest_ = never;
  double earliest_ = 0.0;  // no plan takes less time
  double cheapest_ = 0.0;  // USD per second of a device
  bool unlinked_ = false;  // families do not say where every layer is held
  std::size_t last_share_ = 0;
  std::uint64_t limit_ = 0;
  std::vector<Family> families_;
  std::optional<Part> stubborn_;
  std::vector<Hint> hints_;
};

}  // namespace

Relaxed relax(StagePrices& prices, double best) {
  Bounder bounder(prices, best);
  Relaxed relaxed{.least_score = bounder.run(), .hints = std::move(bounder).hints()};
  return relaxed;
}

}  // namespace sailor::planner
