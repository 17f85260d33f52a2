#include "planner/baselines/artifact_sailor_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sailor::planner::baselines::artifact_sailor_detail {

namespace {

constexpr double no_limit = std::numeric_limits<double>::infinity();
constexpr double cents_per_usd = 100.0;
constexpr double budget_steps = 20.0;                    // fixed: a remaining budget is rounded to this many steps
constexpr std::uint64_t states_between_questions = 256;  // between checks of the time limit

/// As the original passes a budget on: text with two decimals, read into 32 bits.
double to_cents(double usd) { return static_cast<float>(std::round(usd * cents_per_usd) / cents_per_usd); }

}  // namespace

std::size_t Search::KeyHash::operator()(const Key& key) const {
  std::size_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const int value : key) hash = (hash ^ static_cast<std::size_t>(static_cast<unsigned>(value))) * 1099511628211ULL;
  return hash;
}

Search::Search(const Problem& problem, const Tables& tables) : problem_(problem), tables_(tables) {
  longest_time_ = problem.min_throughput && *problem.min_throughput > 0.0 ? 1.0 / *problem.min_throughput : no_limit;
  budget_step_ =
      tables.keeps_faults() || !problem.max_cost ? 1.0 / cents_per_usd : problem.max_cost->value() / budget_steps;
}

/// Rounds up: whether a whole plan keeps its budget is decided by its final cost.
double Search::in_steps(double usd) const { return std::ceil(usd / budget_step_) * budget_step_; }

double Search::money(double usd) const { return tables_.keeps_faults() ? static_cast<float>(usd) : usd; }

const std::vector<int>& Search::zones_of(const State& state) const {
  return tables_.supply().regions[static_cast<std::size_t>(state.shape.regions[state.region])];
}

int Search::degree(const State& state, int gpu, std::size_t stage) const {
  const std::vector<int>& degrees = state.shape.degrees[static_cast<std::size_t>(gpu)];
  return degrees.empty() ? 0 : degrees[stage];
}

int& Search::free_of(std::vector<int>& free, int zone, int gpu) const {
  return free[zone * tables_.supply().types() + gpu];
}

const Solution& Search::solve(const Shape& shape) {
  micro_batches_ = tables_.micro_batch_count(shape.micro_batch, shape.replicas);
  message_ = tables_.message_bytes(shape.stages.front(), shape.micro_batch);
  set_floors(shape);
  State state{.shape = shape, .free = tables_.supply().free, .budget = {}};
  // The harness of the artifact gives a budget with the throughput objective only.
  if (problem_.max_cost && (problem_.objective == Objective::throughput || !tables_.keeps_faults()))
    state.budget = tables_.keeps_faults() ? to_cents(problem_.max_cost->value()) : problem_.max_cost->value();
  if (state.budget && tables_.keeps_faults() && *state.budget <= 0.0) state.budget.reset();
  return solve(state);
}

/// Kept: the key has only the devices of the current region by type, regardless of the zones they are in, the regions
/// that follow and the types that may be used. Fixed: it has the devices in each zone of this region and of those that
/// may follow, the types and the message. The number of stages of the whole plan changes nothing else: degrees depend
/// on the stages that follow.
Search::Key Search::key_of(const State& state) const {
  const Supply& supply = tables_.supply();
  const bool keep = tables_.keeps_faults();
  const Shape& shape = state.shape;
  const LayerRange layers = shape.stages[state.stage];
  Key key{shape.micro_batch, static_cast<int>(shape.stages.size() - state.stage), layers.first, shape.replicas};
  if (!keep) {
    key.push_back(static_cast<int>(message_ / (float_bytes * shape.micro_batch)));
    for (const auto& of_gpu : shape.degrees) key.push_back(of_gpu.empty() ? 0 : 1);
  }
  const std::size_t last =
      keep && state.stage > 0 ? state.region + 1 : shape.regions.size();  // the first stage knows all regions
  for (std::size_t region = state.region; region < last; ++region) {
    key.push_back(shape.regions[region]);
    const auto& zones = supply.regions[static_cast<std::size_t>(shape.regions[region])];
    for (int gpu = 0; gpu < supply.types(); ++gpu) {
      int devices = 0;
      for (const int zone : zones) {
        const int here = state.free[zone * supply.types() + gpu];
        devices += here;
        if (!keep) key.push_back(here);
      }
      if (keep) key.push_back(devices);
    }
  }
  return key;
}

const Solution& Search::solve(const State& state) {
  if (++states_ % states_between_questions == 0 && problem_.is_over()) is_over_ = true;
  constexpr int unlimited = std::numeric_limits<int>::max();
  const int steps = state.budget ? static_cast<int>(std::lround(*state.budget / budget_step_)) : unlimited;
  std::map<int, std::unique_ptr<Solution>>& by_budget = known_[key_of(state)];
  if (tables_.keeps_faults()) {
    if (const auto found = by_budget.find(steps); found != by_budget.end()) return *found->second;
  } else {
    if (state.budget && !by_budget.contains(unlimited)) {
      State free_of_charge = state;
      free_of_charge.budget.reset();
      solve(free_of_charge);
    }
    // The best solution with more money is also the best with less money if it keeps that.
    if (const auto richer = by_budget.lower_bound(steps); richer != by_budget.end()) {
      const Solution& best = *richer->second;
      if (richer->first == steps || !best.is_feasible || best.cost() <= *state.budget) return best;
    }
  }
  auto solution = std::make_unique<Solution>(search(state));
  return *by_budget.insert_or_assign(steps, std::move(solution)).first->second;
}

template <class Visit>
void Search::for_numbers(const State& state, Visit visit) {
  const int types = tables_.supply().types();
  std::vector<int> most(static_cast<std::size_t>(types), 0);
  for (int gpu = 0; gpu < types; ++gpu)
    if (const int each = degree(state, gpu, state.stage); each > 0)
      for (const int zone : zones_of(state))
        most[static_cast<std::size_t>(gpu)] += std::max(state.free[zone * types + gpu], 0) / each;
  std::vector<int> numbers(static_cast<std::size_t>(types), 0);
  const auto choose = [&](const auto& self, std::size_t gpu, int left) -> void {
    if (is_over_) return;
    if (gpu + 1 == numbers.size()) {
      if (left > most[gpu]) return;
      numbers[gpu] = left;
      visit(numbers);
      return;
    }
    for (int number = 0; number <= std::min(most[gpu], left); ++number) {
      numbers[gpu] = number;
      self(self, gpu + 1, left - number);
    }
  };
  choose(choose, 0, state.shape.replicas);
}

/// Places replicas type by type, starting in the first zone of the region.
std::optional<Search::Layout> Search::lay_out(const State& state, const std::vector<int>& numbers) const {
  const std::vector<int>& zones = zones_of(state);
  // In the last stage the original moves one zone on when a zone is used up, and places a group there even if that zone
  // is used up as well (planner.cpp:443): more devices than there are. In other stages it moves on until there is room.
  const bool one_step = tables_.keeps_faults() && state.stage + 1 == state.shape.stages.size();
  Layout layout{.runs = {}, .free = state.free, .first_zone = std::vector<int>(numbers.size(), -1), .zones = {}};
  for (int gpu = 0; gpu < static_cast<int>(numbers.size()); ++gpu) {
    const int number = numbers[static_cast<std::size_t>(gpu)];
    if (number == 0) continue;
    const int each = degree(state, gpu, state.stage);
    layout.price += number * each * tables_.price(gpu);
    int left = number;
    for (std::size_t at = 0; left > 0; ++at) {
      if (at == zones.size()) return std::nullopt;
      int& here = free_of(layout.free, zones[at], gpu);
      const int room = here / each;
      const int taken = std::min(left, one_step && at > 0 ? std::max(room, 1) : room);
      if (taken == 0) continue;
      if (left == number) layout.first_zone[static_cast<std::size_t>(gpu)] = one_step ? zones[0] : zones[at];
      here -= taken * each;
      left -= taken;
      layout.runs.push_back({.gpu = gpu, .zone = zones[at], .degree = each, .count = taken});
      if (std::find(layout.zones.begin(), layout.zones.end(), zones[at]) == layout.zones.end())
        layout.zones.push_back(zones[at]);
    }
  }
  layout.price = money(layout.price);
  return layout;
}

bool Search::is_better(const Solution& candidate, const Solution& best) const {
  if (!std::isfinite(candidate.times.iteration)) return false;
  if (problem_.objective == Objective::throughput)
    return !best.is_feasible || candidate.times.iteration < best.times.iteration;
  return candidate.times.iteration <= longest_time_ &&
         (!best.is_feasible || money(candidate.cost()) <= money(best.cost()));
}

Solution Search::search(const State& state) {
  Solution best;
  if (state.stage + 1 == state.shape.stages.size()) {
    for_numbers(state, [&](const std::vector<int>& numbers) {
      if (const auto layout = lay_out(state, numbers)) try_last(state, *layout, best);
    });
    return best;
  }
  // Of consecutive layouts with equal time only the first is followed up; if money counts, the cheapest as well.
  const bool counts_money = !tables_.keeps_faults() && (state.budget || problem_.objective != Objective::throughput);
  double time_before = -1.0;
  double cheapest_before = 0.0;
  std::optional<Inner> cheaper;
  const auto finish_row = [&] {
    if (cheaper) take_rest(state, *cheaper, best);
    cheaper.reset();
  };
  for_numbers(state, [&](const std::vector<int>& numbers) {
    auto layout = lay_out(state, numbers);
    if (!layout) return;
    auto inner = inner_stage(state, std::move(*layout));
    if (!inner) return;
    if (inner->times.iteration == time_before) {
      if (counts_money && inner->cost < cheapest_before) {
        cheapest_before = inner->cost;
        cheaper = std::move(inner);
      }
      return;
    }
    finish_row();
    time_before = inner->times.iteration;
    cheapest_before = inner->cost;
    take_rest(state, *inner, best);
  });
  finish_row();
  return best;
}

void Search::try_last(const State& state, const Layout& layout, Solution& best) const {
  const Shape& shape = state.shape;
  const LayerRange layers = shape.stages[state.stage];
  std::vector<int> degrees;
  for (int gpu = 0; gpu < tables_.supply().types(); ++gpu) degrees.push_back(degree(state, gpu, state.stage));
  Solution candidate{
      .is_feasible = true,
      .times = tables_.stage_times(layers, shape.micro_batch, shape.replicas, degrees, layout.first_zone, layout.zones),
      .communication_cost = money(tables_.all_reduce_cost(layers, shape.replicas, layout.runs, layout.zones)),
      .device_price = layout.price,
      .runs = layout.runs};
  if (allows(state.budget, money(candidate.cost())) && is_better(candidate, best)) best = std::move(candidate);
}

std::optional<Search::Inner> Search::inner_stage(const State& state, Layout layout) const {
  const Supply& supply = tables_.supply();
  const bool keep = tables_.keeps_faults();
  const Shape& shape = state.shape;
  const LayerRange layers = shape.stages[state.stage];
  int room = 0;  // replicas of the next stage, in this region
  for (const int zone : zones_of(state))
    for (int gpu = 0; gpu < supply.types(); ++gpu)
      if (const int each = degree(state, gpu, state.stage + 1); each > 0)
        room += free_of(layout.free, zone, gpu) / each;
  Inner inner;
  inner.next_region = room < shape.replicas ? state.region + 1 : state.region;
  if (inner.next_region >= shape.regions.size()) return std::nullopt;

  std::vector<int> degrees;
  if (keep) layout.zones.clear();  // for inner stages, the original considers only the first zone of each type
  for (int gpu = 0; gpu < supply.types(); ++gpu) {
    degrees.push_back(degree(state, gpu, state.stage));
    const int first = layout.first_zone[static_cast<std::size_t>(gpu)];
    if (first >= 0 && std::find(layout.zones.begin(), layout.zones.end(), first) == layout.zones.end())
      layout.zones.push_back(first);
  }
  inner.times =
      tables_.stage_times(layers, shape.micro_batch, shape.replicas, degrees, layout.first_zone, layout.zones);
  inner.reduce_cost = money(tables_.all_reduce_cost(layers, shape.replicas, layout.runs, layout.zones));
  inner.cost = money(inner.times.iteration * layout.price + inner.reduce_cost);
  // With the cost objective, the original drops every plan of several stages here (planner.cpp:656).
  if (keep && problem_.objective != Objective::throughput) return std::nullopt;
  if (!allows(state.budget, inner.cost)) return std::nullopt;
  if (state.budget) {
    const double left = std::max(money(*state.budget - inner.cost), 0.0);
    inner.budget = keep ? to_cents(left) : in_steps(left);
    // Kept: nothing left means no limit, as the text "0.00" does in the original.
    if (*inner.budget <= 0.0) {
      if (!keep) return std::nullopt;
      inner.budget.reset();
    }
  }
  inner.layout = std::move(layout);
  return inner;
}

void Search::set_floors(const Shape& shape) {
  floors_.assign(shape.stages.size() + 1, {});
  for (std::size_t stage = shape.stages.size(); stage-- > 0;) {
    const Floor& behind = floors_[stage + 1];
    double price = no_limit;
    double compute = no_limit;
    for (int gpu = 0; gpu < tables_.supply().types(); ++gpu) {
      const std::vector<int>& degrees = shape.degrees[static_cast<std::size_t>(gpu)];
      if (degrees.empty()) continue;
      price = std::min(price, degrees[stage] * tables_.price(gpu));
      compute = std::min(compute, tables_.compute(gpu, shape.micro_batch, degrees[stage], shape.stages[stage]));
    }
    floors_[stage] = {.price = behind.price + shape.replicas * price,
                      .slowest = std::max(behind.slowest, compute),
                      .compute = behind.compute + compute};
  }
}

/// Whether the solution cannot win, however fast and cheap the devices of the later stages are. (Not used with kept
/// faults: there the order of calls matters, since later calls get the cached answers.)
bool Search::cannot_win(const State& state, const Inner& inner, const Solution& best) const {
  const StageTimes& times = inner.times;
  const Floor& behind = floors_[state.stage + 1];
  const double time = (micro_batches_ - 1.0) * std::max(times.compute, behind.slowest) + times.compute +
                      behind.compute + times.all_reduce;
  const double cost = time * (inner.layout.price + behind.price) + inner.reduce_cost;
  if (time > longest_time_ || !allows(state.budget, cost)) return true;
  return best.is_feasible &&
         (problem_.objective == Objective::throughput ? time >= best.times.iteration : cost >= best.cost());
}

/// Solves the later stages. Fixed: repeats this with less money while the plan is too expensive, since the cost of a
/// stage depends on the time of the slowest stage, which is not known before. (The original intends to, but never
/// repeats it.)
void Search::take_rest(const State& state, const Inner& inner, Solution& best) {
  const bool keep = tables_.keeps_faults();
  if (!keep && cannot_win(state, inner, best)) return;
  const Layout& layout = inner.layout;
  State next{.shape = state.shape,
             .stage = state.stage + 1,
             .region = inner.next_region,
             .free = layout.free,
             .budget = inner.budget};
  for (;;) {
    const Solution& rest = solve(next);
    if (!rest.is_feasible) return;
    Solution candidate{
        .is_feasible = true,
        .times = tables_.joined(inner.times, layout.runs, rest.times, rest.runs, message_, micro_batches_),
        .runs = layout.runs,
        .rest = &rest};
    const double own_cost =
        money(tables_.message_cost(layout.runs, rest.runs, message_, micro_batches_) + inner.reduce_cost);
    candidate.communication_cost = money(own_cost + rest.communication_cost);
    candidate.device_price = money(layout.price + rest.device_price);
    // Kept: the time is still 0 where the original compares with the budget (planner.cpp:721).
    const double cost = keep ? candidate.communication_cost : candidate.cost();
    if (allows(state.budget, cost)) {
      if (is_better(candidate, best)) best = std::move(candidate);
      return;
    }
    if (keep) return;
    const double left = in_steps(*state.budget - own_cost - layout.price * candidate.times.iteration);
    next.budget = std::min(left, *next.budget - budget_step_);
    if (*next.budget < 0.5 * budget_step_) return;
  }
}

}  // namespace sailor::planner::baselines::artifact_sailor_detail
