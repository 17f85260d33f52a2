// Measurements: costs of layers on devices, of messages on links, and memory of processes.
//
// These are the rows of a profile store. profiles/README.md lists their fields and units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/statistics.hpp"
#include "core/units.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/link_curve.hpp"

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
  bool operator==(const Provenance&) const = default;
};

/// One call of the profiler, or one publication. The rows of a store say which session they are from.
struct Session {
  std::string id{};  ///< identifies the session when stores are merged; unique
  Provenance provenance{};
  double lowest_clock_hz = 0.0;   ///< of the devices while they measured; 0: the system does not say
  double highest_clock_hz = 0.0;  ///< highest clock, likewise
  double slowdown = 0.0;          ///< slowest of the reference computations spread over the session, over their median:
                                  ///< 1.3 = the device was 30% slower for a while; 0: not measured
  std::string notes{};            ///< how the rows were made of what was measured, and what was assumed; may be empty
  bool operator==(const Session&) const = default;
};

/// Where a number comes from, from the best to the worst.
enum class Origin { measured, published, interpolated, estimated };
std::string_view to_string(Origin origin);

/// Key of a layer measurement. Ordered and compared field by field.
struct LayerKey {
  std::string model{};
  std::string gpu{};  ///< for memory: any_gpu if it was published without the GPU type
  Precision precision = Precision::fp32;
  Recompute recompute = Recompute::none;
  int tensor_parallel = 1;
  int micro_batch = 1;      ///< sequences
  int sequence_length = 0;  ///< tokens
  int busy_ranks = 1;       ///< ranks that computed on the node at the same time
  LayerKind kind = LayerKind::block;
  /// First layer that the row holds for: it holds for layers of this kind up to the next row that differs only in this
  /// field. 0: all of them.
  int first_layer = 0;
  // Only of costs that are asked for: measurements are of whole sequences and all experts.
  int context_parallel = 1;  ///< Plan::context_parallel: the rank has this part of the sequence
  int expert_parallel = 1;   ///< Plan::expert_parallel: the rank has this part of the experts
  [[nodiscard]] bool is_divided() const { return context_parallel > 1 || expert_parallel > 1; }
  /// The same of whole sequences and all experts.
  [[nodiscard]] LayerKey undivided() const;
  auto operator<=>(const LayerKey&) const = default;
};
inline LayerKey LayerKey::undivided() const {
  LayerKey key = *this;
  key.context_parallel = key.expert_parallel = 1;
  return key;
}
inline constexpr const char* any_gpu = "any";

/// Scope of an update time. Publications time the whole optimizer step of the model that they profiled, which is cut
/// down to the embedding, two blocks, the final norm and the head.
enum class UpdateScope { layer, profiled_model };
std::string_view to_string(UpdateScope scope);

/// Times of one micro-batch through one layer on one rank.
struct LayerTime {
  LayerKey key{};
  TimeStatistics forward{};
  TimeStatistics backward{};
  TimeStatistics update{};  ///< optimizer step over this layer's parameters, including zeroing its gradients
  UpdateScope update_scope = UpdateScope::layer;
  /// The same with nothing of the layer in a cache; samples = 0 and all zero if not measured.
  TimeStatistics cold_forward{};
  TimeStatistics cold_backward{};
  int session = 0;  ///< index into ProfileData::sessions
  bool operator==(const LayerTime&) const = default;
};

/// Memory of one layer on one rank, for one micro-batch.
struct LayerMemory {
  LayerKey key{};               ///< busy_ranks = 1: memory does not depend on it
  std::int64_t parameters = 0;  ///< own parameters on this rank (a tied head: without the shared matrix)
  Bytes activation{};           ///< kept from forward until backward
  Bytes output{};               ///< handed to the next layer
  Bytes input{};                ///< received from the previous layer (tokens and masks included)
  Bytes workspace{};            ///< needed while the layer computes, freed after
  int session = 0;
  bool operator==(const LayerMemory&) const = default;
};

/// A combination of sizes that did not fit into memory: measured, not computed.
struct OutOfMemory {
  LayerKey key{};     ///< kind: the layer at which it happened; first_layer = 0
  Bytes needed{};     ///< in use when the allocation failed, plus the size requested
  Bytes available{};  ///< memory of the device for this rank
  int session = 0;
  bool operator==(const OutOfMemory&) const = default;
};

enum class LinkOperation { send_receive, all_reduce, all_gather, reduce_scatter };
enum class LinkScope { intra_node, inter_node };
std::string_view to_string(LinkOperation operation);
std::string_view to_string(LinkScope scope);

/// One side of a link.
struct LinkEnd {
  std::string gpu{};
  std::string zone{};  ///< empty: any
  int ranks = 1;       ///< ranks of one node that communicate at the same time
  auto operator<=>(const LinkEnd&) const = default;
};

/// Key of a link measurement. A message goes from one rank to another, while `from.ranks` ranks of the sending node
/// send one each. A collective runs over `ranks` ranks, `from.ranks` of them per node.
struct LinkKey {
  LinkEnd from{};
  LinkEnd to{};
  LinkScope scope = LinkScope::intra_node;
  LinkOperation operation = LinkOperation::send_receive;
  int ranks = 2;  ///< ranks that take part in one operation; 2 for send_receive
  auto operator<=>(const LinkKey&) const = default;
};

/// The time of one message (one way), or of one collective until its slowest rank is done.
struct LinkMeasurement {
  LinkKey key{};
  Bytes message{};  ///< per rank: send_receive: what it sends; all_reduce: the array; all_gather and reduce_scatter:
                    ///< the whole array, of which each rank contributes or keeps 1/ranks
  TimeStatistics time{};
  int session = 0;
  bool operator==(const LinkMeasurement&) const = default;
};

/// A curve through the measurements of one key, and its errors: curve.time(message, key.from.ranks) is the time of a
/// measurement with that message, also of a collective.
struct LinkFit {
  LinkKey key{};
  LinkCurve curve{};
  double median_error = 0.0;   ///< |time of the curve / median time - 1| over the messages
  double largest_error = 0.0;  ///< the largest of these errors
  int points = 0;              ///< messages it was fitted to; 0: published without them and without errors
  int session = 0;
  bool operator==(const LinkFit&) const = default;
};

/// Memory of a process of a framework besides tensors.
struct ProcessMeasurement {
  std::string gpu{};
  std::string framework{};  ///< "sailor"
  Bytes base_memory{};      ///< resident before the first tensor: program, libraries, MPI buffers
  int session = 0;
  bool operator==(const ProcessMeasurement&) const = default;
};

/// The content of a store, or of one of its files.
struct ProfileData {
  std::vector<Session> sessions{};  ///< oldest first
  std::vector<LayerTime> layer_times{};
  std::vector<LayerMemory> layer_memory{};
  std::vector<OutOfMemory> out_of_memory{};
  std::vector<LinkMeasurement> links{};
  std::vector<LinkFit> fits{};
  std::vector<ProcessMeasurement> processes{};
  bool operator==(const ProfileData&) const = default;
};

}  // namespace sailor
