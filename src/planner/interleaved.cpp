#include "planner/interleaved.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr int max_chunks = 16;
constexpr int max_chunks_in_brief = 4;
constexpr int halvings = 30;  // of the range in which the shortest time of the slowest stage is looked for

/// As equal numbers of layers in all virtual stages as there can be.
std::vector<int> even_cuts(int layers, int virtual_stages) {
  std::vector<int> cuts;
  for (int v = 0; v <= virtual_stages; ++v) cuts.push_back(layers * v / virtual_stages);
  return cuts;
}

/// Divides layers so that the slowest stage, all its chunks together, takes as little time as possible.
class ChunkBalancer {
 public:
  /// `time`: seconds of layers [first, last) on a stage.
  ChunkBalancer(int layers, int stages, int chunks, std::function<double(int stage, int first, int last)> time)
      : layers_(layers), stages_(stages), chunks_(chunks), time_(std::move(time)) {}

  std::vector<int> cuts() {
    std::vector<int> best = even_cuts(layers_, stages_ * chunks_);
    double longest = 0.0;
    double sum = 0.0;
    for (int stage = 0; stage < stages_; ++stage) {
      double taken = 0.0;
      for (std::size_t v = at(stage); v + 1 < best.size(); v += at(stages_))
        taken += time_(stage, best[v], best[v + 1]);
      longest = std::max(longest, taken);
      sum += taken;
    }
    double shortest = 0.5 * sum / stages_;  // stages need not be alike
    for (int i = 0; i < halvings; ++i) {
      const double middle = 0.5 * (shortest + longest);
      if (auto found = divide(middle)) {
        longest = middle;
        best = std::move(*found);
      } else {
        shortest = middle;
      }
    }
    return best;
  }

 private:
  /// Each virtual stage takes as many layers as its stage's time for its chunks so far allows. The last stage keeps
  /// time for the last layer, the head.
  std::optional<std::vector<int>> divide(double slowest) const {
    std::vector<double> taken(at(stages_), 0.0);
    std::vector<int> cuts{0};
    const int all = stages_ * chunks_;
    for (int v = 0; v < all; ++v) {
      const int stage = v % stages_;
      const int first = cuts.back();
      const int furthest = layers_ - (all - 1 - v);  // every later one needs a layer
      const bool keeps_time = stage == stages_ - 1 && v != all - 1;
      const int chunks = v / stages_ + 1;  // of this stage, this one included
      const double allowed =
          std::min(slowest * chunks / chunks_, slowest - (keeps_time ? time_(stage, layers_ - 1, layers_) : 0.0));
      int last = v == all - 1 ? layers_ : first + 1;
      while (last < furthest && taken[at(stage)] + time_(stage, first, last + 1) <= allowed) ++last;
      taken[at(stage)] += time_(stage, first, last);
      if (taken[at(stage)] > slowest) return std::nullopt;
      cuts.push_back(last);
    }
    return cuts;
  }

  int layers_;
  int stages_;
  int chunks_;
  std::function<double(int stage, int first, int last)> time_;
};

}  // namespace

void search_interleaved(StagePrices& prices, const std::vector<PipelineTemplate>& columns, OptimizerSharding sharding,
                        SolutionPool& solutions, const StopCheck& stop) {
  solutions.begin({Step::interleaved});
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
      const auto stage_time = [&](int stage, int from, int to) {
        const TemplateStage& here = column.stages[at(stage)];
        const StageTable* own =
            prices.table(space.pools[p].type, here.tensor_parallel, column.micro_batch, here.choice);
        return (own != nullptr ? own : table)->time(from, to);
      };
      const int most_chunks =
          std::min(request.effort.brief ? max_chunks_in_brief : max_chunks, prices.layers() / stages);
      for (int chunks = 2; chunks <= most_chunks; ++chunks) {
        std::vector<std::vector<int>> divisions;
        for (int count = request.pins.data_parallel.value_or(most); count >= request.pins.data_parallel.value_or(1);
             --count) {
          if (stop()) return;
          if (count > most || all % count != 0 || all / count % stages != 0) continue;
          const int each = all / count;  // micro-batches of a pipeline
          // All passes of a stage, and of the others a chunk (simulator/closed_form.hpp).
          const double time = work * (each + (stages - 1.0) / chunks) + min_reduction(prices, column, count);
          const double usd = time / 3600.0 * space.pools[p].price.value() * column.devices * count;
          if (score_of(request.objective, Seconds(time), Usd(usd)) >= solutions.best_score() && !request.pareto)
            continue;
          if (divisions.empty()) {
            divisions.push_back(even_cuts(prices.layers(), stages * chunks));
            auto balanced = ChunkBalancer(prices.layers(), stages, chunks, stage_time).cuts();
            if (balanced != divisions.front()) divisions.push_back(std::move(balanced));
          }
          for (const std::vector<int>& cuts : divisions) {
            TemplateMix mix{.schedule = Schedule::interleaved_1f1b,
                            .sharding = sharding,
                            .chunk_cuts = cuts,
                            .groups = {{.column = column, .count = count}}};
            for (TemplateStage& stage : mix.groups.front().column.stages) stage.pool = p;
            solutions.add(mix, {{0, count, each}});
          }
        }
      }
    }
}

}  // namespace sailor::planner
