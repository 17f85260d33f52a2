// Layout of the in-memory copies of the training state: which rank keeps a copy of which state, so that training
// continues from memory when ranks are lost. A pure function of plan, model and the hosts of the ranks, the same on
// every rank.
//
// Ranks are lost together with their host. Elements that ranks of several hosts update are safe and not copied.
// Elements that only ranks of one host update (under ZeRO-1, or where only one pipeline holds a layer) are sent by one
// of these ranks to its keeper, a rank of the next host; the keepers of the last host are on the first one. Such an
// element is lost only when its host and the next one are lost at once. Where all ranks are on one host, each rank
// counts as a host of its own: that protects against processes that die.
//
// A copy is older than its owner's state. To be able to go back to the iteration of a copy, every rank saves its own
// state, too (state_copies.hpp), unless nothing is copied at all.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "runtime/gradient_groups.hpp"
#include "runtime/sharding.hpp"

namespace sailor::runtime {

using ParameterKey = std::pair<int, std::string>;  ///< layer and name
inline ParameterKey key_of(const Parameter& parameter) { return {parameter.layer, parameter.name}; }

/// Elements of one parameter that a rank updates. They are contiguous in the whole parameter, in the rank's storage and
/// in its arrays of moments.
struct StatePart {
  ParameterKey key;
  Range whole;
  std::int64_t value = 0;   ///< index of the first element in the storage
  std::int64_t moment = 0;  ///< index of the first element in the arrays of moments and master values
};

/// All parts that a rank updates, ascending.
std::vector<StatePart> stepped_parts(const ParameterMap& map, const std::vector<GradientGroup>& groups, int rank);

/// Cost of the copies for one rank.
struct CopyCost {
  Bytes kept{};      ///< host memory for the rank's own saved state and for the copies it keeps
  Bytes sent{};      ///< to the keeper, per iteration
  Bytes received{};  ///< from the owners of kept copies, per iteration
};

class CopyLayout {
 public:
  /// `hosts` names the host of each rank of the plan.
  CopyLayout(const ParameterMap& map, const std::vector<std::string>& hosts);

  /// State that `owner` sends to `keeper` in every iteration.
  struct Copy {
    int owner = 0;
    int keeper = 0;
    std::vector<StatePart> parts;  ///< parts of the owner's state, ascending
  };
  /// Copies of all ranks, ascending by owner, at most one per owner. Empty if nothing is copied; then nothing is saved
  /// either.
  [[nodiscard]] const std::vector<Copy>& copies() const { return copies_; }
  /// By rank.
  [[nodiscard]] std::vector<CopyCost> costs() const;
  [[nodiscard]] CopyCost cost(int rank) const { return costs()[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<Copy> copies_;
  std::vector<std::int64_t> stepped_;  // number of updated elements, by rank
};

/// Host memory for the kept state of `elements` elements: values and both moments in float32, twice, since the previous
/// version must stay while the next one arrives.
Bytes kept_bytes(std::int64_t elements);
/// Bytes of one transfer of the state of `elements` elements.
Bytes copied_bytes(std::int64_t elements);

}  // namespace sailor::runtime
