#include "planner/baselines/assignment.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace sailor::planner::baselines {

Assignment::Assignment(int size, std::vector<double> costs) : size_(size), costs_(std::move(costs)) {}

bool Assignment::solve() {
  const auto count = static_cast<std::size_t>(size_);
  row_dual_.assign(count, 0.0);
  column_dual_.assign(count, 0.0);
  column_of_.assign(count, -1);
  row_of_.assign(count, -1);
  for (int row = 0; row < size_; ++row)
    if (!augment(row)) return false;
  return true;
}

bool Assignment::augment(int first_row) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto count = static_cast<std::size_t>(size_);
  std::vector<double> distance(count, infinity);  // from first_row to each column
  std::vector<int> row_before(count, -1);
  std::vector<int> rows_reached;
  std::vector<int> columns_reached;
  std::vector<int> columns_left;
  // In reverse order, so that a matrix of equal costs gives row i column i.
  for (int column = size_ - 1; column >= 0; --column) columns_left.push_back(column);

  double reached = 0.0;
  int row = first_row;
  int sink = -1;
  while (sink < 0) {
    rows_reached.push_back(row);
    double least = infinity;
    std::size_t nearest = columns_left.size();
    for (std::size_t i = 0; i < columns_left.size(); ++i) {
      const int column = columns_left[i];
      const double through = reached + cost(row, column) - row_dual_[row] - column_dual_[column];
      if (through < distance[column]) {
        distance[column] = through;
        row_before[column] = row;
      }
      // Among equally near columns, a free one ends the path.
      if (distance[column] < least || (distance[column] == least && least < infinity && row_of_[column] < 0)) {
        least = distance[column];
        nearest = i;
      }
    }
    if (nearest == columns_left.size()) return false;
    reached = least;
    const int column = columns_left[nearest];
    columns_left[nearest] = columns_left.back();
    columns_left.pop_back();
    columns_reached.push_back(column);
    if (row_of_[column] < 0)
      sink = column;
    else
      row = row_of_[column];
  }

  for (const int other : rows_reached)
    row_dual_[other] += other == first_row ? reached : reached - distance[column_of_[other]];
  for (const int column : columns_reached) column_dual_[column] -= reached - distance[column];
  for (int column = sink;;) {
    const int owner = row_before[column];
    row_of_[column] = owner;
    std::swap(column, column_of_[owner]);
    if (owner == first_row) return true;
  }
}

}  // namespace sailor::planner::baselines
