#include "preflight/communicators.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <vector>

namespace sailor::preflight {

namespace {

/// The ranks that sum the same gradients; groups that sum apart have communicators of their own (runtime's
/// GradientGroup).
using Group = std::tuple<std::vector<int>, bool, bool>;  // ranks, whether each gives a share, whether they count first

struct Holder {
  int rank = 0;
  int index = 0;  // of its tensor-parallel group
  int degree = 1;
};

class Counter {
 public:
  Counter(const Plan& plan, const Model& model) : plan_(plan), model_(model), roles_(rank_roles(plan)) {}

  Communicators run() {
    for (int layer = 0; layer < model_.layers(); ++layer) add_layer(layer);
    std::vector<int> of_rank(roles_.size(), 1);  // the world
    Communicators found{.most_per_rank = 0, .of_job = 1};
    for (const Group& group : groups_) {
      const std::vector<int>& ranks = std::get<0>(group);
      if (ranks.size() < 2) continue;
      ++found.of_job;
      for (const int rank : ranks) ++of_rank[static_cast<std::size_t>(rank)];
    }
    for (const RankRole& role : roles_) {
      if (stage_of(plan_, role).tensor_parallel < 2) continue;
      ++of_rank[static_cast<std::size_t>(role.rank)];
      if (role.tensor_parallel_index == 0) ++found.of_job;
    }
    if (!of_rank.empty()) found.most_per_rank = *std::max_element(of_rank.begin(), of_rank.end());
    return found;
  }

 private:
  /// Ranks that hold one of the layers.
  [[nodiscard]] std::vector<Holder> holders(int layer, int other) const {
    std::vector<Holder> found;
    for (const RankRole& role : roles_) {
      const Stage& stage = stage_of(plan_, role);
      if (stage.holds(layer) || stage.holds(other))
        found.push_back({role.rank, role.tensor_parallel_index, stage.tensor_parallel});
    }
    return found;
  }

  void add_layer(int layer) {
    const LayerKind kind = model_.layer_kind(layer);
    const int last = model_.layers() - 1;
    // A tied token embedding is also held by whoever holds the head.
    if (kind == LayerKind::embedding) add_divided(holders(layer, model_.tied_embedding ? last : layer));
    if (kind == LayerKind::block || (kind == LayerKind::head && !model_.tied_embedding))
      add_divided(holders(layer, layer));
    const bool whole =
        kind == LayerKind::block || kind == LayerKind::final_norm ||
        (kind == LayerKind::embedding && model_.position == PositionKind::learned) ||
        (kind == LayerKind::head && (model_.has_norm_in_head() || model_.embedding_width < model_.hidden));
    if (whole) add_whole(holders(layer, layer));
  }

  /// A parameter of which each rank of a tensor-parallel group has a part: cut wherever one of the degrees cuts it.
  void add_divided(const std::vector<Holder>& found) {
    std::int64_t common = 1;
    for (const Holder& holder : found) common = std::lcm(common, std::int64_t{holder.degree});
    std::set<std::int64_t> cuts;
    for (const Holder& holder : found)
      for (std::int64_t i = 0; i < holder.degree; ++i) cuts.insert(common / holder.degree * i);
    for (const std::int64_t cut : cuts) {
      std::vector<int> ranks;
      for (const Holder& holder : found)
        if (cut * holder.degree / common == holder.index) ranks.push_back(holder.rank);
      groups_.emplace(std::move(ranks), false, true);
    }
  }

  /// A parameter that each rank of a tensor-parallel group has whole.
  void add_whole(const std::vector<Holder>& found) {
    if (found.empty()) return;
    const int degree = found.front().degree;
    const bool same =
        std::all_of(found.begin(), found.end(), [&](const Holder& holder) { return holder.degree == degree; });
    if (!same) {
      std::vector<int> ranks;
      for (const Holder& holder : found) ranks.push_back(holder.rank);
      groups_.emplace(std::move(ranks), true, true);
      return;
    }
    for (int index = 0; index < degree; ++index) {
      std::vector<int> ranks;
      for (const Holder& holder : found)
        if (holder.index == index) ranks.push_back(holder.rank);
      groups_.emplace(std::move(ranks), false, index == 0);
    }
  }

  const Plan& plan_;
  const Model& model_;
  std::vector<RankRole> roles_;
  std::set<Group> groups_;
};

}  // namespace

Communicators count_communicators(const Plan& plan, const Model& model) { return Counter(plan, model).run(); }

}  // namespace sailor::preflight
