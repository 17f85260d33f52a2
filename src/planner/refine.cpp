#include "planner/refine.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <functional>
#include <mutex>

namespace sailor::planner {

namespace {

constexpr std::size_t most_starts = 12;              // from the best plans, and as many from plans that differ
constexpr std::size_t most_starts_in_one_place = 6;  // twice as many: 0.5 % on one of 108 inputs, in twice the time
constexpr std::size_t starts_at_once = 8;            // begin from the same archive; how many threads there are or not
constexpr int most_rounds = 24;
// The closed form is seldom further above the event-driven time (simulator/closed_form.hpp: nine of ten plans).
constexpr double usual_above_events = 1.1;

class Refiner {
 public:
  Refiner(StagePrices& prices, const ChainRules& rules, const std::vector<Chain>& chains, RefineBy by, Archive& archive,
          const std::function<bool()>& stop)
      : prices_(prices),
        space_(prices.space()),
        rules_(rules),
        chains_(chains),
        by_events_(by == RefineBy::events),
        slack_(by_events_ ? usual_above_events : 1.0),
        archive_(archive),
        stop_(stop) {}

  void run(const Start& start) {
    best_ = start.fleet;
    score_ = start.score;
    // On the same devices first: what is exchanged for another template is not polished any more.
    while (polish())
      if (stop_()) return;
    for (int round = 0; round < most_rounds && improve(round > 0); ++round)
      if (stop_()) return;
  }

 private:
  bool polish() {
    const double before = score_;
    for (std::size_t g = 0; g < best_.groups.size(); ++g) move_layers(g);
    return score_ < before * (1.0 - 1e-9);
  }

  bool improve(bool polish_first) {
    const double before = score_;
    if (polish_first) (void)polish();
    for (std::size_t g = 0; g < best_.groups.size(); ++g) {
      leave_out(g);
      if (g >= best_.groups.size()) break;
      change_count(g);
      exchange(g);
      move_layers(g);
      if (stop_()) return false;
    }
    add_group();
    change_sharding();
    return score_ < before * (1.0 - 1e-9);
  }

  [[nodiscard]] bool uses(Heuristic heuristic) const { return prices_.request().effort.uses(heuristic); }

  void attempt(const Fleet& fleet) {
    if (stop_()) return;
    const double time = least_time(prices_, fleet, prices_.request().job.global_batch);
    double usd_per_hour = 0.0;
    for (const Group& group : fleet.groups)
      for (const ChainStage& stage : group.chain.stages)
        usd_per_hour += space_.places[stage.place].price.value() * stage.tensor_parallel * group.count;
    if (score_of(prices_.request().objective, Seconds(time), Usd(usd_per_hour * time / 3600.0)) >= score_ * slack_)
      return;
    const Scores scores = archive_.add(fleet);
    const double score = by_events_ ? scores.event_driven : scores.closed_form;
    if (score >= score_) return;
    score_ = score;
    next_ = fleet;
    improved_ = true;
  }

  /// Whether the passes alone leave hope when group `g` (one more, past the last) is so many of these pipelines;
  /// cheaper to ask than to price.
  bool promising(std::size_t g, const Chain& chain, int count) {
    if (prices_.request().objective != Objective::throughput) return true;
    times_.clear();
    for (std::size_t i = 0; i < std::max(best_.groups.size(), g + 1); ++i) {
      const Chain& of = i == g ? chain : best_.groups[i].chain;
      times_.push_back({.fixed = of.through,
                        .round = of.round,
                        .micro_batch = of.micro_batch,
                        .most_micro_batches = of.most_micro_batches,
                        .count = i == g ? count : best_.groups[i].count});
    }
    const int batch = prices_.request().job.global_batch;
    std::int64_t least = 0;  // too many pipelines for the batch: fewer of them may do
    for (const GroupTime& time : times_) least += std::int64_t{time.micro_batch} * time.count;
    return least > batch || least_deadline(times_, batch) < score_ * slack_;
  }

  void accept() {
    if (improved_) best_ = next_;
    improved_ = false;
  }

  /// Devices of a place that no group but `except` takes.
  int free_devices(std::size_t place, std::size_t except) const {
    int free = space_.places[place].devices();
    for (std::size_t g = 0; g < best_.groups.size(); ++g)
      if (g != except) free -= best_.groups[g].chain.uses(place) * best_.groups[g].count;
    return free;
  }

  void leave_out(std::size_t g) {
    if (!uses(Heuristic::leave_out)) return;
    if (best_.groups.size() < 2) return;
    Fleet fleet = best_;
    fleet.groups.erase(fleet.groups.begin() + static_cast<std::ptrdiff_t>(g));
    attempt(fleet);
    // More of another group instead: as many as there is room for, or as few as that saves any micro-batch.
    for (Group& group : fleet.groups) {
      const Chain& chain = group.chain;
      const int before = group.count;
      int more = INT_MAX;
      for (const ChainStage& stage : chain.stages)
        more = std::min(more, free_devices(stage.place, g) / chain.uses(stage.place));
      if (more < 1) continue;
      group.count = before + more;
      attempt(fleet);
      const int all = prices_.request().job.global_batch / chain.micro_batch;
      const int rounds = (all + group.count - 1) / group.count;
      group.count = std::max(before, (all + rounds - 1) / rounds);
      if (group.count < before + more) attempt(fleet);
      group.count = before;
    }
    accept();
  }

  void change_sharding() {
    if (!uses(Heuristic::change_sharding)) return;
    Fleet fleet = best_;
    for (const OptimizerSharding sharding : space_.sharding) {
      if (sharding == best_.sharding) continue;
      fleet.sharding = sharding;
      attempt(fleet);
    }
    accept();
  }

  void change_count(std::size_t g) {
    if (!uses(Heuristic::change_count)) return;
    for (const int step : {-1, 1, -2, 2, -4, 4, -16, 16}) {
      Fleet fleet = best_;
      fleet.groups[g].count += step;
      if (fleet.groups[g].count < 1) continue;
      bool fits = true;
      for (const ChainStage& stage : fleet.groups[g].chain.stages)
        fits = fits && fleet.groups[g].chain.uses(stage.place) * fleet.groups[g].count <= free_devices(stage.place, g);
      if (fits) attempt(fleet);
    }
    accept();
  }

  void exchange(std::size_t g) {
    if (!uses(Heuristic::exchange)) return;
    if (!best_.groups[g].chain.in_one_place()) return;
    const std::size_t place = best_.groups[g].chain.stages.front().place;
    const int free = free_devices(place, g);
    for (const Chain& chain : chains_) {
      if (space_.places[chain.stages.front().place].type != space_.places[place].type) continue;
      if (prices_.request().objective == Objective::throughput && chain.through >= score_ * slack_) continue;
      const int most = most_copies(chain, space_.places[place], space_, free);
      if (most < 1 || !promising(g, chain, most)) continue;
      Fleet fleet = best_;
      Group& group = fleet.groups[g];
      const int devices = group.chain.devices * group.count;
      group.chain = chain;
      for (ChainStage& stage : group.chain.stages) stage.place = place;
      group.count = std::clamp(devices / chain.devices, 1, most);
      attempt(fleet);
      if (group.count != most) {
        group.count = most;
        attempt(fleet);
      }
    }
    accept();
  }

  void add_group() {
    if (!uses(Heuristic::add_group)) return;
    for (std::size_t place = 0; place < space_.places.size(); ++place) {
      const int free = free_devices(place, best_.groups.size());
      if (free < 1) continue;
      for (const Chain& chain : chains_) {
        if (space_.places[chain.stages.front().place].type != space_.places[place].type) continue;
        if (prices_.request().objective == Objective::throughput && chain.through >= score_ * slack_) continue;
        const int most = most_copies(chain, space_.places[place], space_, free);
        if (most < 1 || !promising(best_.groups.size(), chain, most)) continue;
        Fleet fleet = best_;
        Group group{.chain = chain, .count = most};
        for (ChainStage& stage : group.chain.stages) stage.place = place;
        fleet.groups.push_back(group);
        attempt(fleet);
      }
      accept();
    }
  }

  /// In a group alone, and in all of as many stages, which then divide the layers there alike: gradients that the same
  /// stages hold are summed together.
  void move_layers(std::size_t g) {
    if (!uses(Heuristic::move_layers)) return;
    const std::size_t stages = best_.groups[g].chain.stages.size();
    for (std::size_t s = 0; s + 1 < stages; ++s)
      for (const int step : {0, -1, 1}) {
        Fleet fleet = best_;
        const int cut = best_.groups[g].chain.stages[s].last + step;
        if (!cut_at(fleet.groups[g].chain, s, cut)) continue;
        attempt(fleet);
        bool fits = true;
        bool changes = false;
        for (Group& group : fleet.groups) {
          if (group.chain.stages.size() != stages || group.chain.stages[s].last == cut) continue;
          fits = fits && cut_at(group.chain, s, cut);
          changes = true;
        }
        if (fits && changes) attempt(fleet);
        accept();
      }
  }

  /// Lets the stage end before this layer. False when that leaves it or the next one empty, or does not fit.
  bool cut_at(Chain& chain, std::size_t stage, int layer) {
    if (chain.stages[stage].last == layer) return true;
    if (layer <= chain.stages[stage].first || layer >= chain.stages[stage + 1].last) return false;
    std::vector<ChainStage> stages = chain.stages;
    stages[stage].last = stages[stage + 1].first = layer;
    auto moved = finish_chain(prices_, rules_, std::move(stages), chain.micro_batch);
    if (!moved) return false;
    chain = std::move(*moved);
    return true;
  }

  StagePrices& prices_;
  const SearchSpace& space_;
  const ChainRules& rules_;
  const std::vector<Chain>& chains_;
  bool by_events_;
  double slack_;  // of scores by the closed form
  Archive& archive_;
  const std::function<bool()>& stop_;
  Fleet best_;
  Fleet next_;
  std::vector<GroupTime> times_;
  double score_ = never;
  bool improved_ = false;
};

}  // namespace

struct Refinement::Workplace {
  explicit Workplace(const Refinement& all)
      : prices(all.prices_.request(), all.prices_.space(), all.prices_.env()),
        archive(prices.request(), prices.space(), prices.env(), all.archive_.most()) {}
  StagePrices prices;
  Archive archive;
};

Refinement::Refinement(StagePrices& prices, Archive& archive, const StopCheck& stop)
    : prices_(prices), archive_(archive), stop_(stop), threads_(prices.request().effort.threads) {
  workplaces_.resize(threads_.size());
}

Refinement::~Refinement() = default;

Refinement::Workplace& Refinement::workplace(std::size_t thread) {
  if (workplaces_[thread] == nullptr) workplaces_[thread] = std::make_unique<Workplace>(*this);
  return *workplaces_[thread];
}

std::vector<Start> Refinement::starts(Schedule schedule, RefineBy by) const {
  std::vector<Start> starts;
  const bool in_one_place = prices_.space().places.size() == 1;
  const bool by_events = by == RefineBy::events;
  const std::size_t most = in_one_place ? most_starts_in_one_place : most_starts;
  for (const Found& found : by_events ? archive_.printed() : archive_.best()) {
    if (starts.size() == most) break;
    if (found.fleet.schedule == schedule)
      starts.push_back({.fleet = found.fleet, .score = by_events ? found.printed_score : found.score});
  }
  if (by_events) return starts;
  const std::size_t best = starts.size();
  for (Start& start : archive_.varied()) {
    if (starts.size() == best + most_starts) break;
    const auto is_same = [&](const Start& other) { return other.score == start.score; };
    if (start.fleet.schedule == schedule && std::none_of(starts.begin(), starts.end(), is_same))
      starts.push_back(std::move(start));
  }
  return starts;
}

void Refinement::run(const ChainRules& rules, const std::vector<Chain>& chains, RefineBy by) {
  const std::vector<Start> all = starts(rules.schedule, by);
  for (std::size_t first = 0; first < all.size() && !stop_(); first += starts_at_once) {
    const std::size_t count = std::min(starts_at_once, all.size() - first);
    const std::uint64_t share = stop_.plans_left() / count;
    const Findings known = archive_.findings();
    std::vector<Findings> found(count);
    std::mutex asking;
    bool is_over = false;
    threads_.for_each(count, [&](std::size_t i, std::size_t thread) {
      Workplace& place = workplace(thread);
      place.archive.begin_from(known);
      const std::function<bool()> stop = [&] {
        if (place.archive.considered() >= share) return true;
        const std::lock_guard lock(asking);
        is_over = is_over || stop_();
        return is_over;
      };
      Refiner(place.prices, rules, chains, by, place.archive, stop).run(all[first + i]);
      found[i] = place.archive.findings();
    });
    for (const Findings& more : found) archive_.merge(more);
  }
}

}  // namespace sailor::planner
