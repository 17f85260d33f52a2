#include "planner/bound/master.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sailor::planner {

namespace {

constexpr int most_steps = 500;  // of the simplex method; more would mean that it goes round in circles

}  // namespace

void PriceMaster::add_resource(double amount, std::vector<double> per_device) {
  amounts_.push_back(amount);
  per_device_.push_back(std::move(per_device));
}

void PriceMaster::set_pipelines(int least, int most, double largest_price) {
  least_ = least;
  most_ = most;
  largest_ = largest_price;
}

void PriceMaster::add_pipeline(double sequences, const std::vector<double>& uses) {
  Column column{.sequences = sequences, .takes = {}};
  for (const std::vector<double>& per_device : per_device_) {
    double takes = 0.0;
    for (std::size_t p = 0; p < uses.size(); ++p) takes += uses[p] * per_device[p];
    column.takes.push_back(takes);
  }
  columns_.push_back(std::move(column));
}

// The simplex method on a table of rows: resources, most pipelines, least pipelines; and columns: pipelines, what is
// left of each row, pipelines that are missing, the right side. The prices are what the last row has for what is left.
double PriceMaster::solve(Prices& prices) const {
  const std::size_t resources = amounts_.size();
  const std::size_t rows = resources + 2;
  const std::size_t pipelines = columns_.size();
  const std::size_t missing = pipelines + rows;
  const std::size_t width = missing + 2;
  std::vector<std::vector<double>> table(rows + 1, std::vector<double>(width, 0.0));
  std::vector<std::size_t> basis(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < pipelines; ++c) table[r][c] = r < resources ? columns_[c].takes[r] : 1.0;
    table[r][pipelines + r] = r + 1 < rows ? 1.0 : -1.0;
    table[r][width - 1] = r < resources ? amounts_[r] : r == resources ? most_ : least_;
    basis[r] = pipelines + r;
  }
  table[rows - 1][missing] = 1.0;
  basis[rows - 1] = missing;
  std::vector<double>& objective = table[rows];
  for (std::size_t c = 0; c < pipelines; ++c) objective[c] = -columns_[c].sequences;
  // Every missing pipeline costs; those are the first solution.
  for (std::size_t c = 0; c < width; ++c)
    if (c != missing) objective[c] -= largest_ * table[rows - 1][c];
  for (int step = 0; step < most_steps; ++step) {
    const auto entering =
        static_cast<std::size_t>(std::min_element(objective.begin(), objective.end() - 1) - objective.begin());
    if (objective[entering] > -1e-9) break;
    std::size_t leaving = rows;
    double least = 0.0;
    for (std::size_t r = 0; r < rows; ++r) {
      if (table[r][entering] <= 1e-12) continue;
      const double ratio = table[r][width - 1] / table[r][entering];
      if (leaving < rows && ratio >= least) continue;
      leaving = r;
      least = ratio;
    }
    if (leaving == rows) break;
    std::vector<double>& pivot = table[leaving];
    const double factor = 1.0 / pivot[entering];
    for (double& value : pivot) value *= factor;
    for (std::size_t r = 0; r <= rows; ++r) {
      const double times = table[r][entering];
      if (r == leaving || times == 0.0) continue;
      for (std::size_t c = 0; c < width; ++c) table[r][c] -= times * pivot[c];
    }
    basis[leaving] = entering;
  }
  prices.device.assign(per_device_.empty() ? 0 : per_device_.front().size(), 0.0);
  double value = 0.0;
  for (std::size_t r = 0; r < resources; ++r) {
    const double price = std::max(0.0, objective[pipelines + r]);
    value += price * amounts_[r];
    for (std::size_t p = 0; p < prices.device.size(); ++p) prices.device[p] += price * per_device_[r][p];
  }
  const double few = std::max(0.0, objective[pipelines + resources]);
  const double many = std::max(0.0, objective[pipelines + resources + 1]);
  prices.each = few - many;
  return value + few * most_ - many * least_;
}

}  // namespace sailor::planner
