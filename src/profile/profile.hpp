// Look-ups over measurements: what the simulator and the planner ask. Nothing here touches a file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
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

/// Rows of a table of layers, to be found by their keys.
class LayerRows {
 public:
  struct Row {
    int busy_ranks = 1;
    LayerKind kind = LayerKind::block;
    int first_layer = 0;
    std::size_t index = 0;  ///< in the table
    [[nodiscard]] auto position() const { return std::tuple(busy_ranks, kind, first_layer); }
  };
  /// Rows that differ in busy_ranks, kind and first_layer only, in this order.
  struct Group {
    int micro_batch = 1;
    std::vector<Row> rows;
  };
  /// What groups of a series have in common: all but the micro-batch.
  struct Series {
    std::string_view model;
    std::string_view gpu;
    Precision precision = Precision::fp32;
    Recompute recompute = Recompute::none;
    int tensor_parallel = 1;
    int sequence_length = 0;
    bool operator==(const Series&) const = default;
  };
  struct Found {
    const Row* row = nullptr;  ///< null: there is none
    int end_layer = 0;         ///< at which the next row begins, when it differs in nothing else
    explicit operator bool() const { return row != nullptr; }
  };

  /// A later row with the same key replaces an earlier one.
  void add(const LayerKey& key, std::size_t index);

  /// Of the rows that differ from what is asked in busy_ranks and first_layer only: the ones with the nearest
  /// busy_ranks at or above, else the nearest below; of them the last one that begins at or before first_layer, else
  /// the first.
  [[nodiscard]] Found find(const Series& series, int micro_batch, int busy_ranks, LayerKind kind,
                           int first_layer) const;
  /// The same at the nearest micro-batch below that has the kind, else above.
  [[nodiscard]] Found find_near(const Series& series, int micro_batch, int busy_ranks, LayerKind kind,
                                int first_layer) const;
  /// visit(series, groups in the order of their micro-batches), series in no order.
  template <class Visit>
  void for_each_series(Visit visit) const {
    for (const auto& [key, groups] : series_) visit(view(key), groups);
  }

 private:
  struct Key {
    std::string model;
    std::string gpu;
    Series rest;  ///< its texts are empty
  };
  static Series view(const Key& key) {
    Series series = key.rest;
    series.model = key.model;
    series.gpu = key.gpu;
    return series;
  }
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const Series& series) const;
    std::size_t operator()(const Key& key) const { return (*this)(view(key)); }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const Key& a, const Key& b) const { return view(a) == view(b); }
    bool operator()(const Series& a, const Key& b) const { return a == view(b); }
    bool operator()(const Key& a, const Series& b) const { return view(a) == b; }
  };
  [[nodiscard]] static Found nearest(const Group& group, int busy_ranks, LayerKind kind, int first_layer);

  std::unordered_map<Key, std::vector<Group>, Hash, Equal> series_;
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

  /// What messages and all-reduces between the same two ends are priced by, for those who price many: the measurements
  /// are looked up once. As long-lived as the profile. time() of one is send_time() or all_reduce_time().
  class SendRoute;
  class AllReduceRoute;
  [[nodiscard]] Result<SendRoute> send_route(const LinkEnd& from, const LinkEnd& to, LinkScope scope) const;
  [[nodiscard]] Result<AllReduceRoute> all_reduce_route(const LinkEnd& from, const LinkEnd& to, LinkScope scope,
                                                        int ranks, int rings) const;
  /// The same without the text of an error, which takes a while: nothing where it was not measured.
  [[nodiscard]] std::optional<SendRoute> find_send_route(const LinkEnd& from, const LinkEnd& to, LinkScope scope) const;
  [[nodiscard]] std::optional<AllReduceRoute> find_all_reduce_route(const LinkEnd& from, const LinkEnd& to,
                                                                    LinkScope scope, int ranks, int rings) const;
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
  using SizeCurve = std::map<double, double>;  // message bytes -> median seconds
  struct Link {
    SizeCurve points;
    std::optional<LinkCurve> curve;
    int senders = 1;  ///< of the curve: the bandwidth is that of all of them
    bool names_zones = false;
    double error = 0.0;  ///< LinkTime::error
    Origin origin = Origin::measured;
  };
  [[nodiscard]] Origin origin_of(int session) const;
  using Links = std::map<LinkKey, Link>;
  using LinkRoute = std::tuple<std::string, std::string, LinkScope, LinkOperation>;  // GPU types, scope, operation
  /// The link that fits best, and as what it was measured; null when none fits.
  [[nodiscard]] const Link* find_link(const LinkKey& wanted, LinkKey* found = nullptr) const;
  /// Ranks that share the bandwidth of the link's curve.
  [[nodiscard]] static int senders(const Link& link, const LinkEnd& from, LinkScope scope);
  [[nodiscard]] std::string known_links(LinkOperation operation) const;
  [[nodiscard]] LayerRows::Found find_memory(const LayerKey& key) const {
    return find_memory(key, key.kind, key.first_layer);
  }
  [[nodiscard]] LayerRows::Found find_memory(const LayerKey& key, LayerKind kind, int first_layer) const;
  /// The layer's part of an update that was timed for the whole profiled model: its part of the parameters.
  [[nodiscard]] double share_of_update(const LayerTime& time, const LayerMemory& memory, const LayerKey& key) const;
  /// fp32 when tf32 is wanted on a GPU that has fp32 times only: most have no TF32, on others it is never slower.
  [[nodiscard]] Precision stored_precision(const std::string& model, const std::string& gpu, Precision wanted) const;

  ProfileData data_;
  LayerRows times_;
  LayerRows memory_;
  std::map<std::string, std::map<std::string, std::set<Precision>>> precisions_;  // of times, by model and GPU
  std::map<LinkRoute, Links> links_;
  std::set<std::string> zones_;  // that a link names
};

class Profile::SendRoute {
 public:
  [[nodiscard]] LinkTime time(Bytes message) const;

 private:
  friend class Profile;
  const Link* link_ = nullptr;
  int senders_ = 1;
};

class Profile::AllReduceRoute {
 public:
  [[nodiscard]] LinkTime time(Bytes message) const;

 private:
  friend class Profile;
  int ranks_ = 1;
  const Link* measured_ = nullptr;  // an all-reduce; null: priced by messages
  int measured_ranks_ = 1;
  std::optional<SendRoute> alone_;   // a message as the measured all-reduce had it, where several slow each other
  std::optional<SendRoute> beside_;  // the messages of all of them at once
  Seconds latencies_{};              // of all steps, without a measured one
};

}  // namespace sailor
