// Prices of stages, messages between them and gradient reductions: the simulator's numbers, laid out for searches that
// ask for every range of layers. Times in seconds, memory in bytes, per rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <unordered_map>
#include <vector>

#include "planner/search_space.hpp"
#include "simulator/price_list.hpp"

namespace sailor::planner {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Prices of layers (of the search: SearchSpace::cuts) at one GPU type, tensor-parallel degree, micro-batch and choice
/// of a stage. Sums over a range of layers are differences of prefix sums, whose element i is of layers [0, i).
struct StageTable {
  std::vector<double> pass;  ///< forward and backward of one micro-batch
  std::vector<double> backward;
  std::vector<double> update;
  std::vector<double> parameters;
  std::vector<double> experts;      ///< part of the parameters, where experts are divided among ranks
  std::vector<double> activations;  ///< of one micro-batch, without the head's
  /// The same value of all layers up to the next run.
  struct Run {
    int first = 0;  ///< layer
    double value = 0.0;
  };
  std::vector<Run> workspace;  ///< memory of a layer while it computes
  std::vector<Run> largest;    ///< parameters of the model's largest layer in a layer of the search
  double logits = 0.0;
  double extra_logits = 0.0;     ///< on the last stage, once
  double stage_input = 0.0;      ///< of one micro-batch, on stages but the first, where it is kept
  double tied_parameters = 0.0;  ///< of a second copy of a tied embedding
  double tied_update = 0.0;
  std::vector<simulator::PassTimes> times;  ///< prefix sums

  /// Max value of layers [first, last).
  [[nodiscard]] static double max_of(const std::vector<Run>& runs, int first, int last) {
    double largest = 0.0;
    for (std::size_t run = runs.size(); run-- > 0;) {
      if (runs[run].first >= last) continue;
      largest = std::max(largest, runs[run].value);
      if (runs[run].first <= first) break;
    }
    return largest;
  }
  [[nodiscard]] double time(int first, int last) const {
    return pass[static_cast<std::size_t>(last)] - pass[static_cast<std::size_t>(first)];
  }
};

/// How ranks share weights, gradients and the optimizer's state, and how many of them.
struct Sharing {
  OptimizerSharding sharding = OptimizerSharding::none;
  double replicas = 1.0;
};

/// Times of a forward message and of its gradient back over a stage boundary.
struct BoundaryCost {
  double forward = 0.0;
  double backward = 0.0;
  [[nodiscard]] double both() const { return forward + backward; }
};

/// Splits the space into plans with ZeRO-3 and without. ZeRO-3 exchanges weights and gradients in every pass, all other
/// plans at the end of an iteration; lower bounds of the prices of both together would be too weak.
std::vector<SearchSpace> split_by_exchange(const SearchSpace& space);
/// Splits the space into parts that are bounded separately because their times follow different formulas: interleaved
/// schedules (first, as their bound takes least work) and, where reductions overlap passes, sharded optimizers.
std::vector<SearchSpace> split_for_bounds(const SearchSpace& space, const simulator::Framework& framework);

/// Min over the shardings of the space of the bytes per parameter that replicas exchange at the end of an iteration.
double min_exchanged(const SearchSpace& space, const simulator::StateBytes& state);

/// Hashable key of the time of a reduction.
struct ReductionKey {
  std::uint64_t where = 0;  ///< pools, packed
  std::uint64_t ranks = 0;  ///< replicas, tensor-parallel degree and devices of a node, packed
  double amount = 0.0;      ///< bytes
  bool operator==(const ReductionKey&) const = default;
};
struct ReductionKeyHash {
  std::size_t operator()(const ReductionKey& key) const;
};

/// Caches what it looked up; for one thread at a time. The arguments must outlive it. Where a pool has devices of
/// several zones, messages and reductions take what they take between those two zones that are quickest.
class StagePrices {
 public:
  StagePrices(const Request& request, const SearchSpace& space, const simulator::Environment& env);

  /// Null if not measured and not estimable. `busy_ranks`: ranks that compute on the node; 0: all its devices.
  const StageTable* table(std::size_t type, int tensor_parallel, int micro_batch, const StageChoice& choice,
                          int busy_ranks = 0);
  /// Infinite where no link is known.
  BoundaryCost boundary(std::size_t from, int from_tensor_parallel, std::size_t to, int to_tensor_parallel,
                        int micro_batch, bool one_node);
  /// Time of one all-reduce of `amount` bytes over `replicas`, `ranks` of them on a node, while `rings` all-reduces go
  /// through the node's network. Includes the framework's own work on the gradients. Infinite where no link is known.
  double reduction(std::size_t from, std::size_t to, int ranks, int rings, int replicas, bool one_node, double amount);
  /// Min of reduction() over two pools, wherever the replicas (groups of this degree) are on nodes of up to `node`
  /// devices and whatever else computes there: on published links more all-reduces at once may take less time. Not
  /// remembered.
  double min_reduction(std::size_t from, std::size_t to, int tensor_parallel, int replicas, int node, double amount);
  /// Min of it between a pool and every pool of the space, itself included, in both directions and on nodes as large as
  /// the larger of the two. Infinite where no link is known.
  double min_reduction(std::size_t pool, int tensor_parallel, int replicas, double amount);

  /// Memory of a stage of layers [first, last) without its activations and the process itself.
  [[nodiscard]] double states(const StageTable& table, int first, int last, const Sharing& sharing) const;
  /// Memory that one micro-batch in flight keeps.
  [[nodiscard]] double kept(const StageTable& table, int first, int last) const;
  /// Memory of workspace and buffers.
  [[nodiscard]] double fixed(const StageTable& table, int first, int last, int micro_batch, int neighbours) const;
  /// Max number of micro-batches in flight with which a stage fits; at most `wanted`.
  [[nodiscard]] int max_in_flight(const StageTable& table, const DevicePool& pool, int first, int last, int micro_batch,
                                  int neighbours, const Sharing& sharing, bool copies_gradients, int wanted) const;
  /// The same under the sharding of the space that needs least memory, among any number of replicas.
  [[nodiscard]] int max_in_flight_of_any(const StageTable& table, const DevicePool& pool, int first, int last,
                                         int micro_batch, int neighbours, int wanted) const;
  /// Gradients that are reduced at once at most, of one rank: what a framework with copies_reduced_gradients copies.
  [[nodiscard]] double largest_reduction(const StageTable& table, int first, int last) const;
  /// Gradients of a stage's layers, of one rank.
  [[nodiscard]] double gradients(const StageTable& table, int first, int last) const;
  /// Gradients that a rank of this tensor-parallel degree all-reduces with its replicas: less than gradients(), as
  /// those that every rank of a group holds are divided among the ranks, too. 0 in spaces with ZeRO-3, whose passes
  /// exchange them.
  [[nodiscard]] double summed(int first, int last, int tensor_parallel) const;
  /// Optimizer step of a stage.
  [[nodiscard]] double update(const StageTable& table, int first, int last) const;

  [[nodiscard]] const SearchSpace& space() const { return space_; }
  [[nodiscard]] const simulator::Environment& env() const { return env_; }
  [[nodiscard]] const Request& request() const { return request_; }
  [[nodiscard]] int layers() const { return space_.layers(); }
  /// Parameters of layers [first, last) of the search, in the whole model.
  [[nodiscard]] double parameters(int first, int last) const;

 private:
  struct KeyHash {
    std::size_t operator()(std::uint64_t key) const { return std::hash<std::uint64_t>()(key * 0x9e3779b97f4a7c15ULL); }
  };
  /// Adds the messages of context and expert parallelism to a table's times. False if no link is known.
  bool add_exchanges(simulator::LayerTable& layers, std::size_t type, int tensor_parallel, int node);
  /// Calls `use(a, b)` with the places that a message or reduction between two pools may lie at.
  template <class Use>
  void for_each_link(std::size_t from, std::size_t to, bool one_node, Use use) const {
    for (const std::uint32_t a : places_[from])
      for (const std::uint32_t b : places_[to])
        if (!one_node || from != to || a == b) use(a, b);
  }
  /// Bytes of a micro-batch between stages, of one tensor-parallel group.
  [[nodiscard]] double message(int micro_batch) const;

  const Request& request_;
  const SearchSpace& space_;
  const simulator::Environment& env_;
  simulator::PriceList prices_;
  std::vector<std::vector<std::uint32_t>> places_;  // of prices_, by pool
  simulator::StateBytes state_;
  std::vector<OptimizerSharding> lightest_;  // no sharding of the space needs less memory than all of these
  std::vector<double> summed_;               // gradients of layers [0, i), of all ranks of a group together
  std::unordered_map<std::uint64_t, std::unique_ptr<StageTable>, KeyHash> tables_;
  std::unordered_map<std::uint64_t, BoundaryCost, KeyHash> boundaries_;
  std::unordered_map<ReductionKey, double, ReductionKeyHash> min_reductions_;  // with any pool
};

}  // namespace sailor::planner
