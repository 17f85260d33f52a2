// How far estimates are from measurements: every measurement is estimated as if it were not there.
#pragma once

#include <string>
#include <vector>

#include "profile/layer_costs.hpp"

namespace sailor {

/// Errors of a set of estimates, estimate / measurement - 1. All 0 when the set is empty.
struct ErrorSummary {
  int points = 0;
  double median = 0.0;  ///< of the absolute errors
  double wide = 0.0;    ///< nine of ten absolute errors are at most this
  double bias = 0.0;    ///< median of the errors
  double worst = 0.0;   ///< the error with the largest absolute value
};
ErrorSummary summarize_errors(const std::vector<double>& errors);

/// Errors for one model, GPU type, kind of layer and way to estimate.
struct AccuracyRow {
  std::string model;
  std::string gpu;
  LayerKind kind = LayerKind::block;
  Basis basis = Basis::transfer;
  std::vector<double> forward;  ///< errors, one per measured combination of sizes
  std::vector<double> backward;
};

/// Leaves out, one after the other: every GPU type (Basis::transfer and Basis::roofline), every micro-batch and every
/// tensor-parallel degree that has measured neighbours. Measured times below `shortest` do not count: launches and the
/// clock dominate them.
std::vector<AccuracyRow> leave_one_out(const LayerCosts& costs, Seconds shortest = Seconds(1e-5));

/// Errors of layer_sizes() against measured sizes, for one model and kind of layer.
struct SizeAccuracyRow {
  std::string model;
  LayerKind kind = LayerKind::block;
  std::vector<double> activation;
  std::vector<double> parameters;
};
std::vector<SizeAccuracyRow> size_accuracy(const LayerCosts& costs);

}  // namespace sailor
