// What a cost model looks up, once each: GPU types in zones, layer tables, messages and reductions.
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
  std::string name;  ///< as the plan calls the zone: perhaps a partition
  std::string zone;
  std::optional<Bytes> capacity;
  UsdPerHour price{};
  bool price_is_assumed = false;  ///< the catalogue's
  Bytes base{};                   ///< memory of a process before its first tensor
  std::optional<EstimatedInput> base_input;
};

/// How far apart two ends of a link are.
enum class Reach {
  node,    ///< on one
  leaf,    ///< nodes at one leaf switch, or wherever that does not matter
  across,  ///< nodes at different leaf switches or blocks, for which the cluster says how fast
           ///< (Cluster::across_switches)
};

/// An activation out and a gradient back over one boundary between stages.
struct BoundaryPrice {
  BoundaryTimes times;  ///< with the gather inside the receiving group, and what the framework adds
  LinkNotes links;
};

/// Numbers that identify something looked up, to be hashed.
using PriceKey = std::array<std::uint64_t, 3>;
struct PriceKeyHash {
  std::size_t operator()(const PriceKey& key) const {
    std::uint64_t hash = 0;
    for (const std::uint64_t part : key) {  // the finalizer of MurmurHash3 over each part
      std::uint64_t x = part + hash + 0x9e3779b97f4a7c15ULL;
      x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
      x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
      hash = x ^ (x >> 33);
    }
    return hash;
  }
};

struct PriceList {
  explicit PriceList(const Environment& environment);

  /// Index into `places`. Errors: not_found (GPU, zone, memory of a process), invalid_input (another name of a GPU).
  Result<std::uint32_t> place_of(const Stage& stage);
  /// What the model's layers cost at a stage of a pipeline while `busy_ranks` compute on its node. Errors as
  /// make_layer_table().
  Result<const LayerTable*> table_of(const Plan& plan, const Pipeline& pipeline, const Stage& stage,
                                     std::uint32_t place, int busy_ranks);
  /// One message between two stages of which `from_ranks` and `to_ranks` of a node communicate at once. Errors:
  /// not_found.
  Result<LinkTime> send_time(std::uint32_t from, std::uint32_t to, int from_ranks, int to_ranks, Reach reach,
                             Bytes message);
  /// Messages of `message` bytes between tensor-parallel groups of these degrees, as the framework sends them
  /// (StageMessages). Errors: not_found.
  const Result<BoundaryPrice>& boundary(std::uint32_t from, int from_degree, std::uint32_t to, int to_degree,
                                        Reach reach, Bytes message);
  /// `ranks` of a node take part in one sum over `replicas`, and `rings` sums go through its network at once. Errors:
  /// not_found.
  Result<LinkTime> all_reduce_time(std::uint32_t from, std::uint32_t to, int ranks, int rings, int replicas,
                                   Reach reach, Bytes message);
  /// What joins two zones by the cluster's description; null when it names nothing, or both are one.
  [[nodiscard]] const ZoneLink* zone_link(const Place& from, const Place& to) const;
  /// What joins switches between two places, or null where that does not count: between zones their link does.
  [[nodiscard]] const SwitchLink* switch_link(std::uint32_t from, std::uint32_t to, Reach reach) const;
  /// What a link that was not measured stands on, in words.
  [[nodiscard]] EstimatedInput link_input(const EstimatedLink& link) const;

  Environment env;
  NodeSizes node_sizes;
  std::vector<double> parameters;  ///< of layers [0, i), whole
  double tied = 0.0;               ///< parameters of the tied embedding
  std::vector<Place> places;

 private:
  [[nodiscard]] Result<BoundaryPrice> price_boundary(std::uint32_t from, int from_degree, std::uint32_t to,
                                                     int to_degree, Reach reach, Bytes message);
  /// One way.
  Result<Seconds> message_time(std::uint32_t from, int senders, std::uint32_t to, int receivers, Reach reach,
                               Bytes message, BoundaryPrice& price);
  [[nodiscard]] const LayerCosts& layer_costs() const { return env.costs != nullptr ? *env.costs : *own_costs_; }
  /// A plan may name a zone or a partition; a cluster without zones is one place.
  [[nodiscard]] Result<std::string> zone_of(const Stage& stage) const;
  /// What says how fast messages between two nodes are, also inside one zone; null when nothing does.
  [[nodiscard]] const ZoneLink* usable_link(const Place& from, const Place& to, bool one_node) const;
  /// From the bandwidth that the site states between nodes, or that it or the devices have within one; nothing when
  /// neither is known, the zones are not joined, or estimates are refused.
  [[nodiscard]] std::optional<ZoneLink> estimated_link(const Place& from, const Place& to, bool one_node) const;
  /// Two zones need a link: of the cluster, or a measured one that names them.
  [[nodiscard]] Result<void> check_linked(const Place& a, const Place& b) const;
  Result<void> find_base(Place& place) const;

  std::optional<LayerCosts> own_costs_;
  std::unordered_map<PriceKey, std::unique_ptr<Result<LayerTable>>, PriceKeyHash> tables_;
  /// How messages or sums between two places are priced: by what the cluster says of the link, or by measurements.
  template <class Measured>
  struct Route {
    const ZoneLink* link = nullptr;
    std::optional<Measured> measured{};
    std::optional<ZoneLink> estimated{};
    std::optional<Error> missing{};  ///< there is none: searches ask again and again
  };
  template <class Measured, class LookUp>
  void find(Route<Measured>& route, const Place& from, const Place& to, bool one_node, LookUp look_up) const;
  std::unordered_map<PriceKey, Result<BoundaryPrice>, PriceKeyHash> boundaries_;
  // By everything but the size of the message.
  std::unordered_map<PriceKey, Route<Profile::SendRoute>, PriceKeyHash> sends_;
  std::unordered_map<PriceKey, Route<Profile::AllReduceRoute>, PriceKeyHash> reduces_;
};

}  // namespace sailor::simulator
