// The text format of a store. Everything here works on cells, so that profile/tables.hpp has the only list of columns.
#include "profile/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "core/files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"
#include "profile/tables.hpp"

namespace sailor {

namespace {

using hdf5::Cell;
using hdf5::ColumnType;

constexpr int text_schema_version = 2;
constexpr std::string_view text_kind = "sailor-profile-text";
constexpr std::string_view median_suffix = "_median_s";
constexpr std::size_t times_width = 6;  // median, p10, p90, low, high, samples
constexpr double exact_integers = 9007199254740992.0;

/// The shortest text that reads back as the same value.
std::string number_text(double value) {
  if (value == 0.0) return std::signbit(value) ? "-0.0" : "0";
  if (value == std::trunc(value) && std::abs(value) < exact_integers)
    return fmt::to_string(static_cast<std::int64_t>(value));
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string toml_text(const Cell& cell) {
  if (const auto* integer = std::get_if<std::int64_t>(&cell)) return fmt::to_string(*integer);
  if (const auto* number = std::get_if<double>(&cell)) return number_text(*number);
  return toml_quote(std::get<std::string>(cell));
}

/// Equal to the last bit: zero has a sign.
bool same(const Cell& a, const Cell& b) {
  const auto* x = std::get_if<double>(&a);
  const auto* y = std::get_if<double>(&b);
  return a == b && (x == nullptr || y == nullptr || std::signbit(*x) == std::signbit(*y));
}

std::string csv_text(const Cell& cell) {
  const auto* text = std::get_if<std::string>(&cell);
  if (text == nullptr) return toml_text(cell);
  if (text->find_first_of("\",\r\n") == std::string::npos) return *text;
  std::string quoted = "\"";
  for (const char c : *text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

/// A table as cells.
struct Cells {
  std::vector<std::string> columns{};
  std::vector<bool> optional{};
  std::vector<Cell> defaults{};
  std::vector<std::vector<Cell>> rows{};
};

Cells cells_of(const hdf5::TableOfRows& table, const void* rows, std::size_t count) {
  Cells cells;
  for (const hdf5::Column& column : table.columns()) {
    cells.columns.push_back(column.info.name);
    cells.optional.push_back(column.optional);
    cells.defaults.push_back(column.get(table.default_row()));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const void* row = static_cast<const char*>(rows) + i * table.row_size();
    std::vector<Cell>& line = cells.rows.emplace_back();
    for (const hdf5::Column& column : table.columns()) line.push_back(column.get(row));
  }
  return cells;
}
template <class Row>
Cells cells_of(const hdf5::Table<Row>& table, const std::vector<Row>& rows) {
  return cells_of(table, rows.data(), rows.size());
}

/// "forward" for "forward_median_s", the first of the six columns of a time; empty for other columns.
std::string name_of_times(const std::string& column) {
  return column.ends_with(median_suffix) ? column.substr(0, column.size() - median_suffix.size()) : "";
}

/// Whether six cells are a TimeStatistics::single().
bool is_single(const std::vector<Cell>& row, std::size_t first) {
  for (std::size_t i = 1; i + 1 < times_width; ++i)
    if (!same(row[first + i], row[first])) return false;
  return row[first + times_width - 1] == Cell(std::int64_t{0});
}

/// A new group begins where one of these changes.
constexpr std::array<std::string_view, 8> group_columns{"model",           "gpu",   "precision", "recompute",
                                                        "sequence_length", "scope", "operation", "session"};
constexpr std::array<std::string_view, 4> curve_columns{"quadratic_gb_per_s", "linear_gb_per_s", "constant_gb_per_s",
                                                        "largest_bandwidth_bytes_per_s"};

template <class Names>
std::vector<std::size_t> positions(const Cells& cells, const Names& names) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < cells.columns.size(); ++i)
    if (std::find(names.begin(), names.end(), cells.columns[i]) != names.end()) found.push_back(i);
  return found;
}

/// Begins of the runs of rows in [begin, end) that agree in `columns`; `end` comes last.
std::vector<std::size_t> runs(const Cells& cells, std::size_t begin, std::size_t end,
                              const std::vector<std::size_t>& columns) {
  std::vector<std::size_t> starts{begin};
  for (std::size_t row = begin + 1; row < end; ++row)
    if (std::any_of(columns.begin(), columns.end(),
                    [&](std::size_t column) { return !same(cells.rows[row][column], cells.rows[row - 1][column]); }))
      starts.push_back(row);
  starts.push_back(end);
  return starts;
}

std::string group_text(const std::string& table, const Cells& cells, std::size_t begin, std::size_t end) {
  std::string constants;
  std::vector<std::string> names;
  std::vector<std::size_t> varying;
  auto all = [&](auto&& holds) {
    return std::all_of(cells.rows.begin() + static_cast<std::ptrdiff_t>(begin),
                       cells.rows.begin() + static_cast<std::ptrdiff_t>(end), holds);
  };
  for (std::size_t column = 0; column < cells.columns.size(); ++column) {
    const std::string times = name_of_times(cells.columns[column]);
    const std::size_t first = column;
    std::string name = cells.columns[column];
    if (!times.empty() && all([&](const auto& row) { return is_single(row, first); })) {
      name = times + "_s";
      column += times_width - 1;
    }
    const Cell& value = cells.rows[begin][first];
    const bool constant = all([&](const auto& row) { return same(row[first], value); });
    if (constant && cells.optional[first] && same(value, cells.defaults[first])) continue;
    if (constant) {
      constants += fmt::format("{} = {}\n", name, toml_text(value));
    } else {
      names.push_back(toml_quote(name));
      varying.push_back(first);
    }
  }
  std::string text = fmt::format("\n[[{}]]\n{}", table, constants);
  const bool one_row = end - begin == 1;
  if (one_row) return text;
  text += fmt::format("columns = [{}]\nrows = [\n", join(names, ", "));
  for (std::size_t row = begin; row < end; ++row) {
    std::vector<std::string> values;
    for (const std::size_t column : varying) values.push_back(toml_text(cells.rows[row][column]));
    text += fmt::format("  [{}],\n", join(values, ", "));
  }
  return text + "]\n";
}

std::string table_text(const std::string& table, const Cells& cells) {
  if (cells.rows.empty()) return "";
  const std::vector<std::size_t> grouping = positions(cells, group_columns);
  std::vector<std::size_t> with_curve = positions(cells, curve_columns);
  with_curve.insert(with_curve.end(), grouping.begin(), grouping.end());
  std::string text;
  const std::vector<std::size_t> groups = runs(cells, 0, cells.rows.size(), grouping);
  for (std::size_t i = 0; i + 1 < groups.size(); ++i) {
    // Rows of one curve share a group if that saves much: published curves often stand for many links.
    std::vector<std::size_t> parts{groups[i], groups[i + 1]};
    if (with_curve.size() > grouping.size()) {
      const std::vector<std::size_t> curves = runs(cells, groups[i], groups[i + 1], with_curve);
      if (3 * (curves.size() - 1) <= groups[i + 1] - groups[i]) parts = curves;
    }
    for (std::size_t part = 0; part + 1 < parts.size(); ++part)
      text += group_text(table, cells, parts[part], parts[part + 1]);
  }
  return text;
}

/// Sessions are written key by key, each its own group.
std::string sessions_text(const Cells& cells) {
  std::string text;
  for (std::size_t row = 0; row < cells.rows.size(); ++row)
    text += group_text(session_table().name(), cells, row, row + 1);
  return text;
}

// ---- Reading

tl::unexpected<Error> invalid(const std::string& where, const std::string& what, std::string hint = {}) {
  return fail(ErrorCode::invalid_input, fmt::format("{}: {}", where, what), std::move(hint));
}

/// Converts a TOML value to a cell of a column; or returns what is wrong.
Result<Cell> to_cell(const TomlValue& value, ColumnType type, const std::string& where, const std::string& name) {
  const char* found = value.index() == 0 ? "an integer" : value.index() == 1 ? "a number" : "a string";
  auto wrong = [&](const char* wanted) {
    return invalid(where, fmt::format("'{}' must be {}, not {}", name, wanted, found));
  };
  switch (type) {
    case ColumnType::integer:
      if (!std::holds_alternative<std::int64_t>(value)) return wrong("an integer");
      return Cell(std::get<std::int64_t>(value));
    case ColumnType::number:
      if (const auto* integer = std::get_if<std::int64_t>(&value)) {
        if (std::abs(static_cast<double>(*integer)) > exact_integers)
          return invalid(where, fmt::format("'{}' is {}, too large to be exact", name, *integer),
                         "write it as a float");
        return Cell(static_cast<double>(*integer));
      }
      if (!std::holds_alternative<double>(value)) return wrong("a number");
      return Cell(std::get<double>(value));
    case ColumnType::text:
      break;
  }
  if (!std::holds_alternative<std::string>(value)) return wrong("a string");
  if (std::get<std::string>(value).find('\0') != std::string::npos)
    return invalid(where, fmt::format("'{}' has a NUL character", name));
  return Cell(std::get<std::string>(value));
}

/// Target of a name in the text: one column, or the six of a time without a spread.
struct Target {
  std::size_t column = 0;
  bool times = false;
};

std::map<std::string, Target> targets_of(const hdf5::TableOfRows& table) {
  std::map<std::string, Target> targets;
  for (std::size_t i = 0; i < table.columns().size(); ++i) {
    const std::string& name = table.columns()[i].info.name;
    targets[name] = {i, false};
    if (const std::string times = name_of_times(name); !times.empty()) targets[times + "_s"] = {i, true};
  }
  return targets;
}

Result<void> set_value(const hdf5::TableOfRows& table, void* row, const Target& target, const TomlValue& value,
                       const std::string& where, const std::string& name) {
  const auto cell = to_cell(value, table.columns()[target.column].info.type, where, name);
  if (!cell) return fail(cell.error());
  const std::size_t last = target.column + (target.times ? times_width - 2 : 0);
  for (std::size_t column = target.column; column <= last; ++column)
    if (const auto problem = table.columns()[column].set(row, *cell))
      return invalid(where, fmt::format("'{}': {}", name, *problem));
  return {};
}

/// Resolves names and records that they were given; errors say what is wrong with a name.
class Names {
 public:
  explicit Names(const hdf5::TableOfRows& table) : table_(table), targets_(targets_of(table)) {}

  Result<Target> take(const std::string& name, const std::string& where) {
    const auto target = targets_.find(name);
    if (target == targets_.end()) {
      std::vector<std::string> known;
      for (const auto& [other, unused] : targets_) known.push_back(other);
      return invalid(where, fmt::format("table '{}' has no column '{}'", table_.name(), name),
                     did_you_mean(name, known, fmt::format("its columns: {}", join(known, ", "))));
    }
    const std::size_t width = target->second.times ? times_width : 1;
    for (std::size_t column = target->second.column; column < target->second.column + width; ++column)
      if (!given_.insert(column).second)
        return invalid(where, fmt::format("'{}' is given twice", table_.columns()[column].info.name));
    return target->second;
  }

  Result<void> check_complete(const std::string& where) const {
    for (std::size_t i = 0; i < table_.columns().size(); ++i) {
      const auto& column = table_.columns()[i];
      if (column.optional || given_.contains(i)) continue;
      const std::string times = name_of_times(column.info.name);
      return invalid(where, fmt::format("table '{}' lacks the column '{}'{}", table_.name(), column.info.name,
                                        times.empty() ? "" : fmt::format(" (or '{}_s')", times)));
    }
    return {};
  }

 private:
  const hdf5::TableOfRows& table_;
  std::map<std::string, Target> targets_;
  std::set<std::size_t> given_{};
};

/// Reads one group: keys hold for all its rows; a group without `rows` is one row. `common` is a row of defaults;
/// add() appends what `common` has become and returns the address of the new row.
Result<void> read_group(const hdf5::TableOfRows& table, const TomlTable& group, void* common,
                        const std::function<void*()>& add) {
  Names names(table);
  bool has_rows = false;
  for (const std::string& key : group.keys()) {
    if (key == "columns" || key == "rows") {
      has_rows = true;
      continue;
    }
    const auto target = names.take(key, group.where(key));
    if (!target) return fail(target.error());
    SAILOR_CHECK(set_value(table, common, *target, group.value(key), group.where(key), key));
  }
  if (!has_rows) {
    SAILOR_CHECK(names.check_complete(group.where()));
    add();
    return {};
  }
  const std::vector<std::string> columns = group.texts("columns");
  std::vector<Target> targets;
  for (const std::string& column : columns) {
    const auto target = names.take(column, group.where("columns"));
    if (!target) return fail(target.error());
    targets.push_back(*target);
  }
  SAILOR_CHECK(names.check_complete(group.where()));
  for (const TomlRow& line : group.rows("rows")) {
    if (line.values.size() != columns.size())
      return invalid(line.where, fmt::format("the row has {} values but there are {} columns ({})", line.values.size(),
                                             columns.size(), join(columns, ", ")));
    void* row = add();
    for (std::size_t i = 0; i < columns.size(); ++i)
      SAILOR_CHECK(set_value(table, row, targets[i], line.values[i], line.where, columns[i]));
  }
  return {};
}

template <class Row>
Result<void> read_table(const hdf5::Table<Row>& table, const TomlDocument& document, std::vector<Row>& rows) {
  for (const TomlTable& group : document.root().tables(table.name())) {
    Row common{};
    const auto read = read_group(table, group, &common, [&]() -> void* { return &rows.emplace_back(common); });
    // A value of a wrong type was recorded by the document, and read as a harmless one.
    if (!document.good()) return document.finish();
    SAILOR_CHECK(read);
  }
  return {};
}

}  // namespace

std::string to_toml(const ProfileData& data, std::string_view comment) {
  std::string text;
  while (!comment.empty()) {
    const std::size_t end = std::min(comment.find('\n'), comment.size());
    text += fmt::format("#{}{}\n", end > 0 ? " " : "", valid_utf8(comment.substr(0, end)));
    comment.remove_prefix(std::min(end + 1, comment.size()));
  }
  text += fmt::format("schema_version = {}\nkind = \"{}\"\n", text_schema_version, text_kind);
  text += sessions_text(cells_of(session_table(), data.sessions));
  const auto added = for_each_table(data, [&](const auto& table, const auto& rows) -> Result<void> {
    text += table_text(table.name(), cells_of(table, rows));
    return {};
  });
  static_cast<void>(added);  // it never fails
  return text;
}

Result<ProfileData> parse_profile_toml(std::string_view text, std::string_view source_name) {
  const auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(text_schema_version, TomlKind::profile);
  const std::vector<std::string_view> kinds{text_kind};
  const bool known_kind = document->root().choice("kind", kinds) == 0;
  if (!known_kind || !document->good()) return fail(document->finish().error());
  ProfileData data;
  SAILOR_CHECK(read_table(session_table(), *document, data.sessions));
  std::set<std::string> ids;
  for (const Session& session : data.sessions)
    if (!ids.insert(session.id).second)
      return invalid(std::string(source_name), fmt::format("two sessions have the id '{}'", session.id));
  const auto read = for_each_table(data, [&](const auto& table, auto& rows) -> Result<void> {
    if (auto done = read_table(table, *document, rows); !done) return done;
    for (const auto& row : rows)
      if (row.session >= static_cast<int>(data.sessions.size()))
        return invalid(std::string(source_name), fmt::format("a row of table '{}' is of session {} but there are {}",
                                                             table.name(), row.session, data.sessions.size()));
    return {};
  });
  if (!read) return fail(read.error());
  SAILOR_CHECK(document->finish());
  return data;
}

Result<ProfileData> load_profile_text(const std::filesystem::path& path) {
  const auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_profile_toml(*text, path.string());
}

std::vector<std::pair<std::string, std::string>> to_csv(const ProfileData& data) {
  std::vector<std::pair<std::string, std::string>> files;
  auto add = [&](const auto& table, const auto& rows) -> Result<void> {
    if (rows.empty()) return {};
    const Cells cells = cells_of(table, rows);
    std::string text = fmt::format("{}\r\n", join(cells.columns, ","));
    for (const auto& row : cells.rows) {
      std::vector<std::string> values;
      for (const Cell& cell : row) values.push_back(csv_text(cell));
      text += fmt::format("{}\r\n", join(values, ","));
    }
    files.emplace_back(table.name(), std::move(text));
    return {};
  };
  static_cast<void>(add(session_table(), data.sessions));
  static_cast<void>(for_each_table(data, add));  // it never fails
  return files;
}

std::vector<std::string> profile_table_names() {
  std::vector<std::string> names{session_table().name()};
  const ProfileData nothing;
  static_cast<void>(for_each_table(nothing, [&](const auto& table, const auto&) -> Result<void> {
    names.push_back(table.name());
    return {};
  }));
  return names;
}

}  // namespace sailor
