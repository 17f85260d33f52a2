#include "planner/multi_pool_templates.hpp"

#include <algorithm>
#include <cstdint>
#include <set>

namespace sailor::planner {

namespace {

constexpr std::size_t max_templates = 24;
constexpr double min_ratio = 0.97;              // of what the devices are worth apart
constexpr double min_ratio_across_zones = 0.7;  // may save reductions between zones
constexpr int max_spanning = 3000;              // templates that are tried
constexpr std::size_t max_permuted = 4;         // pools, of which all orders are tried

struct Rated {
  PipelineTemplate column;
  double ratio;
};

class MixedMaker {
 public:
  MixedMaker(StagePrices& prices, const TemplateRules& rules, const std::vector<double>& worth, double deadline)
      : prices_(prices), space_(prices.space()), rules_(rules), worth_(worth), deadline_(deadline) {}

  std::vector<PipelineTemplate> run(const StopCheck& stop) {
    const auto& pins = prices_.request().pins;
    for (std::size_t a = 0; a < space_.pools.size(); ++a)
      for (std::size_t b = 0; b < space_.pools.size(); ++b) {
        if (a == b || (space_.pools[a].type == space_.pools[b].type && space_.pools[a].zone == space_.pools[b].zone))
          continue;
        for (const int micro_batch : space_.micro_batches)
          for (const int degree_a : space_.pools[a].tensor_parallel)
            for (const int degree_b : space_.pools[b].tensor_parallel) {
              if (stop()) return finish();
              for (const int stages_a : depths_)
                for (const int stages_b : depths_)
                  if (!pins.pipeline_parallel || stages_a + stages_b == *pins.pipeline_parallel)
                    consider({{a, degree_a, stages_a}, {b, degree_b, stages_b}}, micro_batch);
            }
      }
    return finish();
  }

 private:
  double worth_of(const std::vector<Segment>& segments) const {
    double worth = 0.0;
    for (const Segment& segment : segments) worth += worth_[segment.pool] * segment.tensor_parallel * segment.stages;
    return worth;
  }

  double needed(const std::vector<Segment>& segments) const {
    const bool across = space_.pools[segments.front().pool].zone != space_.pools[segments.back().pool].zone;
    return across ? min_ratio_across_zones : min_ratio;
  }

  /// Whether the best case is good enough: every layer at the faster of the two, spread evenly.
  bool promising(const std::vector<Segment>& segments, int micro_batch) {
    double work = 0.0;
    std::vector<const StageTable*> tables;
    int stages = 0;
    for (const Segment& segment : segments) {
      const StageTable* table =
          prices_.table(space_.pools[segment.pool].type, segment.tensor_parallel, micro_batch, space_.choices.front());
      if (table == nullptr) return false;
      if (space_.pools[segment.pool].devices() < segment.tensor_parallel * segment.stages) return false;
      tables.push_back(table);
      stages += segment.stages;
    }
    if (stages > prices_.layers()) return false;
    for (int layer = 0; layer < prices_.layers(); ++layer) {
      double quickest = infinity;
      for (const StageTable* table : tables) quickest = std::min(quickest, table->time(layer, layer + 1));
      work += quickest;
    }
    const PipelineTemplate best{.stages = {}, .micro_batch = micro_batch, .through = work, .round = work / stages};
    return best.sequences_by(deadline_) >= needed(segments) * worth_of(segments);
  }

  void consider(const std::vector<Segment>& segments, int micro_batch) {
    if (!promising(segments, micro_batch)) return;
    auto column = balanced_template(prices_, rules_, segments, micro_batch);
    if (!column) return;
    const double ratio = column->sequences_by(deadline_) / worth_of(segments);
    if (ratio >= needed(segments)) found_.push_back({std::move(*column), ratio});
  }

  std::vector<PipelineTemplate> finish() {
    std::stable_sort(found_.begin(), found_.end(), [](const Rated& a, const Rated& b) { return a.ratio > b.ratio; });
    std::vector<PipelineTemplate> columns;
    for (Rated& rated : found_) {
      if (columns.size() >= max_templates) break;
      columns.push_back(std::move(rated.column));
    }
    return columns;
  }

  StagePrices& prices_;
  const SearchSpace& space_;
  const TemplateRules& rules_;
  const std::vector<double>& worth_;
  double deadline_;
  std::vector<int> depths_{1, 2, 3, 4, 6, 8};
  std::vector<Rated> found_;
};

class SpanningMaker {
 public:
  SpanningMaker(StagePrices& prices, const TemplateRules& rules)
      : prices_(prices), space_(prices.space()), rules_(rules) {
    for (const DevicePool& pool : space_.pools)
      degrees_.insert(pool.tensor_parallel.begin(), pool.tensor_parallel.end());
  }

  std::vector<PipelineTemplate> run(const std::vector<std::vector<std::size_t>>& pool_sets, const StopCheck& stop) {
    for (const int micro_batch : space_.micro_batches)                       // the min memory first
      for (auto set = pool_sets.rbegin(); set != pool_sets.rend(); ++set) {  // the fewest pools first
        if (set->size() < 2) continue;
        std::vector<std::size_t> order = *set;
        do {
          if (stop() || tried_ >= max_spanning) return finish();
          try_order(order, micro_batch);
        } while (order.size() <= max_permuted && std::next_permutation(order.begin(), order.end()));
      }
    return finish();
  }

 private:
  /// Tries all devices of the pools, half of them, and so on; with every degree, or the next smaller one that a pool
  /// has.
  void try_order(const std::vector<std::size_t>& order, int micro_batch) {
    const auto pinned = prices_.request().pins.pipeline_parallel;
    for (const int degree : degrees_) {
      std::vector<Segment> whole;
      int most = 0;  // stages
      for (const std::size_t p : order) {
        Segment segment{.pool = p, .tensor_parallel = 0};
        for (const int smaller : space_.pools[p].tensor_parallel)
          if (smaller <= degree && space_.allows(space_.pools[p].type, smaller, micro_batch))
            segment.tensor_parallel = std::max(segment.tensor_parallel, smaller);
        if (segment.tensor_parallel == 0) break;
        segment.stages = space_.pools[p].groups(segment.tensor_parallel);
        most += segment.stages;
        whole.push_back(segment);
      }
      if (whole.size() < order.size() || (pinned && *pinned > most)) continue;
      const int least = static_cast<int>(order.size());
      for (int stages = std::min(most, pinned.value_or(prices_.layers())); stages >= least; stages /= 2) {
        ++tried_;
        if (auto column = balanced_template(prices_, rules_, share(whole, most, stages), micro_batch))
          found_.push_back(std::move(*column));
        if (pinned) break;
      }
    }
  }

  /// Shares `stages` stages in proportion to those of `whole`, which has `most`; at least one in each segment.
  static std::vector<Segment> share(std::vector<Segment> whole, int most, int stages) {
    for (auto segment = whole.begin(); segment != whole.end(); ++segment) {
      const int behind = static_cast<int>(whole.end() - segment) - 1;
      const int all = segment->stages;
      const auto part = static_cast<int>(std::int64_t{stages} * all / most);
      segment->stages = std::clamp(behind == 0 ? stages : part, 1, std::min(all, stages - behind));
      most -= all;
      stages -= segment->stages;
    }
    return whole;
  }

  std::vector<PipelineTemplate> finish() {
    const auto alone = [&](const PipelineTemplate& column) {
      const int micro_batches = prices_.request().job.global_batch / column.micro_batch;
      return column.through + column.round * (micro_batches - 1);
    };
    std::stable_sort(found_.begin(), found_.end(),
                     [&](const PipelineTemplate& a, const PipelineTemplate& b) { return alone(a) < alone(b); });
    if (found_.size() > max_templates) found_.resize(max_templates);
    return std::move(found_);
  }

  StagePrices& prices_;
  const SearchSpace& space_;
  const TemplateRules& rules_;
  std::set<int> degrees_;
  int tried_ = 0;
  std::vector<PipelineTemplate> found_;
};

}  // namespace

std::vector<PipelineTemplate> spanning_templates(StagePrices& prices, const TemplateRules& rules,
                                                 const std::vector<std::vector<std::size_t>>& pool_sets,
                                                 const StopCheck& stop) {
  return SpanningMaker(prices, rules).run(pool_sets, stop);
}

std::vector<PipelineTemplate> two_pool_templates(StagePrices& prices, const TemplateRules& rules,
                                                 const std::vector<double>& worth, double deadline,
                                                 const StopCheck& stop) {
  return MixedMaker(prices, rules, worth, deadline).run(stop);
}

}  // namespace sailor::planner
