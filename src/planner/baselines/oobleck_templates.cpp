#include "planner/baselines/oobleck_templates.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace sailor::planner::baselines::oobleck_detail {

namespace {

constexpr double impossible = std::numeric_limits<double>::infinity();
// Weights, gradients and Adam's state as Oobleck counts them.
constexpr double parameter_copies = 6.0;
// While templates are made, the number of micro-batches is not known; the paper assumes four per stage.
constexpr int micro_batches_per_stage = 4;

/// The best chain of stages for some layers on some devices, and where it was divided. `is_known` is false if there is
/// none.
struct Best {
  bool is_known = false;
  ChainTime time;
  int split = 0;         ///< first layer of the rest; 0: one stage
  int first_stages = 0;  ///< before the split
  int first_gpus = 0;    ///< before the split, where that is inside a node

  [[nodiscard]] double value() const {
    return is_known ? time.iteration(micro_batches_per_stage * time.stages) : impossible;
  }
  void take(const ChainTime& candidate, int split_at, int stages, int gpus) {
    if (is_known && candidate.iteration(micro_batches_per_stage * candidate.stages) >= value()) return;
    *this = {.is_known = true, .time = candidate, .split = split_at, .first_stages = stages, .first_gpus = gpus};
  }
};

bool is_power_of_two(int number) { return number > 0 && (number & (number - 1)) == 0; }

/// A chain consists of the stages of a first node and those of the rest, and the stages of a node are a first stage and
/// the rest, so it is enough to divide there. (The published code divides everywhere, which gives the same chains.)
class Mapper {
 public:
  explicit Mapper(const StageCosts& costs, int max_nodes)
      : costs_(costs), layers_(costs.layers()), gpus_(costs.gpus_per_node()), max_nodes_(max_nodes) {
    map_nodes();
    map_chains();
  }

  /// The chain of all layers on `nodes` nodes with `stages` stages.
  [[nodiscard]] const Best& whole(int nodes, int stages) const { return chain(nodes, 0, stages); }

  [[nodiscard]] std::vector<TemplateStage> stages_of(int nodes, int stages) const {
    std::vector<TemplateStage> found;
    int first = 0;
    int left = stages;
    for (int node = 0; node < nodes; ++node) {
      const Best& best = chain(nodes - node, first, left);
      const bool is_last = node + 1 == nodes;
      const int last = is_last ? layers_ : best.split;
      const int here = is_last ? left : best.first_stages;
      add_node(first, last, gpus_, here, node, found);
      first = last;
      left -= here;
    }
    return found;
  }

 private:
  [[nodiscard]] int inside_index(int first, int last, int gpus, int stages) const {
    return ((first * (layers_ + 1) + last) * (gpus_ + 1) + gpus) * (gpus_ + 1) + stages;
  }
  [[nodiscard]] int chain_index(int nodes, int first, int stages) const {
    return (nodes * (layers_ + 1) + first) * (layers_ + 1) + stages;
  }
  /// Layers [first, last) on `gpus` devices of one node, in `stages` stages.
  [[nodiscard]] const Best& inside(int first, int last, int gpus, int stages) const {
    return inside_[inside_index(first, last, gpus, stages)];
  }
  /// Layers [first, layers_) on `nodes` whole nodes, in `stages` stages.
  [[nodiscard]] const Best& chain(int nodes, int first, int stages) const {
    return chains_[chain_index(nodes, first, stages)];
  }

  void map_nodes() {
    inside_.resize(inside_index(layers_, layers_, gpus_, gpus_) + 1);
    for (int gpus = 1; gpus <= gpus_; ++gpus)
      for (int first = layers_ - 1; first >= 0; --first)
        for (int last = first + 1; last <= layers_; ++last)
          for (int stages = 1; stages <= std::min(gpus, last - first); ++stages) {
            Best& best = inside_[inside_index(first, last, gpus, stages)];
            if (stages == 1) {
              if (!is_power_of_two(gpus)) continue;
              const double seconds = costs_.seconds({first, last}, gpus);
              if (seconds < impossible) best.take(chain_of_one(seconds), 0, 1, gpus);
              continue;
            }
            for (int split = first + 1; split < last; ++split)
              for (int mine = 1; mine < gpus; ++mine) {
                const Best& stage = inside(first, split, mine, 1);
                const Best& rest = inside(split, last, gpus - mine, stages - 1);
                if (stage.is_known && rest.is_known) best.take(joined(stage.time, rest.time), split, 1, mine);
              }
          }
  }

  void map_chains() {
    chains_.resize(chain_index(max_nodes_, layers_, layers_) + 1);
    for (int nodes = 1; nodes <= max_nodes_; ++nodes)
      for (int first = 0; first < layers_; ++first)
        for (int stages = nodes; stages <= std::min(layers_ - first, nodes * gpus_); ++stages) {
          Best& best = chains_[chain_index(nodes, first, stages)];
          if (nodes == 1) {
            best = inside(first, layers_, gpus_, stages);
            continue;
          }
          for (int split = first + 1; split < layers_; ++split)
            for (int mine = 1; mine <= std::min(gpus_, stages - 1); ++mine) {
              const Best& node = inside(first, split, gpus_, mine);
              const Best& rest = chain(nodes - 1, split, stages - mine);
              if (node.is_known && rest.is_known) best.take(joined(node.time, rest.time), split, mine, gpus_);
            }
        }
  }

  void add_node(int first, int last, int gpus, int stages, int node, std::vector<TemplateStage>& found) const {
    while (stages > 1) {
      const Best& best = inside(first, last, gpus, stages);
      found.push_back({.layers = {first, best.split}, .gpus = best.first_gpus, .node = node});
      first = best.split;
      gpus -= best.first_gpus;
      --stages;
    }
    found.push_back({.layers = {first, last}, .gpus = gpus, .node = node});
  }

  const StageCosts& costs_;
  int layers_;
  int gpus_;
  int max_nodes_;
  std::vector<Best> inside_;
  std::vector<Best> chains_;
};

}  // namespace

double ChainTime::iteration(int micro_batches) const {
  return total + std::max((micro_batches - 1) * slowest - slack(), 0.0);
}

int ChainTime::micro_batches_within(double seconds) const {
  if (seconds < total) return 0;
  int number = 1 + static_cast<int>(std::min((seconds - total + slack()) / slowest, 1e8));
  while (number > 0 && iteration(number) > seconds) --number;
  return number;
}

ChainTime chain_of_one(double seconds) {
  return {.stages = 1, .slowest_stage = 0, .slowest = seconds, .total = seconds, .after = 0.0};
}

ChainTime joined(const ChainTime& first, const ChainTime& rest) {
  ChainTime both{.stages = first.stages + rest.stages, .total = first.total + rest.total};
  if (first.slowest > rest.slowest) {
    both.slowest_stage = first.slowest_stage;
    both.slowest = first.slowest;
    both.after = first.after + rest.total;
  } else {
    both.slowest_stage = first.stages + rest.slowest_stage;
    both.slowest = rest.slowest;
    both.after = rest.after;
  }
  return both;
}

StageCosts::StageCosts(const Inputs& inputs, const std::string& gpu, int micro_batch, int gpus_per_node)
    : inputs_(inputs),
      gpu_(gpu),
      micro_batch_(micro_batch),
      gpus_per_node_(gpus_per_node),
      memory_(inputs.memory(gpu)) {}

double StageCosts::memory_bytes(LayerRange layers, int gpus) const {
  const LayerSizes* sizes = inputs_.sizes(gpus);
  if (sizes == nullptr) return impossible;
  return float_bytes * (parameter_copies * sizes->parameters_of(layers.first, layers.last) +
                        micro_batch_ * sizes->activation_of(layers.first, layers.last));
}

double StageCosts::seconds(LayerRange layers, int gpus) const {
  const LayerTimes* times = inputs_.times(gpu_, micro_batch_, gpus);
  if (times == nullptr || memory_bytes(layers, gpus) > memory_) return impossible;
  const double seconds = times->compute(layers.first, layers.last);
  return seconds > 0.0 ? seconds : impossible;
}

std::vector<Template> make_templates(const StageCosts& costs, int max_nodes, double micro_batches_per_node) {
  max_nodes = std::min(max_nodes, costs.layers());  // a stage has a layer, and is in one node
  const Mapper mapper(costs, max_nodes);
  std::vector<Template> templates;
  for (int nodes = 1; nodes <= max_nodes; ++nodes) {
    const int share = std::max(1, static_cast<int>(std::lround(micro_batches_per_node * nodes)));
    std::optional<int> chosen;
    for (int stages = nodes; stages <= std::min(costs.layers(), nodes * costs.gpus_per_node()); ++stages)
      if (mapper.whole(nodes, stages).is_known && (!chosen || mapper.whole(nodes, stages).time.iteration(share) <
                                                                  mapper.whole(nodes, *chosen).time.iteration(share)))
        chosen = stages;
    if (chosen)
      templates.push_back(
          {.nodes = nodes, .stages = mapper.stages_of(nodes, *chosen), .time = mapper.whole(nodes, *chosen).time});
  }
  return templates;
}

}  // namespace sailor::planner::baselines::oobleck_detail
