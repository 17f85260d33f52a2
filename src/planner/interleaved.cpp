#include "planner/interleaved.hpp"

#include <algorithm>

namespace sailor::planner {

namespace {

constexpr int max_chunks = 4;

}  // namespace

void search_interleaved(StagePrices& prices, const std::vector<PipelineTemplate>& columns, OptimizerSharding sharding,
                        SolutionPool& solutions, const StopCheck& stop) {
  const SearchSpace& space = prices.space();
  const Request& request = prices.request();
  for (std::size_t p = 0; p < space.pools.size(); ++p)
    for (const PipelineTemplate& column : columns) {
      const int stages = static_cast<int>(column.stages.size());
      const TemplateStage& first = column.stages.front();
      if (stages < 2 || space.pools[first.pool].type != space.pools[p].type) continue;
      const StageTable* table =
          prices.table(space.pools[p].type, first.tensor_parallel, column.micro_batch, space.choices.front());
      if (table == nullptr) continue;
      const double work = table->time(0, prices.layers()) / stages;  // of a stage, at least
      const int all = request.job.global_batch / column.micro_batch;
      const int most = std::min(all, max_copies(column, space.pools[p], space));
      for (int chunks = 2; chunks <= std::min(max_chunks, prices.layers() / stages); ++chunks)
        for (int count = request.pins.data_parallel.value_or(most); count >= request.pins.data_parallel.value_or(1);
             --count) {
          if (stop()) return;
          if (count > most || all % count != 0 || all / count % stages != 0) continue;
          const int each = all / count;  // micro-batches of a pipeline
          const double time = work * each + min_reduction(prices, column, count);
          const double usd = time / 3600.0 * space.pools[p].price.value() * column.devices * count;
          if (score_of(request.objective, Seconds(time), Usd(usd)) >= solutions.best_score() && !request.pareto)
            continue;
          TemplateMix mix{.schedule = Schedule::interleaved_1f1b,
                          .sharding = sharding,
                          .chunks = chunks,
                          .groups = {{.column = column, .count = count}}};
          for (TemplateStage& stage : mix.groups.front().column.stages) stage.pool = p;
          solutions.add(mix, {{0, count, each}});
        }
    }
}

}  // namespace sailor::planner
