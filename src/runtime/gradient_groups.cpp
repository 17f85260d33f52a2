#include "runtime/gradient_groups.hpp"

#include <algorithm>

namespace sailor::runtime {

std::vector<GradientGroup> gradient_groups(const Plan& plan, const Model& model) {
  const std::vector<RankRole> roles = rank_roles(plan);
  // Ranks that hold any of the layers for which `wanted` is true.
  const auto holders = [&](auto wanted) {
    std::vector<int> ranks;
    for (const RankRole& role : roles) {
      const sailor::Stage& stage = stage_of(plan, role);
      bool holds = false;
      for (int chunk = 0; chunk < stage.chunks(); ++chunk)
        for (int layer = stage.chunk(chunk).first; layer < stage.chunk(chunk).last; ++layer)
          holds = holds || wanted(layer);
      if (holds) ranks.push_back(role.rank);
    }
    return ranks;
  };

  std::vector<GradientGroup> groups;
  const auto group_of = [&](std::vector<int> ranks) -> GradientGroup& {
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const GradientGroup& group) { return group.ranks == ranks; });
    if (found != groups.end()) return *found;
    return groups.emplace_back(GradientGroup{.ranks = std::move(ranks), .layers = {}});
  };
  const int last = model.layers() - 1;
  if (model.tied_embedding)
    group_of(holders([&](int layer) { return layer == 0 || layer == last; })).token_embedding = true;
  for (int wanted = 0; wanted <= last; ++wanted)
    group_of(holders([&](int layer) { return layer == wanted; })).layers.push_back(wanted);
  return groups;
}

}  // namespace sailor::runtime
