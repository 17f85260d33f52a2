// Changes stores: joins them, removes sessions, finds what killed writers left. Every change is a file that appears,
// is replaced or goes in one step, so readers and other writers need not stop.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "profile/measurements.hpp"

namespace sailor {

struct MergeResult {
  int sessions = 0;  ///< of all inputs
  int added = 0;     ///< of them, those of which the output lacked something
};

/// Adds to the folder `output` (created when missing) one file per session of the stores that is not there yet, with
/// all its rows. The same again changes nothing. Errors as load_profile() and add_to_store().
Result<MergeResult> merge_into_folder(const std::vector<std::filesystem::path>& stores,
                                      const std::filesystem::path& output);
/// Writes the merged stores to one file: all sessions, but of rows with one key only those of the newest session.
/// `output` may be one of the stores. Errors as load_profile() and save_profile().
Result<MergeResult> merge_into_file(const std::vector<std::filesystem::path>& stores,
                                    const std::filesystem::path& output);

struct RemovedSession {
  std::string id{};
  std::size_t rows = 0;
  std::vector<std::filesystem::path> removed_files{};
  std::vector<std::filesystem::path> rewritten_files{};
};
/// Removes the session whose id is `id`, or else the only one whose id begins so: files that hold nothing else are
/// deleted, others written anew without it. Errors: as load_profile(); not_found (no such session; the ids that are
/// there are named); usage (several begin so); io.
Result<RemovedSession> remove_session(const std::filesystem::path& store, const std::string& id);

/// Hidden temporary files in the folder of a store, by name.
struct TemporaryFile {
  std::filesystem::path path{};
  bool stale = false;  ///< not written for a day, and not of a living process of this host
};
std::vector<TemporaryFile> temporary_files(const std::filesystem::path& store);

}  // namespace sailor
