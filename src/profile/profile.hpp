// Look-ups over measurements: what the simulator and the planner ask. Nothing here touches a file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.hpp"
#include "core/statistics.hpp"
#include "core/units.hpp"
#include "profile/measurements.hpp"

namespace sailor {

/// What a layer costs on one rank: times and memory of one micro-batch.
struct LayerCost {
  TimeStatistics forward{};
  TimeStatistics backward{};
  TimeStatistics update{};
  std::int64_t parameters = 0;
  Bytes activation{};
  Bytes output{};
  Bytes workspace{};
  int last_layer = 0;                ///< the same holds for all layers of the kind up to this one, exclusive
  Origin origin = Origin::measured;  ///< the worst of its parts
};

/// A time and where it comes from.
struct LinkTime {
  Seconds time{};
  double error = 0.0;  ///< standard deviation as a share: of the fit, or of the measured messages; 0: not known
  Origin origin = Origin::measured;
};

class Profile {
 public:
  explicit Profile(ProfileData data);

  /// What layer `key.first_layer` of the model costs. `busy_ranks` need not match: the nearest at or above is taken,
  /// else the nearest below. Memory that was measured at other micro-batches only is scaled in proportion from the
  /// nearest below, else above. Errors: not_found, saying what is missing and what is there.
  [[nodiscard]] Result<LayerCost> layer(const LayerKey& key) const;

  /// Time of one message of `message` bytes (one way) while `from.ranks` ranks of the node send one each. Measured
  /// messages are interpolated (log-log; beyond the largest the largest one's bandwidth, below the smallest the
  /// smallest one's time); where there are none, the fitted curve counts. Zones must match; a measurement without
  /// zones fits all, and a zone that no measurement names is any one zone. Of the numbers of ranks the nearest at or
  /// above is taken, else the nearest below. A link measured in one direction only counts for both.
  /// Under a curve, more ranks than were measured share the bandwidth of a node's network, but each adds its own
  /// inside a node. Errors: not_found.
  [[nodiscard]] Result<LinkTime> send_time(const LinkEnd& from, const LinkEnd& to, LinkScope scope,
                                           Bytes message) const;
  /// Time of an all-reduce over `ranks`. Measured rank counts are used as they are; others are scaled from the
  /// nearest by the ring formula 2(n-1)/n (Patarasuk & Yuan 2009); without any, so much of a message
  /// from one rank to another, and 2(n-1) latencies at least.
  /// `from.ranks` of a node take part. Several `rings` through a node's network at once slow each other as the same
  /// number of messages would.
  [[nodiscard]] Result<LinkTime> all_reduce_time(const LinkEnd& from, const LinkEnd& to, LinkScope scope, int ranks,
                                                 Bytes message, int rings = 1) const;
  /// A link was measured between this zone and another place.
  [[nodiscard]] bool names_zone(const std::string& zone) const { return zones_.contains(zone); }
  /// Resident bytes of a process before its first tensor; nothing when not measured.
  [[nodiscard]] std::optional<Bytes> base_memory(const std::string& gpu, const std::string& framework) const;

  /// Distinct values that were measured for a model on a GPU, ascending.
  [[nodiscard]] std::vector<int> micro_batches(const std::string& model, const std::string& gpu, Precision precision,
                                               int tensor_parallel, int sequence_length) const;
  [[nodiscard]] std::vector<int> tensor_parallel_degrees(const std::string& model, const std::string& gpu,
                                                         Precision precision, int sequence_length) const;
  [[nodiscard]] std::vector<int> sequence_lengths(const std::string& model, const std::string& gpu) const;
  [[nodiscard]] std::vector<Precision> precisions(const std::string& model) const;
  [[nodiscard]] const ProfileData& data() const { return data_; }

 private:
  using Rows = std::map<LayerKey, std::size_t>;  // index into a table of data_
  using SizeCurve = std::map<double, double>;    // message bytes -> median seconds
  struct Link {
    SizeCurve points;
    std::optional<LinkCurve> curve;
    int senders = 1;  ///< of the curve: the bandwidth is that of all of them
    bool names_zones = false;
    double error = 0.0;  ///< LinkTime::error
    Origin origin = Origin::measured;
  };
  [[nodiscard]] Origin origin_of(int session) const;
  using LinkRoute = std::tuple<std::string, std::string, LinkScope, LinkOperation>;  // GPU types, scope, operation
  /// The link that fits best, and as what it was measured; null when none fits.
  [[nodiscard]] const Link* find_link(const LinkKey& wanted, LinkKey* found = nullptr) const;
  /// Ranks that share the bandwidth of the link's curve.
  [[nodiscard]] static int senders(const Link& link, const LinkEnd& from, LinkScope scope);
  [[nodiscard]] std::string known_links(LinkOperation operation) const;
  [[nodiscard]] Rows::const_iterator find_memory(const LayerKey& key) const;
  /// The layer's part of an update that was timed for the whole profiled model: its part of the parameters.
  [[nodiscard]] double share_of_update(const LayerTime& time, const LayerMemory& memory, const LayerKey& key) const;
  /// fp32 when tf32 is wanted on a GPU that has fp32 times only: most have no TF32, on others it is never slower.
  [[nodiscard]] Precision stored_precision(const std::string& model, const std::string& gpu, Precision wanted) const;

  ProfileData data_;
  Rows times_;
  Rows memory_;
  std::map<LinkRoute, std::map<LinkKey, Link>> links_;
  std::set<std::string> zones_;  // that a link names
};

}  // namespace sailor
