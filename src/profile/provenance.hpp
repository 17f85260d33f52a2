// The attributes that every file of ours carries: schema version, kind, and where it came from. Private to this folder.
#pragma once

#include <cstdint>
#include <string>

#include "core/error.hpp"
#include "profile/hdf5_file.hpp"
#include "profile/measurements.hpp"

namespace sailor::hdf5 {

inline constexpr std::int64_t schema_version = 2;
inline constexpr const char* profile_kind = "sailor-profile";
inline constexpr const char* run_kind = "sailor-run";
inline constexpr const char* sweep_kind = "sailor-sweep";

Result<void> write_header(FileWriter& file, const std::string& kind, const Provenance& provenance);
/// `kind` of a file with the right schema version. Errors: invalid_input.
Result<std::string> read_kind(const FileReader& file);
Result<Provenance> read_provenance(const FileReader& file);

/// "2026-11-21T05:57:21.250Z", now.
std::string current_date();

}  // namespace sailor::hdf5
