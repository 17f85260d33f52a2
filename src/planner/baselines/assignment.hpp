// Minimum-cost assignment of rows to columns of a square matrix: shortest augmenting paths with dual variables (Crouse,
// IEEE Trans. Aerosp. Electron. Syst. 2016), O(n^3).
#pragma once

#include <cstddef>
#include <vector>

namespace sailor::planner::baselines {

class Assignment {
 public:
  /// `costs`: size x size, by rows. Infinity: the column is not allowed for the row.
  Assignment(int size, std::vector<double> costs);

  /// Whether every row can have a column of its own; if so, column_of() has the minimum sum.
  bool solve();

  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] double cost(int row, int column) const { return costs_[index(row, column)]; }
  /// The column of each row.
  [[nodiscard]] const std::vector<int>& columns() const { return column_of_; }

 private:
  [[nodiscard]] std::size_t index(int row, int column) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(column);
  }
  /// Assigns a column to a row that has none; other rows may change theirs.
  bool augment(int row);

  int size_ = 0;
  std::vector<double> costs_;
  // cost >= row_dual + column_dual, with equality where assigned.
  std::vector<double> row_dual_;
  std::vector<double> column_dual_;
  std::vector<int> column_of_;  ///< by row; -1: none
  std::vector<int> row_of_;     ///< by column; -1: none
};

}  // namespace sailor::planner::baselines
