// The GPU catalogue: facts about device types, from profiles/gpus.toml. A CPU core is a device like the others.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor {

enum class DeviceKind { gpu, cpu };

struct GpuType {
  std::string name;                  ///< "GH200-96"
  std::vector<std::string> aliases;  ///< other names people use: "GH-96", "gh200"
  DeviceKind kind = DeviceKind::gpu;
  Bytes memory{};  ///< of one device; 0 for a CPU: it has its share of the node's memory
  FlopPerSecond peak_fp32{};
  FlopPerSecond peak_tf32{};  ///< 0: the device has none
  FlopPerSecond peak_bf16{};  ///< 0: the device has none
  FlopPerSecond peak_fp16{};  ///< products accumulated in fp32; 0: the device has none
  FlopPerSecond peak_fp8{};   ///< products accumulated in fp32; 0: the device has none
  BytesPerSecond memory_bandwidth{};
  BytesPerSecond node_link{};               ///< to the other devices of its node, in one direction; 0: not known
  UsdPerHour price{};                       ///< of one device
  std::vector<std::string> slurm_gres;      ///< GRES types that mean this device: "gpu:<type>", compared without case
  std::string source;                       ///< source of the figures
  std::vector<std::string> driver_names{};  ///< "NVIDIA A100-SXM4-40GB"; a GRES type may be a part of one
  std::string backend{};                    ///< needed by programs to compute on it: "cuda", "hip"; "cpu" for a CPU
};

class GpuCatalogue {
 public:
  /// Errors: not_found, io, invalid_input (with file, line and column; also names used twice).
  static Result<GpuCatalogue> load(const std::filesystem::path& path);
  static Result<GpuCatalogue> parse(std::string_view text, std::string_view source_name);

  /// Finds a type by name or alias, case-insensitive. Errors: not_found, with the known names.
  [[nodiscard]] Result<GpuType> find(std::string_view name) const;
  /// Finds a type by that of a Slurm GRES ("gh200" of "gpu:gh200:4"), see match_gres(); null: unknown or ambiguous.
  [[nodiscard]] const GpuType* find_gres(std::string_view gres_type) const;
  /// The CPU device; null if the catalogue has none.
  [[nodiscard]] const GpuType* cpu() const;
  [[nodiscard]] const std::vector<GpuType>& types() const { return types_; }

 private:
  std::vector<GpuType> types_;
};

}  // namespace sailor
