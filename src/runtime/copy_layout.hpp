// Who keeps whose state in memory, so that training goes on from memory when ranks are lost: a pure function of plan,
// model and the hosts of the ranks, the same on every rank.
//
// Ranks are lost together with their host. What ranks of several hosts step is safe: it is not copied. What ranks of
// one host alone step (under ZeRO-1, or where one pipeline only holds a layer) one of them sends to its keeper, a rank
// of the next host; the last host's keepers are on the first one. Such an element is lost only when its host and the
// next one are lost at once. Where all ranks are on one host each rank counts as a host of its own: that helps against
// processes that die.
//
// Copies are older than the state they are copies of. So that ranks that are ahead of a copy can go back to its
// iteration, every rank saves its own state, too (state_copies.hpp), unless nothing is copied at all.
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

/// Elements of one parameter that a rank steps: they follow each other in the whole parameter, in the rank's storage
/// and in its arrays of moments.
struct StatePart {
  ParameterKey key;
  Range whole;
  std::int64_t value = 0;   ///< the first one's index in the storage
  std::int64_t moment = 0;  ///< and in the arrays of moments and master values
};

/// All parts that a rank steps, ascending.
std::vector<StatePart> stepped_parts(const ParameterMap& map, const std::vector<GradientGroup>& groups, int rank);

/// What copies cost a rank.
struct CopyCost {
  Bytes kept{};      ///< memory of the host: of its own state, and of what it keeps for others
  Bytes sent{};      ///< to its keeper, per iteration
  Bytes received{};  ///< per iteration
};

class CopyLayout {
 public:
  /// `hosts` names the host of each rank of the plan.
  CopyLayout(const ParameterMap& map, const std::vector<std::string>& hosts);

  /// What `owner` sends to `keeper` in every iteration.
  struct Copy {
    int owner = 0;
    int keeper = 0;
    std::vector<StatePart> parts;  ///< of the owner, ascending
  };
  /// Of all ranks, ascending by owner: one at most of each. Empty: nothing is copied, and nothing saved.
  [[nodiscard]] const std::vector<Copy>& copies() const { return copies_; }
  [[nodiscard]] CopyCost cost(int rank) const;

 private:
  std::vector<Copy> copies_;
  std::vector<std::int64_t> stepped_;  // elements, by rank
};

/// Bytes of memory that so many elements of state take where they are kept: values and both moments in float32, twice,
/// since the next version comes while the one before must stay.
Bytes kept_bytes(std::int64_t elements);
/// Bytes on the way, once.
Bytes copied_bytes(std::int64_t elements);

}  // namespace sailor::runtime
