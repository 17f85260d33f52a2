// Measurements: what a layer costs on a device, what a message costs on a link, and what a run took.
//
// A profile store is a folder of immutable HDF5 files, one per measurement session, or one such file.
// Files appear by rename, so a killed writer leaves no trace in a store and readers need no lock.
// This folder is the only place that includes HDF5. The schema stands in profiles/README.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/statistics.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor {

/// Where, when and by what a file was measured.
struct Provenance {
  std::string tool{};      ///< "sailor-profile 0.1.0"
  std::string command{};   ///< the command line
  std::string host{};      ///< host names, comma-separated
  std::string device{};    ///< "AMD EPYC 7763", "NVIDIA H200"
  std::string versions{};  ///< "OpenBLAS 0.3.21, Open MPI 4.1.4"
  std::string date{};      ///< ISO 8601, UTC
  std::string source{};    ///< citation of published figures; empty when measured here
};

/// What a layer measurement is of. Ordered and compared field by field.
struct LayerKey {
  std::string model{};
  std::string gpu{};
  Precision precision = Precision::fp32;
  Recompute recompute = Recompute::none;
  int tensor_parallel = 1;
  int micro_batch = 1;      ///< sequences
  int sequence_length = 0;  ///< tokens
  int busy_ranks = 1;       ///< ranks that computed on the node at the same time
  LayerKind kind = LayerKind::block;
  auto operator<=>(const LayerKey&) const = default;
};

/// Times of one micro-batch through one layer on one rank, and the bytes it takes there.
struct LayerMeasurement {
  LayerKey key{};
  TimeStatistics forward{};
  TimeStatistics backward{};
  TimeStatistics update{};      ///< optimizer step over this layer's parameters
  std::int64_t parameters = 0;  ///< own parameters on this rank (a tied head: without the shared matrix)
  Bytes activation{};           ///< kept from forward until backward, per micro-batch
  Bytes output{};               ///< handed to the next layer, per micro-batch
  Bytes workspace{};            ///< needed while the layer computes, freed after
};

enum class LinkOperation { send_receive, all_reduce };
enum class LinkScope { intra_node, inter_node };
std::string_view to_string(LinkOperation operation);
std::string_view to_string(LinkScope scope);

/// The time of one message between two endpoints (one way), or of one collective.
struct LinkMeasurement {
  std::string from_gpu{};
  std::string to_gpu{};
  LinkScope scope = LinkScope::intra_node;
  LinkOperation operation = LinkOperation::send_receive;
  int ranks = 2;  ///< that take part
  Bytes message{};
  TimeStatistics time{};
};

/// What a process of a framework needs besides tensors.
struct ProcessMeasurement {
  std::string gpu{};
  std::string framework{};  ///< "sailor"
  Bytes base_memory{};      ///< resident before the first tensor: program, libraries, MPI buffers
};

/// The content of a store, or of one of its files.
struct ProfileData {
  Provenance provenance{};  ///< of the newest file, when read from a folder
  std::vector<LayerMeasurement> layers{};
  std::vector<LinkMeasurement> links{};
  std::vector<ProcessMeasurement> processes{};
};

/// Reads a store: a folder of *.h5 files or one file. Of equal keys the newest file wins (by `date`, then name). Run
/// files (run_file.hpp) in the folder are skipped. Errors: not_found (also an empty folder), invalid_input (not HDF5,
/// truncated, damaged, foreign, other schema version, wrong type, impossible value), naming the file.
Result<ProfileData> load_profile(const std::filesystem::path& store);

/// Recognises a changed store: equal for equal files, whatever their names (see content_hash()).
Result<std::string> profile_hash(const std::filesystem::path& store);

/// Adds one immutable file to the folder `store` (created when missing) and returns its path. Atomic. An empty
/// provenance.date becomes the present one.
Result<std::filesystem::path> add_to_store(const std::filesystem::path& store, const ProfileData& data);

/// Writes one file at exactly `path`. Atomic; replaces what was there.
Result<void> save_profile(const ProfileData& data, const std::filesystem::path& path);

/// Look-ups over ProfileData, with errors that say what is missing and what is there.
class Profile {
 public:
  explicit Profile(ProfileData data);

  /// The measurement with this key. `busy_ranks` need not match: the nearest at or above is taken, else the
  /// nearest below. Errors: not_found, listing the micro-batches and other values that are there.
  [[nodiscard]] Result<LayerMeasurement> layer(const LayerKey& key) const;

  /// Time of one message of `message` bytes (one way), log-log interpolated between measured sizes; beyond the
  /// largest the largest one's bandwidth, below the smallest the smallest one's time.
  [[nodiscard]] Result<Seconds> send_time(const std::string& from_gpu, const std::string& to_gpu, LinkScope scope,
                                          Bytes message) const;
  /// Time of an all-reduce over `ranks`. Measured rank counts are used as they are; others are scaled from the
  /// nearest by the ring formula 2(n-1)/n (Patarasuk & Yuan 2009).
  [[nodiscard]] Result<Seconds> all_reduce_time(const std::string& gpu, LinkScope scope, int ranks,
                                                Bytes message) const;
  /// Resident bytes of a process before its first tensor; nothing when not measured.
  [[nodiscard]] std::optional<Bytes> base_memory(const std::string& gpu, const std::string& framework) const;

  /// Distinct values that were measured for a model on a GPU, ascending.
  [[nodiscard]] std::vector<int> micro_batches(const std::string& model, const std::string& gpu, Precision precision,
                                               int tensor_parallel, int sequence_length) const;
  [[nodiscard]] std::vector<int> tensor_parallel_degrees(const std::string& model, const std::string& gpu,
                                                         Precision precision, int sequence_length) const;
  [[nodiscard]] std::vector<int> sequence_lengths(const std::string& model, const std::string& gpu) const;
  [[nodiscard]] const ProfileData& data() const { return data_; }

 private:
  struct LinkKey {
    std::string from;
    std::string to;
    LinkScope scope;
    LinkOperation operation;
    int ranks;
    auto operator<=>(const LinkKey&) const = default;
  };
  using SizeCurve = std::map<double, double>;  // message bytes -> median seconds

  ProfileData data_;
  std::map<LayerKey, std::size_t> layers_;  // index into data_.layers
  std::map<LinkKey, SizeCurve> links_;
};

}  // namespace sailor
