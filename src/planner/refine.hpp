// Makes the best plans better by exchanging parts of them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/worker_threads.hpp"
#include "planner/full_search.hpp"
#include "planner/solution_pool.hpp"

namespace sailor::planner {

/// By which time plans are compared.
enum class RefineBy {
  closed_form,
  events,  ///< as they are printed: from the plans that are, and with those that are not much worse by the closed form
};

/// Local searches from some of the best plans: other kinds of pipelines for a group, one pipeline more or less, groups
/// left out or added on devices that are free, layers moved to the neighbouring stage; as long as something gets
/// better. They run at the same time, each with prices and a solution pool of its own; what they find does not depend
/// on how many threads there are.
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
  std::vector<std::unique_ptr<Worker>> workers_;  // by thread, made when it first has something to do
};

}  // namespace sailor::planner
