// Which ranks sum the gradients of which elements: a pure function of plan and model, the same on every rank.
//
// Every element of a parameter is held by one rank of each pipeline, or by two where the tied token embedding is held
// by both ends. Where tensor-parallel degrees differ, a parameter falls into slices, each of which other ranks hold.
// What all ranks of a tensor-parallel group hold (norms) has the same gradient on each: it is summed between ranks of
// the same index where all degrees are equal, else over all of them, each giving its share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/parameters.hpp"
#include "runtime/sharding.hpp"

namespace sailor::runtime {

/// Elements of one parameter, in the whole of it.
struct GradientSlice {
  int layer = 0;
  std::string name;
  Range whole;
  bool operator==(const GradientSlice&) const = default;
};

/// Elements that exactly `ranks` hold.
struct GradientGroup {
  std::vector<int> ranks;             ///< ascending
  std::vector<GradientSlice> slices;  ///< in the order of the model
  /// Slices [first, last) that lie one after the other on each of the ranks, padding included: one sum will do.
  std::vector<Range> runs;
  bool shared = false;  ///< the ranks of a tensor-parallel group hold the same: each gives its share
  bool first = true;  ///< the group of the first ranks of tensor-parallel groups, of those that hold the same elements
};

/// Gradients of a rank that one call sums: contiguous in its storage.
struct GradientBucket {
  std::size_t group = 0;    ///< index in RankSums::groups
  Range range;              ///< of the storage
  std::vector<int> layers;  ///< whose gradients they are
  bool shared = false;      ///< as in GradientGroup
};

/// What one rank sums with others and steps.
struct RankSums {
  std::vector<std::vector<int>> groups;  ///< of several ranks, in the order in which every rank makes them
  std::vector<GradientBucket> buckets;   ///< in the order in which they are summed: from the end of the model
  /// Elements of the storage that this rank steps, ascending.
  std::vector<Range> owned;
  /// A part of `owned`: of all ranks together every element of the model is in it once. Norms are taken of it and
  /// checkpoints written.
  std::vector<Range> counted;
};

/// Gradients that one call sums, at least, as far as they lie one after the other.
inline constexpr Bytes gradient_bucket{25.0 * (1 << 20)};

/// Which parameters the ranks of a plan hold, without any memory for them.
class ParameterMap {
 public:
  /// check_trainable() must have succeeded.
  ParameterMap(const Plan& plan, const Model& model);

  /// What a rank declares, in the order of its storage.
  [[nodiscard]] const std::vector<Parameter>& parameters(int rank) const { return layout(rank).parameters; }

  /// Every parameter of the model once, undivided, in the order of the layers: a tied token embedding as layer 0's.
  [[nodiscard]] const std::vector<Parameter>& model_parameters() const { return whole_; }
  /// Where a rank has elements [first, last) of a parameter in its storage (offsets as in ParameterStorage). They must
  /// be contiguous there.
  [[nodiscard]] Range local(int rank, const GradientSlice& slice) const;
  /// Whether the slice ends a parameter on the rank, behind which the storage is padded.
  [[nodiscard]] bool ends_parameter(int rank, const GradientSlice& slice) const;

  /// All groups, in the order in which every rank creates and reduces them. Groups of one rank are there too; they have
  /// nothing to sum.
  [[nodiscard]] std::vector<GradientGroup> groups() const;
  /// A rank's part of `groups`, which are groups().
  [[nodiscard]] RankSums sums_of(int rank, const std::vector<GradientGroup>& groups) const;
  [[nodiscard]] const std::vector<RankRole>& roles() const { return roles_; }
  /// Of the tensor-parallel group that a rank is in.
  [[nodiscard]] int degree(int rank) const { return degrees_[static_cast<std::size_t>(rank)]; }

 private:
  using Key = std::pair<int, std::string>;  // layer and name
  struct Layout {
    std::vector<Parameter> parameters;
    std::map<Key, std::size_t> index;   // in parameters
    std::vector<std::int64_t> offsets;  // in the storage
    std::vector<int> ranks;             // that have it, ascending
  };
  [[nodiscard]] const Layout& layout(int rank) const { return layouts_.at(layout_of_[static_cast<std::size_t>(rank)]); }

  OptimizerSharding sharding_;
  std::vector<RankRole> roles_;
  std::vector<int> degrees_;  // by rank: of its tensor-parallel group
  std::vector<Parameter> whole_;
  std::vector<Layout> layouts_;
  std::vector<std::size_t> layout_of_;  // by rank
};

}  // namespace sailor::runtime
