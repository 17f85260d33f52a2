// What ranks have of a training, in devices and in the memory of hosts, the newest version that they have whole
// together, and which rank gives what to whom. All of it is computed alike on all ranks from what they told each other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"
#include "runtime/control.hpp"
#include "runtime/copy_layout.hpp"
#include "runtime/state_copies.hpp"
#include "runtime/state_pieces.hpp"
#include "runtime/training_state.hpp"

namespace sailor::runtime {

/// One version of some rank's state that this process has.
struct HeldState {
  TrainingState* live = nullptr;  ///< null: it is in the memory of the host, of this generation
  const KeptGeneration* generation = nullptr;
  const KeptState* kept = nullptr;
  const KeptState::Buffer* buffer = nullptr;
};
/// Of `mine` (null: nothing) and `copies` (null: none), what is whole.
std::vector<HeldState> held_states(TrainingState* mine, const StateCopies* copies);

/// The same as all ranks know it.
struct ToldState {
  int rank = 0;           ///< who has it
  std::size_t index = 0;  ///< among its held_states()
  StateVersion version;
  LossScale loss_scale;
  std::uint64_t epoch = 0;  ///< in which the plan was trained
  std::size_t plan = 0;     ///< index in Inventory::plans
  int place = 0;            ///< which rank of that plan steps it
  bool is_live = false;     ///< in the device of that rank
  std::optional<std::size_t>
      hosts{};  ///< of a copy: index in Inventory::hosts, which say what is copied; else all is here
  std::optional<IterationTotals> totals{};  ///< of a live one: of the update before it
};

struct Inventory {
  std::vector<std::string> host_of_rank;        ///< of the ranks that are there now
  std::vector<Plan> plans;                      ///< that were trained
  std::vector<std::vector<std::string>> hosts;  ///< of their ranks
  std::vector<ToldState> states;                ///< of all ranks
  std::uint64_t newest_epoch = 0;               ///< that any rank has seen
};
/// Collective.
Result<Inventory> gather_inventory(const std::vector<HeldState>& held, const StateCopies* copies, Control& control);

/// A plan with what each of its ranks holds and steps.
struct Division {
  Division(const Plan& plan, const Model& model) : map(plan, model), groups(map.groups()) {}
  [[nodiscard]] Declarations parameters(int rank) const { return declarations_of(map.parameters(rank)); }
  [[nodiscard]] std::vector<Range> owned(int rank) const { return map.sums_of(rank, groups).owned; }
  ParameterMap map;
  std::vector<GradientGroup> groups;
};

/// Elements of a parameter of which a rank of this world has the whole state.
struct Holding {
  Range whole;
  std::size_t state = 0;  ///< index in Inventory::states
};
using Holdings = std::map<ParameterKey, std::vector<Holding>>;

/// A version from which training can go on, since the ranks have all of it.
struct Cut {
  StateVersion version;
  LossScale loss_scale;
  /// Of the update that leads to it, for the ranks that have not made it yet, though they have all for it; none: no
  /// such rank.
  std::optional<IterationTotals> totals;
  std::vector<std::size_t> late;               ///< their states
  std::optional<IterationTotals> last_totals;  ///< of the update that leads to it, where anybody knows them
  Holdings holdings;
};
/// The newest one; nothing where there is none.
std::optional<Cut> newest_cut(const Inventory& inventory, const Model& model);

/// A piece of one array that moves from rank to rank, or stays on one.
struct Move {
  int from = 0;
  int to = 0;
  std::size_t state = 0;  ///< where it comes from: index in Inventory::states
  ParameterKey key;
  WantedPiece piece;  ///< of the receiver; of what it keeps for others only array, first element and count count
  std::optional<int> owner{};  ///< of what it keeps for others: who steps it
};
/// All moves to rank `to` of a new plan, in the order in which they are made. `layout` null: it keeps nothing for
/// others.
std::vector<Move> moves_to(int to, const Division& division, const CopyLayout* layout, const Inventory& inventory,
                           const Holdings& holdings);

}  // namespace sailor::runtime
