// Look-ups of the published planners: layer times and sizes by layer index, links by GPU type, zone and number of
// senders, as the artifact of the Sailor paper keeps them (SOSP'25), read from the common profile store.
//
// Nothing is interpolated or clamped here: values that were not measured are missing, and bandwidths are the published
// parabolas.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "planner/artifact/published.hpp"
#include "profile/profile.hpp"

namespace sailor::planner::baselines {

/// Seconds of one micro-batch on one device, by layer.
struct LayerTimes {
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> update;  ///< the optimizer step of the whole measured model, repeated for every layer

  /// forward + backward of layers [first, last).
  [[nodiscard]] double compute(int first, int last) const;
};

/// Sizes on one device at micro-batch 1, by layer. In numbers of 4-byte floats, as published.
struct LayerSizes {
  std::vector<double> parameters;
  std::vector<double> activation;  ///< kept for the backward pass
  std::vector<double> output;      ///< what the next stage receives; not divided by the tensor-parallel degree

  [[nodiscard]] double parameters_of(int first, int last) const;
  [[nodiscard]] double activation_of(int first, int last) const;
};

/// Bandwidth in GB/s (1e9) of a message of s bytes: c[0] x^2 + c[1] x + c[2], x = log2(s / 1e6).
struct LinkCoefficients {
  std::array<double, 3> c{};
  double max_bandwidth = 0.0;  ///< bytes/s, the largest measured

  /// GB/s; may be zero or negative outside the measured sizes.
  [[nodiscard]] double bandwidth(double bytes) const;
  /// Seconds; 0 for no bytes.
  [[nodiscard]] double send(double bytes) const;
  /// Ring all-reduce of `bytes` over `ranks`: 2 (n - 1) send(bytes / n); 0 for one rank or no bytes.
  [[nodiscard]] double all_reduce(double bytes, int ranks) const;
  /// The same in buckets of 5e8 bytes (DeepSpeed's bucket of 5e8 elements, which the artifact takes for bytes).
  [[nodiscard]] double bucketed_all_reduce(double bytes, int ranks) const;
};

class Inputs {
 public:
  /// Reads the rows for a job: of its model, sequence length, precision (published times are fp32) without
  /// recomputation. Errors: not_found if the profile has no times or no sizes of the model.
  static Result<Inputs> build(const TrainingJob& job, const Model& model, const Profile& profile,
                              const GpuCatalogue& catalogue);

  [[nodiscard]] const Model& model() const { return *model_; }
  [[nodiscard]] int layers() const { return layers_; }  ///< embedding, blocks, head (and a final norm apart from it)
  [[nodiscard]] int blocks() const { return blocks_; }  ///< transformer layers: [1, 1 + blocks())
  /// GPU types that have times, sorted by name.
  [[nodiscard]] std::vector<std::string> gpus() const;
  /// Micro-batches that have times at any tensor-parallel degree, ascending.
  [[nodiscard]] std::vector<int> micro_batches(std::string_view gpu) const;
  /// Tensor-parallel degrees that have times at this micro-batch, ascending. Those whose times are all zero (published:
  /// V100-16, micro-batch 8, degree 1) are left out, but times() has them.
  [[nodiscard]] std::vector<int> degrees(std::string_view gpu, int micro_batch) const;
  /// Null if not measured.
  [[nodiscard]] const LayerTimes* times(std::string_view gpu, int micro_batch, int tensor_parallel) const;
  /// Null if there are none for this degree.
  [[nodiscard]] const LayerSizes* sizes(int tensor_parallel) const;
  [[nodiscard]] std::vector<int> size_degrees() const;  ///< ascending

  /// Link between nodes with these numbers of senders and receivers per node. Null if no such link was measured.
  [[nodiscard]] const LinkCoefficients* inter(std::string_view from_gpu, std::string_view from_zone, int senders,
                                              std::string_view to_gpu, std::string_view to_zone, int receivers) const;
  /// Numbers of senders with links between nodes of this type inside the zone, ascending.
  [[nodiscard]] std::vector<int> senders(std::string_view gpu, std::string_view zone) const;
  /// Link inside a node, among this number of GPUs. Null if not measured.
  [[nodiscard]] const LinkCoefficients* intra(std::string_view gpu, int ranks) const;

  /// Bytes of device memory that the artifact assumes (16, 40, 80, 96 GiB, ...); the catalogue's if it has none.
  [[nodiscard]] double memory(std::string_view gpu) const;
  /// Bytes that the artifact's basic_cluster_config.json gives as `mem_per_gpu`; memory() if it has none.
  [[nodiscard]] double configured_memory(std::string_view gpu) const;
  /// USD per GPU-hour of the artifact's evaluator; the catalogue's if it has none.
  [[nodiscard]] double price(std::string_view gpu) const;
  /// USD per GB between zones: 0 inside a zone, 0.01 inside a region, else 0.02.
  [[nodiscard]] static double egress_price(std::string_view from_zone, std::string_view to_zone);

 private:
  using Where = std::tuple<std::string, std::string, int>;
  const Model* model_ = nullptr;
  const GpuCatalogue* catalogue_ = nullptr;
  int layers_ = 0;
  int blocks_ = 0;
  std::map<std::string, std::map<int, std::map<int, LayerTimes>>, std::less<>> times_;  // GPU, micro-batch, degree
  std::map<int, LayerSizes> sizes_;                                                     // by degree
  std::map<std::pair<Where, Where>, LinkCoefficients> inter_;
  std::map<std::pair<std::string, int>, LinkCoefficients> intra_;
};

using artifact::region_of;

}  // namespace sailor::planner::baselines
