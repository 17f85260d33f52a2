#include "planner/interleaved.hpp"

#include <algorithm>

namespace sailor::planner {

namespace {

constexpr int most_chunks = 4;

}  // namespace

void search_interleaved(StagePrices& prices, const std::vector<Chain>& chains, OptimizerSharding sharding,
                        Archive& archive, const StopCheck& stop) {
  const SearchSpace& space = prices.space();
  const Request& request = prices.request();
  for (std::size_t p = 0; p < space.places.size(); ++p)
    for (const Chain& chain : chains) {
      const int stages = static_cast<int>(chain.stages.size());
      const ChainStage& first = chain.stages.front();
      if (stages < 2 || space.places[first.place].type != space.places[p].type) continue;
      const StageTable* table =
          prices.table(space.places[p].type, first.tensor_parallel, chain.micro_batch, space.recompute.front());
      if (table == nullptr) continue;
      const double work = table->time(0, prices.layers()) / stages;  // of a stage, at least
      const int all = request.job.global_batch / chain.micro_batch;
      const int most = std::min(all, most_copies(chain, space.places[p], space));
      for (int chunks = 2; chunks <= std::min(most_chunks, prices.layers() / stages); ++chunks)
        for (int count = request.pins.data_parallel.value_or(most); count >= request.pins.data_parallel.value_or(1);
             --count) {
          if (stop()) return;
          if (count > most || all % count != 0 || all / count % stages != 0) continue;
          const double time = work * (all / count) + least_reduction(prices, chain, count);
          const double usd = time / 3600.0 * space.places[p].price.value() * chain.devices * count;
          if (score_of(request.objective, Seconds(time), Usd(usd)) >= archive.best_score() && !request.pareto) continue;
          Fleet fleet{.schedule = Schedule::interleaved_1f1b,
                      .sharding = sharding,
                      .chunks = chunks,
                      .groups = {{.chain = chain, .count = count}}};
          for (ChainStage& stage : fleet.groups.front().chain.stages) stage.place = p;
          archive.add(fleet, {{0, count, all / count}});
        }
    }
}

}  // namespace sailor::planner
