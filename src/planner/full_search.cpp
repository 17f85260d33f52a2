#include "planner/full_search.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "planner/alike_pipelines.hpp"
#include "planner/interleaved.hpp"
#include "planner/mixed_chains.hpp"
#include "planner/refine.hpp"
#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

constexpr std::size_t most_levels = 10;            // of gradients per rank
constexpr std::size_t most_exhaustive_places = 5;  // up to here every set of places is tried
constexpr double deadline_step = 1.08;
constexpr int most_deadlines = 90;

class FullSearch {
 public:
  FullSearch(StagePrices& prices, Archive& archive, const StopCheck& stop)
      : prices_(prices),
        request_(prices.request()),
        space_(prices.space()),
        archive_(archive),
        stop_(stop),
        maker_(space_),
        refinement_(prices, archive, stop) {
    if (request_.limits.throughput) latest_ = simulator::most_above_event_driven / *request_.limits.throughput;
  }

  void run() {
    make_place_sets();
    for (const Schedule schedule : space_.schedules)
      for (const OptimizerSharding sharding : space_.sharding) {
        if (schedule == Schedule::interleaved_1f1b) {
          set_rules(Schedule::one_f_one_b, sharding);
          search_interleaved(prices_, pure_chains(prices_, rules_, stop_), sharding, archive_, stop_);
        } else {
          search(schedule, sharding);
        }
      }
  }

  void with_hints(const std::vector<Hint>& hints) {
    if (space_.schedules.front() == Schedule::interleaved_1f1b) return;
    make_place_sets();
    for (const OptimizerSharding sharding : space_.sharding) {
      set_rules(space_.schedules.front(), sharding);
      chains_ = pure_chains(prices_, rules_, stop_);
      for (const Hint& hint : hints) {
        if (stop_()) return;
        if (const auto chain = finish_chain(prices_, rules_, hint.stages, hint.micro_batch)) try_given(*chain);
      }
    }
  }

 private:
  bool by_time() const {
    return request_.objective == Objective::throughput && !request_.limits.cost && !request_.pareto;
  }

  void search(Schedule schedule, OptimizerSharding sharding) {
    set_rules(schedule, sharding);
    chains_ = pure_chains(prices_, rules_, stop_);
    if (sharding == OptimizerSharding::none && prices_.env().framework.copies_reduced_gradients &&
        request_.effort.uses(Heuristic::single_pipeline)) {
      // A single pipeline sums no gradients.
      ChainRules alone = rules_;
      alone.copies_gradients = false;
      for (Chain& chain : pure_chains(prices_, alone, stop_)) chains_.push_back(std::move(chain));
    }
    if (request_.effort.uses(Heuristic::one_kind)) try_one_kind();
    make_levels();
    for (const auto& places : place_sets_)
      for (const double level : levels_) {
        if (stop_()) return;
        try_fleets(request_of(places, level));
      }
    if (request_.effort.brief && !archive_.best().empty()) return;
    try_mixed();
    if (stop_()) return;
    refinement_.run(rules_, chains_, RefineBy::closed_form);
    const double before = archive_.best_score();
    if (request_.effort.uses(Heuristic::alike)) try_alike();
    if (stop_()) return;
    if (archive_.best_score() < before) refinement_.run(rules_, chains_, RefineBy::closed_form);
    if (request_.effort.uses(Heuristic::refine_printed)) refinement_.run(rules_, chains_, RefineBy::events);
  }

  void set_rules(Schedule schedule, OptimizerSharding sharding) {
    schedule_ = schedule;
    sharding_ = sharding;
    rules_ = {.schedule = schedule,
              .sharing = sharding == OptimizerSharding::zero1 ? std::clamp(space_.devices() / 16.0, 2.0, 64.0) : 1.0,
              .copies_gradients = true};
  }

  /// Every fleet of one kind of pipeline: as few of them as are needed for each number of micro-batches, unless what is
  /// sure of its time is too long.
  void try_one_kind() {
    // The likely best first: the others are then seen to be worse without being priced.
    struct Kind {
      const Chain* chain;
      std::size_t place;
      int most;
      double likely;
    };
    std::vector<Kind> kinds;
    for (std::size_t p = 0; p < space_.places.size(); ++p) {
      const Place& place = space_.places[p];
      for (const Chain& chain : chains_) {
        if (space_.places[chain.stages.front().place].type != place.type) continue;
        const int all = request_.job.global_batch / chain.micro_batch;
        const int most = std::min(all, most_copies(chain, place, space_));
        if (most < 1 || (request_.pins.data_parallel && most < *request_.pins.data_parallel)) continue;
        kinds.push_back({&chain, p, most, least_score(chain, p, request_.pins.data_parallel.value_or(most))});
      }
    }
    std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.likely < b.likely; });
    for (const Kind& kind : kinds) {
      if (stop_()) return;
      const Chain& chain = *kind.chain;
      Fleet fleet{.schedule = schedule_, .sharding = sharding_, .groups = {{.chain = chain, .count = 0}}};
      for (ChainStage& stage : fleet.groups.front().chain.stages) stage.place = kind.place;
      const int all = request_.job.global_batch / chain.micro_batch;
      if (request_.pins.data_parallel) {
        fleet.groups.front().count = *request_.pins.data_parallel;
        archive_.add(fleet);
        continue;
      }
      for (int count = kind.most; count >= 1;) {
        if (stop_()) return;
        const int rounds = (all + count - 1) / count;
        const int least = (all + rounds - 1) / rounds;  // pipelines with no more micro-batches than this
        const bool slow = least_score(chain, kind.place, least) >= archive_.bar();
        if (by_time() && chain.through + chain.round * (rounds - 1) >= archive_.bar()) break;  // fewer take longer
        if (!slow || request_.pareto) {
          fleet.groups.front().count = least;
          archive_.add(fleet);
        }
        count = least - 1;
      }
    }
  }

  /// Of so many of these pipelines in a place, at least: the passes, and the reduction of the first stage.
  double least_score(const Chain& chain, std::size_t place, int count) {
    const int all = request_.job.global_batch / chain.micro_batch;
    const int rounds = (all + count - 1) / count;
    const double time = chain.through + chain.round * (rounds - 1) + least_reduction(prices_, chain, count);
    const double cost = time / 3600.0 * space_.places[place].price.value() * chain.devices * count;
    return score_of(request_.objective, Seconds(time), Usd(cost));
  }

  void make_levels() {
    std::set<double> values;
    for (const Chain& chain : chains_) values.insert(chain.gradients);
    const std::vector<double> all(values.begin(), values.end());
    levels_.clear();
    if (!request_.effort.uses(Heuristic::gradient_levels)) {
      if (!all.empty()) levels_.push_back(all.back());
      return;
    }
    for (std::size_t i = 1; i <= most_levels && !all.empty(); ++i) {
      const double level = all[(all.size() * i - 1) / most_levels];
      if (levels_.empty() || level > levels_.back()) levels_.push_back(level);
    }
    std::reverse(levels_.begin(), levels_.end());
  }

  /// Of few places every set; of many those whose links are all faster than some limit, grown from each place.
  void make_place_sets() {
    const std::size_t count = space_.places.size();
    std::set<std::vector<std::size_t>> sets;
    if (count <= most_exhaustive_places) {
      for (std::size_t bits = 1; bits < std::size_t{1} << count; ++bits) {
        std::vector<std::size_t> places;
        for (std::size_t i = 0; i < count; ++i)
          if (bits >> i & 1) places.push_back(i);
        sets.insert(places);
      }
    } else {
      const double amount = 64e6;
      const auto distance = [&](std::size_t a, std::size_t b) {
        return std::max(prices_.reduction(a, b, 1, 1, 16, false, amount),
                        prices_.reduction(b, a, 1, 1, 16, false, amount));
      };
      for (std::size_t seed = 0; seed < count; ++seed) {
        std::vector<std::size_t> places{seed};
        std::vector<bool> used(count, false);
        used[seed] = true;
        sets.insert(places);
        while (places.size() < count) {  // the nearest to all of them next
          std::size_t next = count;
          double nearest = never;
          for (std::size_t i = 0; i < count; ++i) {
            if (used[i]) continue;
            double farthest = distance(i, i);
            for (const std::size_t other : places) farthest = std::max(farthest, distance(i, other));
            if (farthest < nearest || next == count) {
              nearest = farthest;
              next = i;
            }
          }
          if (nearest == never) break;
          used[next] = true;
          places.push_back(next);
          std::vector<std::size_t> sorted = places;
          std::sort(sorted.begin(), sorted.end());
          sets.insert(std::move(sorted));
        }
      }
      // The places of one zone, of one type, and both in pairs of types.
      for (std::size_t type = 0; type < space_.types.size(); ++type)
        for (std::size_t other = type; other < space_.types.size(); ++other) {
          std::vector<std::size_t> places;
          for (std::size_t i = 0; i < count; ++i)
            if (space_.places[i].type == type || space_.places[i].type == other) places.push_back(i);
          sets.insert(places);
        }
      for (std::size_t seed = 0; seed < count; ++seed)
        for (std::size_t type = 0; type <= space_.types.size(); ++type) {
          std::vector<std::size_t> places;
          for (std::size_t i = 0; i < count; ++i)
            if (space_.places[i].zone == space_.places[seed].zone &&
                (type == space_.types.size() || space_.places[i].type == type ||
                 space_.places[i].type == space_.places[seed].type))
              places.push_back(i);
          sets.insert(places);
        }
    }
    if (!request_.effort.uses(Heuristic::place_sets))
      std::erase_if(sets, [&](const auto& set) { return set.size() > 1 && set.size() < count; });
    place_sets_.assign(sets.begin(), sets.end());
    std::stable_sort(place_sets_.begin(), place_sets_.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
  }

  FleetRequest request_of(const std::vector<std::size_t>& places, double level) const {
    FleetRequest wanted{.places = places, .chains = {}, .given = {}, .batch = request_.job.global_batch};
    wanted.chains.resize(space_.types.size());
    for (const Chain& chain : chains_)
      if (chain.gradients <= level) wanted.chains[space_.places[chain.stages.front().place].type].push_back(&chain);
    return wanted;
  }

  void add(std::optional<Fleet> fleet) {
    if (!fleet || fleet->groups.empty()) return;
    fleet->schedule = schedule_;
    fleet->sharding = sharding_;
    archive_.add(*fleet);
  }

  void try_fleets(const FleetRequest& wanted) {
    const double least = maker_.least_deadline(wanted);
    if (least == never) return;
    if (request_.pins.data_parallel) {
      if (!by_time() || least < archive_.best_score()) add(maker_.of_size(wanted, *request_.pins.data_parallel));
      return;
    }
    if (by_time()) {
      if (least < archive_.best_score()) add(maker_.fastest(wanted));
      return;
    }
    if (least <= latest_) add(maker_.fastest(wanted));
    double deadline = least;
    for (int i = 0; i < most_deadlines; ++i, deadline *= deadline_step) {
      if (stop_()) return;
      if (deadline > latest_) break;
      const auto fleet = maker_.cheapest(wanted, deadline, true);
      add(fleet);
      if (request_.pareto) add(maker_.cheapest(wanted, deadline, false));
      if (fleet && fleet->groups.size() == 1 && fleet->groups.front().count == 1) break;  // it gets no smaller
    }
  }

  void try_mixed() {
    if (space_.places.size() < 2) return;
    if (archive_.best().empty()) {  // nothing fits into one place, or keeps the limits there
      if (request_.effort.uses(Heuristic::spanning))
        for (const Chain& chain : spanning_chains(prices_, rules_, place_sets_, stop_)) try_given(chain);
      if (archive_.best().empty()) return;
    }
    if (!request_.effort.uses(Heuristic::mixed)) return;
    const double deadline = longest_pipeline(archive_.best().front());
    FleetRequest all = request_of({}, never);
    std::vector<double> worth;
    for (const Place& place : space_.places) worth.push_back(maker_.best_rate(all, place.type, deadline));
    const std::vector<Chain> mixed = mixed_chains(prices_, rules_, worth, deadline, stop_);
    for (const Chain& chain : mixed) try_given(chain);
  }

  /// Fleets of one kind of pipeline whose stages are anywhere.
  void try_alike() {
    if (space_.layers() > SearchSpace::most_layers) return;
    for (const Group& group : alike_pipelines(prices_, rules_, sharding_, archive_.best_score(), stop_)) {
      if (stop_()) return;
      archive_.add({.schedule = schedule_, .sharding = sharding_, .groups = {group}});
    }
  }

  /// Fleets of this kind of pipeline and others in one place each.
  void try_given(const Chain& chain) {
    int most = INT_MAX;
    for (const ChainStage& stage : chain.stages)
      most = std::min(most, space_.places[stage.place].devices() / chain.uses(stage.place));
    most = std::min(most, request_.job.global_batch / chain.micro_batch);
    std::set<int> counts;
    for (int part = 1; part <= 4; ++part) counts.insert(most * part / 4);
    for (const auto& places : place_sets_) {
      if (stop_()) return;
      const bool within = std::all_of(chain.stages.begin(), chain.stages.end(), [&](const ChainStage& stage) {
        return std::find(places.begin(), places.end(), stage.place) != places.end();
      });
      if (!within || (place_sets_.size() > 64 && places.size() > 2 && places.size() < space_.places.size())) continue;
      for (const int count : counts) {
        if (count < 1) continue;
        FleetRequest wanted = request_of(places, never);
        wanted.given.push_back({.chain = chain, .count = count});
        try_fleets(wanted);
      }
    }
    Fleet alone{.schedule = schedule_, .sharding = sharding_, .groups = {}};
    for (int count = most; count >= 1; count = std::min(count - 1, count * 9 / 10)) {
      alone.groups = {{.chain = chain, .count = count}};
      if (archive_.add(alone).closed_form > archive_.best_score() * 1.3 && by_time()) break;
    }
  }

  static double longest_pipeline(const Found& found) {
    double longest = 0.0;
    for (const Pipeline& pipeline : found.plan.pipelines)
      for (const Group& group : found.fleet.groups)
        if (group.chain.stages.size() == pipeline.stages.size())
          longest = std::max(longest, group.chain.through + group.chain.round * (pipeline.micro_batches - 1));
    return std::min(longest, found.time.value());
  }

  StagePrices& prices_;
  const Request& request_;
  const SearchSpace& space_;
  Archive& archive_;
  const StopCheck& stop_;
  FleetMaker maker_;
  Refinement refinement_;
  double latest_ = never;  // no plan that ends later by the closed form keeps the limits
  Schedule schedule_ = Schedule::one_f_one_b;
  OptimizerSharding sharding_ = OptimizerSharding::none;
  ChainRules rules_;
  std::vector<Chain> chains_;
  std::vector<double> levels_;
  std::vector<std::vector<std::size_t>> place_sets_;
};

}  // namespace

void search_with(StagePrices& prices, Archive& archive, const std::vector<Hint>& hints, const StopCheck& stop) {
  FullSearch(prices, archive, stop).with_hints(hints);
}

void search_full(StagePrices& prices, Archive& archive, const StopCheck& stop) {
  FullSearch(prices, archive, stop).run();
}

void search_coarsely(StagePrices& prices, Archive& archive, const StopCheck& stop) {
  const SearchSpace& space = prices.space();
  const Request& request = prices.request();
  const Pins& pins = request.pins;
  ChainRules rules{.schedule = space.schedules.front(), .sharing = 1.0, .copies_gradients = true};
  if (rules.schedule == Schedule::interleaved_1f1b) return;
  for (std::size_t p = 0; p < space.places.size(); ++p) {
    const Place& place = space.places[p];
    for (const auto& [degree, sizes] : space.micro_batches_of[place.type]) {
      const int most_stages = std::min(place.groups(degree), prices.layers());
      for (int stages = pins.pipeline_parallel.value_or(1); stages <= pins.pipeline_parallel.value_or(most_stages);
           stages *= 2)
        for (std::size_t i = 0; i < sizes.size(); i = 2 * i + 1) {
          if (stop()) return;
          auto chain = balanced_chain(prices, rules, {{p, degree, stages}}, sizes[i]);
          const int most = chain ? std::min(request.job.global_batch / sizes[i], most_copies(*chain, place, space)) : 0;
          for (const int count : {most, most / 2, 1}) {
            const int copies = pins.data_parallel.value_or(count);
            if (copies < 1 || copies > most) continue;
            archive.add({.schedule = rules.schedule,
                         .sharding = space.sharding.front(),
                         .groups = {{.chain = *chain, .count = copies}}});
          }
        }
    }
  }
}

}  // namespace sailor::planner
