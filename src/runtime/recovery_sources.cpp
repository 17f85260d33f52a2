#include "runtime/recovery_sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace sailor::runtime {

namespace {

using Json = nlohmann::json;

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }
double number(const Json& value) { return std::bit_cast<double>(value.get<std::uint64_t>()); }

/// A rank's description of one state. Plan and hosts are texts, which rank 0 replaces by numbers, since ranks have few
/// different ones.
Json described(const HeldState& held) {
  const bool is_live = held.live != nullptr;
  const StateVersion version = is_live ? held.live->version() : held.buffer->version();
  const LossScale scale = is_live ? held.live->loss_scale() : held.buffer->loss_scale();
  Json told{{"version", {version.iteration, version.epoch}},
            {"scale", {bits(scale.factor), scale.good, scale.skipped}},
            {"epoch", is_live ? held.live->epoch() : held.generation->epoch},
            {"plan", is_live ? plan_to_toml(held.live->plan()) : held.generation->plan},
            {"place", is_live ? held.live->role().rank : held.kept->owner()},
            {"live", is_live}};
  if (is_live) {
    if (const auto& totals = held.live->last_totals())
      told["totals"] = {bits(totals->squared_norm), bits(totals->loss), bits(totals->stop)};
  } else if (held.kept != held.generation->own.get()) {
    told["hosts"] = Json(held.generation->hosts).dump();
  }
  return told;
}

ToldState parsed(const Json& told, int rank, std::size_t index) {
  ToldState state{.rank = rank,
                  .index = index,
                  .version = {told.at("version").at(0), told.at("version").at(1)},
                  .loss_scale = {.factor = number(told.at("scale").at(0)),
                                 .good = told.at("scale").at(1),
                                 .skipped = told.at("scale").at(2)},
                  .epoch = told.at("epoch"),
                  .plan = told.at("plan"),
                  .place = told.at("place"),
                  .is_live = told.at("live")};
  if (told.contains("hosts")) state.hosts = told.at("hosts").get<std::size_t>();
  if (told.contains("totals")) {
    const Json& totals = told.at("totals");
    state.totals = {number(totals.at(0)), number(totals.at(1)), number(totals.at(2))};
  }
  return state;
}

/// Replaces texts by their indices in a list of all different texts.
class TextTable {
 public:
  void replace(Json& text) {
    const auto [entry, is_new] = known_.try_emplace(text.get<std::string>(), known_.size());
    if (is_new) texts_.push_back(entry->first);
    text = entry->second;
  }
  [[nodiscard]] const Json& texts() const { return texts_; }

 private:
  std::map<std::string, std::size_t> known_;
  Json texts_ = Json::array();
};

/// Division and copy layouts of the plans of an inventory, computed on first use.
class PlansBefore {
 public:
  PlansBefore(const Inventory& inventory, const Model& model) : inventory_(inventory), model_(model) {}

  /// Elements that a state has.
  std::vector<StatePart> parts(const ToldState& state) {
    const Division& plan = division(state.plan);
    if (!state.hosts) return stepped_parts(plan.map, plan.groups, state.place);
    auto layout = layouts_.find({state.plan, *state.hosts});
    if (layout == layouts_.end())
      layout = layouts_.try_emplace({state.plan, *state.hosts}, plan.map, inventory_.hosts[*state.hosts]).first;
    for (const CopyLayout::Copy& copy : layout->second.copies())
      if (copy.owner == state.place) return copy.parts;
    return {};
  }

  [[nodiscard]] bool is_whole(const Holdings& holdings, std::size_t plan) {
    for (const Parameter& parameter : division(plan).map.model_parameters()) {
      const auto held = holdings.find(key_of(parameter));
      if (held == holdings.end()) return false;
      std::vector<Range> ranges;
      for (const Holding& holding : held->second) ranges.push_back(holding.whole);
      std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
      std::int64_t end = 0;
      for (const Range& range : ranges) {
        if (range.first > end) return false;
        end = std::max(end, range.last);
      }
      if (end < parameter.whole_elements()) return false;
    }
    return true;
  }

 private:
  const Division& division(std::size_t plan) {
    auto division = divisions_.find(plan);
    if (division == divisions_.end()) division = divisions_.try_emplace(plan, inventory_.plans[plan], model_).first;
    return division->second;
  }
  const Inventory& inventory_;
  const Model& model_;
  std::map<std::size_t, Division> divisions_;
  std::map<std::pair<std::size_t, std::size_t>, CopyLayout> layouts_;
};

/// The live state of rank `rank` that has element `element`; null: none. `held` is in the order of the inventory's
/// states, which is that of their ranks.
const Holding* own_live_holding(const std::vector<Holding>& held, const Inventory& inventory, int rank,
                                std::int64_t element) {
  const auto rank_of = [&](const Holding& holding) { return inventory.states[holding.state].rank; };
  for (auto holding = std::ranges::lower_bound(held, rank, {}, rank_of);
       holding != held.end() && rank_of(*holding) == rank; ++holding)
    if (holding->whole.first <= element && element < holding->whole.last && inventory.states[holding->state].is_live)
      return &*holding;
  return nullptr;
}

/// The holdings of element `element` that rank `to` had best take it from: of its own memory before others', of devices
/// before hosts.
std::vector<const Holding*> best_holdings(const std::vector<Holding>& held, const Inventory& inventory, int to,
                                          std::int64_t element) {
  // Most elements stay where they are: the others' holdings, of which large plans have many, are looked at only for the
  // rest.
  if (const Holding* const own = own_live_holding(held, inventory, to, element)) return {own};
  std::vector<const Holding*> found;
  int best = 0;
  for (const Holding& holding : held) {
    if (holding.whole.first > element || element >= holding.whole.last) continue;
    const ToldState& state = inventory.states[holding.state];
    const int worth = (state.rank == to ? 2 : 0) + (state.is_live ? 1 : 0) + 1;
    if (worth < best) continue;
    if (worth > best) found.clear();
    best = worth;
    found.push_back(&holding);
  }
  return found;
}

/// Adds the moves of one piece that rank `to` needs.
void add_moves(const Move& wanted, const Inventory& inventory, const Holdings& holdings, std::vector<Move>& moves) {
  const auto held = holdings.find(wanted.key);
  Piece left = wanted.piece.piece;
  while (left.count > 0) {
    std::vector<const Holding*> found;
    if (held != holdings.end()) found = best_holdings(held->second, inventory, wanted.to, left.whole);
    if (found.empty()) throw std::logic_error("a state that is not whole is moved");
    // Equally good ranks take turns.
    const Holding& from = *found[(static_cast<std::size_t>(wanted.to) + moves.size()) % found.size()];
    const std::int64_t count = std::min(left.count, from.whole.last - left.whole);
    Move move = wanted;
    move.from = inventory.states[from.state].rank;
    move.state = from.state;
    move.piece.piece = {left.whole, left.local, count};
    moves.push_back(std::move(move));
    left = {left.whole + count, left.local + count, left.count - count};
  }
}

}  // namespace

std::vector<HeldState> held_states(TrainingState* mine, const StateCopies* copies) {
  std::vector<HeldState> held;
  if (mine != nullptr && mine->is_filled()) held.push_back({.live = mine});
  if (copies == nullptr) return held;
  for (const auto& state : copies->states())
    if (state->is_filled()) held.push_back({.live = state.get()});
  for (const auto& generation : copies->generations()) {
    const auto add = [&](const KeptState* kept) {
      if (kept == nullptr) return;
      for (const KeptState::Buffer& buffer : kept->buffers())
        if (buffer.is_complete()) held.push_back({.generation = generation.get(), .kept = kept, .buffer = &buffer});
    };
    add(generation->own.get());
    for (const auto& kept : generation->of_others) add(kept.get());
  }
  return held;
}

Result<Inventory> gather_inventory(const std::vector<HeldState>& held, const StateCopies* copies, Control& control) {
  Json mine{{"host", control.host()}, {"epoch", std::uint64_t{0}}, {"states", Json::array()}};
  std::uint64_t newest = 0;
  if (copies != nullptr)
    for (const auto& generation : copies->generations()) newest = std::max(newest, generation->epoch);
  for (const HeldState& state : held) {
    mine["states"].push_back(described(state));
    newest = std::max(newest, mine["states"].back().at("epoch").get<std::uint64_t>());
  }
  mine["epoch"] = newest;
  Json all{{"ranks", Json::array()}};
  TextTable plans;
  TextTable hosts;
  for (const std::string& text : control.gather(mine.dump())) {
    Json told = Json::parse(text);
    for (Json& state : told.at("states")) {
      plans.replace(state.at("plan"));
      if (state.contains("hosts")) hosts.replace(state.at("hosts"));
    }
    all["ranks"].push_back(std::move(told));
  }
  all["plans"] = plans.texts();
  all["hosts"] = hosts.texts();
  all = Json::parse(control.broadcast(all.dump()));

  Inventory inventory;
  for (const Json& text : all.at("plans")) {
    auto plan = parse_plan(text.get<std::string>(), "the plan before");
    if (!plan) return fail(plan.error());
    inventory.plans.push_back(*std::move(plan));
  }
  for (const Json& text : all.at("hosts"))
    inventory.hosts.push_back(Json::parse(text.get<std::string>()).get<std::vector<std::string>>());
  for (const Json& told : all.at("ranks")) {
    const int rank = static_cast<int>(inventory.host_of_rank.size());
    inventory.host_of_rank.push_back(told.at("host"));
    inventory.newest_epoch = std::max(inventory.newest_epoch, told.at("epoch").get<std::uint64_t>());
    std::size_t index = 0;
    for (const Json& state : told.at("states")) inventory.states.push_back(parsed(state, rank, index++));
  }
  return inventory;
}

std::optional<Cut> newest_cut(const Inventory& inventory, const Model& model) {
  std::set<StateVersion, std::greater<>> versions;
  for (const ToldState& state : inventory.states) versions.insert(state.version);
  PlansBefore plans(inventory, model);
  for (const StateVersion& version : versions) {
    Cut cut{.version = version, .loss_scale = {}, .totals = {}, .late = {}, .last_totals = {}, .holdings = {}};
    for (const ToldState& state : inventory.states)
      if (state.version == version) {
        cut.loss_scale = state.loss_scale;
        if (state.totals) cut.last_totals = state.totals;
        if (state.is_live && state.epoch == version.epoch && state.totals) cut.totals = state.totals;
      }
    std::size_t plan = 0;
    for (std::size_t i = 0; i < inventory.states.size(); ++i) {
      const ToldState& state = inventory.states[i];
      // The state has all gradients of the update that other ranks of its epoch have made.
      const bool is_late = cut.totals && state.is_live && state.epoch == version.epoch &&
                           state.version.iteration == version.iteration - 1;
      if (state.version != version && !is_late) continue;
      if (is_late) cut.late.push_back(i);
      plan = state.plan;
      for (const StatePart& part : plans.parts(state)) cut.holdings[part.key].push_back({part.whole, i});
    }
    if (plans.is_whole(cut.holdings, plan)) return cut;
  }
  return std::nullopt;
}

std::vector<Move> moves_to(int to, const Division& division, const CopyLayout* layout, const Inventory& inventory,
                           const Holdings& holdings) {
  std::vector<Move> moves;
  const Declarations parameters = division.parameters(to);
  for (const WantedPiece& wanted : wanted_pieces(parameters, division.owned(to)))
    add_moves({.to = to, .key = key_of(*parameters[wanted.parameter]), .piece = wanted}, inventory, holdings, moves);
  if (layout == nullptr) return moves;
  for (const CopyLayout::Copy& copy : layout->copies()) {
    if (copy.keeper != to) continue;
    for (const StoredArray array : stored_arrays)
      for (const StatePart& part : copy.parts)
        add_moves({.to = to,
                   .key = part.key,
                   .piece = {.array = array, .piece = {part.whole.first, 0, part.whole.size()}},
                   .owner = copy.owner},
                  inventory, holdings, moves);
  }
  return moves;
}

}  // namespace sailor::runtime
