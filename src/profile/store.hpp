// The profile store: a folder of immutable HDF5 files, one per session, or one such file.
//
// Files appear by rename, so a killed writer leaves no trace in a store and readers need no lock; nothing is ever
// open for writing under its final name, so network file systems without locks work too. This folder is the only
// place that includes HDF5. The schema stands in profiles/README.md.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "profile/measurements.hpp"

namespace sailor {

/// Treatment of the interval [low, high] of a time that replaces times of older sessions of the same host, device and
/// versions: repetitions differ by more than one session can show.
enum class Intervals {
  as_stored,
  with_repetitions,  ///< grows to include their medians
};

/// Reads a store: a folder of *.h5 files or one file. Of rows with equal keys, those of the newest session win (by
/// `date`, then id). Run files (run_file.hpp) in the folder are skipped. Errors: not_found (also an empty folder),
/// invalid_input (not HDF5, truncated, damaged, foreign, other schema version, wrong type, impossible value), naming
/// the file.
Result<ProfileData> load_profile(const std::filesystem::path& store, Intervals intervals = Intervals::with_repetitions);

/// One file of a store as it is, including rows that a newer session replaces.
struct StoreFile {
  std::filesystem::path path{};
  ProfileData data{};
};
/// The files of a store, ordered by name. Errors as load_profile().
Result<std::vector<StoreFile>> load_store_files(const std::filesystem::path& store);

/// Merges stores: sessions by id, rows by key, as if their files lay in one folder. Rows are in the order of their
/// sessions. The result depends neither on the order of the stores nor on merging twice.
ProfileData merge_profiles(std::vector<ProfileData> stores, Intervals intervals = Intervals::as_stored);
/// Number of rows with equal session and key but different values.
std::size_t conflicting_rows(const ProfileData& a, const ProfileData& b);
/// The sessions that satisfy `wanted`, and their rows.
ProfileData only_sessions(ProfileData data, const std::function<bool(const Session&)>& wanted);
/// Number of rows of all tables.
std::size_t number_of_rows(const ProfileData& data);

/// Hash that detects a changed store: equal for equal files, whatever their names (see content_hash()).
/// Errors: not_found, io.
Result<std::string> profile_hash(const std::filesystem::path& store);

/// Adds one immutable file to the folder `store` (created if missing) and returns its path. Atomic; no existing file is
/// replaced, and when it returns, a crash of the machine loses nothing. Sessions without an id get one, those without a
/// date the current one. Adding the same data again adds nothing; other values of an existing session are refused
/// (invalid_input): they need a session of their own.
Result<std::filesystem::path> add_to_store(const std::filesystem::path& store, const ProfileData& data);

/// Writes one file at exactly `path`. Atomic; replaces an existing file, except a run file (invalid_input). Ids and
/// dates as in add_to_store().
Result<void> save_profile(const ProfileData& data, const std::filesystem::path& path);

}  // namespace sailor
