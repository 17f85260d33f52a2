#include "runtime/cpu/host_cpu.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "core/affinity.hpp"

namespace sailor::runtime::cpu {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "name<tabs>: value" -> "value"
std::string value_of(const std::string& line) {
  const auto colon = line.find(": ");
  return colon == std::string::npos ? std::string() : line.substr(colon + 2);
}

}  // namespace

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && !value_of(line).empty()) return value_of(line);
#ifdef __aarch64__
  return "aarch64 CPU";  // /proc/cpuinfo has no model name there
#else
  return "CPU";
#endif
}

int compute_threads(const std::map<std::string, std::string>& environment) {
  const auto wanted = environment.find("OMP_NUM_THREADS");  // "4", or "4,2" for nested regions
  const long threads = wanted == environment.end() ? 1 : std::strtol(wanted->second.c_str(), nullptr, 10);
  const auto most = static_cast<long>(allowed_cores().size());
  return static_cast<int>(std::clamp<long>(threads, 1, std::max(most, 1L)));
}

std::size_t last_level_cache() {
  std::size_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    // "32768K"
    const std::string text = first_line(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    char* unit = nullptr;
    const std::size_t size = std::strtoull(text.c_str(), &unit, 10);
    largest = std::max(largest, *unit == 'M' ? size << 20U : *unit == 'K' ? size << 10U : size);
  }
#ifdef _SC_LEVEL3_CACHE_SIZE
  // glibc asks the processor itself (cpuid).
  if (largest == 0)
    for (const int name : {_SC_LEVEL4_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
      largest = std::max(largest, static_cast<std::size_t>(std::max(0L, ::sysconf(name))));
#endif
  return largest > 0 ? largest : std::size_t{32} << 20U;
}

double clock_hz() {
  const int core = std::max(0, ::sched_getcpu());
  const std::string khz = first_line(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", core));
  if (!khz.empty()) return 1e3 * std::strtod(khz.c_str(), nullptr);
  std::ifstream info("/proc/cpuinfo");
  bool here = false;
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("processor")) here = std::atoi(value_of(line).c_str()) == core;
    if (here && line.starts_with("cpu MHz")) return 1e6 * std::strtod(value_of(line).c_str(), nullptr);
  }
  return 0.0;
}

}  // namespace sailor::runtime::cpu
