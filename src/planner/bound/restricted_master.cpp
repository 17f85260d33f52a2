#include "planner/bound/restricted_master.hpp"

#include <ClpSimplex.hpp>
#include <algorithm>
#include <numeric>
#include <utility>

namespace sailor::planner {

/// Rows: the resources, the most pipelines, the least pipelines. The first column stands for pipelines that are
/// missing, the others are pipelines. CLP minimises, so that objective values are negative sequences.
struct RestrictedMaster::Program {
  Program(const std::vector<double>& amounts, int least, int most, double largest) {
    simplex.setLogLevel(0);
    std::vector<double> lower(amounts.size(), -COIN_DBL_MAX);
    std::vector<double> upper = amounts;
    lower.insert(lower.end(), {-COIN_DBL_MAX, static_cast<double>(least)});
    upper.insert(upper.end(), {static_cast<double>(most), COIN_DBL_MAX});
    simplex.resize(static_cast<int>(lower.size()), 0);
    for (int row = 0; row < simplex.numberRows(); ++row)
      simplex.setRowBounds(row, lower[static_cast<std::size_t>(row)], upper[static_cast<std::size_t>(row)]);
    const int few = simplex.numberRows() - 1;
    const double one = 1.0;
    simplex.addColumn(1, &few, &one, 0.0, COIN_DBL_MAX, largest);
  }

  ClpSimplex simplex;
};

RestrictedMaster::RestrictedMaster() = default;
RestrictedMaster::~RestrictedMaster() = default;
RestrictedMaster::RestrictedMaster(RestrictedMaster&&) noexcept = default;
RestrictedMaster& RestrictedMaster::operator=(RestrictedMaster&&) noexcept = default;

void RestrictedMaster::add_resource(double amount, std::vector<double> per_device) {
  amounts_.push_back(amount);
  per_device_.push_back(std::move(per_device));
}

void RestrictedMaster::set_pipelines(int least, int most, double largest_price) {
  least_ = least;
  most_ = most;
  largest_ = largest_price;
}

void RestrictedMaster::add_pipeline(double sequences, const std::vector<double>& uses) {
  if (!program_) program_ = std::make_unique<Program>(amounts_, least_, most_, largest_);
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
  if (!program_) program_ = std::make_unique<Program>(amounts_, least_, most_, largest_);
  program_->simplex.primal();
  const double* duals = program_->simplex.dualRowSolution();
  const std::size_t resources = amounts_.size();
  prices.device.assign(per_device_.empty() ? 0 : per_device_.front().size(), 0.0);
  double value = 0.0;
  for (std::size_t r = 0; r < resources; ++r) {
    const double price = std::max(0.0, -duals[r]);
    value += price * amounts_[r];
    for (std::size_t p = 0; p < prices.device.size(); ++p) prices.device[p] += price * per_device_[r][p];
  }
  const double few = std::max(0.0, -duals[resources]);
  const double many = std::max(0.0, duals[resources + 1]);
  prices.each = few - many;
  return value + few * most_ - many * least_;
}

}  // namespace sailor::planner
