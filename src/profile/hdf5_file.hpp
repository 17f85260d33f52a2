// HDF5 files as Sailor writes them: attributes and compound tables, each field with a unit. Private to this folder.
//
// Files are checked before anything is believed: a damaged or hostile file gives an error that names it. Metadata
// carry checksums (format of HDF5 1.10) and rows a Fletcher-32, so flipped bits are found by the library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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
};

/// Writes one file. What is written is on disk only after close(). Errors: io.
class FileWriter {
 public:
  static Result<FileWriter> create(const std::filesystem::path& path);
  FileWriter(FileWriter&&) noexcept;
  FileWriter& operator=(FileWriter&&) noexcept;
  ~FileWriter();

  Result<void> attribute(const std::string& name, std::int64_t value);
  /// Cut at `longest_attribute` bytes: an HDF5 attribute cannot exceed 64 KiB.
  Result<void> attribute(const std::string& name, const std::string& value);
  /// `cell(row, column)` has the type of the column.
  Result<void> table(const std::string& name, const std::vector<ColumnInfo>& columns, std::size_t rows,
                     const std::function<Cell(std::size_t row, std::size_t column)>& cell);
  /// A scalar string.
  Result<void> text(const std::string& name, const std::string& value);
  Result<void> close();

  static constexpr std::size_t longest_attribute = 32000;

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
  /// Calls start(rows) once, then cell(row, column, value) for every cell; a problem that `cell` returns ends the
  /// reading with an error that says where. Fields that `columns` does not name are skipped.
  Result<void> table(
      const std::string& name, const std::vector<ColumnInfo>& columns,
      const std::function<void(std::size_t rows)>& start,
      const std::function<std::optional<std::string>(std::size_t row, std::size_t column, Cell value)>& cell) const;
  [[nodiscard]] Result<std::string> text(const std::string& name) const;

  /// An error about this file: "profile file 'x.h5': what".
  [[nodiscard]] tl::unexpected<Error> invalid(std::string what, std::string hint = {}) const;

 private:
  struct State;
  explicit FileReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sailor::hdf5
