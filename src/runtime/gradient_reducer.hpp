// Sums gradients over the ranks that hold the same parameters. Blocking, in place, after the last backward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"
#include "runtime/communicator.hpp"
#include "runtime/parameters.hpp"

namespace sailor::runtime {

class GradientReducer {
 public:
  /// Makes the communicators of this rank's groups; all ranks of `world` must do so at the same time.
  GradientReducer(const Plan& plan, const Model& model, Communicator& world, ParameterStorage& parameters);

  /// Every group in turn, one call for each contiguous range of its gradients (its "bucket"): all ranks take the
  /// groups in the same order, so they cannot wait for each other in a circle.
  void reduce();

  /// Bytes of gradients that this rank sums with others, per iteration.
  [[nodiscard]] Bytes volume() const;

 private:
  /// Contiguous gradients [first, first + count) of one group.
  struct Range {
    Communicator* group;
    std::int64_t first;
    std::int64_t count;
  };

  ParameterStorage& parameters_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<Range> ranges_;
};

}  // namespace sailor::runtime
