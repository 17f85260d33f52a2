#include "planner/uniform_mixes.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace sailor::planner {

namespace {

/// A pool that runs pipelines of a kind.
struct Home {
  std::size_t pool = 0;
  int most = 0;       ///< pipelines
  double time = 0.0;  ///< of all layers in one stage, seconds: orders pools by speed
};

std::vector<Home> homes_of(StagePrices& prices, const PipelineTemplate& column) {
  const SearchSpace& space = prices.space();
  const TemplateStage& first = column.stages.front();
  std::vector<Home> homes;
  for (std::size_t p = 0; p < space.pools.size(); ++p) {
    const DevicePool& pool = space.pools[p];
    if (!space.allows(pool.type, first.tensor_parallel, column.micro_batch)) continue;
    const StageTable* table = prices.table(pool.type, first.tensor_parallel, column.micro_batch, first.recompute);
    const int most = max_copies(column, pool, space);
    if (table != nullptr && most > 0) homes.push_back({p, most, table->time(0, prices.layers())});
  }
  std::stable_sort(homes.begin(), homes.end(), [](const Home& a, const Home& b) { return a.time < b.time; });
  return homes;
}

Group in_pool(const PipelineTemplate& column, std::size_t pool, int count) {
  Group group{.column = column, .count = count};
  for (TemplateStage& stage : group.column.stages) stage.pool = pool;
  return group;
}

/// `count` pipelines, as many as possible in the first homes.
std::vector<Group> spread(const PipelineTemplate& column, const std::vector<Home>& homes, int count) {
  std::vector<Group> groups;
  for (const Home& home : homes) {
    const int here = std::min(home.most, count);
    if (here > 0) groups.push_back(in_pool(column, home.pool, here));
    count -= here;
  }
  return groups;
}

}  // namespace

void search_uniform(StagePrices& prices, const std::vector<PipelineTemplate>& columns, const TemplateMix& common,
                    SolutionPool& solutions, const StopCheck& stop) {
  const Request& request = prices.request();
  for (const PipelineTemplate& column : columns) {
    const std::vector<Home> homes = homes_of(prices, column);
    int largest = 0;
    int all = 0;
    for (const Home& home : homes) {
      largest = std::max(largest, home.most);
      all += home.most;
    }
    const int micro_batches = request.job.global_batch / column.micro_batch;
    for (int count = std::min(all, micro_batches); count > largest; --count) {
      if (micro_batches % count != 0) continue;
      if (request.pins.data_parallel && count != *request.pins.data_parallel) continue;
      if (stop()) return;
      TemplateMix mix = common;
      mix.groups = spread(column, homes, count);
      std::vector<Share> shares;
      for (std::size_t g = 0; g < mix.groups.size(); ++g)
        shares.push_back({.group = g, .count = mix.groups[g].count, .micro_batches = micro_batches / count});
      solutions.add(mix, shares);
    }
  }
}

}  // namespace sailor::planner
