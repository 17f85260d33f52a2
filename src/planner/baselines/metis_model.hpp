// Metis' data on devices and a model, and its cost model (model/cost_estimator.py of the artifact).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "planner/baselines/inputs.hpp"
#include "planner/baselines/offered_nodes.hpp"

namespace sailor::planner::baselines::metis_detail {

/// The devices in the order of a node sequence: all nodes of its first GPU type, then of its second, ...
struct Ranks {
  std::vector<int> type;  ///< type of each rank: index into Tables::types()
  std::vector<int> node;
  std::vector<int> offer;  ///< index of the OfferedNodes of each rank

  [[nodiscard]] int size() const { return static_cast<int>(type.size()); }
};

struct Strategy {
  int data_parallel = 1;
  int tensor_parallel = 1;
};

/// A plan as Metis' cost model takes it: stage s has the next groups[s] ranks.
struct Arrangement {
  std::vector<int> groups;
  std::vector<Strategy> strategies;
  std::vector<int> boundaries;  ///< of layers, groups + 1
  int batches = 1;              ///< micro-batches
};

struct TypeFigures {
  std::string gpu;
  double node_bandwidth = 0.0;  ///< bytes/s
  double bandwidth = 0.0;       ///< bytes/s, between nodes
  double memory_mb = 0.0;       ///< 2^20 bytes
};

class Tables {
 public:
  /// measured: the GPU types whose measurements bound the search; layers are compared by the first of them. model_gpu:
  /// the type whose optimizer time is used. Errors: not_found for missing measurements or links.
  static Result<Tables> build(const Inputs& inputs, int global_batch, int sequence_length,
                              const std::vector<OfferedNodes>& nodes, const std::vector<std::string>& measured,
                              const std::string& model_gpu, Faults faults);

  [[nodiscard]] const std::vector<TypeFigures>& types() const { return types_; }
  [[nodiscard]] int layers() const { return static_cast<int>(parameter_bytes_.size()); }
  [[nodiscard]] int global_batch() const { return global_batch_; }
  /// Max micro-batch with times at tensor parallel 1 on every measured GPU type; 0: none.
  [[nodiscard]] int max_micro_batch() const { return max_micro_batch_; }
  [[nodiscard]] int max_degree() const { return max_degree_; }
  /// Share of each layer in the time of all layers; they sum to 1. Empty if micro-batch 1 without tensor parallelism
  /// was not measured.
  [[nodiscard]] const std::vector<double>& layer_shares() const { return layer_shares_; }
  [[nodiscard]] Ranks ranks(const std::vector<int>& sequence) const;

  /// Milliseconds of layers [first, last) for one replica. std::nullopt if not measured.
  [[nodiscard]] std::optional<double> time(int type, Strategy strategy, int micro_batch, int first, int last) const;
  /// The same for a stage of several GPU types whose replicas have these numbers of sequences: the slowest replica; the
  /// time of each is the sum over the powers of two of its number.
  [[nodiscard]] std::optional<double> mixed_time(const Ranks& ranks, int first_rank, int group, Strategy strategy,
                                                 const std::vector<int>& micro_batches, int first, int last) const;
  /// Memory of layers [first, last) at one micro-batch, in units of 2^20 bytes. std::nullopt if sizes were not
  /// measured.
  [[nodiscard]] std::optional<double> memory(int degree, int micro_batch, int first, int last) const;
  /// Milliseconds of an iteration, as Metis expects. stages: how many are counted, from the first; is_equal: replicas
  /// of a stage with several GPU types have equal micro-batches. std::nullopt if a time was not measured.
  [[nodiscard]] std::optional<double> cost(const Arrangement& plan, const Ranks& ranks, int stages,
                                           bool is_equal) const;

  [[nodiscard]] static bool is_mixed(const Ranks& ranks, int first_rank, int group);

 private:
  [[nodiscard]] double link(const Ranks& ranks, const std::vector<int>& members) const;
  [[nodiscard]] double reduction_bandwidth(const Ranks& ranks, int first_rank, Strategy strategy) const;
  [[nodiscard]] std::vector<int> shares_of_batch(const Ranks& ranks, int first_rank, int group, Strategy strategy,
                                                 int sequences) const;

  std::vector<OfferedNodes> nodes_;
  std::vector<TypeFigures> types_;
  std::vector<int> type_of_offer_;
  std::vector<double> layer_shares_;
  std::vector<double> parameter_bytes_;                               // by layer
  std::vector<std::vector<std::vector<std::vector<double>>>> times_;  // by type, degree, micro-batch, layer: ms
  std::vector<const LayerSizes*> sizes_;                              // by degree
  int global_batch_ = 0;
  int max_micro_batch_ = 0;
  int max_degree_ = 0;
  double hidden_elements_ = 0.0;      // sequence x hidden
  double vocabulary_elements_ = 0.0;  // sequence x vocabulary
  double optimizer_ms_ = 0.0;
  bool reuses_micro_batch_ = false;
};

}  // namespace sailor::planner::baselines::metis_detail
