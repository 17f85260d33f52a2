#include <cstdint>
#include <string_view>

#include "cluster/cluster.hpp"

namespace {

constexpr const char* catalogue_text = R"(schema_version = 1
[[gpus]]
name = "gh200"
memory_bytes = 1e11
peak_fp32_flop_per_s = 1e12
memory_bandwidth_bytes_per_s = 1e12
price_usd_per_hour = 1.0
source = "fuzz"
[[gpus]]
name = "cpu"
kind = "cpu"
peak_fp32_flop_per_s = 1e12
memory_bandwidth_bytes_per_s = 1e12
price_usd_per_hour = 1.0
source = "fuzz"
)";

}  // namespace

// Any bytes are either a cluster, which can be written and read again, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sailor::GpuCatalogue catalogue = sailor::GpuCatalogue::parse(catalogue_text, "gpus.toml").value();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto cluster = sailor::parse_cluster(text, "fuzz.toml", catalogue);
  if (!cluster) {
    if (cluster.error().what.empty()) __builtin_trap();
    return 0;
  }
  const std::string written = sailor::cluster_to_toml(*cluster);
  const auto again = sailor::parse_cluster(written, "again.toml", catalogue);
  if (!again || sailor::cluster_to_toml(*again) != written) __builtin_trap();
  return 0;
}
