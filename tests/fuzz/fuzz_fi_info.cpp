#include <cstdint>
#include <string_view>

#include "preflight/fabric.hpp"

// Whatever fi_info prints, what is read are few short names, each once, in order.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto providers = sailor::preflight::parse_fi_info(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto sound = [](const std::string& name) {
    return !name.empty() && name.size() <= 128 && name.find_first_of(" \t\r\n") == std::string::npos;
  };
  if (providers.size() > 256) __builtin_trap();
  for (std::size_t i = 0; i < providers.size(); ++i) {
    if (!sound(providers[i].name) || (i > 0 && providers[i - 1].name >= providers[i].name)) __builtin_trap();
    for (const std::string& domain : providers[i].domains)
      if (!sound(domain)) __builtin_trap();
  }
  return 0;
}
