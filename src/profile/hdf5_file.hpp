// HDF5 files as Sailor writes them: attributes and compound tables, each field with a unit. Private to this folder.
//
// Files are validated before their content is used: a damaged or hostile file gives an error that names it. Metadata
// carry checksums (format of HDF5 1.10) and rows a Fletcher-32, so the library detects flipped bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/error.hpp"

namespace sailor::hdf5 {

enum class ColumnType { integer, number, text };  // 64-bit signed, binary64, fixed-length UTF-8
using Cell = std::variant<std::int64_t, double, std::string>;

/// A field of a compound table. Text and counts have the unit "1".
struct ColumnInfo {
  std::string name;
  ColumnType type = ColumnType::number;
  std::string unit;
  bool may_be_missing = false;  ///< files of earlier versions do not have it: it then keeps its default
};

/// One field of several rows, as read from the file.
class FieldBlock {
 public:
  /// Row i lies at `first + i * stride`; text has `length` bytes, padded with NULs or spaces.
  FieldBlock(const char* first, std::size_t stride, std::size_t length, bool space_padded)
      : first_(first), stride_(stride), length_(length), space_padded_(space_padded) {}
  [[nodiscard]] std::int64_t integer(std::size_t row) const { return value<std::int64_t>(row); }
  [[nodiscard]] double number(std::size_t row) const { return value<double>(row); }
  [[nodiscard]] std::string_view text(std::size_t row) const;  ///< without the padding
  /// Whether the row has the same bytes as the previous one: names repeat.
  [[nodiscard]] bool repeats(std::size_t row) const {
    return row > 0 && std::memcmp(first_ + row * stride_, first_ + (row - 1) * stride_, length_) == 0;
  }

 private:
  template <class Type>
  [[nodiscard]] Type value(std::size_t row) const {
    Type value;
    std::memcpy(&value, first_ + row * stride_, sizeof(value));
    return value;
  }
  const char* first_;
  std::size_t stride_;
  std::size_t length_;
  bool space_padded_;
};

/// What is wrong with a value, and in which row of its block.
struct BlockProblem {
  std::size_t row = 0;
  std::string what{};
};

/// Text cut at `longest_text_field` bytes, not inside a character, and marked " [cut]": an HDF5 attribute cannot exceed
/// 64 KiB, and every row of a table has room for its longest text.
std::string cut_text(std::string text);
inline constexpr std::size_t longest_text_field = 32000;

/// Writes one file. Its content is on disk only after close(). Errors: io.
class FileWriter {
 public:
  static Result<FileWriter> create(const std::filesystem::path& path);
  FileWriter(FileWriter&&) noexcept;
  FileWriter& operator=(FileWriter&&) noexcept;
  ~FileWriter();

  Result<void> attribute(const std::string& name, std::int64_t value);
  /// The text is cut by cut_text().
  Result<void> attribute(const std::string& name, const std::string& value);
  /// `cell(row, column)` must return the type of the column.
  Result<void> table(const std::string& name, const std::vector<ColumnInfo>& columns, std::size_t rows,
                     const std::function<Cell(std::size_t row, std::size_t column)>& cell);
  /// A scalar string.
  Result<void> text(const std::string& name, const std::string& value);
  Result<void> close();

 private:
  struct State;
  explicit FileWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Reads one file. Errors: not_found (no such file), io, invalid_input (everything that is wrong with the content);
/// all name the file.
class FileReader {
 public:
  static Result<FileReader> open(const std::filesystem::path& path);
  FileReader(FileReader&&) noexcept;
  FileReader& operator=(FileReader&&) noexcept;
  ~FileReader();

  [[nodiscard]] Result<std::int64_t> integer_attribute(const std::string& name) const;
  [[nodiscard]] Result<std::string> text_attribute(const std::string& name) const;
  [[nodiscard]] bool has(const std::string& dataset) const;
  /// Calls block(first row, rows, column, values) for every column of every block of rows, in ascending order of rows.
  /// If it returns problems, the one of the first row ends the reading with an error that says where. Fields that are
  /// not in `columns` are skipped.
  using ReadBlock = std::function<std::optional<BlockProblem>(std::size_t first, std::size_t rows, std::size_t column,
                                                              const FieldBlock& values)>;
  Result<void> table(const std::string& name, const std::vector<ColumnInfo>& columns, const ReadBlock& block) const;
  [[nodiscard]] Result<std::string> text(const std::string& name) const;

  /// An error about this file: "profile file 'x.h5': what".
  [[nodiscard]] tl::unexpected<Error> invalid(std::string what, std::string hint = {}) const;

 private:
  struct State;
  explicit FileReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sailor::hdf5
