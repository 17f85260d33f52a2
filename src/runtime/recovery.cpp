#include "runtime/recovery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/terminal.hpp"
#include "runtime/state_pieces.hpp"
#include "runtime/trainer.hpp"

namespace sailor::runtime {

namespace {

using Json = nlohmann::json;

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }
double number(const Json& value) { return std::bit_cast<double>(value.get<std::uint64_t>()); }

/// What a rank has of the training, as it tells the others. Empty: nothing.
Json inventory(const TrainingState* state) {
  if (state == nullptr) return Json::object();
  const LossScale& scale = state->loss_scale();
  Json told{{"plan", plan_to_toml(state->plan())},
            {"rank", state->role().rank},
            {"iteration", state->iteration()},
            {"loss_scale", {bits(scale.factor), scale.good, scale.skipped}}};
  if (const auto& totals = state->last_totals())
    told["totals"] = {bits(totals->squared_norm), bits(totals->loss), bits(totals->stop)};
  return told;
}

/// A plan with what each of its ranks holds and steps.
struct Division {
  Division(const Plan& plan, const Model& model) : map(plan, model), groups(map.groups()) {}
  [[nodiscard]] Declarations parameters(int rank) const { return declarations_of(map.parameters(rank)); }
  [[nodiscard]] std::vector<Range> owned(int rank) const { return map.sums_of(rank, groups).owned; }
  ParameterMap map;
  std::vector<GradientGroup> groups;
};

/// Elements of a parameter of which a rank of this world has the whole state, since it steps them.
struct Holding {
  Range whole;
  int rank = 0;
};
using Key = std::pair<int, std::string>;  // layer and name
using Holdings = std::map<Key, std::vector<Holding>>;

Key key_of(const Parameter& parameter) { return {parameter.layer, parameter.name}; }

Result<Holdings> holdings_of(const std::vector<Json>& inventories, std::int64_t newest, const Model& model) {
  Holdings holdings;
  std::map<std::string, Division> divisions;  // by plan
  for (std::size_t rank = 0; rank < inventories.size(); ++rank) {
    const Json& told = inventories[rank];
    if (told.empty() || told.at("iteration") != newest) continue;
    const std::string& text = told.at("plan").get_ref<const std::string&>();
    auto division = divisions.find(text);
    if (division == divisions.end()) {
      const auto plan = parse_plan(text, fmt::format("plan of rank {}", rank));
      if (!plan) return fail(plan.error());
      division = divisions.try_emplace(text, *plan, model).first;
    }
    const int place = told.at("rank");
    const Declarations parameters = division->second.parameters(place);
    for (const OwnPiece& own : own_pieces(parameters, division->second.owned(place)))
      holdings[key_of(*parameters[own.parameter])].push_back(
          {{own.piece.whole, own.piece.whole + own.piece.count}, static_cast<int>(rank)});
  }
  return holdings;
}

/// A piece of one array that moves from rank to rank, or stays on one.
struct Move {
  int from = 0;
  int to = 0;
  WantedPiece piece;  ///< of the receiver
  Key key;
};

/// All moves to rank `to`, in the order in which they are made; nothing where some elements are nowhere.
std::optional<std::vector<Move>> moves_to(int to, const Division& division, const Holdings& holdings) {
  std::vector<Move> moves;
  const Declarations parameters = division.parameters(to);
  for (const WantedPiece& wanted : wanted_pieces(parameters, division.owned(to))) {
    const Key key = key_of(*parameters[wanted.parameter]);
    const auto held = holdings.find(key);
    if (held == holdings.end()) return std::nullopt;
    Piece left = wanted.piece;
    while (left.count > 0) {
      std::vector<const Holding*> found;
      for (const Holding& holding : held->second)
        if (holding.whole.first <= left.whole && left.whole < holding.whole.last) found.push_back(&holding);
      if (found.empty()) return std::nullopt;
      // Its own memory first; else those that have it take turns.
      const auto own = std::find_if(found.begin(), found.end(), [&](const Holding* one) { return one->rank == to; });
      const Holding& from =
          own != found.end() ? **own : *found[(static_cast<std::size_t>(to) + moves.size()) % found.size()];
      const std::int64_t count = std::min(left.count, from.whole.last - left.whole);
      moves.push_back({from.rank, to, {wanted.array, wanted.parameter, {left.whole, left.local, count}}, key});
      left = {left.whole + count, left.local + count, left.count - count};
    }
  }
  return moves;
}

/// Makes the moves that this rank has a part in.
class Mover {
 public:
  /// `made` is null on a rank that the new plan leaves out: it only gives.
  Mover(TrainingState* mine, TrainingState* made, Device& device, const World& world)
      : mine_(mine), device_(device), world_(world), ready_(device.make_event()) {
    if (made != nullptr) target_.emplace(device, made->parameters(), made->optimizer());
    if (mine_ != nullptr)
      for (std::size_t i = 0; i < mine_->parameters().parameters().size(); ++i)
        index_[key_of(*mine_->parameters().parameters()[i])] = i;
    device_.main().record(*ready_);
  }

  /// Collective: of all ranks. Before the moves are made.
  void connect(const std::vector<Move>& moves) {
    for (const Move& move : moves) {
      if (move.from == move.to || (move.to != world_.rank() && move.from != world_.rank())) continue;
      Way& way = ways_[{move.from, move.to}];
      if (way.stream != nullptr) continue;
      way.stream = device_.make_stream();
      way.channel = world_.transport.make_channel(move.from, move.to, {.id = state_channel});
      way.stream->wait(*ready_);
    }
    world_.transport.connect();
  }

  void make(const Move& move) {
    const Piece& piece = move.piece.piece;
    const auto size = bytes_of(DataType::float32, piece.count);
    const bool receives = move.to == world_.rank();
    if (move.from == move.to) {
      if (receives) device_.main().copy(target_->memory(move.piece), memory_of(move), size);
      return;
    }
    if (!receives && move.from != world_.rank()) return;
    const Way& way = ways_.at({move.from, move.to});
    if (receives) {
      way.channel->receive(*way.stream, target_->memory(move.piece), size);
    } else {
      way.channel->send(*way.stream, memory_of(move), size);
      sent_ += static_cast<std::int64_t>(size);
    }
  }

  /// The host waits for all. Returns the bytes sent.
  std::int64_t finish() {
    for (auto& [ends, way] : ways_) {
      way.done = device_.make_event();
      way.stream->record(*way.done);
      device_.main().wait(*way.done);
    }
    if (target_) target_->finish();
    device_.synchronize();
    return sent_;
  }

 private:
  static constexpr int state_channel = 1 << 20;  // a trainer's have lower numbers

  [[nodiscard]] const float* memory_of(const Move& move) {
    const std::size_t parameter = index_.at(move.key);
    const Piece& piece = move.piece.piece;
    for (const Piece& held : mine_->parameters().parameters()[parameter]->pieces())
      if (held.whole <= piece.whole && piece.whole + piece.count <= held.whole + held.count) {
        const std::int64_t first = held.local + piece.whole - held.whole;
        if (const float* const memory = stepped_memory(mine_->parameters(), mine_->optimizer(), move.piece.array,
                                                       parameter, {first, first + piece.count}))
          return memory;
      }
    throw std::logic_error(fmt::format("rank {} does not have layer {}, {}, elements {} to {}", world_.rank(),
                                       move.key.first, move.key.second, piece.whole, piece.whole + piece.count - 1));
  }

  /// From one rank to another.
  struct Way {
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Channel> channel;
    std::unique_ptr<Event> done;
  };
  TrainingState* mine_;
  Device& device_;
  World world_;
  std::optional<StateTarget> target_;
  std::unique_ptr<Event> ready_;
  std::map<Key, std::size_t> index_;  // of parameters that this rank has
  std::map<std::pair<int, int>, Way> ways_;
  std::int64_t sent_ = 0;
};

std::vector<Json> gather_inventories(const TrainingState* mine, Control& control) {
  Json all = Json::array();
  for (const std::string& text : control.gather(inventory(mine).dump())) all.push_back(Json::parse(text));
  return Json::parse(control.broadcast(all.dump())).get<std::vector<Json>>();
}

/// Rank 0's choice, on all ranks.
Result<Plan> agree_on_plan(const std::vector<Json>& inventories, const Model& model, const World& world,
                           const std::function<Result<Plan>(const Plan* before)>& choose) {
  Json choice;
  if (world.rank() == 0) {
    const auto has_one =
        std::find_if(inventories.begin(), inventories.end(), [](const Json& told) { return !told.empty(); });
    std::optional<Plan> before;
    if (has_one != inventories.end())
      if (auto parsed = parse_plan(has_one->at("plan").get<std::string>(), "the plan before"))
        before = *std::move(parsed);
    const auto chosen = choose(before ? &*before : nullptr);
    if (chosen)
      choice = {{"plan", plan_to_toml(*chosen)}};
    else
      choice = {{"error", chosen.error().what},
                {"hint", chosen.error().hint},
                {"code", static_cast<int>(chosen.error().code)}};
  }
  choice = Json::parse(world.control.broadcast(choice.dump()));
  if (choice.contains("error"))
    return fail(static_cast<ErrorCode>(choice.at("code").get<int>()), choice.at("error").get<std::string>(),
                choice.at("hint").get<std::string>());
  auto plan = parse_plan(choice.at("plan").get<std::string>(), "the new plan");
  if (!plan) return plan;
  if (plan->ranks() > world.size())
    return fail(ErrorCode::invalid_input,
                fmt::format("the new plan has {} but {} there", plural(static_cast<std::size_t>(plan->ranks()), "rank"),
                            world.size() == 1 ? "1 is" : fmt::format("{} are", world.size())),
                "plan again for the ranks that are left");
  SAILOR_CHECK(check_trainable(*plan, model, plan->ranks()));
  return plan;
}

}  // namespace

Result<Recovery> recover(TrainingState* mine, const Model& model, const TrainerSettings& settings, Device& device,
                         const World& world, const std::function<Result<Plan>(const Plan* before)>& choose) {
  device.give_up_transfers();
  std::vector<Json> inventories = gather_inventories(mine, world.control);
  const Json* newest = nullptr;
  for (const Json& told : inventories)
    if (!told.empty() && (newest == nullptr || told.at("iteration") > newest->at("iteration"))) newest = &told;
  const std::int64_t iteration = newest == nullptr ? 0 : newest->at("iteration").get<std::int64_t>();
  for (Json& told : inventories) {
    if (told.empty() || &told == newest || told.at("iteration") != iteration - 1 ||
        told.at("plan") != newest->at("plan"))
      continue;
    if (&told == &inventories[static_cast<std::size_t>(world.rank())]) {
      const Json& known = newest->at("totals");
      const IterationTotals totals{number(known[0]), number(known[1]), number(known[2])};
      device.write(mine->totals(), &totals, sizeof(totals));
      (void)mine->update(settings, totals);
      device.synchronize();
    }
    told["iteration"] = iteration;
  }
  const auto plan = agree_on_plan(inventories, model, world, choose);
  if (!plan) return fail(plan.error());
  Recovery recovery;
  if (world.rank() < plan->ranks())
    recovery.state = std::make_unique<TrainingState>(*plan, model, world.rank(), device);
  if (newest == nullptr) {
    recovery.needs_checkpoint = true;
    return recovery;
  }
  const auto holdings = holdings_of(inventories, iteration, model);
  if (!holdings) return fail(holdings.error());
  const Division division(*plan, model);
  std::vector<Move> moves;
  for (int rank = 0; rank < plan->ranks() && !recovery.needs_checkpoint; ++rank) {
    auto more = moves_to(rank, division, *holdings);
    if (!more) recovery.needs_checkpoint = true;
    if (more)
      std::copy_if(more->begin(), more->end(), std::back_inserter(moves),
                   [&](const Move& move) { return move.from == world.rank() || move.to == world.rank(); });
  }
  if (!recovery.needs_checkpoint) {
    Mover mover(mine, recovery.state.get(), device, world);
    mover.connect(moves);
    for (const Move& move : moves) mover.make(move);
    recovery.sent_bytes = mover.finish();
    const Json& scale = newest->at("loss_scale");
    if (recovery.state != nullptr)
      recovery.state->restore(iteration, {.factor = number(scale[0]), .good = scale[1], .skipped = scale[2]});
  }
  // Nobody gives up what it had before all have what they need.
  world.control.barrier();
  return recovery;
}

}  // namespace sailor::runtime
