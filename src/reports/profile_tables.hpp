// A profile as tables and as JSON; for sailor-profile.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "profile/measurements.hpp"

namespace sailor::reports {

/// The names of a store's tables (profiles/README.md), in the order in which they are shown.
const std::vector<std::string>& profile_table_names();

/// Selection of rows of a store. Empty lists select everything.
struct ProfileFilter {
  std::vector<std::string> models{};  ///< if given, tables without models are left out
  std::vector<std::string> gpus{};    ///< for links: at one of their ends
  std::vector<std::string> zones{};   ///< for links, likewise; if given, tables of layers and processes are left out
  std::vector<std::string> operations{};  ///< for links, likewise
  std::vector<std::string> tables{};
};

/// The rows that all given lists select, and their sessions. Errors: not_found if a list names what the store does not
/// have, or no row is left.
Result<ProfileData> select_rows(const ProfileData& data, const ProfileFilter& filter);

/// Tables with more rows are summarised, unless `all`.
inline constexpr std::size_t most_table_rows = 40;

/// Tables of everything but the sessions; parts without rows are left out.
std::string profile_tables(const ProfileData& data, bool all = false);
/// Values common to all sessions once, and those that differ as a table.
std::string session_table(const ProfileData& data, bool all = false);
/// Where the measurements come from, "name: value" per line.
std::string provenance_text(const Provenance& provenance);
/// Everything, with the table and field names of the store's schema (profiles/README.md).
std::string profile_json(const ProfileData& data);

}  // namespace sailor::reports
