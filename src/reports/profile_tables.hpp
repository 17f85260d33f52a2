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

/// What of a store is looked at. Empty lists select everything.
struct ProfileFilter {
  std::vector<std::string> models{};      ///< then tables without models are left out
  std::vector<std::string> gpus{};        ///< of a link: at one of its ends
  std::vector<std::string> zones{};       ///< of links, likewise; then tables of layers and processes are left out
  std::vector<std::string> operations{};  ///< of links, likewise
  std::vector<std::string> tables{};
};

/// The rows that all given lists select, and the sessions these are from. Errors: not_found when a list names what the
/// store does not have, or nothing is left.
Result<ProfileData> select_rows(const ProfileData& data, const ProfileFilter& filter);

/// Tables with more rows are summarised, unless `all`.
inline constexpr std::size_t most_table_rows = 40;

/// Tables of everything but the sessions; parts without rows are left out.
std::string profile_tables(const ProfileData& data, bool all = false);
/// What the sessions share once, and what differs as a table.
std::string session_table(const ProfileData& data, bool all = false);
/// Where the measurements come from, "name: value" per line.
std::string provenance_text(const Provenance& provenance);
/// Everything, with the table and field names of the store's schema (profiles/README.md).
std::string profile_json(const ProfileData& data);

}  // namespace sailor::reports
