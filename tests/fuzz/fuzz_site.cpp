// Site files (slurm/sites/*.toml).
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "slurm/site.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto gpus = sailor::GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml");
  if (gpus) (void)sailor::slurm::parse_site({reinterpret_cast<const char*>(data), size}, "fuzz", *gpus);
  return 0;
}
