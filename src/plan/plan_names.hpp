#pragma once

#include <string_view>
#include <vector>

/// The words of plan.toml, in the order of their enumerations.
namespace sailor::plan_names {

inline const std::vector<std::string_view> precisions{"fp32", "tf32", "bf16", "fp16", "fp8"};
inline const std::vector<std::string_view> optimizers{"adamw"};
inline const std::vector<std::string_view> schedules{"1f1b", "gpipe", "interleaved-1f1b"};
inline const std::vector<std::string_view> recomputations{"none", "selective", "full"};
inline const std::vector<std::string_view> shardings{"none", "zero1", "zero2", "zero3"};
inline const std::vector<std::string_view> kept_together{"pipelines", "replicas"};

}  // namespace sailor::plan_names
