// Makes the best plans better by exchanging parts of them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/worker_threads.hpp"
#include "planner/archive.hpp"
#include "planner/full_search.hpp"

namespace sailor::planner {

/// By which time plans are compared.
enum class RefineBy {
  closed_form,
  events,  ///< as they are printed: from the plans that are, and with those that are not much worse by the closed form
};

/// Local searches from some of the best plans: other kinds of pipelines for a group, one pipeline more or less, groups
/// left out or added on devices that are free, layers moved to the neighbouring stage; as long as something gets
/// better. They run at the same time, each with prices and an archive of its own; what they find does not depend on how
/// many threads there are.
class Refinement {
 public:
  /// The arguments must outlive it.
  Refinement(StagePrices& prices, Archive& archive, const StopCheck& stop);
  ~Refinement();
  /// `chains`: kinds of pipelines in one place.
  void run(const ChainRules& rules, const std::vector<Chain>& chains, RefineBy by);

 private:
  struct Workplace;
  Workplace& workplace(std::size_t thread);
  [[nodiscard]] std::vector<Start> starts(Schedule schedule, RefineBy by) const;

  StagePrices& prices_;
  Archive& archive_;
  const StopCheck& stop_;
  WorkerThreads threads_;
  std::vector<std::unique_ptr<Workplace>> workplaces_;  // by thread, made when it first has something to do
};

}  // namespace sailor::planner
