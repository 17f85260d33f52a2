// Changes profile stores: merges them, removes sessions, finds leftovers of killed writers. Every change creates,
// replaces or deletes a file in one step, so readers and other writers need not stop.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "profile/measurements.hpp"

namespace sailor {

struct MergeResult {
  int sessions = 0;  ///< number in all inputs
  int added = 0;     ///< sessions of which the output lacked something
};

/// Adds to the folder `output` (created if missing) one file, with all its rows, for each session of the stores that it
/// lacks. Repeating the call changes nothing. Errors as load_profile() and add_to_store().
Result<MergeResult> merge_into_folder(const std::vector<std::filesystem::path>& stores,
                                      const std::filesystem::path& output);
/// Writes the merged stores to one file: all sessions, but of rows with equal keys only those of the newest session.
/// `output` may be one of the stores. Errors as load_profile() and save_profile().
Result<MergeResult> merge_into_file(const std::vector<std::filesystem::path>& stores,
                                    const std::filesystem::path& output);

struct RemovedSession {
  std::string id{};
  std::size_t rows = 0;
  std::vector<std::filesystem::path> removed_files{};
  std::vector<std::filesystem::path> rewritten_files{};
};
/// Removes the session whose id is `id`, or else the only one whose id begins with it: files that hold nothing else are
/// deleted, others rewritten without it. Errors: as load_profile(); not_found (no such session; the existing ids are
/// named); usage (several ids begin with it); io.
Result<RemovedSession> remove_session(const std::filesystem::path& store, const std::string& id);

/// Hidden temporary files in the folder of a store, by name.
struct TemporaryFile {
  std::filesystem::path path{};
  bool stale = false;  ///< not written for a day, and not of a living process of this host
};
std::vector<TemporaryFile> temporary_files(const std::filesystem::path& store);

}  // namespace sailor
