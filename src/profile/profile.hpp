// Look-ups in measurements, for the simulator and the planner. Does no file I/O.
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

/// Cost of a layer on one rank: times and memory of one micro-batch.
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
  double error = 0.0;  ///< relative standard deviation of the fit, or of the measured messages; 0: not known
  Origin origin = Origin::measured;
};

/// Index of the rows of a table of layers by their keys.
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
  /// Key of a series: what its groups have in common, all but the micro-batch.
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
    int end_layer = 0;         ///< where the next row begins, if it differs in nothing else
    explicit operator bool() const { return row != nullptr; }
  };

  /// A later row with the same key replaces an earlier one.
  void add(const LayerKey& key, std::size_t index);

  /// Among the rows that differ from the request in busy_ranks and first_layer only: those with the nearest busy_ranks
  /// at or above, else the nearest below; of them the last one that begins at or before first_layer, else the first.
  [[nodiscard]] Found find(const Series& series, int micro_batch, int busy_ranks, LayerKind kind,
                           int first_layer) const;
  /// The same at the nearest smaller micro-batch that has the kind, else the nearest larger one.
  [[nodiscard]] Found find_near(const Series& series, int micro_batch, int busy_ranks, LayerKind kind,
                                int first_layer) const;
  /// Calls visit(series, groups in ascending order of micro-batches); the order of the series is unspecified.
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

  /// Cost of layer `key.first_layer` of the model. `busy_ranks` need not match: the nearest at or above is taken, else
  /// the nearest below. Memory that was measured at other micro-batches only is scaled in proportion from the nearest
  /// below, else above. Errors: not_found, saying what is missing and what is there.
  [[nodiscard]] Result<LayerCost> layer(const LayerKey& key) const;
  /// The same without a reason, which takes long to find. std::nullopt: not measured.
  [[nodiscard]] std::optional<LayerCost> find_layer(const LayerKey& key) const;

  /// The times of layer() alone, with sizes of zero: for times that were stored without sizes. std::nullopt: not
  /// measured, or of UpdateScope::profiled_model, whose share of the update needs sizes.
  [[nodiscard]] std::optional<LayerCost> times_alone(const LayerKey& key) const;

  /// Time of one message of `message` bytes (one way) while `from.ranks` ranks of the node send one each. Measured
  /// messages are interpolated (log-log; above the largest with its bandwidth, below the smallest with its time);
  /// without any, the fitted curve is used. Zones must match; a measurement without zones matches all, and a zone that
  /// no measurement names is treated as any one zone. Of the numbers of ranks the nearest at or above is taken, else
  /// the nearest below. A link measured in one direction only counts for both. With a curve, more ranks than were
  /// measured share the bandwidth of a node's network, but each adds its own inside a node. Errors: not_found.
  [[nodiscard]] Result<LinkTime> send_time(const LinkEnd& from, const LinkEnd& to, LinkScope scope,
                                           Bytes message) const;
  /// Time of an all-reduce over `ranks`. Measured rank counts are used as they are; others are scaled from the nearest
  /// by the ring formula 2(n-1)/n (Patarasuk & Yuan 2009); without any, the formula is applied to the time of a message
  /// from one rank to another, with at least 2(n-1) latencies. `from.ranks` of a node take part. Several `rings`
  /// through a node's network at once slow each other as the same number of messages would.
  [[nodiscard]] Result<LinkTime> all_reduce_time(const LinkEnd& from, const LinkEnd& to, LinkScope scope, int ranks,
                                                 Bytes message, int rings = 1) const;

  /// Routes price many messages or all-reduces between the same two ends: the measurements are looked up once. Valid as
  /// long as the profile. time() equals send_time() or all_reduce_time().
  class SendRoute;
  class AllReduceRoute;
  [[nodiscard]] Result<SendRoute> send_route(const LinkEnd& from, const LinkEnd& to, LinkScope scope) const;
  [[nodiscard]] Result<AllReduceRoute> all_reduce_route(const LinkEnd& from, const LinkEnd& to, LinkScope scope,
                                                        int ranks, int rings) const;
  /// The same without the text of an error, which takes a while: std::nullopt if it was not measured.
  [[nodiscard]] std::optional<SendRoute> find_send_route(const LinkEnd& from, const LinkEnd& to, LinkScope scope) const;
  [[nodiscard]] std::optional<AllReduceRoute> find_all_reduce_route(const LinkEnd& from, const LinkEnd& to,
                                                                    LinkScope scope, int ranks, int rings) const;
  /// Whether a link between this zone and another place was measured.
  [[nodiscard]] bool names_zone(const std::string& zone) const { return zones_.contains(zone); }
  /// Resident bytes of a process before its first tensor; std::nullopt if not measured.
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
    int senders = 1;  ///< ranks that share the bandwidth of the curve
    bool names_zones = false;
    double error = 0.0;  ///< LinkTime::error
    Origin origin = Origin::measured;
  };
  [[nodiscard]] Origin origin_of(int session) const;
  using Links = std::map<LinkKey, Link>;
  using LinkRoute = std::tuple<std::string, std::string, LinkScope, LinkOperation>;  // GPU types, scope, operation
  /// The link that matches best, and the key that it was measured with; null if none matches.
  [[nodiscard]] const Link* find_link(const LinkKey& wanted, LinkKey* found = nullptr) const;
  /// Ranks that share the bandwidth of the link's curve.
  [[nodiscard]] static int senders(const Link& link, const LinkEnd& from, LinkScope scope);
  /// Names the first links with this operation, for messages.
  [[nodiscard]] std::string name_links(LinkOperation operation) const;
  [[nodiscard]] LayerRows::Found find_memory(const LayerKey& key) const {
    return find_memory(key, key.kind, key.first_layer);
  }
  [[nodiscard]] LayerRows::Found find_memory(const LayerKey& key, LayerKind kind, int first_layer) const;
  /// Share of the layer in an update that was timed for the whole profiled model: its share of the parameters.
  [[nodiscard]] double share_of_update(const LayerTime& time, const LayerMemory& memory, const LayerKey& key) const;
  /// fp32 when tf32 is wanted on a GPU that has fp32 times only: most have no TF32, on others it is never slower.
  [[nodiscard]] Precision stored_precision(const std::string& model, const std::string& gpu, Precision wanted) const;

  ProfileData data_;
  LayerRows times_;
  LayerRows memory_;
  std::map<std::string, std::map<std::string, std::set<Precision>>> precisions_;  // of the times, by model and GPU
  std::map<LinkRoute, Links> links_;
  std::set<std::string> zones_;    // zones that a link names
  std::string known_sends_;        // name_links(): where a link is missing, it is asked for again and again
  std::string known_all_reduces_;  // the same
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
  const Link* measured_ = nullptr;  // an all-reduce; null: messages are used instead
  int measured_ranks_ = 1;
  std::optional<SendRoute> alone_;   // one ring's message, for the slowdown of a measured all-reduce by several rings
  std::optional<SendRoute> beside_;  // the messages of all rings at once
  Seconds latencies_{};              // of all steps, if no all-reduce was measured
};

}  // namespace sailor
