#include "profile/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sailor::hdf5 {

namespace {

Cell cell_of(ColumnType type, const FieldBlock& values, std::size_t row) {
  switch (type) {
    case ColumnType::text:
      return std::string(values.text(row));
    case ColumnType::integer:
      return values.integer(row);
    case ColumnType::number:
      break;
  }
  return values.number(row);
}

/// Field::load() by `store(member, row)`, which stores one value or returns why it is invalid.
template <class Member, class Store>
std::optional<BlockProblem> load_each(char* first, std::size_t stride, std::size_t count, Store store) {
  for (std::size_t row = 0; row < count; ++row)
    if (auto problem = store(*reinterpret_cast<Member*>(first + row * stride), row))
      return BlockProblem{row, *std::move(problem)};
  return std::nullopt;
}

/// Fields whose values repeat from row to row and are cheaper to copy than to check again.
template <class Member, class Check>
std::optional<BlockProblem> load_repeated(char* first, std::size_t stride, std::size_t count, const FieldBlock& values,
                                          Check check) {
  return load_each<Member>(first, stride, count, [&](Member& member, std::size_t row) -> std::optional<std::string> {
    if (!values.repeats(row)) return check(member, values.text(row));
    member = *reinterpret_cast<const Member*>(first + (row - 1) * stride);
    return std::nullopt;
  });
}

class TextField : public Field {
 public:
  explicit TextField(bool is_name) : Field(ColumnType::text), is_name_(is_name) {}
  [[nodiscard]] Cell get(const void* member) const override { return *static_cast<const std::string*>(member); }
  std::optional<std::string> set(void* member, const Cell& cell) const override {
    return store(*static_cast<std::string*>(member), std::get<std::string>(cell));
  }
  std::optional<BlockProblem> load(char* first, std::size_t stride, std::size_t count,
                                   const FieldBlock& values) const override {
    return load_repeated<std::string>(
        first, stride, count, values,
        [this](std::string& member, std::string_view value) { return store(member, value); });
  }

 private:
  std::optional<std::string> store(std::string& member, std::string_view value) const {
    member = value;
    return is_name_ ? problem_with_name(member) : std::nullopt;
  }
  bool is_name_;
};

class NumberField : public Field {
 public:
  explicit NumberField(CheckNumber check) : Field(ColumnType::number), check_(check) {}
  [[nodiscard]] Cell get(const void* member) const override { return *static_cast<const double*>(member); }
  std::optional<std::string> set(void* member, const Cell& cell) const override {
    return check_(*static_cast<double*>(member) = std::get<double>(cell));
  }
  std::optional<BlockProblem> load(char* first, std::size_t stride, std::size_t count,
                                   const FieldBlock& values) const override {
    return load_each<double>(first, stride, count,
                             [&](double& member, std::size_t row) { return check_(member = values.number(row)); });
  }

 private:
  CheckNumber check_;
};

template <class Member>
class IntegerField : public Field {
 public:
  explicit IntegerField(IntegerLimits limits) : Field(ColumnType::integer), limits_(limits) {}
  [[nodiscard]] Cell get(const void* member) const override {
    return static_cast<std::int64_t>(*static_cast<const Member*>(member));
  }
  std::optional<std::string> set(void* member, const Cell& cell) const override {
    return store(*static_cast<Member*>(member), std::get<std::int64_t>(cell));
  }
  std::optional<BlockProblem> load(char* first, std::size_t stride, std::size_t count,
                                   const FieldBlock& values) const override {
    return load_each<Member>(first, stride, count,
                             [&](Member& member, std::size_t row) { return store(member, values.integer(row)); });
  }

 private:
  std::optional<std::string> store(Member& member, std::int64_t value) const {
    if (value < limits_.minimum || value > limits_.maximum || value > std::numeric_limits<Member>::max())
      return fmt::format("{} is out of range", value);
    member = static_cast<Member>(value);
    return std::nullopt;
  }
  IntegerLimits limits_;
};

class ChoiceField : public Field {
 public:
  explicit ChoiceField(std::vector<std::string_view> names) : Field(ColumnType::text), names_(std::move(names)) {}
  [[nodiscard]] Cell get(const void* member) const override {
    return std::string(names_[static_cast<std::size_t>(*static_cast<const int*>(member))]);
  }
  std::optional<std::string> set(void* member, const Cell& cell) const override {
    return store(*static_cast<int*>(member), std::get<std::string>(cell));
  }
  std::optional<BlockProblem> load(char* first, std::size_t stride, std::size_t count,
                                   const FieldBlock& values) const override {
    return load_repeated<int>(first, stride, count, values,
                              [this](int& member, std::string_view value) { return store(member, value); });
  }

 private:
  std::optional<std::string> store(int& member, std::string_view name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) return fmt::format("'{}' is not one of: {}", name, fmt::join(names_, ", "));
    member = static_cast<int>(found - names_.begin());
    return std::nullopt;
  }
  std::vector<std::string_view> names_;
};

}  // namespace

std::optional<BlockProblem> Field::load(char* first, std::size_t stride, std::size_t count,
                                        const FieldBlock& values) const {
  return load_each<char>(first, stride, count,
                         [&](char& member, std::size_t row) { return set(&member, cell_of(type_, values, row)); });
}

std::optional<std::string> problem_with_amount(double value) {
  if (!std::isfinite(value)) return fmt::format("{} is not finite", value);
  if (value < 0.0) return fmt::format("{} is negative", value);
  if (value > 1e18) return fmt::format("{} is absurdly large", value);
  return std::nullopt;
}

std::optional<std::string> problem_with_name(const std::string& name) {
  if (name.empty()) return "the text is empty";
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "the text has control characters";
  return std::nullopt;
}

std::optional<std::string> problem_if_not_finite(double value) {
  if (!std::isfinite(value)) return fmt::format("{} is not finite", value);
  return std::nullopt;
}

std::shared_ptr<const Field> name_field() {
  static const auto field = std::make_shared<const TextField>(true);
  return field;
}

std::shared_ptr<const Field> free_text_field() {
  static const auto field = std::make_shared<const TextField>(false);
  return field;
}

std::shared_ptr<const Field> number_field(CheckNumber check) { return std::make_shared<const NumberField>(check); }

std::shared_ptr<const Field> integer_field(IntegerLimits limits, std::int32_t /*type of the member*/) {
  return std::make_shared<const IntegerField<std::int32_t>>(limits);
}

std::shared_ptr<const Field> integer_field(IntegerLimits limits, std::int64_t /*type of the member*/) {
  return std::make_shared<const IntegerField<std::int64_t>>(limits);
}

std::shared_ptr<const Field> choice_field(std::vector<std::string_view> names) {
  return std::make_shared<const ChoiceField>(std::move(names));
}

TableOfRows::TableOfRows(std::string name, std::vector<Column> columns, std::size_t row_size, const void* default_row)
    : name_(std::move(name)), columns_(std::move(columns)), row_size_(row_size), default_row_(default_row) {
  for (const Column& column : columns_) infos_.push_back(column.info);
}

Result<void> TableOfRows::write_rows(FileWriter& file, const char* rows, std::size_t count, void* scratch) const {
  for (std::size_t row = 0; row < count; ++row)
    for (const Column& column : columns_)
      if (const auto problem = column.set(scratch, column.get(rows + row * row_size_)))
        return fail(ErrorCode::invalid_input,
                    fmt::format("row {} of table '{}', field '{}': {}", row, name_, column.info.name, *problem));
  return file.table(name_, infos_, count,
                    [&](std::size_t row, std::size_t column) { return columns_[column].get(rows + row * row_size_); });
}

Result<void> TableOfRows::read_rows(const FileReader& file, const std::function<char*(std::size_t)>& resize) const {
  return file.table(name_, infos_,
                    [&](std::size_t first, std::size_t count, std::size_t column, const FieldBlock& values) {
                      char* rows = resize(first + count) + first * row_size_;
                      return columns_[column].field->load(rows + columns_[column].offset, row_size_, count, values);
                    });
}

}  // namespace sailor::hdf5
