// Cached look-ups of a cost model: GPU types in zones, layer tables, messages and reductions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"
#include "simulator/event_driven.hpp"
#include "simulator/layer_table.hpp"
#include "simulator/link_notes.hpp"
#include "simulator/simulator.hpp"

namespace sailor::simulator {

/// A GPU type in a zone.
struct Place {
  std::string gpu;
  std::string name;  ///< the plan's name of the zone, possibly a partition
  std::string zone;
  std::optional<Bytes> capacity;
  UsdPerHour price{};
  bool price_is_assumed = false;  ///< it is the catalogue's
  Bytes base{};                   ///< memory of a process before its first tensor
  std::optional<EstimatedInput> base_input;
};

/// Distance between the two ends of a link.
enum class Reach {
  node,    ///< on one node
  leaf,    ///< nodes at one leaf switch, or anywhere if that does not matter
  across,  ///< nodes at different leaf switches or blocks, whose speed the cluster gives (Cluster::across_switches)
};

/// Price of an activation and its gradient back over one boundary between stages.
struct BoundaryPrice {
  BoundaryTimes times;  ///< including the gather inside the receiving group and the framework's overhead
  LinkNotes links;
};

/// How the ranks that divide sequences or experts lie on nodes.
struct ExchangePlace {
  std::uint32_t place = 0;
  int groups = 1;              ///< tensor-parallel groups of a stage that a node holds (StageParts::groups)
  int busy_ranks = 1;          ///< of the node
  Reach beyond = Reach::leaf;  ///< to the stage's groups on other nodes
};

/// Times that messages of context and expert parallelism add to the passes of a micro-batch, beyond what attention
/// overlaps.
struct Exchanges {
  std::vector<PassTimes> times;  ///< prefix sums over the layers, as in LayerTable
  LinkNotes links;
};

/// Hashable key of a look-up.
using PriceKey = std::array<std::uint64_t, 3>;
struct PriceKeyHash {
  std::size_t operator()(const PriceKey& key) const {
    std::uint64_t hash = 0;
    for (const std::uint64_t part : key) {  // the constants are those of MurmurHash3's finalizer
      hash = (hash ^ part) * 0xff51afd7ed558ccdULL;
      hash = (hash ^ (hash >> 32)) + 0xc4ceb9fe1a85ec53ULL;
    }
    return hash;
  }
};

struct PriceList {
  explicit PriceList(const Environment& environment);

  /// Index into `places`. Errors: not_found (GPU, zone, memory of a process), invalid_input (another name of a GPU).
  Result<std::uint32_t> place_of(const Stage& stage);
  /// Costs of the model's layers at a stage of a pipeline while `busy_ranks` compute on its node. Errors as
  /// make_layer_table().
  Result<const LayerTable*> table_of(const Plan& plan, const Pipeline& pipeline, const Stage& stage,
                                     std::uint32_t place, int busy_ranks);
  /// Time of one message between two stages of which `from_ranks` and `to_ranks` of a node communicate at once. Errors:
  /// not_found.
  Result<LinkTime> send_time(std::uint32_t from, std::uint32_t to, int from_ranks, int to_ranks, Reach reach,
                             Bytes message);
  /// Price of messages of `message` bytes between tensor-parallel groups of these degrees, as the framework sends them
  /// (StageMessages). Errors: not_found.
  const Result<BoundaryPrice>& boundary(std::uint32_t from, int from_degree, std::uint32_t to, int to_degree,
                                        Reach reach, Bytes message);
  /// Time of an all-reduce over `replicas` with `ranks` on a node, while `rings` all-reduces use the node's network.
  /// Errors: not_found.
  Result<LinkTime> all_reduce_time(std::uint32_t from, std::uint32_t to, int ranks, int rings, int replicas,
                                   Reach reach, Bytes message);
  /// Times of the exchanges of context and expert parallelism under the key of `table`. Errors: not_found.
  Result<Exchanges> make_exchanges(const LayerTable& table, const ExchangePlace& at);
  /// The same, remembered; for tables of table_of().
  Result<const Exchanges*> exchanges_of(const LayerTable& table, const ExchangePlace& at);
  /// The cluster's link between two zones; null if it describes none, or both are the same zone.
  [[nodiscard]] const ZoneLink* zone_link(const Place& from, const Place& to) const;
  /// The cluster's link between leaf switches, if it limits messages between two places; null otherwise, also between
  /// zones, whose own link counts.
  [[nodiscard]] const SwitchLink* switch_link(std::uint32_t from, std::uint32_t to, Reach reach) const;
  /// What the estimate of an unmeasured link is based on, in words.
  [[nodiscard]] EstimatedInput link_input(const EstimatedLink& link) const;

  Environment env;
  NodeSizes node_sizes;
  std::vector<double> parameters;  ///< of layers [0, i), not divided by tensor parallelism
  std::vector<double> experts;     ///< the part of them that expert parallelism divides
  double tied = 0.0;               ///< parameters of the tied embedding
  std::vector<Place> places;

 private:
  [[nodiscard]] Result<BoundaryPrice> price_boundary(std::uint32_t from, int from_degree, std::uint32_t to,
                                                     int to_degree, Reach reach, Bytes message);
  /// Time in one direction.
  Result<Seconds> message_time(std::uint32_t from, int senders, std::uint32_t to, int receivers, Reach reach,
                               Bytes message, BoundaryPrice& price);
  [[nodiscard]] const LayerCosts& layer_costs() const { return env.costs != nullptr ? *env.costs : *own_costs_; }
  /// The zone of a stage. A plan may name a zone or a partition; a cluster without zones is one place.
  [[nodiscard]] Result<std::string> zone_of(const Stage& stage) const;
  /// The cluster's link with a bandwidth between nodes of two places, which may be in one zone; null if there is none.
  const ZoneLink* usable_link(std::uint32_t from, std::uint32_t to, Reach reach);
  /// From the bandwidth that the site states between nodes, or that it or the devices have within one; nothing when
  /// neither is known, the zones are not joined, or estimates are refused.
  [[nodiscard]] std::optional<ZoneLink> estimated_link(const Place& from, const Place& to, bool one_node) const;
  /// Checks that two zones have a link: one of the cluster, or a measured one that names them.
  [[nodiscard]] Result<void> check_linked(const Place& a, const Place& b) const;
  Result<void> find_base(Place& place) const;

  /// Times of one block; `key` names it.
  [[nodiscard]] Result<PassTimes> exchange(const LayerKey& key, const PassTimes& attention, const ExchangePlace& at,
                                           LinkNotes& links);

  std::optional<LayerCosts> own_costs_;
  std::unordered_map<PriceKey, std::unique_ptr<Result<LayerTable>>, PriceKeyHash> tables_;
  std::unordered_map<std::uint64_t, const ZoneLink*> links_;  ///< of usable_link(), by the two places
  /// How messages or all-reduces between two places are priced where the cluster does not describe their link.
  template <class Measured>
  struct Route {
    std::optional<Measured> measured{};
    std::optional<ZoneLink> estimated{};
    std::optional<Error> missing{};  ///< why there is no price, kept because searches ask again and again
    /// The last four sizes of messages and their measured times: the stages of a plan send few sizes.
    struct Priced {
      Bytes message{-1.0};
      LinkTime time{};
    };
    std::array<Priced, 4> priced{};
    std::size_t next = 0;  ///< of `priced`, to be replaced
    LinkTime time_of(Bytes message);
  };
  struct Hop {
    std::uint32_t from;  ///< place
    std::uint32_t to;    ///< place
    Reach reach;
    Bytes message;
  };
  /// Time of one message or all-reduce between two places: over the cluster's link, else over the route that `look_up`
  /// finds in the profile, else over an estimated link; no quicker than through the switches. `over` gives the seconds
  /// of the message for a latency and a bandwidth. Routes are remembered under `key`. Errors: not_found.
  template <class Measured, class Over, class LookUp>
  Result<LinkTime> time_over(std::unordered_map<PriceKey, Route<Measured>, PriceKeyHash>& routes, const PriceKey& key,
                             const Hop& hop, Over over, LookUp look_up);
  std::unordered_map<PriceKey, Result<BoundaryPrice>, PriceKeyHash> boundaries_;
  std::unordered_map<PriceKey, std::unique_ptr<Result<Exchanges>>, PriceKeyHash> exchanges_;
  // Keyed by everything but the size of the message.
  std::unordered_map<PriceKey, Route<Profile::SendRoute>, PriceKeyHash> sends_;
  std::unordered_map<PriceKey, Route<Profile::AllReduceRoute>, PriceKeyHash> reduces_;
};

}  // namespace sailor::simulator
