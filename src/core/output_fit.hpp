// Fits what people read on stdout to the width of their terminal. Files and pipes get all of it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sailor {

/// How wide output may be, and what tables leave out to get there.
struct OutputFit {
  std::size_t columns = 0;                    ///< of a terminal; 0: output is not fitted
  std::string how_to_see_all{};               ///< named where columns are left out: "--format json"
  std::vector<std::string> detail_columns{};  ///< titles of columns that tables leave out first
  std::vector<std::string> key_columns{};     ///< titles of columns that they leave out last
};

/// Fits all tables and fitted() texts made from now on. For main, before there are threads: like the log level it holds
/// for the process, since tables are made far below the programs.
void fit_output(OutputFit fit);
/// The value of the last fit_output().
const OutputFit& output_fit();

/// The text with lines that exceed the width broken at spaces and continued with an indentation: below the second part
/// of a line like "cost   $1 per iteration". Words stay whole, paths among them.
std::string fitted(std::string_view text);

/// Width in columns of the terminal that this file descriptor is; std::nullopt if it is none, or does not say.
std::optional<std::size_t> terminal_width(int descriptor);

/// Columns that the text takes: UTF-8 continuation bytes take none.
std::size_t text_width(std::string_view text);
/// The longest prefix of the text that takes at most `columns` columns; it never ends inside a UTF-8 character.
std::string_view first_columns(std::string_view text, std::size_t columns);

enum class LongWords { broken, whole };
/// Lines of at most so many columns, broken at spaces; words that are longer are broken too, or stay whole, so that one
/// can copy them. All lines but the first begin with `indent`.
std::vector<std::string> wrap(std::string_view text, std::size_t columns, LongWords long_words,
                              std::string_view indent = "");

}  // namespace sailor
