#include "planner/bound/bound.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>

#include "core/worker_threads.hpp"
#include "planner/bound/master.hpp"
#include "planner/bound/worth.hpp"
#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

using simulator::most_above_event_driven;

constexpr std::size_t most_exhaustive_places = 4;  // up to here plans are told apart by where whole pipelines are
constexpr int most_rounds = 16;                    // of prices that are tried for a part before it is split
constexpr double refuting = 1.0 - 1e-9;  // of the batch: a plan that gets just through it must not be lost by rounding
constexpr double boldness = 0.3;         // of the way from sure prices to the least possible, that is gone at least
// Targets are tried as shares below the best plan: precision x ratio^i.
constexpr double precision = 0.001;
constexpr double target_ratio = 1.25;
constexpr int targets = 40;
// Parts of all plans are split no further than this.
constexpr double narrow_deadlines = 1.002;
constexpr double narrow_pipelines = 1.01;
constexpr double narrow_reductions = 0.002;  // of the deadline
constexpr double narrow_reductions_of_zones = 0.05;
constexpr std::size_t first_split_layers = 3;  // told apart by who holds them before all else
// Parts that are looked at together, each by a thread if there are so many: fixed, so that the bound is the same for
// any number of threads.
constexpr std::size_t parts_at_once = 4;
constexpr std::size_t most_hints = 24;

/// So that the bound takes about as long as the search for plans; of many kinds of devices, what the user will wait
/// for.
std::uint64_t work_limit(const SearchSpace& space) {
  const auto devices = static_cast<std::uint64_t>(space.devices());
  switch (space.places.size()) {
    case 1:
      return 32'000'000 + 16'000 * devices;
    case 2:
      return 8'000'000 + 240'000 * devices;
    case 3:
    case 4:
      return 20'000'000 + 600'000 * devices;
    default:
      return std::min<std::uint64_t>(8'000'000'000, 4'000'000 * devices);
  }
}

/// Plans that take between two times, of one PlanPart.
struct Part {
  std::size_t family = 0;
  PlanPart plans;
  double shortest = 0.0;
  double longest = 0.0;
  Prices prices{};  ///< that were sure for a part that this one belongs to; none: not yet tried
};

/// What one thread works with.
struct Workplace {
  Workplace(StagePrices& prices, const std::function<bool()>& stop) : worth(prices, stop) {}
  explicit Workplace(const Workplace& first, StagePrices& prices)
      : own_prices(std::in_place, prices.request(), prices.space(), prices.env()), worth(first.worth, *own_prices) {}

  std::optional<StagePrices> own_prices;
  PipelineWorth worth;
  Prices last_prices{};  ///< with which a part was refuted
};

class Bounder {
 public:
  Bounder(StagePrices& prices, double best, const std::function<bool()>& stop,
          const std::function<void(double)>& progress)
      : request_(prices.request()),
        space_(prices.space()),
        best_(best),
        stop_(stop),
        progress_(progress),
        threads_(request_.effort.threads) {
    workplaces_.push_back(std::make_unique<Workplace>(prices, stop));
    const PipelineWorth& worth = workplaces_.front()->worth;
    for (std::size_t i = 1; i < (worth.any_across() ? parts_at_once : 1); ++i)
      workplaces_.push_back(std::make_unique<Workplace>(*workplaces_.front(), prices));
    most_devices_ = std::min(space_.devices(), space_.most_gpus.value_or(space_.devices()));
    const auto& limits = request_.limits;
    // Limits are judged event by event.
    if (limits.throughput) latest_ = std::min(latest_, most_above_event_driven / *limits.throughput);
    if (limits.wall_time)
      latest_ = std::min(latest_, most_above_event_driven * limits.wall_time->value() / *request_.iterations);
    double rate = 0.0;
    double cheapest = never;
    for (std::size_t p = 0; p < space_.places.size(); ++p) {
      rate += worth.fluid_rate(p) * space_.places[p].devices();
      cheapest = std::min(cheapest, space_.places[p].price.value() / 3600.0);
    }
    if (worth.interleaves() || worth.any_across()) rate = worth.mixed_rate() * space_.devices();
    earliest_ = rate > 0.0 ? request_.job.global_batch / rate : 0.0;
    cheapest_ = cheapest;
    layers_ = prices.layers();
    order_layers();
    make_families();
  }

  double run() {
    if (best_ == never || best_ <= 0.0 || stopped()) return 0.0;
    // Without any search: all devices always at the work that they are quickest at.
    const double batch = request_.job.global_batch;
    const double least_usd = worth().mixed_rate() > 0.0 ? batch * cheapest_ / worth().mixed_rate() : 0.0;
    double sure = earliest_;
    if (request_.objective == Objective::cost) sure = least_usd;
    if (request_.objective == Objective::throughput_per_usd) sure = earliest_ * least_usd;
    least_ = sure *= 1.0 - 1e-9;
    const std::uint64_t most = work_limit(space_);
    // From targets that are easily refuted to those that are not, then between the two. Nothing below target(proved) is
    // possible; up to target(refused) it was not shown.
    int proved = targets;
    int refused = -1;
    int step = space_.places.size() == 1 ? targets * 2 / 3 : targets / 4;
    bool short_of_work = false;
    bool again = false;
    for (int round = 0; work() < most && !stopped(); ++round) {
      // Once more, where the work that was left for it was all that was missing.
      if (proved - refused <= 1) {
        if (proved == 0 || !short_of_work || again) break;
        again = true;
        refused = proved - 2;
      }
      // A target that takes too long leaves some for others.
      limit_ = work() + (most - work()) / 4 * (again ? 4 : space_.places.size() == 1 ? 3 : 1) + 1;
      const int middle = refused < 0 && round < 4 ? std::max(0, proved - step) : (proved + refused) / 2;
      step = targets / 5;
      for (const auto& workplace : workplaces_) workplace->worth.set_precision(best_ / target(middle) - 1.0);
      out_of_work_ = false;
      const bool ok = none_below(target(middle));
      (ok ? proved : refused) = middle;
      if (!ok) short_of_work = out_of_work_;
      if (proved < targets) least_ = std::max(sure, target(proved));
    }
    return least_;
  }

  /// Of the parts at which targets were given up.
  std::vector<Hint> hints() && {
    std::vector<Hint> kept;
    for (Hint& hint : hints_)
      if (kept.size() < most_hints && std::find(kept.begin(), kept.end(), hint) == kept.end())
        kept.push_back(std::move(hint));
    return kept;
  }

 private:
  [[nodiscard]] const PipelineWorth& worth() const { return workplaces_.front()->worth; }
  [[nodiscard]] std::uint64_t work() const {
    std::uint64_t sum = 0;
    for (const auto& workplace : workplaces_) sum += workplace->worth.work();
    return sum;
  }
  [[nodiscard]] bool stopped() const { return stop_ && stop_(); }
  [[nodiscard]] double target(int index) const { return best_ / (1.0 + precision * std::pow(target_ratio, index)); }

  struct Family {
    std::vector<std::size_t> pure;  // places of whole pipelines
    bool across = false;            // besides pipelines across places
    bool one_place = false;         // all is in the pure one
    bool by_holders = false;        // parts say where some layers are held instead; `pure` are where they may be
    int zone = -1;                  // all is in this one
    bool is_any = false;            // parts of the families behind this one, as long as they are not told apart
  };

  /// Places that hold every layer.
  std::vector<std::size_t> linked(const Family& family) const {
    return family.is_any || family.by_holders || worth().interleaves() ? std::vector<std::size_t>{} : family.pure;
  }

  void make_families() {
    const std::size_t count = space_.places.size();
    const bool across = worth().any_across();
    std::vector<std::size_t> all;
    for (std::size_t p = 0; p < count; ++p) all.push_back(p);
    if (worth().interleaves()) {
      families_.push_back({.pure = all, .across = across});
      return;
    }
    if (count > most_exhaustive_places) {
      for (std::size_t zone = 0; zone < worth().zones(); ++zone) {
        std::vector<std::size_t> here;
        for (const std::size_t p : all)
          if (worth().zone(p) == zone) here.push_back(p);
        if (here.size() == 1)
          families_.push_back({.pure = here, .one_place = true});
        else
          families_.push_back({.pure = here, .across = across, .by_holders = true, .zone = static_cast<int>(zone)});
      }
      families_.push_back({.pure = all, .across = across, .by_holders = true});
      return;
    }
    if (count > 1) families_.push_back({.pure = all, .across = across, .is_any = true});
    for (std::size_t bits = across ? 0 : 1; bits < std::size_t{1} << count; ++bits) {
      Family family{.pure = {}, .across = across, .one_place = !across && std::has_single_bit(bits)};
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
    if (request_.limits.cost) usd = most_above_event_driven * request_.limits.cost->value() / part.shortest;
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
    for (const auto& workplace : workplaces_) workplace->last_prices = {};
    const double shortest = by_money() ? earliest_ : 0.0;
    const int most = std::min(request_.job.global_batch, most_devices_);
    std::vector<Part> open;
    for (std::size_t f = 0; f < families_.size(); ++f) {
      if (f > 0 && families_.front().is_any) break;
      const auto pinned = request_.pins.data_parallel;
      for (int least = 1; least <= most; least *= 2) {
        const Family& family = families_[f];
        PlanPart plans{
            .pure = linked(family),
            .holders = std::vector<int>(family.zone < 0 ? 0 : static_cast<std::size_t>(layers_), family.zone),
            .one_place = family.one_place,
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
      if (again.shortest < again.longest && possible(*workplaces_.front(), again, score)) return false;
    }
    while (!open.empty()) {
      if (stopped()) return false;
      if (progress_) progress_(least_);
      if (work() >= limit_) {
        out_of_work_ = true;
        note_hints(open.back(), score);
        return false;
      }
      const std::size_t count = std::min(open.size(), workplaces_.size());
      std::vector<Look> looks(count);  // the last part first
      for (Look& look : looks) {
        look.part = std::move(open.back());
        open.pop_back();
      }
      threads_.for_each(count, [&](std::size_t i, std::size_t) { look_at(*workplaces_[i], looks[i], score); });
      for (const Look& look : looks)
        if (look.is_stubborn()) {
          stubborn_ = look.part;
          note_hints(look.part, score);
          return false;
        }
      // The next parts are much like these: they begin with the prices that refuted the first of them.
      const auto refuted = std::find_if(looks.begin(), looks.end(), [](const Look& look) { return look.is_refuted; });
      if (refuted != looks.end()) {
        const Prices known = workplaces_[static_cast<std::size_t>(refuted - looks.begin())]->last_prices;
        for (const auto& workplace : workplaces_)
          if (!known.device.empty()) workplace->last_prices = known;
      }
      for (std::size_t i = count; i-- > 0;)
        std::move(looks[i].parts.begin(), looks[i].parts.end(), std::back_inserter(open));
    }
    return true;
  }

  struct Look {
    Part part;
    bool is_refuted = false;
    std::vector<Part> parts{};  ///< into which it was split
    [[nodiscard]] bool is_stubborn() const { return !is_refuted && parts.empty(); }
  };

  void look_at(Workplace& workplace, Look& look, double score) const {
    look.is_refuted = !possible(workplace, look.part, score);
    if (!look.is_refuted) split(workplace.worth, look.part, look.parts);
  }

  void note_hints(Part part, double score) {
    if (hints_.size() >= 4 * most_hints) return;
    Workplace& workplace = *workplaces_.front();
    workplace.worth.note_hints(&hints_);
    possible(workplace, part, score);
    workplace.worth.note_hints(nullptr);
  }

  /// By where the layer is held.
  void split_by_holder(const Part& part, int layer, std::vector<Part>& open) const {
    for (int holder = PlanPart::several; holder < static_cast<int>(worth().zones()); ++holder) {
      Part child = part;
      child.plans.holders.resize(static_cast<std::size_t>(layers_), PlanPart::unknown);
      child.plans.holders[static_cast<std::size_t>(layer)] = holder;
      // Plans of one zone are a family of their own.
      if (holder >= 0 && std::all_of(child.plans.holders.begin(), child.plans.holders.end(),
                                     [&](int other) { return other == holder; }))
        continue;
      open.push_back(std::move(child));
    }
  }

  /// The ends, then middles of what lies between.
  void order_layers() {
    split_layers_ = {0};
    if (layers_ > 1) split_layers_.push_back(layers_ - 1);
    for (int parts = 2; parts < 2 * layers_; parts *= 2)
      for (int i = 1; i < parts; i += 2)
        if (const int layer = (layers_ - 1) * i / parts;
            std::find(split_layers_.begin(), split_layers_.end(), layer) == split_layers_.end())
          split_layers_.push_back(layer);
  }

  /// Into two, where it is widest for what that costs the bound; into none when it is narrow.
  void split(PipelineWorth& worth, const Part& part, std::vector<Part>& open) const {
    const PlanPart& plans = part.plans;
    if (families_[part.family].is_any) {
      for (std::size_t f = part.family + 1; f < families_.size(); ++f) {
        Part child = part;
        child.family = f;
        child.plans.pure = linked(families_[f]);
        child.plans.one_place = families_[f].one_place;
        open.push_back(std::move(child));
      }
      return;
    }
    std::size_t told = 0;
    if (families_[part.family].by_holders) {
      while (told < split_layers_.size() && !plans.holders.empty() &&
             plans.holders[static_cast<std::size_t>(split_layers_[told])] != PlanPart::unknown)
        ++told;
      if (told < first_split_layers) {
        split_by_holder(part, split_layers_[told], open);
        return;
      }
    }
    Part low = part;
    Part high = part;
    const double deadlines = by_money() ? part.longest / part.shortest : 1.0;
    const double pipelines = (plans.most_pipelines + 1.0) / plans.least_pipelines;
    const double largest = worth.longest_reduction(plans);
    const double up_to = std::min(plans.reduction_up_to, std::max(largest, plans.reduction_over));
    const double reductions =
        plans.most_pipelines < 2 || up_to <= plans.reduction_over ? 0.0 : (up_to - plans.reduction_over) / part.longest;
    const double by_deadlines = deadlines > narrow_deadlines ? std::log(deadlines) / 1.0 : 0.0;
    const double by_pipelines =
        plans.most_pipelines > plans.least_pipelines && pipelines > narrow_pipelines ? std::log(pipelines) / 3.0 : 0.0;
    const double narrow = families_[part.family].by_holders ? narrow_reductions_of_zones : narrow_reductions;
    const double by_reductions = reductions > narrow ? reductions / 1.5 : 0.0;
    if (by_deadlines <= 0.0 && by_pipelines <= 0.0 && by_reductions <= 0.0) {
      if (families_[part.family].by_holders && told < split_layers_.size())
        split_by_holder(part, split_layers_[told], open);
      return;
    }
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
  }

  /// Could the devices get through the batch, for what a plan of this score may cost? Prices are looked for at which
  /// all of them are worth less, but no pipeline is worth more than it takes: between the least that the pipelines seen
  /// so far allow, and some that are sure. The part keeps the latter.
  bool possible(Workplace& workplace, Part& part, double score) const {
    PipelineWorth& worth = workplace.worth;
    const double batch = request_.job.global_batch;
    const std::size_t places = space_.places.size();
    Limits limits{.usd = most_usd(part, score),
                  .nodes = space_.most_nodes ? static_cast<double>(*space_.most_nodes) : never};
    if (request_.limits.node_hours && part.shortest > 0.0)
      limits.nodes = std::min(limits.nodes, most_above_event_driven * *request_.limits.node_hours * 3600.0 /
                                                *request_.iterations / part.shortest);
    if (worth.interleaves())
      return filled(std::vector<double>(places, part.longest * worth.mixed_rate()), limits) >= batch * refuting;
    const auto value_of = [&](const Prices& prices) {
      return filled(prices.device, limits) +
             prices.each * (prices.each > 0.0 ? part.plans.most_pipelines : part.plans.least_pipelines);
    };
    if (!has_room(part.plans)) return false;
    PriceMaster master;
    for (std::size_t p = 0; p < places; ++p) {
      std::vector<double> here(places, 0.0);
      here[p] = 1.0;
      master.add_resource(space_.places[p].devices(), std::move(here));
    }
    const auto add_resource = [&](double amount, auto per_device) {
      std::vector<double> all;
      for (std::size_t p = 0; p < places; ++p) all.push_back(per_device(p));
      master.add_resource(amount, std::move(all));
    };
    if (space_.most_gpus) add_resource(*space_.most_gpus, [](std::size_t) { return 1.0; });
    if (limits.nodes < never)
      add_resource(limits.nodes, [&](std::size_t p) { return 1.0 / space_.places[p].largest_node(); });
    if (limits.usd < never)
      add_resource(limits.usd, [&](std::size_t p) { return space_.places[p].price.value() / 3600.0; });
    master.set_pipelines(part.plans.least_pipelines, part.plans.most_pipelines,
                         4.0 * batch / part.plans.least_pipelines);

    Prices tried = part.prices;
    if (tried.device.empty()) tried = workplace.last_prices;
    if (tried.device.empty())
      for (std::size_t p = 0; p < places; ++p) tried.device.push_back(part.longest * worth.fluid_rate(p));
    tried.each = std::clamp(tried.each, -4.0 * batch / part.plans.least_pipelines, batch / part.plans.most_pipelines);
    if (!scale({.device = std::vector<double>(places, 0.0), .each = tried.each}, tried, never, value_of))
      tried.each = 0.0;
    if (!scale({.device = std::vector<double>(places, 0.0), .each = tried.each}, tried, never, value_of)) return true;
    std::optional<Prices> sure;
    double sure_value = never;
    for (int round = 0;; ++round) {
      if (stopped()) return true;
      Prices raised = tried;
      const bool complete = raise(worth, part, raised, value_of, master);
      if (stopped()) return true;
      if (complete) {
        const double value = value_of(raised);
        if (value < batch * refuting) {
          workplace.last_prices = raised;
          return false;
        }
        if (value < sure_value) {
          sure_value = value;
          part.prices = raised;
          sure = raised;
        }
      }
      Prices least;
      master.solve(least);
      if (value_of(least) >= batch * (1.0 - 1e-7) || round + 1 >= most_rounds) return true;
      tried = sure ? *sure : raised;
      if (!scale(least, tried, sure ? 1.0 - boldness : never, value_of)) return true;
    }
  }

  /// Every pipeline has a device at least where a layer is held alone.
  bool has_room(const PlanPart& plans) const {
    std::vector<int> devices(worth().zones(), 0);
    for (std::size_t p = 0; p < space_.places.size(); ++p) devices[worth().zone(p)] += space_.places[p].devices();
    return std::all_of(plans.holders.begin(), plans.holders.end(), [&](int holder) {
      return holder < 0 || devices[static_cast<std::size_t>(holder)] >= plans.least_pipelines;
    });
  }

  /// Prices between two, as far towards `high` as all is worth less than the batch and no further than this share of
  /// the way; false when it never is.
  template <class ValueOf>
  bool scale(const Prices& low, Prices& high, double furthest, ValueOf value_of) const {
    const double batch = request_.job.global_batch * (1.0 - 1e-6);
    const auto between = [&](double share) {
      Prices prices = low;
      for (std::size_t p = 0; p < prices.device.size(); ++p)
        prices.device[p] += share * (high.device[p] - low.device[p]);
      prices.each += share * (high.each - low.each);
      return prices;
    };
    if (value_of(low) >= batch) return false;
    double least = 0.0;
    double most = 1.0;
    while (most < 1e12 && value_of(between(most)) < batch && value_of(between(2.0 * most)) > value_of(between(most))) {
      least = most;
      most *= 2.0;
    }
    for (int step = 0; step < 30; ++step) {
      const double middle = 0.5 * (least + most);
      (value_of(between(middle)) < batch ? least : most) = middle;
    }
    high = between(std::min(least, furthest));
    for (double& price : high.device) price = std::max(price, 0.0);
    return true;
  }

  /// Raises prices of devices until no pipeline is worth more. False when it stopped before the end, as they are
  /// already too high.
  template <class ValueOf>
  bool raise(PipelineWorth& worth, const Part& part, Prices& prices, ValueOf value_of, PriceMaster& master) const {
    const Family& family = families_[part.family];
    const double deadline = part.longest;
    DearPipeline dear;
    for (const std::size_t p : family.pure) {
      double found = worth.single(p, deadline, part.plans, prices.each, dear);
      if (found > prices.device[p]) {
        prices.device[p] = found;
        master.add_pipeline(dear.sequences, dear.uses);
      }
    }
    for (const std::size_t p : family.pure) {
      const double found = worth.inside(p, deadline, part.plans, prices.each, prices.device[p], dear);
      if (found <= prices.device[p]) continue;
      prices.device[p] = found;
      master.add_pipeline(dear.sequences, dear.uses);
    }
    if (!family.across) return true;
    if (value_of(prices) >= request_.job.global_batch) return false;
    const double largest = *std::max_element(prices.device.begin(), prices.device.end());
    for (double& price : prices.device) price = std::max(price, 1e-4 * largest);
    const double factor = worth.across(prices.device, deadline, part.plans, prices.each, 1.0, dear);
    if (factor <= 1.0) return true;
    master.add_pipeline(dear.sequences, dear.uses);
    for (double& price : prices.device) price *= factor;
    return true;
  }

  struct Limits {
    double usd = never;  ///< per second
    double nodes = never;
  };

  /// Of devices worth so much each, the best under the limits on their number and price.
  double filled(const std::vector<double>& worth, const Limits& limits) const {
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
    if (limits.nodes < never)
      least = std::min(least, fill(limits.nodes, [&](std::size_t p) { return 1.0 / space_.places[p].largest_node(); }));
    if (limits.usd < never)
      least = std::min(least, fill(limits.usd, [&](std::size_t p) { return space_.places[p].price.value() / 3600.0; }));
    return least;
  }

  const Request& request_;
  const SearchSpace& space_;
  double best_;
  const std::function<bool()>& stop_;
  const std::function<void(double)>& progress_;
  double least_ = 0.0;  // score that is proved so far
  WorkerThreads threads_;
  std::vector<std::unique_ptr<Workplace>> workplaces_;
  int most_devices_ = 1;
  int layers_ = 1;
  double latest_ = never;
  double earliest_ = 0.0;          // no plan takes less time
  double cheapest_ = 0.0;          // USD per second of a device
  std::vector<int> split_layers_;  // in this order by where they are held
  std::uint64_t limit_ = 0;
  bool out_of_work_ = false;  // the last target was given up for that
  std::vector<Family> families_;
  std::optional<Part> stubborn_;
  std::vector<Hint> hints_;
};

}  // namespace

Relaxed relax(StagePrices& prices, double best, const std::function<bool()>& stop,
              const std::function<void(double)>& progress) {
  Bounder bounder(prices, best, stop, progress);
  Relaxed relaxed{.least_score = bounder.run(), .hints = std::move(bounder).hints()};
  return relaxed;
}

}  // namespace sailor::planner
