// Cost of a layer from the best available source: a measurement, else measured neighbours, else an estimate. The source
// is always stated; with measured_only, only measurements (own or published) count.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "profile/estimate.hpp"
#include "profile/profile.hpp"

namespace sailor {

/// How a cost was found, from the best to the worst.
enum class Basis {
  look_up,                  ///< measured or published, as LayerCost::origin says
  between_micro_batches,    ///< interpolation between the measured neighbours: linear, bent as their estimates are
  between_tensor_parallel,  ///< log-log interpolation between the measured neighbours
  transfer,                 ///< measurements of the model on other GPUs, times the ratio of the rooflines
  roofline,                 ///< no measurement of the model at all
};
/// Shares of a layer's forward and backward time.
struct PassShares {
  double forward = 0.0;
  double backward = 0.0;
};
std::string_view to_string(Basis basis);

struct LayerPrice {
  LayerCost cost{};
  Basis basis = Basis::look_up;
  std::string sources{};  ///< "micro-batches 2 and 4", "GH200-96, A100-80"; empty for roofline, and for look_up unless
                          ///< times were stored without sizes, which then are those of a formula
};

/// Half of the estimates are off by less than `typical`, nine of ten by less than `wide` (0.25 = 25%, either way as a
/// factor). From leave-one-out on the published measurements; for bf16, which nothing was fitted for, from training
/// runs that others published; see layer_costs.cpp.
struct EstimateError {
  double typical = 0.0;
  double wide = 0.0;
};
EstimateError expected_error(Basis basis, Precision precision);
/// The same, by Efficiency::error of the rates where they say it.
EstimateError expected_error(Basis basis, Precision precision, const LayerKernels& kernels);

/// Remembers its answers. May be used by several threads at once. The arguments must outlive it.
class LayerCosts {
 public:
  /// `kernels`: those of the framework that the estimates are for.
  LayerCosts(const Model& model, const Profile& profile, const GpuCatalogue& gpus, bool measured_only = false,
             const LayerKernels& kernels = {});

  /// Cost of layer `key.first_layer`. That of a part of the sequence or of the experts is that of the whole, times the
  /// ratio of their estimates: it is an estimate, and has the basis of the whole. Interpolated times never have a
  /// better origin than their inputs, and have a slightly wider [low, high]; estimates have [low, high] after
  /// expected_error(). Where nothing was measured in fp8, its cost is that in bf16, times the ratio of their
  /// estimates. Errors: not_found, from the look-up if measured_only, or if the catalogue does not know the GPU
  /// or its rate.
  [[nodiscard]] const Result<LayerPrice>& find(const LayerKey& key) const;

  /// Stored times with stored sizes; unless measured_only, where no sizes are stored, with estimated ones, and
  /// LayerPrice::sources says so. std::nullopt: no times are stored.
  [[nodiscard]] std::optional<LayerPrice> look_up(const LayerKey& key) const;

  /// The part of a layer's times that is attention, by their estimates. Errors: not_found.
  [[nodiscard]] Result<PassShares> attention_shares(const LayerKey& key) const;
  /// Whether costs that were not measured can be estimated from the catalogue.
  [[nodiscard]] bool can_estimate(const std::string& gpu, Precision precision) const;
  /// "layer times of opt-350m on H200-141: ...": the note of a report on a price that is not a look-up.
  [[nodiscard]] std::string explain(const LayerKey& key, const LayerPrice& price) const;

  /// Estimate by Basis::transfer or Basis::roofline, also where a measurement exists. `without`: a GPU type whose
  /// measurements are ignored. Errors: not_found (nothing to transfer from; the GPU or its rate is not known).
  [[nodiscard]] Result<LayerPrice> estimate(const LayerKey& key, Basis basis, const std::string& without = {}) const;
  /// Interpolates between measured neighbours, also where a measurement exists; std::nullopt if a neighbour is missing.
  [[nodiscard]] std::optional<LayerPrice> between_micro_batches(const LayerKey& key) const;
  [[nodiscard]] std::optional<LayerPrice> between_tensor_parallel(const LayerKey& key) const;

  // One row for all layers of a kind: the median of the times over the layers, the largest of the sizes.
  using TimeTable = std::map<LayerKey, LayerTimes>;
  using SizeTable = std::map<LayerKey, LayerSizes>;
  [[nodiscard]] const TimeTable& measured_times() const;
  [[nodiscard]] const SizeTable& measured_sizes() const;
  [[nodiscard]] const Model& model() const { return model_; }
  [[nodiscard]] bool measured_only() const { return measured_only_; }
  [[nodiscard]] const LayerKernels& kernels() const { return kernels_; }

 private:
  [[nodiscard]] Result<LayerPrice> price(const LayerKey& key) const;
  /// The cost is that of `like`, times the ratio of their estimates.
  [[nodiscard]] Result<LayerPrice> scaled_price(const LayerKey& key, const LayerKey& like) const;
  [[nodiscard]] Result<LayerPrice> divided_price(const LayerKey& key) const;
  [[nodiscard]] Result<LayerPrice> price_in_fp8(const LayerKey& key) const;
  [[nodiscard]] bool is_measured_on(const std::string& gpu) const;
  [[nodiscard]] Result<LayerTimes> roofline_of(const LayerKey& key, bool launches = true) const;
  [[nodiscard]] Result<LayerTimes> transfer(const LayerKey& key, const std::string& without,
                                            std::string& sources) const;
  void collect_times() const;
  void collect_sizes() const;
  [[nodiscard]] LayerSizes sizes_of(const LayerKey& key, const std::string& without) const;

  const Model& model_;
  const Profile& profile_;
  const GpuCatalogue& gpus_;
  bool measured_only_;
  LayerKernels kernels_;
  mutable TimeTable times_;  // collected on first use, like the next: only estimates need them
  mutable SizeTable sizes_;
  mutable std::map<LayerKey, Result<LayerPrice>> found_;
  struct Guards {
    std::once_flag times{};
    std::once_flag sizes{};
    std::mutex finding{};
  };
  std::unique_ptr<Guards> guards_ = std::make_unique<Guards>();
};

}  // namespace sailor
