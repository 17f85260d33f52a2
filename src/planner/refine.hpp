// Local search: improves the best plans by exchanging parts of them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/worker_threads.hpp"
#include "planner/full_search.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// The time by which plans are compared.
enum class RefineBy {
  closed_form,
  events,  ///< event-driven, as printed: starts from the printed plans, takes moves not much worse by the closed form
};

/// Local searches that start from some of the best plans. Moves: other templates for a group, up to 16 pipelines more
/// or less, groups left out or added on free devices, layers moved to the neighbouring stage, another sharding;
/// repeated as long as a plan improves. The searches run in parallel, each with its own prices and solution pool; the
/// result does not depend on the number of threads.
class Refinement {
 public:
  /// The arguments must outlive it.
  Refinement(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop);
  ~Refinement();
  /// `columns`: kinds of pipelines in one pool.
  void run(const TemplateRules& rules, const std::vector<PipelineTemplate>& columns, RefineBy by);

 private:
  struct Worker;
  Worker& worker(std::size_t thread);
  [[nodiscard]] std::vector<Start> starts(Schedule schedule, RefineBy by) const;

  StagePrices& prices_;
  SolutionPool& solutions_;
  const StopCheck& stop_;
  WorkerThreads threads_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by thread, created on first use
};

}  // namespace sailor::planner
