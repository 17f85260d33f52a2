// Ties the members of a struct to the fields of a compound table: one list of columns serves writing, reading and
// checking. Private to this folder.
//
//   const Table<LinkMeasurement> links{"links", {text<LinkMeasurement>("from_gpu", SAILOR_MEMBER(key.from.gpu)), ...}};
//
// A column knows the offset of its member in the row; the code that reads and writes a type of field is shared by all
// tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "profile/hdf5_file.hpp"

namespace sailor::hdf5 {

/// How a type of field is stored and what it accepts.
class Field {
 public:
  explicit Field(ColumnType type) : type_(type) {}
  Field(const Field&) = delete;
  Field& operator=(const Field&) = delete;
  virtual ~Field() = default;

  [[nodiscard]] ColumnType type() const { return type_; }
  [[nodiscard]] virtual Cell get(const void* member) const = 0;
  /// Stores the value, or returns why it is invalid.
  virtual std::optional<std::string> set(void* member, const Cell& cell) const = 0;
  /// The same as set() for `count` members, which lie `stride` bytes apart.
  virtual std::optional<BlockProblem> load(char* first, std::size_t stride, std::size_t count,
                                           const FieldBlock& values) const;

 private:
  ColumnType type_;
};

struct IntegerLimits {
  std::int64_t minimum = 0;
  std::int64_t maximum = std::int64_t{1} << 53;
};

/// Rejects numbers that cannot be measurements: negative, not finite, or beyond anything that exists (10^18 bytes or
/// seconds).
std::optional<std::string> problem_with_amount(double value);
/// Names are printed and compared: they must not be empty or hold control characters.
std::optional<std::string> problem_with_name(const std::string& name);
std::optional<std::string> problem_if_not_finite(double value);

/// Returns why a number is invalid.
using CheckNumber = std::optional<std::string> (*)(double value);

// The types of fields. The comment gives the type of the member.
std::shared_ptr<const Field> name_field();                                       // std::string
std::shared_ptr<const Field> free_text_field();                                  // std::string
std::shared_ptr<const Field> number_field(CheckNumber check);                    // double or Quantity
std::shared_ptr<const Field> integer_field(IntegerLimits limits, std::int32_t);  // std::int32_t
std::shared_ptr<const Field> integer_field(IntegerLimits limits, std::int64_t);  // std::int64_t
std::shared_ptr<const Field> choice_field(std::vector<std::string_view> names);  // enumeration 0, 1, ... over int

/// A field of a table and its member's place in the row. A row is passed by its address, as its type is not known here.
struct Column {
  ColumnInfo info;
  std::size_t offset = 0;  ///< of the member, in bytes
  std::shared_ptr<const Field> field;
  bool optional = false;  ///< text formats may leave it out: it then has its default

  [[nodiscard]] Cell get(const void* row) const { return field->get(static_cast<const char*>(row) + offset); }
  /// Stores the value, or returns why it is invalid.
  std::optional<std::string> set(void* row, const Cell& cell) const {
    return field->set(static_cast<char*>(row) + offset, cell);
  }
};

inline Column optional(Column column) {
  column.optional = true;
  return column;
}

/// A row of defaults.
template <class Row>
const Row& default_row() {
  static const Row row{};
  return row;
}

// `member` takes a Row by (const) reference and returns a reference to the member.

template <class Row, class Member>
using MemberType = std::remove_cvref_t<std::invoke_result_t<Member, Row&>>;

/// In bytes from the beginning of the row.
template <class Row, class Member>
std::size_t offset_of(Member member) {
  const auto* row = reinterpret_cast<const char*>(&default_row<Row>());
  return static_cast<std::size_t>(reinterpret_cast<const char*>(&member(default_row<Row>())) - row);
}

template <class Row, class Member>
Column column(std::string name, std::string unit, Member member, std::shared_ptr<const Field> field) {
  const ColumnType type = field->type();
  return {{std::move(name), type, std::move(unit)}, offset_of<Row>(member), std::move(field)};
}

template <class Row, class Member>
Column text(std::string name, Member member) {
  static_assert(std::is_same_v<MemberType<Row, Member>, std::string>);
  return column<Row>(std::move(name), "1", member, name_field());
}

/// Text that may be empty and hold anything but NUL.
template <class Row, class Member>
Column free_text(std::string name, Member member) {
  static_assert(std::is_same_v<MemberType<Row, Member>, std::string>);
  return column<Row>(std::move(name), "1", member, free_text_field());
}

template <class Type>
inline constexpr bool is_number = std::is_same_v<Type, double>;
// The address of an object of standard layout is that of its first member.
template <class Tag>
inline constexpr bool is_number<Quantity<Tag>> = std::is_standard_layout_v<Quantity<Tag>> &&
                                                 sizeof(Quantity<Tag>) == sizeof(double);

/// A number that `check` accepts: a double, or a Quantity in its base unit, which the name must end with.
template <class Row, class Member>
Column number(std::string name, std::string unit, Member member, CheckNumber check = problem_if_not_finite) {
  static_assert(is_number<MemberType<Row, Member>>);
  return column<Row>(std::move(name), std::move(unit), member, number_field(check));
}

/// A number that is not negative.
template <class Row, class Member>
Column amount(std::string name, std::string unit, Member member) {
  return number<Row>(std::move(name), std::move(unit), member, problem_with_amount);
}

template <class Row, class Member>
Column integer(std::string name, Member member, IntegerLimits limits) {
  return column<Row>(std::move(name), "1", member, integer_field(limits, MemberType<Row, Member>()));
}

/// An enumeration, stored by the to_string() names of its values 0, 1, ..., last.
template <class Row, class Member, class Enum>
Column choice(std::string name, Member member, Enum last) {
  static_assert(std::is_same_v<MemberType<Row, Member>, Enum> && std::is_same_v<std::underlying_type_t<Enum>, int>);
  std::vector<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) names.push_back(to_string(static_cast<Enum>(i)));
  return column<Row>(std::move(name), "1", member, choice_field(std::move(names)));
}

/// Appends the columns of a part of the row, whose names get a prefix. `member` returns the part.
template <class Row, class Member>
void append_part(std::vector<Column>& columns, const std::string& prefix, Member member, std::vector<Column> part,
                 bool may_be_left_out = false) {
  const std::size_t offset = offset_of<Row>(member);
  for (Column& column : part) {
    column.info.name = prefix + column.info.name;
    column.offset += offset;
    column.optional = column.optional || may_be_left_out;
    columns.push_back(std::move(column));
  }
}

/// A table without the type of its rows.
class TableOfRows {
 public:
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Column>& columns() const { return columns_; }
  [[nodiscard]] std::size_t row_size() const { return row_size_; }
  [[nodiscard]] const void* default_row() const { return default_row_; }

 protected:
  TableOfRows(std::string name, std::vector<Column> columns, std::size_t row_size, const void* default_row);
  /// `scratch` is a row that may be overwritten.
  Result<void> write_rows(FileWriter& file, const char* rows, std::size_t count, void* scratch) const;
  /// resize(n) makes room for n rows and returns the address of the first.
  Result<void> read_rows(const FileReader& file, const std::function<char*(std::size_t)>& resize) const;

 private:
  std::string name_;
  std::vector<Column> columns_;
  std::vector<ColumnInfo> infos_;
  std::size_t row_size_;
  const void* default_row_;
};

template <class Row>
class Table : public TableOfRows {
 public:
  Table(std::string name, std::vector<Column> columns)
      : TableOfRows(std::move(name), std::move(columns), sizeof(Row), &hdf5::default_row<Row>()) {}

  /// Refuses what read() would refuse, so that every written file can be read.
  Result<void> write(FileWriter& file, const std::vector<Row>& rows) const {
    Row scratch{};
    return write_rows(file, reinterpret_cast<const char*>(rows.data()), rows.size(), &scratch);
  }

  Result<std::vector<Row>> read(const FileReader& file) const {
    std::vector<Row> rows;
    SAILOR_CHECK(read_rows(file, [&](std::size_t count) {
      if (count > rows.size()) rows.resize(count);
      return reinterpret_cast<char*>(rows.data());
    }));
    return rows;
  }
};

}  // namespace sailor::hdf5

/// A function object that returns a reference to a member: SAILOR_MEMBER(key.model).
// NOLINTBEGIN(bugprone-macro-parentheses): the path is no expression
#define SAILOR_MEMBER(path) \
  [](auto& row) -> auto& { return row.path; }
// NOLINTEND(bugprone-macro-parentheses)
