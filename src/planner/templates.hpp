// Kinds of pipelines: templates of stages with everything decided but how many of them there are and how many
// micro-batches each gets.
#pragma once

#include <climits>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "planner/stage_prices.hpp"

namespace sailor::planner {

/// Polled, by one thread at a time; true: stop.
struct StopCheck {
  std::function<bool()> is_over = [] { return false; };
  /// Number of plans that may still be examined.
  std::function<std::uint64_t()> plans_left = [] { return std::numeric_limits<std::uint64_t>::max(); };

  bool operator()() const { return is_over(); }
};

struct TemplateStage {
  std::size_t pool = 0;  ///< of the search space
  int tensor_parallel = 1;
  StageChoice choice;
  int first = 0;  ///< layers [first, last)
  int last = 0;
  bool operator==(const TemplateStage&) const = default;
};

struct PipelineTemplate {
  std::vector<TemplateStage> stages;
  int micro_batch = 1;
  double through = 0.0;             ///< seconds that one micro-batch takes from end to end and back
  double round = 0.0;               ///< seconds that each further one adds (closed form, 1F1B and GPipe)
  int max_micro_batches = INT_MAX;  ///< max in memory at once, where that limits the number of micro-batches
  double gradients = 0.0;           ///< max over the stages, bytes per rank: determines the time of the reductions
  int devices = 0;
  int degrees_multiple = 0;  ///< the least common multiple of its tensor-parallel degrees; 0: not computed

  /// Sequences that it processes in `deadline` seconds.
  [[nodiscard]] int sequences_by(double deadline) const;
  [[nodiscard]] int micro_batches_by(double deadline) const;
  /// Devices that it takes of a pool.
  [[nodiscard]] int uses(std::size_t pool) const;
  [[nodiscard]] bool in_one_pool() const;
};

/// What the templates of a search have in common.
struct TemplateRules {
  Schedule schedule = Schedule::one_f_one_b;
  Sharing sharing{};
  /// Above 0: the replicas are not sharing.replicas but this share of the pipelines that the devices allow.
  double share_of_pipelines = 0.0;
  bool copies_gradients = true;  ///< there are replicas to sum gradients with
};
TemplateRules rules_for(const SearchSpace& space, Schedule schedule, OptimizerSharding sharding);

/// Computes times and memory of a template whose stages are given except for `choice`, which becomes the quickest
/// that fits. std::nullopt if it does not fit with a single micro-batch, or a table or link is missing.
std::optional<PipelineTemplate> finish_template(StagePrices& prices, const TemplateRules& rules,
                                                std::vector<TemplateStage> stages, int micro_batch);

/// All pipelines of one GPU type, tensor-parallel degree, micro-batch and number of stages each, with the layers
/// divided so that the slowest stage is as fast as possible within memory. Their stages name the first pool of the
/// type. Under ZeRO-2 and ZeRO-3, where memory decides with how many replicas a pipeline fits, also those for fewer
/// replicas than the devices allow, where they differ.
std::vector<PipelineTemplate> single_pool_templates(StagePrices& prices, const TemplateRules& rules,
                                                    const StopCheck& stop);

/// Consecutive stages in one pool with one tensor-parallel degree.
struct Segment {
  std::size_t pool = 0;
  int tensor_parallel = 1;
  int stages = 1;
};
/// A template whose stages follow the segments, with the layers divided so that the slowest stage is as fast as
/// possible within memory. std::nullopt if none fits.
std::optional<PipelineTemplate> balanced_template(StagePrices& prices, const TemplateRules& rules,
                                                  const std::vector<Segment>& segments, int micro_batch);

}  // namespace sailor::planner
