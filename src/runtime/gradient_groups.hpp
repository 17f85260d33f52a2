// Groups of ranks that all-reduce the gradients of the same elements: a pure function of plan and model, the same on
// every rank.
//
// Every element of a parameter is held by one rank of each pipeline, or by two where the tied token embedding is held
// by both ends of the pipeline. The context-parallel ranks of a pipeline all hold it; under expert parallelism the
// elements of an expert are held by one rank of each expert-parallel group. Where tensor-parallel degrees differ, a
// parameter is cut into slices, each held by other ranks. A parameter that all ranks of a tensor-parallel group hold
// (norms) has the same gradient on each: it is all-reduced among ranks of the same index where all degrees are equal,
// otherwise among all ranks that hold it, each contributing its share.
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

/// Elements of one parameter, as positions in the whole parameter.
struct GradientSlice {
  int layer = 0;
  std::string name;
  Range whole;
  bool operator==(const GradientSlice&) const = default;
};

/// Elements that are held by exactly these `ranks`.
struct GradientGroup {
  std::vector<int> ranks;             ///< ascending
  std::vector<GradientSlice> slices;  ///< in the order of the model
  /// Ranges [first, last) of slices that are contiguous on each of the ranks, padding included: one all-reduce covers a
  /// range.
  std::vector<Range> runs;
  bool shared = false;  ///< the ranks of a tensor-parallel group hold the same: each contributes its share
  bool first = true;    ///< false: the group of tensor-parallel index 0 holds the same elements, and counts them
};

/// Gradients of a rank that one collective reduces: contiguous in the rank's storage.
struct GradientBucket {
  std::size_t group = 0;    ///< index in RankSums::groups
  Range range;              ///< range in the storage
  std::vector<int> layers;  ///< layers that the gradients belong to
  bool shared = false;      ///< as in GradientGroup
};

/// Reductions that one rank takes part in, and the elements that it updates.
struct RankSums {
  std::vector<std::vector<int>> groups;  ///< of several ranks, in the order in which every rank creates them
  std::vector<GradientBucket> buckets;   ///< in the order of their reduction: from the end of the model
  /// Elements of the storage that this rank updates, ascending.
  std::vector<Range> owned;
  /// A part of `owned`; over all ranks together it has every element of the model once. Norms are computed and
  /// checkpoints written from it.
  std::vector<Range> counted;
};

/// Minimum size of a bucket, as far as gradients are contiguous.
inline constexpr Bytes gradient_bucket{25.0 * (1 << 20)};

/// Parameters that the ranks of a plan hold, without memory for them.
class ParameterMap {
 public:
  /// check_trainable() must have succeeded.
  ParameterMap(const Plan& plan, const Model& model);

  /// Parameters that a rank declares, in the order of its storage.
  [[nodiscard]] const std::vector<Parameter>& parameters(int rank) const { return layout(rank).parameters; }

  /// Every parameter of the model once, undivided, in the order of the layers: a tied token embedding as layer 0's.
  [[nodiscard]] const std::vector<Parameter>& model_parameters() const { return whole_; }
  /// Range of a slice in a rank's storage (offsets as in ParameterStorage). The slice must be contiguous there.
  [[nodiscard]] Range local(int rank, const GradientSlice& slice) const;
  /// Whether the slice ends a parameter on the rank, after which the storage is padded.
  [[nodiscard]] bool ends_parameter(int rank, const GradientSlice& slice) const;

  /// All groups, in the order in which every rank creates them; sums_of() says in which order it reduces them. Groups
  /// of one rank are there too; they have nothing to sum.
  [[nodiscard]] std::vector<GradientGroup> groups() const;
  /// A rank's part of `groups`, which must be the result of groups().
  [[nodiscard]] RankSums sums_of(int rank, const std::vector<GradientGroup>& groups) const;
  [[nodiscard]] const std::vector<RankRole>& roles() const { return roles_; }
  /// Tensor-parallel degree of a rank's stage.
  [[nodiscard]] int degree(int rank) const { return degrees_[static_cast<std::size_t>(rank)]; }

 private:
  using Key = std::pair<int, std::string>;  // layer and name
  struct Layout {
    std::vector<Parameter> parameters;
    std::map<Key, std::size_t> index;   // in parameters
    std::vector<std::int64_t> offsets;  // in the storage
    std::vector<int> ranks;             // with this layout, ascending
  };
  [[nodiscard]] const Layout& layout(int rank) const { return layouts_.at(layout_of_[static_cast<std::size_t>(rank)]); }

  OptimizerSharding sharding_;
  std::vector<RankRole> roles_;
  std::vector<int> degrees_;  // by rank: tensor-parallel degree
  std::vector<Parameter> whole_;
  std::vector<Layout> layouts_;
  std::vector<std::size_t> layout_of_;  // by rank
};

}  // namespace sailor::runtime
