// Sources of a recovery: the states of a training that ranks hold in device and host memory, the newest version that
// they together hold completely, and which rank sends what to which. All ranks compute the same from what they told
// each other.
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

/// One version of some rank's state that this process holds.
struct HeldState {
  TrainingState* live = nullptr;  ///< null: the state is in host memory, in `generation`
  const KeptGeneration* generation = nullptr;
  const KeptState* kept = nullptr;
  const KeptState::Buffer* buffer = nullptr;
};
/// Complete states in `mine` (null: none) and `copies` (null: none).
std::vector<HeldState> held_states(TrainingState* mine, const StateCopies* copies);

/// Description of a HeldState of some rank, exchanged so that every rank knows it.
struct ToldState {
  int rank = 0;           ///< that holds it
  std::size_t index = 0;  ///< among its held_states()
  StateVersion version;
  LossScale loss_scale;
  std::uint64_t epoch = 0;  ///< in which the plan was trained
  std::size_t plan = 0;     ///< index in Inventory::plans
  int place = 0;            ///< the state's rank in that plan
  bool is_live = false;     ///< in device memory of that rank
  /// For a copy: index in Inventory::hosts, which determine what is copied; std::nullopt: the state is complete.
  std::optional<std::size_t> hosts{};
  std::optional<IterationTotals> totals{};  ///< for a live state: of the update before it
};

struct Inventory {
  std::vector<std::string> host_of_rank;        ///< of the current ranks
  std::vector<Plan> plans;                      ///< that were trained before
  std::vector<std::vector<std::string>> hosts;  ///< of the ranks of these plans
  std::vector<ToldState> states;                ///< of all ranks
  std::uint64_t newest_epoch = 0;               ///< that any rank has seen
};
/// Collective.
Result<Inventory> gather_inventory(const std::vector<HeldState>& held, const StateCopies* copies, Control& control);

/// A plan with the elements that each of its ranks holds and updates.
struct Division {
  Division(const Plan& plan, const Model& model) : map(plan, model), groups(map.groups()) {}
  [[nodiscard]] Declarations parameters(int rank) const { return declarations_of(map.parameters(rank)); }
  [[nodiscard]] std::vector<Range> owned(int rank) const { return map.sums_of(rank, groups).owned; }
  ParameterMap map;
  std::vector<GradientGroup> groups;
};

/// Elements of a parameter whose complete state is held by a rank of this world.
struct Holding {
  Range whole;
  std::size_t state = 0;  ///< index in Inventory::states
};
using Holdings = std::map<ParameterKey, std::vector<Holding>>;

/// A version from which training can continue, since the ranks together hold all of it.
struct Cut {
  StateVersion version;
  LossScale loss_scale;
  /// Totals of the update that leads to it, for the ranks that have not made it yet but have everything else for it;
  /// std::nullopt: there is no such rank.
  std::optional<IterationTotals> totals;
  std::vector<std::size_t> late;               ///< states of such ranks
  std::optional<IterationTotals> last_totals;  ///< of the update that leads to it, if any rank knows them
  Holdings holdings;
};
/// The newest version from which training can continue; std::nullopt if there is none.
std::optional<Cut> newest_cut(const Inventory& inventory, const Model& model);

/// A piece of one array that moves from rank to rank, or stays on one.
struct Move {
  int from = 0;
  int to = 0;
  std::size_t state = 0;  ///< source: index in Inventory::states
  ParameterKey key;
  WantedPiece piece;  ///< of the receiver; if kept for another rank, only array, first element and count matter
  std::optional<int> owner{};  ///< if kept for another rank: that rank, which updates it
};
/// All moves to rank `to` of a new plan, in the order in which they are made. `layout` is null if the rank keeps
/// nothing for others.
std::vector<Move> moves_to(int to, const Division& division, const CopyLayout* layout, const Inventory& inventory,
                           const Holdings& holdings);

}  // namespace sailor::runtime
