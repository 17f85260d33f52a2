#include "runtime/process_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace sailor::runtime {

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

/// The number in a file of a control group; "max" is infinity. std::nullopt if the file does not exist.
std::optional<double> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  return text == "max" ? unlimited : std::strtod(text.c_str(), nullptr);
}

/// Value of `name` in memory.stat (lines "name 1234"); 0 if it is not there.
double statistic(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  for (double value = 0.0; file >> key >> value;)
    if (key == name) return value;
  return 0.0;
}

/// Free memory of one control group: its limit minus its use, where file pages that it can drop count as free.
double free_in(const std::string& group, const char* limit, const char* used, const char* droppable) {
  const auto most = number_in(group + limit);
  const auto now = number_in(group + used);
  if (!most || !now || *most == unlimited) return unlimited;
  return std::max(0.0, *most - *now + statistic(group + "/memory.stat", droppable));
}

/// Minimum of free_in() over the control groups of this process: "4:memory:/a/b" (version 1), "0::/a/b" (version 2).
double free_in_control_groups() {
  double least = unlimited;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",memory,") == std::string::npos) continue;
    // In a container the path may be the host's, and the mounted root the group itself: the walk ends there.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      least =
          std::min(least, unified ? free_in("/sys/fs/cgroup" + path, "/memory.max", "/memory.current", "inactive_file")
                                  : free_in("/sys/fs/cgroup/memory" + path, "/memory.limit_in_bytes",
                                            "/memory.usage_in_bytes", "total_inactive_file"));
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

double free_on_node() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:"))
      return 1024.0 * std::strtod(line.c_str() + line.find(':') + 1, nullptr);  // "kB" there is 1024 bytes
  return unlimited;
}

}  // namespace

ResidentMemory resident_memory() {
  ResidentMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {  // "VmHWM:     1234 kB", where kB is 1024 bytes
    const auto value = [&] { return kib * std::strtod(line.c_str() + line.find(':') + 1, nullptr); };
    if (line.starts_with("VmRSS:")) memory.now = value();
    if (line.starts_with("VmHWM:")) memory.peak = value();
  }
  return memory;
}

Bytes available_memory() {
  const double least = std::min(free_on_node(), free_in_control_groups());
  return Bytes(least == unlimited ? 0.0 : least);
}

}  // namespace sailor::runtime
