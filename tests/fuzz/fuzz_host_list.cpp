#include <cstdint>
#include <string_view>

#include "cluster/host_list.hpp"

// Any bytes are either names of hosts, none empty, or a clear error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto hosts = sailor::expand_host_list(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!hosts) {
    if (hosts.error().what.empty()) __builtin_trap();
    return 0;
  }
  for (const std::string& host : *hosts)
    if (host.empty()) __builtin_trap();
  return 0;
}
