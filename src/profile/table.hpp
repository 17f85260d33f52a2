// Ties the members of a struct to the fields of a compound table: one list of columns serves writing, reading and
// checking. Private to this folder.
//
//   const Table<LinkMeasurement> links{"links", {text("from_gpu", MEMBER(from_gpu)), ...}};
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "profile/hdf5_file.hpp"

namespace sailor::hdf5 {

template <class Row>
struct Column {
  ColumnInfo info;
  std::function<Cell(const Row&)> get;
  /// Stores the value, or returns why it is invalid.
  std::function<std::optional<std::string>(Row&, const Cell&)> set;
  /// The same as `set` for rows[0], ..., rows[count - 1]; without it, `set` is called for every row.
  std::function<std::optional<BlockProblem>(Row* rows, std::size_t count, const FieldBlock& values)> load{};
  bool optional = false;  ///< text formats may leave it out: it then has its default
};

template <class Row>
Column<Row> optional(Column<Row> column) {
  column.optional = true;
  return column;
}

struct IntegerLimits {
  std::int64_t minimum = 0;
  std::int64_t maximum = std::int64_t{1} << 53;
};

/// Rejects numbers that cannot be measurements: negative, not finite, or beyond anything that exists (10^18 bytes or
/// seconds).
inline std::optional<std::string> problem_with_amount(double value) {
  if (!std::isfinite(value)) return fmt::format("{} is not finite", value);
  if (value < 0.0) return fmt::format("{} is negative", value);
  if (value > 1e18) return fmt::format("{} is absurdly large", value);
  return std::nullopt;
}

/// Column::load from `one(rows, row, values)`, which stores one value or returns why it is invalid.
template <class Row, class One>
auto row_by_row(One one) {
  return [one](Row* rows, std::size_t count, const FieldBlock& values) -> std::optional<BlockProblem> {
    for (std::size_t row = 0; row < count; ++row)
      if (std::optional<std::string> problem = one(rows, row, values)) return BlockProblem{row, *std::move(problem)};
    return std::nullopt;
  };
}

/// Names are printed and compared: they must not be empty or hold control characters.
inline std::optional<std::string> problem_with_name(const std::string& name) {
  if (name.empty()) return "the text is empty";
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "the text has control characters";
  return std::nullopt;
}

// `member` takes a Row by (const) reference and returns a reference to the member.

template <class Row, class Member>
Column<Row> text(std::string name, Member member) {
  return {.info = {std::move(name), ColumnType::text, "1"},
          .get = [member](const Row& row) -> Cell { return member(row); },
          .set =
              [member](Row& row, const Cell& cell) {
                member(row) = std::get<std::string>(cell);
                return problem_with_name(member(row));
              },
          .load = row_by_row<Row>(
              [member](Row* rows, std::size_t row, const FieldBlock& values) -> std::optional<std::string> {
                if (values.repeats(row)) {
                  member(rows[row]) = member(rows[row - 1]);
                  return std::nullopt;
                }
                member(rows[row]) = values.text(row);
                return problem_with_name(member(rows[row]));
              })};
}

/// Text that may be empty and hold anything but NUL.
template <class Row, class Member>
Column<Row> free_text(std::string name, Member member) {
  return {.info = {std::move(name), ColumnType::text, "1"},
          .get = [member](const Row& row) -> Cell { return member(row); },
          .set = [member](Row& row, const Cell& cell) -> std::optional<std::string> {
            member(row) = std::get<std::string>(cell);
            return std::nullopt;
          },
          .load = row_by_row<Row>(
              [member](Row* rows, std::size_t row, const FieldBlock& values) -> std::optional<std::string> {
                member(rows[row]) = values.text(row);
                return std::nullopt;
              })};
}

/// Any finite number.
template <class Row, class Member>
Column<Row> number(std::string name, std::string unit, Member member) {
  return {.info = {std::move(name), ColumnType::number, std::move(unit)},
          .get = [member](const Row& row) -> Cell { return member(row); },
          .set = [member](Row& row, const Cell& cell) -> std::optional<std::string> {
            member(row) = std::get<double>(cell);
            if (!std::isfinite(member(row))) return fmt::format("{} is not finite", member(row));
            return std::nullopt;
          },
          .load = row_by_row<Row>(
              [member](Row* rows, std::size_t row, const FieldBlock& values) -> std::optional<std::string> {
                const double value = values.number(row);
                member(rows[row]) = value;
                if (!std::isfinite(value)) return fmt::format("{} is not finite", value);
                return std::nullopt;
              })};
}

/// A number that is not negative.
template <class Row, class Member>
Column<Row> amount(std::string name, std::string unit, Member member) {
  return {.info = {std::move(name), ColumnType::number, std::move(unit)},
          .get = [member](const Row& row) -> Cell { return member(row); },
          .set =
              [member](Row& row, const Cell& cell) {
                member(row) = std::get<double>(cell);
                return problem_with_amount(member(row));
              },
          .load = row_by_row<Row>(
              [member](Row* rows, std::size_t row, const FieldBlock& values) -> std::optional<std::string> {
                member(rows[row]) = values.number(row);
                return problem_with_amount(values.number(row));
              })};
}

template <class Row, class Member>
Column<Row> integer(std::string name, Member member, IntegerLimits limits) {
  return {.info = {std::move(name), ColumnType::integer, "1"},
          .get = [member](const Row& row) -> Cell { return static_cast<std::int64_t>(member(row)); },
          .set = [member, limits](Row& row, const Cell& cell) -> std::optional<std::string> {
            using Type = std::remove_reference_t<decltype(member(row))>;
            const std::int64_t value = std::get<std::int64_t>(cell);
            if (value < limits.minimum || value > limits.maximum || value > std::numeric_limits<Type>::max())
              return fmt::format("{} is out of range", value);
            member(row) = static_cast<Type>(value);
            return std::nullopt;
          },
          .load = row_by_row<Row>(
              [member, limits](Row* rows, std::size_t row, const FieldBlock& values) -> std::optional<std::string> {
                using Type = std::remove_reference_t<decltype(member(rows[row]))>;
                const std::int64_t value = values.integer(row);
                if (value < limits.minimum || value > limits.maximum || value > std::numeric_limits<Type>::max())
                  return fmt::format("{} is out of range", value);
                member(rows[row]) = static_cast<Type>(value);
                return std::nullopt;
              })};
}

/// A Quantity, in its base unit, which the name must end with.
template <class Row, class Member>
Column<Row> quantity(std::string name, std::string unit, Member member) {
  return {.info = {std::move(name), ColumnType::number, std::move(unit)},
          .get = [member](const Row& row) -> Cell { return member(row).value(); },
          .set =
              [member](Row& row, const Cell& cell) {
                using Type = std::remove_reference_t<decltype(member(row))>;
                const double value = std::get<double>(cell);
                member(row) = Type(value);
                return problem_with_amount(value);
              },
          .load = row_by_row<Row>(
              [member](Row* rows, std::size_t row, const FieldBlock& values) -> std::optional<std::string> {
                using Type = std::remove_reference_t<decltype(member(rows[row]))>;
                member(rows[row]) = Type(values.number(row));
                return problem_with_amount(values.number(row));
              })};
}

/// Finds the value 0, 1, ..., last whose to_string() is `name`.
template <class Enum>
std::optional<std::string> choose(Enum& value, std::string_view name, Enum last) {
  std::string known;
  for (int i = 0; i <= static_cast<int>(last); ++i)
    if (to_string(static_cast<Enum>(i)) == name) {
      value = static_cast<Enum>(i);
      return std::nullopt;
    }
  for (int i = 0; i <= static_cast<int>(last); ++i)
    known += (i > 0 ? ", " : "") + std::string(to_string(static_cast<Enum>(i)));
  return fmt::format("'{}' is not one of: {}", name, known);
}

/// An enumeration, stored by the to_string() names of its values 0, 1, ..., last.
template <class Row, class Member, class Enum>
Column<Row> choice(std::string name, Member member, Enum last) {
  return {.info = {std::move(name), ColumnType::text, "1"},
          .get = [member](const Row& row) -> Cell { return std::string(to_string(member(row))); },
          .set = [member, last](Row& row, const Cell& cell) -> std::optional<std::string> {
            return choose(member(row), std::get<std::string>(cell), last);
          },
          .load = row_by_row<Row>(
              [member, last](Row* rows, std::size_t row, const FieldBlock& values) -> std::optional<std::string> {
                if (values.repeats(row)) {
                  member(rows[row]) = member(rows[row - 1]);
                  return std::nullopt;
                }
                return choose(member(rows[row]), values.text(row), last);
              })};
}

template <class Row>
class Table {
 public:
  Table(std::string name, std::vector<Column<Row>> columns) : name_(std::move(name)), columns_(std::move(columns)) {
    for (const Column<Row>& column : columns_) infos_.push_back(column.info);
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Column<Row>>& columns() const { return columns_; }

  /// Refuses what read() would refuse, so that every written file can be read.
  Result<void> write(FileWriter& file, const std::vector<Row>& rows) const {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      Row copy = rows[row];
      for (const Column<Row>& column : columns_)
        if (const auto problem = column.set(copy, column.get(rows[row])))
          return fail(ErrorCode::invalid_input,
                      fmt::format("row {} of table '{}', field '{}': {}", row, name_, column.info.name, *problem));
    }
    return file.table(name_, infos_, rows.size(),
                      [&](std::size_t row, std::size_t column) { return columns_[column].get(rows[row]); });
  }

  Result<std::vector<Row>> read(const FileReader& file) const {
    std::vector<Row> rows;
    auto done = file.table(name_, infos_,
                           [&](std::size_t first, std::size_t count, std::size_t column, const FieldBlock& values) {
                             rows.resize(std::max(rows.size(), first + count));
                             return load(columns_[column], rows.data() + first, count, values);
                           });
    if (!done) return fail(done.error());
    return rows;
  }

 private:
  static std::optional<BlockProblem> load(const Column<Row>& column, Row* rows, std::size_t count,
                                          const FieldBlock& values) {
    if (column.load) return column.load(rows, count, values);
    return row_by_row<Row>([&](Row* all, std::size_t row, const FieldBlock& block) {
      const ColumnType type = column.info.type;
      return column.set(all[row], type == ColumnType::text      ? Cell(std::string(block.text(row)))
                                  : type == ColumnType::integer ? Cell(block.integer(row))
                                                                : Cell(block.number(row)));
    })(rows, count, values);
  }

  std::string name_;
  std::vector<Column<Row>> columns_;
  std::vector<ColumnInfo> infos_;
};

}  // namespace sailor::hdf5

/// A function object that returns a reference to a member: SAILOR_MEMBER(key.model).
// NOLINTBEGIN(bugprone-macro-parentheses): the path is no expression
#define SAILOR_MEMBER(path) \
  [](auto& row) -> auto& { return row.path; }
// NOLINTEND(bugprone-macro-parentheses)
