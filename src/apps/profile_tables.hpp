// A profile as tables and as JSON; for sailor-profile.
#pragma once

#include <string>

#include "profile/profile.hpp"

namespace sailor::apps {

/// Layer, link and process tables; parts without rows are left out.
std::string profile_tables(const ProfileData& data);
/// Where the measurements come from, "name: value" per line.
std::string provenance_text(const Provenance& provenance);
/// Everything, with the field names of the store's schema (profiles/README.md).
std::string profile_json(const ProfileData& data);

}  // namespace sailor::apps
