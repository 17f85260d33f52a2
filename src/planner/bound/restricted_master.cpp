#include "planner/bound/restricted_master.hpp"

#include <ClpSimplex.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/assert.hpp"

namespace sailor::planner {

/// Rows: the resources, the max number of pipelines, the min number of pipelines. The first column stands for pipelines
/// that are missing, the others are pipelines. CLP minimises, so objective values are negative sequences.
struct RestrictedMaster::Program {
  Program(const std::vector<double>& amounts, double min_pipelines, double max_pipelines, double largest_price) {
    simplex.setLogLevel(0);
    std::vector<double> lower(amounts.size(), -COIN_DBL_MAX);
    std::vector<double> upper = amounts;
    lower.insert(lower.end(), {-COIN_DBL_MAX, min_pipelines});
    upper.insert(upper.end(), {max_pipelines, COIN_DBL_MAX});
    simplex.resize(static_cast<int>(lower.size()), 0);
    for (int row = 0; row < simplex.numberRows(); ++row)
      simplex.setRowBounds(row, lower[static_cast<std::size_t>(row)], upper[static_cast<std::size_t>(row)]);
    const int min_row = simplex.numberRows() - 1;
    const double one = 1.0;
    simplex.addColumn(1, &min_row, &one, 0.0, COIN_DBL_MAX, largest_price);
  }

  /// For assertions: whether the solution, if CLP calls it optimal, is a lower bound: no pipeline is worth more than it
  /// takes, to the precision of CLP.
  [[nodiscard]] bool is_dual_feasible() const {
    if (!simplex.isProvenOptimal()) return true;  // the caller judges the prices by their value
    const double* reduced = simplex.dualColumnSolution();
    const double* worth = simplex.objective();
    for (int column = 0; column < simplex.numberColumns(); ++column)
      if (reduced[column] < -1e-6 * (1.0 + std::abs(worth[column]))) return false;
    return true;
  }

  ClpSimplex simplex;
};

RestrictedMaster::RestrictedMaster() = default;
RestrictedMaster::~RestrictedMaster() = default;
RestrictedMaster::RestrictedMaster(RestrictedMaster&&) noexcept = default;
RestrictedMaster& RestrictedMaster::operator=(RestrictedMaster&&) noexcept = default;

void RestrictedMaster::add_resource(double amount, std::vector<double> per_device) {
  SAILOR_ASSERT(!program_, "a resource is added after the first column");
  amounts_.push_back(amount);
  per_device_.push_back(std::move(per_device));
}

void RestrictedMaster::set_pipelines(double min_count, double max_count, double largest_price) {
  SAILOR_ASSERT(!program_ && min_count <= max_count, "the limits on pipelines come late, or contradict each other");
  min_pipelines_ = min_count;
  max_pipelines_ = max_count;
  largest_price_ = largest_price;
}

void RestrictedMaster::add_pipeline(double sequences, const std::vector<double>& uses) {
  if (!program_) program_ = std::make_unique<Program>(amounts_, min_pipelines_, max_pipelines_, largest_price_);
  std::vector<int> rows;
  std::vector<double> takes;
  for (std::size_t r = 0; r < per_device_.size(); ++r) {
    const double amount = std::inner_product(uses.begin(), uses.end(), per_device_[r].begin(), 0.0);
    if (amount == 0.0) continue;
    rows.push_back(static_cast<int>(r));
    takes.push_back(amount);
  }
  const int resources = static_cast<int>(amounts_.size());
  rows.insert(rows.end(), {resources, resources + 1});
  takes.insert(takes.end(), {1.0, 1.0});
  program_->simplex.addColumn(static_cast<int>(rows.size()), rows.data(), takes.data(), 0.0, COIN_DBL_MAX, -sequences);
}

double RestrictedMaster::solve(DualPrices& prices) {
  if (!program_) program_ = std::make_unique<Program>(amounts_, min_pipelines_, max_pipelines_, largest_price_);
  program_->simplex.primal();
  SAILOR_ASSERT(program_->is_dual_feasible(), "a pipeline is worth more than it takes at the prices of the solution");
  const double* duals = program_->simplex.dualRowSolution();
  const std::size_t resources = amounts_.size();
  prices.device.assign(per_device_.empty() ? 0 : per_device_.front().size(), 0.0);
  double value = 0.0;
  for (std::size_t r = 0; r < resources; ++r) {
    const double price = std::max(0.0, -duals[r]);
    value += price * amounts_[r];
    for (std::size_t p = 0; p < prices.device.size(); ++p) prices.device[p] += price * per_device_[r][p];
  }
  const double max_price = std::max(0.0, -duals[resources]);
  const double min_price = std::max(0.0, duals[resources + 1]);
  prices.each = max_price - min_price;
  return value + max_price * max_pipelines_ - min_price * min_pipelines_;
}

}  // namespace sailor::planner
