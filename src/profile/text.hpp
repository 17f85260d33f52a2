// The text format of a store: TOML for people and version control, CSV for spreadsheets. profiles/README.md describes
// both. The columns are those of the HDF5 files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "profile/measurements.hpp"

namespace sailor {

/// Parsing the result gives the same data, bit for bit. `comment` is placed above it, each line after a "#". Text that
/// is not UTF-8 has U+FFFD in place of the wrong bytes.
std::string to_toml(const ProfileData& data, std::string_view comment = {});

/// `source_name` stands for the file in messages. Errors: invalid_input (unknown or missing columns, wrong types,
/// values that are no measurement, rows of another length), with file, line and column.
Result<ProfileData> parse_profile_toml(std::string_view text, std::string_view source_name);
/// The same from a file. Errors: also not_found, io.
Result<ProfileData> load_profile_text(const std::filesystem::path& path);

/// One CSV (RFC 4180, with a header line) per table that has rows, by the name of the table.
std::vector<std::pair<std::string, std::string>> to_csv(const ProfileData& data);

/// Names of all tables, that of the sessions first.
std::vector<std::string> profile_table_names();

}  // namespace sailor
