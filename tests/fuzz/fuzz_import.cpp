#include <cstdint>
#include <string_view>

#include "profile/import.hpp"
#include "profile/text.hpp"

// Any bytes are either measurements that can be written as text and read back, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const sailor::GpuCatalogue gpus = sailor::GpuCatalogue::parse(
                                               "schema_version = 1\n[[gpus]]\nname = \"A100-40\"\nmemory_bytes = 4e10\n"
                                               "peak_fp32_flop_per_s = 1e12\nmemory_bandwidth_bytes_per_s = 1e12\n"
                                               "price_usd_per_hour = 1.0\nsource = \"fuzz\"\n",
                                               "gpus.toml")
                                               .value();
  static const std::vector<sailor::Model> models = [] {
    sailor::Model model{.name = "tiny", .aliases = {"T"}, .blocks = 2, .hidden = 8};
    model.attention_heads = model.key_value_heads = 1;
    model.max_sequence_length = 16;
    return std::vector{model};
  }();
  sailor::ImportOptions options{.models = models, .gpus = gpus, .model = "T", .gpu = "A100-40"};
  options.session.id = "fuzz";
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  const auto imported = sailor::import_profile(content, "fuzz.json", options);
  if (!imported) {
    if (imported.error().what.empty()) __builtin_trap();
    return 0;
  }
  if (!sailor::parse_profile_toml(sailor::to_toml(*imported), "written.toml")) __builtin_trap();
  return 0;
}
