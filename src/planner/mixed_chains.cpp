#include "planner/mixed_chains.hpp"

#include <algorithm>

namespace sailor::planner {

namespace {

constexpr std::size_t most_chains = 24;
constexpr double least_ratio = 0.97;              // of what the devices are worth apart
constexpr double least_ratio_across_zones = 0.7;  // may save reductions between zones

struct Rated {
  Chain chain;
  double ratio;
};

class MixedMaker {
 public:
  MixedMaker(StagePrices& prices, const ChainRules& rules, const std::vector<double>& worth, double deadline)
      : prices_(prices), space_(prices.space()), rules_(rules), worth_(worth), deadline_(deadline) {}

  std::vector<Chain> run(const StopCheck& stop) {
    const auto& pins = prices_.request().pins;
    for (std::size_t a = 0; a < space_.places.size(); ++a)
      for (std::size_t b = 0; b < space_.places.size(); ++b) {
        if (a == b ||
            (space_.places[a].type == space_.places[b].type && space_.places[a].zone == space_.places[b].zone))
          continue;
        for (const int micro_batch : space_.micro_batches)
          for (const int degree_a : space_.places[a].tensor_parallel)
            for (const int degree_b : space_.places[b].tensor_parallel) {
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
    for (const Segment& segment : segments) worth += worth_[segment.place] * segment.tensor_parallel * segment.stages;
    return worth;
  }

  double needed(const std::vector<Segment>& segments) const {
    const bool across = space_.places[segments.front().place].zone != space_.places[segments.back().place].zone;
    return across ? least_ratio_across_zones : least_ratio;
  }

  /// At best: every layer at the faster of the two, spread evenly.
  bool promising(const std::vector<Segment>& segments, int micro_batch) {
    double work = 0.0;
    std::vector<const StageTable*> tables;
    int stages = 0;
    for (const Segment& segment : segments) {
      const StageTable* table = prices_.table(space_.places[segment.place].type, segment.tensor_parallel, micro_batch,
                                              space_.recompute.front());
      if (table == nullptr) return false;
      if (space_.places[segment.place].devices() < segment.tensor_parallel * segment.stages) return false;
      tables.push_back(table);
      stages += segment.stages;
    }
    if (stages > prices_.layers()) return false;
    for (int layer = 0; layer < prices_.layers(); ++layer) {
      double quickest = never;
      for (const StageTable* table : tables) quickest = std::min(quickest, table->time(layer, layer + 1));
      work += quickest;
    }
    const Chain best{.stages = {}, .micro_batch = micro_batch, .through = work, .round = work / stages};
    return best.sequences_by(deadline_) >= needed(segments) * worth_of(segments);
  }

  void consider(const std::vector<Segment>& segments, int micro_batch) {
    if (!promising(segments, micro_batch)) return;
    auto chain = balanced_chain(prices_, rules_, segments, micro_batch);
    if (!chain) return;
    const double ratio = chain->sequences_by(deadline_) / worth_of(segments);
    if (ratio >= needed(segments)) found_.push_back({std::move(*chain), ratio});
  }

  std::vector<Chain> finish() {
    std::stable_sort(found_.begin(), found_.end(), [](const Rated& a, const Rated& b) { return a.ratio > b.ratio; });
    std::vector<Chain> chains;
    for (Rated& rated : found_) {
      if (chains.size() >= most_chains) break;
      chains.push_back(std::move(rated.chain));
    }
    return chains;
  }

  StagePrices& prices_;
  const SearchSpace& space_;
  const ChainRules& rules_;
  const std::vector<double>& worth_;
  double deadline_;
  std::vector<int> depths_{1, 2, 3, 4, 6, 8};
  std::vector<Rated> found_;
};

}  // namespace

std::vector<Chain> mixed_chains(StagePrices& prices, const ChainRules& rules, const std::vector<double>& worth,
                                double deadline, const StopCheck& stop) {
  return MixedMaker(prices, rules, worth, deadline).run(stop);
}

}  // namespace sailor::planner
