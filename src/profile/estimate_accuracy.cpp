#include "profile/estimate_accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "core/statistics.hpp"

namespace sailor {

ErrorSummary summarize_errors(const std::vector<double>& errors) {
  ErrorSummary summary;
  if (errors.empty()) return summary;
  std::vector<double> absolute;
  for (const double error : errors) {
    absolute.push_back(std::abs(error));
    if (std::abs(error) > std::abs(summary.worst)) summary.worst = error;
  }
  summary.points = static_cast<int>(errors.size());
  summary.median = quantile(absolute, 0.5);
  summary.wide = quantile(absolute, 0.9);
  summary.bias = quantile(errors, 0.5);
  return summary;
}

std::vector<AccuracyRow> leave_one_out(const LayerCosts& costs, Seconds shortest) {
  std::map<std::tuple<Basis, std::string, LayerKind>, AccuracyRow> rows;
  for (const auto& [key, measured] : costs.measured_times()) {
    auto compare = [&, &key = key, &measured = measured](const LayerPrice& price) {
      AccuracyRow& row = rows[{price.basis, key.gpu, key.kind}];
      row.model = key.model;
      row.gpu = key.gpu;
      row.kind = key.kind;
      row.basis = price.basis;
      if (measured.forward >= shortest) row.forward.push_back(price.cost.forward.median / measured.forward - 1.0);
      if (measured.backward >= shortest) row.backward.push_back(price.cost.backward.median / measured.backward - 1.0);
    };
    for (const Basis basis : {Basis::transfer, Basis::roofline})
      if (const auto price = costs.estimate(key, basis, key.gpu)) compare(*price);
    if (const auto price = costs.between_micro_batches(key)) compare(*price);
    if (const auto price = costs.between_tensor_parallel(key)) compare(*price);
  }
  std::vector<AccuracyRow> list;
  for (auto& entry : rows) list.push_back(std::move(entry.second));
  return list;
}

std::vector<SizeAccuracyRow> size_accuracy(const LayerCosts& costs) {
  std::map<LayerKind, SizeAccuracyRow> rows;
  for (const auto& [key, measured] : costs.measured_sizes()) {
    const LayerSizes formula = layer_sizes(costs.model(), key, costs.kernels());
    SizeAccuracyRow& row = rows[key.kind];
    row.model = key.model;
    row.kind = key.kind;
    if (measured.activation.value() > 0.0) row.activation.push_back(formula.activation / measured.activation - 1.0);
    if (measured.parameters > 0)
      row.parameters.push_back(static_cast<double>(formula.parameters) / static_cast<double>(measured.parameters) -
                               1.0);
  }
  std::vector<SizeAccuracyRow> list;
  for (auto& entry : rows) list.push_back(std::move(entry.second));
  return list;
}

}  // namespace sailor
