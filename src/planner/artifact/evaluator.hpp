// The evaluator of the Sailor artifact (github.com/eth-easl/sailor, simulations/runtime_simulator.py) for one entry of
// its pipeline_list: every stage has the same number of replicas, every replica is one tensor-parallel group.
//
// Its faults are kept, as published figures contain them: gradients are reduced after the last backward pass, at the
// bandwidth of one GPU per node, their bytes divided by the smallest tensor-parallel degree of the stage but at most 4;
// sends are not divided by that degree; the first and last stage count their sends twice from 4 stages on; bandwidths
// are parabolas that are not cut; egress is charged for the whole ring.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "planner/artifact/artifact.hpp"
#include "profile/profile.hpp"

namespace sailor::planner::artifact {

/// Tensor-parallel groups of a kind, one per data-parallel replica. `gpu` and `zone` are indices into Tables.
struct Run {
  int gpu = 0;
  int zone = 0;
  int tensor_parallel = 1;
  int count = 1;  ///< number of consecutive replicas
  bool operator==(const Run&) const = default;
};

struct StageRuns {
  LayerRange layers;
  std::vector<Run> runs;  ///< in the order of the replicas; replica j sends to replica j of the next stage
};

struct Pipelines {
  int micro_batch = 1;
  int replicas = 1;  ///< of every stage
  std::vector<StageRuns> stages;
};

/// Prefix sums over the layers: entry l is of layers [0, l).
using Prefix = std::vector<double>;

/// Seconds of one micro-batch on one GPU type, at one micro-batch size and tensor-parallel degree.
struct Times {
  Prefix compute;              ///< forward and backward
  std::vector<double> update;  ///< by layer
};
/// Sizes at one tensor-parallel degree.
struct Sizes {
  Prefix parameters;   ///< on one GPU
  Prefix activations;  ///< bytes on one GPU at micro-batch 1
};

using Curve = std::array<double, 3>;  ///< highest power first, GB/s over log2 of MB
/// Seconds of a message. Negative where the parabola is negative: then a message takes no time.
double message_time(double bytes, const Curve& curve);
/// Ring all-reduce in buckets of 5e8 bytes.
double bucketed_all_reduce(double bytes, int ranks, const Curve& curve);

/// Data that the evaluator looks up, taken from our profile.
class Tables {
 public:
  Tables() = default;
  Tables(const Tables&) = delete;  // links_by_end_ points into links_
  Tables& operator=(const Tables&) = delete;
  Tables(Tables&&) = default;
  Tables& operator=(Tables&&) = default;
  /// GPU types and zones by the names of catalogue and cluster. Errors: not_found when the profile has neither sizes
  /// nor times of the model.
  static Result<Tables> build(const TrainingJob& job, const Model& model, const Profile& profile,
                              const GpuCatalogue& catalogue, const std::vector<std::string>& gpus,
                              const std::vector<std::string>& zones);

  [[nodiscard]] int layers() const { return layers_; }
  [[nodiscard]] const std::vector<std::string>& gpus() const { return gpus_; }
  [[nodiscard]] const std::vector<std::string>& zones() const { return zones_; }
  /// Null where not profiled, or profiled with a time of zero in every layer.
  [[nodiscard]] const Times* times(int gpu, int micro_batch, int tensor_parallel) const;
  /// Null where the publication has no sizes.
  [[nodiscard]] const Sizes* sizes(int gpu, int tensor_parallel) const;
  [[nodiscard]] std::vector<int> micro_batches() const;                          ///< of any GPU type, ascending
  [[nodiscard]] std::vector<int> degrees(int gpu, int micro_batch) const;        ///< with times and sizes, ascending
  [[nodiscard]] double output_bytes(int layer) const { return output_[layer]; }  ///< at micro-batch 1
  [[nodiscard]] double memory(int gpu) const { return memory_[gpu]; }            ///< bytes
  [[nodiscard]] double price(int gpu) const { return price_[gpu]; }              ///< USD per device-second
  /// Between nodes, with min(tensor parallel, devices per node of the publication) senders. Null: no such link.
  [[nodiscard]] const Curve* link(int from_gpu, int from_zone, int from_degree, int to_gpu, int to_zone,
                                  int to_degree) const;
  /// USD per byte.
  [[nodiscard]] double egress_price(int from_zone, int to_zone) const;
  /// Bytes of all gradients of a stage in one replica without tensor parallelism.
  [[nodiscard]] double gradient_bytes(const LayerRange& layers) const;
  /// Bytes per GPU of a stage. `in_flight`: number of stages from this one to the end, itself included.
  [[nodiscard]] double memory_needed(const Sizes& sizes, int tensor_parallel, const LayerRange& layers, int in_flight,
                                     int micro_batch) const;
  [[nodiscard]] int global_batch() const { return global_batch_; }

 private:
  int layers_ = 0;
  int global_batch_ = 0;
  std::vector<std::string> gpus_;
  std::vector<std::string> zones_;
  std::vector<std::string> link_zones_;  // by zone: the zone whose links are used
  std::vector<double> memory_;
  std::vector<double> price_;
  std::map<std::array<int, 3>, Times> times_;  // gpu, micro-batch, tensor parallel
  std::map<std::array<int, 2>, Sizes> sizes_;  // gpu, tensor parallel
  std::vector<double> output_;
  Prefix whole_parameters_;  // at tensor-parallel degree 1
  [[nodiscard]] std::size_t end_of(int gpu, int zone, int senders) const;
  void index_links();

  std::map<std::array<int, 6>, Curve> links_;
  std::vector<int> max_senders_;  // by gpu
  std::vector<int> regions_;      // by zone
  std::vector<int> senders_;      // by number of senders: its index among the known numbers, or -1
  std::size_t kinds_of_senders_ = 0;
  std::vector<const Curve*> links_by_end_;  // sender x receiver
};

/// Errors: not_found (times, sizes or links that the publication does not have).
Result<ArtifactScore> evaluate(const Pipelines& pipelines, const Tables& tables);

/// Share of memory that is free on the GPU with the least.
double memory_headroom(const Pipelines& pipelines, const Tables& tables);

}  // namespace sailor::planner::artifact
