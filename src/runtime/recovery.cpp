#include "runtime/recovery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/terminal.hpp"
#include "runtime/recovery_sources.hpp"
#include "runtime/state_pieces.hpp"
#include "runtime/trainer.hpp"

namespace sailor::runtime {

namespace {

using Json = nlohmann::json;

/// Makes the moves from and to this rank.
class Mover {
 public:
  /// Sources and destinations on this rank: `made` is null on a rank that the new plan leaves out, `keeps` if nothing
  /// is kept for others.
  struct Ends {
    const std::vector<HeldState>& held;
    TrainingState* made;
    KeptGeneration* keeps;
  };
  Mover(const Ends& ends, const Inventory& inventory, const Cut& cut, Device& device, const World& world)
      : ends_(ends), inventory_(inventory), cut_(cut), device_(device), world_(world), ready_(device.make_event()) {
    if (ends.made != nullptr) target_.emplace(device, ends.made->parameters(), ends.made->optimizer());
    if (ends.keeps != nullptr)
      for (const auto& kept : ends.keeps->of_others)
        keeps_[kept->owner()] = {kept.get(), &kept->begin(cut.version, cut.loss_scale)};
  }

  /// After a failure, transfers in flight write nothing any more once the host has waited for the main stream.
  ~Mover() {
    for (auto& [ends, way] : ways_) try {
        if (way.done == nullptr) continue;
        way.stream->record(*way.done);
        device_.main().wait(*way.done);
      } catch (const TransportError&) {  // the same failure
      }
  }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// Collective over all ranks, before the moves are made.
  void connect(const std::vector<Move>& moves) {
    for (const Move& move : moves) {
      if (move.from == move.to) continue;
      Way& way = ways_[{move.from, move.to}];
      if (way.stream == nullptr) {
        way.stream = device_.make_stream();
        way.done = device_.make_event();
        way.channel = world_.transport.make_channel(move.from, move.to, {.id = state_channel});
      }
      const bool is_in_host_memory =
          move.to == world_.rank() ? move.owner.has_value() : !inventory_.states[move.state].is_live;
      if (is_in_host_memory && !device_.computes_on_host()) way.staged = std::max(way.staged, move.piece.piece.count);
    }
    for (auto& [ends, way] : ways_)
      if (way.staged > 0) way.staging = Tensor(device_, {way.staged});
    device_.main().record(*ready_);
    for (auto& [ends, way] : ways_) way.stream->wait(*ready_);
    world_.transport.connect();
  }

  void make(const Move& move) {
    const auto size = bytes_of(DataType::float32, move.piece.piece.count);
    Stream& main = device_.main();
    if (move.from == move.to) {
      const Place from = source(move);
      const Place to = destination(move);
      if (from.is_host && to.is_host)
        std::memcpy(to.memory, from.memory, size);
      else if (from.is_host)
        main.copy_from_host(to.memory, from.memory, size);
      else if (to.is_host)
        main.copy_to_host(to.memory, from.memory, size);
      else
        main.copy(to.memory, from.memory, size);
      return;
    }
    Way& way = ways_.at({move.from, move.to});
    const bool receives = move.to == world_.rank();
    const Place here = receives ? destination(move) : source(move);
    const bool is_staged = here.is_host && !device_.computes_on_host();
    float* const memory = is_staged ? way.staging.floats() : here.memory;
    if (receives) {
      way.channel->receive(*way.stream, memory, size);
      if (is_staged) way.stream->copy_to_host(here.memory, memory, size);
    } else {
      if (is_staged) way.stream->copy_from_host(memory, here.memory, size);
      way.channel->send(*way.stream, memory, size);
      sent_ += static_cast<std::int64_t>(size);
    }
  }

  /// The host waits for all moves. Returns the number of bytes sent.
  std::int64_t finish() {
    for (auto& [ends, way] : ways_) {
      way.stream->record(*way.done);
      device_.main().wait(*way.done);
    }
    if (target_) target_->finish();
    device_.synchronize();
    for (const auto& [owner, kept] : keeps_) *kept.buffer->mark() = KeptState::mark_of(cut_.version);
    return sent_;
  }

 private:
  static constexpr int state_channel = 1 << 20;  // channels of a trainer have lower ids

  struct Place {
    float* memory = nullptr;
    bool is_host = false;
  };

  [[nodiscard]] Place destination(const Move& move) {
    if (!move.owner) return {target_->memory(move.piece), false};
    const Piece& piece = move.piece.piece;
    const auto& [kept, buffer] = keeps_.at(*move.owner);
    return {kept->find(*buffer, move.piece.array, move.key, {piece.whole, piece.whole + piece.count}), true};
  }

  [[nodiscard]] Place source(const Move& move) {
    const Piece& piece = move.piece.piece;
    const HeldState& held = ends_.held[inventory_.states[move.state].index];
    const Range whole{piece.whole, piece.whole + piece.count};
    // The memory is only read.
    float* const memory =
        const_cast<float*>(held.live != nullptr ? memory_of(*held.live, move.piece.array, move.key, whole)
                                                : held.kept->find(*held.buffer, move.piece.array, move.key, whole));
    if (memory == nullptr)
      throw std::logic_error(fmt::format("rank {} does not have layer {}, {}, elements {} to {}", world_.rank(),
                                         move.key.first, move.key.second, whole.first, whole.last - 1));
    return {memory, held.live == nullptr};
  }

  const float* memory_of(TrainingState& state, StoredArray array, const ParameterKey& key, const Range& whole) {
    std::map<ParameterKey, std::size_t>& index = indices_[&state];
    const std::vector<Parameter*>& parameters = state.parameters().parameters();
    if (index.empty())
      for (std::size_t i = 0; i < parameters.size(); ++i) index[key_of(*parameters[i])] = i;
    const std::size_t parameter = index.at(key);
    for (const Piece& piece : parameters[parameter]->pieces())
      if (piece.whole <= whole.first && whole.last <= piece.whole + piece.count) {
        const std::int64_t first = piece.local + whole.first - piece.whole;
        if (const float* const memory =
                stepped_memory(state.parameters(), state.optimizer(), array, parameter, {first, first + whole.size()}))
          return memory;
      }
    return nullptr;
  }

  /// Channel and stream from one rank to another.
  struct Way {
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Channel> channel;
    std::unique_ptr<Event> done;
    std::int64_t staged = 0;  // elements of the longest message between host memory and the other rank that...
    Tensor staging;           // ...must go through this device memory
  };
  struct Keeping {
    KeptState* kept = nullptr;
    const KeptState::Buffer* buffer = nullptr;
  };
  Ends ends_;
  const Inventory& inventory_;
  const Cut& cut_;
  Device& device_;
  World world_;
  std::optional<StateTarget> target_;
  std::map<int, Keeping> keeps_;  // by owner
  std::unique_ptr<Event> ready_;
  std::map<const TrainingState*, std::map<ParameterKey, std::size_t>> indices_;  // of the state's parameters
  std::map<std::pair<int, int>, Way> ways_;
  std::int64_t sent_ = 0;
};

/// The plan that rank 0 chooses, on all ranks.
Result<Plan> agree_on_plan(const Inventory& inventory, const Model& model, const World& world,
                           const std::function<Result<Plan>(const Plan* before)>& choose) {
  Json choice;
  if (world.rank() == 0) {
    const auto newest = std::max_element(inventory.states.begin(), inventory.states.end(),
                                         [](const ToldState& a, const ToldState& b) { return a.epoch < b.epoch; });
    const Plan* const before = newest == inventory.states.end() ? nullptr : &inventory.plans[newest->plan];
    const auto chosen = choose(before);
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
                         const World& world, const std::function<Result<Plan>(const Plan* before)>& choose,
                         StateCopies* copies) {
  device.give_up_transfers();
  const std::vector<HeldState> held = held_states(mine, copies);
  const auto inventory = gather_inventory(held, copies, world.control);
  if (!inventory) return fail(inventory.error());
  const std::optional<Cut> cut = newest_cut(*inventory, model);
  if (cut)
    for (const std::size_t late : cut->late) {
      const ToldState& told = inventory->states[late];
      if (told.rank != world.rank()) continue;
      TrainingState& state = *held[told.index].live;
      device.write(state.totals(), &*cut->totals, sizeof(IterationTotals));
      (void)state.update(settings, *cut->totals);
      device.synchronize();
    }
  const auto plan = agree_on_plan(*inventory, model, world, choose);
  if (!plan) return fail(plan.error());
  Recovery recovery{.needs_checkpoint = !cut};
  const std::uint64_t epoch = inventory->newest_epoch + 1;
  const bool is_spare = world.rank() >= plan->ranks();
  if (!is_spare) {
    recovery.state = std::make_unique<TrainingState>(*plan, model, world.rank(), device);
    recovery.state->set_epoch(epoch);
  }
  std::unique_ptr<KeptGeneration> keeps;
  if (copies != nullptr)
    keeps = std::make_unique<KeptGeneration>(
        device, *plan, model,
        std::vector<std::string>(inventory->host_of_rank.begin(), inventory->host_of_rank.begin() + plan->ranks()),
        is_spare ? -1 : world.rank(), epoch);
  if (cut) {
    const Division division(*plan, model);
    std::vector<Move> moves;
    for (int rank = 0; rank < plan->ranks(); ++rank) {
      const std::vector<Move> more =
          moves_to(rank, division, keeps == nullptr ? nullptr : &keeps->layout, *inventory, cut->holdings);
      std::copy_if(more.begin(), more.end(), std::back_inserter(moves),
                   [&](const Move& move) { return move.from == world.rank() || move.to == world.rank(); });
    }
    Mover mover({held, recovery.state.get(), keeps.get()}, *inventory, *cut, device, world);
    mover.connect(moves);
    for (const Move& move : moves) mover.make(move);
    recovery.sent_bytes = mover.finish();
    if (recovery.state != nullptr) recovery.state->restore(cut->version, cut->loss_scale, cut->last_totals);
  }
  // No rank drops what it had before all ranks have what they need.
  if (copies != nullptr) copies->begin(std::move(keeps), std::move(recovery.state));
  world.control.barrier();
  if (copies != nullptr) recovery.state = copies->confirm();
  return recovery;
}

}  // namespace sailor::runtime
