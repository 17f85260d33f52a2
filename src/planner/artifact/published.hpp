// Constants of the Sailor artifact (github.com/eth-easl/sailor), and the look-up of its measurements in a profile: for
// its evaluator (evaluator.hpp) and the published planners (baselines/inputs.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::planner::artifact {

inline constexpr double bucket_bytes = 500'000'000.0;  ///< of an all-reduce; DeepSpeed's buckets have as many elements
inline constexpr double bytes_per_float = 4.0;
inline constexpr const char* default_zone = "us-central1-a";

/// Named as in profiles/gpus.toml. 0: the artifact does not say.
struct PublishedGpu {
  const char* name;
  double memory_gib;        ///< simulations/constants.py: plans are judged by it
  double configured_bytes;  ///< simulations/configs/basic_cluster_config.json: what planners are told
  double usd_per_hour;
};
inline constexpr std::array<PublishedGpu, 7> published_gpus{{{"A100-40", 40.0, 42'338'615'296.0, 3.673385},
                                                             {"V100-16", 16.0, 17'179'869'184.0, 2.859998},
                                                             {"GH200-96", 96.0, 102'625'181'696.0, 11.06},
                                                             {"A100-80", 80.0, 85'899'345'920.0, 0.0},
                                                             {"Titan-RTX", 24.0, 0.0, 0.0},
                                                             {"RTX-2080", 11.0, 0.0, 0.0},
                                                             {"RTX-3090", 24.0, 0.0, 0.0}}};
/// Null: the artifact does not know it.
inline const PublishedGpu* find_published_gpu(std::string_view name) {
  const auto* const found = std::find_if(published_gpus.begin(), published_gpus.end(),
                                         [&](const PublishedGpu& entry) { return name == entry.name; });
  return found == published_gpus.end() ? nullptr : found;
}

/// "us-central1" of "us-central1-a".
inline std::string_view region_of(std::string_view zone) {
  const auto first = zone.find('-');
  return zone.substr(0, first == std::string_view::npos ? first : zone.find('-', first + 1));
}

/// Rows of one GPU type, micro-batch and tensor-parallel degree, by kind and first layer.
template <class Row>
using LayerRows = std::map<std::pair<LayerKind, int>, const Row*>;

/// The row of a layer: of its kind, with the greatest first layer that is not after it. Null if there is none.
template <class Row>
const Row* row_of(const LayerRows<Row>& rows, LayerKind kind, int layer) {
  auto next = rows.upper_bound({kind, layer});
  if (next == rows.begin()) return nullptr;
  --next;
  return next->first.first == kind ? next->second : nullptr;
}

/// The job's precision where there are times of it, else the nearest that there is: the artifact knows no precisions.
inline std::optional<Precision> precision_of(const std::set<Precision>& known, Precision wanted) {
  for (const Precision precision : {wanted, Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    if (known.contains(precision)) return precision;
  return std::nullopt;
}

}  // namespace sailor::planner::artifact
