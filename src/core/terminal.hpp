// Terminal output for people: tables, quantities with fitting units, a progress line.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.hpp"

namespace sailor {

/// "1.23 s", "45.6 ms", "7.80 us": three significant digits; "0 s" for zero, "-" if not finite.
std::string format_time(Seconds time);
/// "1.50 GiB", "12.0 MiB", "512 B" (binary units).
std::string format_bytes(Bytes amount);
/// "12.3 GB/s" (decimal units, as the field writes bandwidths).
std::string format_bandwidth(BytesPerSecond rate);
/// "$12.34", "$0.00012": at least two significant digits.
std::string format_usd(Usd amount);
/// "1 step", "2 steps".
std::string plural(std::size_t count, std::string_view noun);

/// Names the commands that usually come next on stderr, as lines "next: COMMAND". Prints nothing unless stdout and
/// stderr are terminals.
void suggest_next(const std::vector<std::string>& commands);

enum class Align { left, right };

/// A plain-text table: header, rule, rows; columns as wide as their longest cell.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::right;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// One cell for each column.
  void add_row(std::vector<std::string> cells);
  /// Removes those of the named columns in which all rows agree, and returns their values: "gpu cpu, ranks 2". A table
  /// of fewer than two rows is not changed.
  std::string fold_constant_columns(const std::vector<std::string_view>& titles);
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] std::size_t rows() const { return rows_.size(); }

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// One line on stderr that is rewritten in place: "profiling [#####.....]  48%, 12 s left  block, micro-batch 4".
/// Silent unless stderr is a terminal.
class Progress {
 public:
  explicit Progress(std::string title, std::size_t steps = 1);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Whether there is a terminal to show it on.
  [[nodiscard]] bool is_active() const { return active_; }
  /// Whether the line is active and was last updated over a tenth of a second ago: for callers with frequent updates.
  [[nodiscard]] bool is_due() const;
  /// `done` of the steps are finished; `what` is in progress.
  void update(std::size_t done, std::string_view what = {}) { update(done, steps_, what); }
  /// The same if the number of steps becomes known or changes on the way.
  void update(std::size_t done, std::size_t steps, std::string_view what);
  /// The same if the caller knows the time left, which need not follow from the share (0 to 1) that is done.
  void update(double share, Seconds left, std::string_view what);
  /// The same if nobody knows how much there is to do.
  void update(std::string_view what);
  /// Clears the line.
  void finish();

 private:
  void show(double share, std::string_view what, std::string_view left);
  void show(std::string_view line);

  std::string title_;
  std::size_t steps_;
  bool active_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_shown_{};
};

}  // namespace sailor
