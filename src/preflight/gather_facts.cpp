#include "preflight/gather_facts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <set>
#include <system_error>

#include "core/affinity.hpp"
#include "core/parse.hpp"
#include "core/text.hpp"
#include "preflight/nvml.hpp"

namespace sailor::preflight {

namespace {

namespace fs = std::filesystem;

/// The first line of a small file; empty if there is none.
std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::int64_t> number_of(const fs::path& path) {
  const std::string line = line_of(path);
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(line.data(), line.data() + line.size(), number);
  return problem == std::errc() && end != line.data() ? std::optional(number) : std::nullopt;
}

/// Names in a folder, sorted; none if it is not there.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Adds the number in a file to the sum; the sum stays std::nullopt if no file has one.
void add_to(std::optional<std::int64_t>& sum, const fs::path& file) {
  if (const auto number = number_of(file)) sum = sum.value_or(0) + *number;
}

/// "Name:   value kB" of /proc/meminfo
std::optional<Bytes> memory_line(const fs::path& root, std::string_view name) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':')
      return kib * std::strtod(line.c_str() + name.size() + 1, nullptr);
  return std::nullopt;
}

std::string processor_name(const fs::path& root) {
  std::ifstream file(root / "proc/cpuinfo");
  std::string part;  // part number of ARM processors, which have no name in this file
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) return line.substr(colon + 2);
    if (line.starts_with("CPU part") && part.empty()) part = "ARM processor, part " + line.substr(colon + 2);
  }
  return part.empty() ? "CPU" : part;
}

fs::path folder_of_core(const fs::path& root, int core) {
  return root / "sys/devices/system/cpu" / fmt::format("cpu{}", core);
}

void add_processor(const fs::path& root, RankFacts& facts) {
  facts.cpu = processor_name(root);
  facts.cores = allowed_cores();
  const std::vector<int> online = parse_core_list(line_of(root / "sys/devices/system/cpu/online"));
  facts.cores_online = static_cast<int>(online.empty() ? facts.cores.size() : online.size());
  const fs::path nodes = root / "sys/devices/system/node";
  for (const int node : parse_core_list(line_of(nodes / "online"))) {
    const fs::path folder = nodes / fmt::format("node{}", node);
    const std::vector<int> cores = parse_core_list(line_of(folder / "cpulist"));
    if (!cores.empty()) ++facts.numa_nodes_with_cores;
    if (std::any_of(cores.begin(), cores.end(),
                    [&](int core) { return std::binary_search(facts.cores.begin(), facts.cores.end(), core); }))
      facts.numa_nodes.push_back(node);
  }
  facts.memory_nodes = parse_core_list(line_of(nodes / "has_memory"));
  if (facts.numa_nodes_with_cores == 0)
    facts.unknown.push_back({"numa", fmt::format("{} says nothing of NUMA nodes", nodes.string())});
  if (facts.cores.empty()) {
    facts.unknown.push_back({"cores", "the system does not say which cores the rank may run on"});
    return;
  }
  // The core whose clock is limited most counts for all.
  for (const int core : facts.cores) {
    const fs::path clock = folder_of_core(root, core) / "cpufreq";
    const auto highest = number_of(clock / "cpuinfo_max_freq");
    const auto allowed = number_of(clock / "scaling_max_freq");
    if (!highest || !allowed || *highest <= 0) continue;
    if (facts.allowed_clock_hz && *facts.allowed_clock_hz / *facts.highest_clock_hz <=
                                      static_cast<double>(*allowed) / static_cast<double>(*highest))
      continue;
    facts.highest_clock_hz = 1e3 * static_cast<double>(*highest);
    facts.allowed_clock_hz = 1e3 * static_cast<double>(*allowed);
  }
  if (!facts.allowed_clock_hz) facts.unknown.push_back({"cpu-clock", "the system has no cpufreq"});
  facts.thermal_throttles = thermal_throttles(facts.cores, root);
  if (!facts.thermal_throttles) facts.unknown.push_back({"cpu-throttling", "the processor does not count it"});
  const std::string governor = line_of(folder_of_core(root, facts.cores.front()) / "cpufreq/scaling_governor");
  if (!governor.empty()) facts.versions.push_back({"CPU governor", governor});
}

/// The policy that numactl --membind sets; std::nullopt if memory may lie anywhere.
std::optional<std::vector<int>> bound_memory() {
#ifdef SYS_get_mempolicy
  constexpr int bind = 2;             // MPOL_BIND
  constexpr std::size_t most = 4096;  // at least the kernel's own number of nodes, or it refuses
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  int mode = 0;
  std::array<unsigned long, most / bits> mask{};
  if (::syscall(SYS_get_mempolicy, &mode, mask.data(), most, nullptr, 0UL) != 0 || (mode & 0xFF) != bind)
    return std::nullopt;
  std::vector<int> nodes;
  for (std::size_t node = 0; node < most; ++node)
    if ((mask[node / bits] >> (node % bits) & 1UL) != 0) nodes.push_back(static_cast<int>(node));
  return nodes;
#else
  return std::nullopt;
#endif
}

void add_memory(const fs::path& root, RankFacts& facts) {
  facts.memory_total = memory_line(root, "MemTotal");
  facts.memory_available = memory_line(root, "MemAvailable");
  facts.bound_memory_nodes = bound_memory();
  const fs::path controllers = root / "sys/devices/system/edac/mc";
  for (const std::string& name : names_in(controllers)) {
    if (!name.starts_with("mc")) continue;
    add_to(facts.corrected_memory_errors, controllers / name / "ce_count");
    add_to(facts.uncorrected_memory_errors, controllers / name / "ue_count");
  }
  if (!facts.uncorrected_memory_errors)
    facts.unknown.push_back({"memory-errors", "the kernel has no EDAC driver for this memory"});
}

/// Network cards on PCI only: virtual interfaces of containers come and go.
void add_network(const fs::path& root, RankFacts& facts) {
  const fs::path classes = root / "sys/class";
  std::error_code code;
  for (const std::string& name : names_in(classes / "net")) {
    const fs::path folder = classes / "net" / name;
    if (!fs::exists(folder / "device", code)) continue;
    const std::int64_t mbit = number_of(folder / "speed").value_or(0);
    facts.ports.push_back({.name = name,
                           .kind = "ethernet",
                           .is_up = line_of(folder / "operstate") == "up",
                           .bits_per_s = mbit > 0 ? 1e6 * static_cast<double>(mbit) : 0.0});
  }
  for (const std::string& card : names_in(classes / "infiniband"))
    for (const std::string& port : names_in(classes / "infiniband" / card / "ports")) {
      const fs::path folder = classes / "infiniband" / card / "ports" / port;
      facts.ports.push_back({.name = card + "/" + port,
                             .kind = "infiniband",
                             .is_up = line_of(folder / "state").find("ACTIVE") != std::string::npos,
                             .bits_per_s = 1e9 * std::strtod(line_of(folder / "rate").c_str(), nullptr)});
    }
  for (const std::string& name : names_in(classes / "cxi")) {
    // The card's network interface says whether its link is up.
    const fs::path interfaces = classes / "cxi" / name / "device/net";
    const std::vector<std::string> names = names_in(interfaces);
    const bool is_up = names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& interface) {
                         return line_of(interfaces / interface / "operstate") == "up";
                       });
    facts.ports.push_back({.name = name, .kind = "slingshot", .is_up = is_up});
  }
  if (facts.ports.empty()) facts.unknown.push_back({"network-cards", "none of PCI, InfiniBand or Slingshot is there"});
}

void add_space(const std::string& what, const fs::path& path, RankFacts& facts) {
  std::error_code code;
  const fs::space_info space = fs::space(path, code);
  if (code) {
    facts.unknown.push_back({"space", fmt::format("{} ({}): {}", what, path.string(), code.message())});
    return;
  }
  facts.spaces.push_back({.what = what,
                          .path = path.string(),
                          .free = Bytes(static_cast<double>(space.available)),
                          .can_write = ::access(path.c_str(), W_OK | X_OK) == 0});
}

/// Lines of the kernel log that report an error of a GPU, "NVRM: Xid (PCI:0000:01:00): 79, ...". std::nullopt if this
/// user may not read it.
std::optional<std::vector<std::string>> xid_lines(const fs::path& root) {
  const int file = ::open((root / "dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::vector<std::string> lines;
  std::array<char, 8192> record{};  // one read gives one record
  for (int left = 200'000; left > 0; --left) {
    const ssize_t size = ::read(file, record.data(), record.size());
    if (size < 0 && errno == EPIPE) continue;  // it was overwritten in the meantime
    if (size <= 0) break;
    std::string_view text(record.data(), static_cast<std::size_t>(size));
    const std::size_t begin = text.find("NVRM: Xid (");
    if (begin == std::string_view::npos) continue;
    text = text.substr(begin + 6);
    lines.emplace_back(text.substr(0, text.find('\n')));
  }
  ::close(file);
  return lines;
}

/// GPUs from the driver's files in /proc, if the driver is there but not its library.
std::vector<GpuFacts> gpus_of_proc(const fs::path& root) {
  std::vector<GpuFacts> gpus;
  const fs::path folder = root / "proc/driver/nvidia/gpus";
  for (const std::string& name : names_in(folder)) {
    GpuFacts& gpu = gpus.emplace_back();
    gpu.bus_id = name;
    std::ifstream file(folder / name / "information");
    for (std::string line; std::getline(file, line);) {
      const std::size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
      if (value == std::string::npos) continue;
      if (line.starts_with("Model:")) gpu.name = line.substr(value);
      if (line.starts_with("GPU UUID:")) gpu.uuid = line.substr(value);
    }
  }
  return gpus;
}

void add_gpus(const GatherSettings& settings, RankFacts& facts) {
  const fs::path& root = settings.root;
  auto nvml = ask_nvml();
  std::error_code code;
  facts.has_driver = nvml.has_value() || fs::exists(root / "proc/driver/nvidia/version", code);
  // A control group hides devices, but not their entries in /proc.
  if (const auto known = names_in(root / "proc/driver/nvidia/gpus"); !known.empty())
    facts.gpus_of_node = static_cast<std::int64_t>(known.size());
  if (nvml) {
    facts.by_nvml = true;
    facts.gpus = std::move(nvml->gpus);
    facts.versions.push_back({"driver", nvml->driver});
    facts.versions.push_back({"CUDA of the driver", nvml->cuda});
  } else {
    facts.gpus = gpus_of_proc(root);
    const std::string why = fmt::format(
        "{}{}", nvml.error().what, facts.has_driver ? ", only /proc/driver/nvidia" : " and no /proc/driver/nvidia");
    if (facts.has_driver || facts.visible_gpus) facts.unknown.push_back({"gpu-state", why});
  }
  if (facts.by_nvml && std::none_of(facts.gpus.begin(), facts.gpus.end(),
                                    [](const GpuFacts& gpu) { return gpu.power_limit_watts.has_value(); }))
    facts.unknown.push_back({"power", "the driver does not tell the limits"});
  for (GpuFacts& gpu : facts.gpus)
    if (!gpu.bus_id.empty())
      gpu.cores = parse_core_list(line_of(root / "sys/bus/pci/devices" / gpu.bus_id / "local_cpulist"));
  if (!facts.has_driver) return;
  const auto lines = xid_lines(root);
  if (!lines) facts.unknown.push_back({"xid", "the kernel log is not readable by this user"});
  for (GpuFacts& gpu : facts.gpus)
    for (const std::string& line : lines.value_or(std::vector<std::string>()))  // "Xid (PCI:0000:01:00): 79, ..."
      if (!gpu.bus_id.empty() && line.find(gpu.bus_id.substr(0, gpu.bus_id.rfind('.'))) != std::string::npos)
        gpu.xids.push_back(line);
}

std::optional<std::string> variable(const GatherSettings& settings, const std::string& name) {
  const auto found = settings.environment.find(name);
  return found == settings.environment.end() ? std::nullopt : std::optional(found->second);
}

/// "always [madvise] never" -> "madvise"
std::string chosen(const std::string& line) {
  const std::size_t open = line.find('[');
  const std::size_t close = line.find(']');
  return open == std::string::npos || close == std::string::npos ? line : line.substr(open + 1, close - open - 1);
}

void add_versions(const GatherSettings& settings, RankFacts& facts) {
  const auto add = [&](const char* name, std::string value) {
    if (!value.empty()) facts.versions.push_back({name, std::move(value)});
  };
  utsname system{};
  if (::uname(&system) == 0) add("kernel", system.release);
  add("NCCL", nccl_version());
  add("libfabric", libfabric_version());
  add("transparent huge pages", chosen(line_of(settings.root / "sys/kernel/mm/transparent_hugepage/enabled")));
  facts.versions.insert(facts.versions.end(), settings.versions.begin(), settings.versions.end());
  add("FI_PROVIDER", variable(settings, "FI_PROVIDER").value_or(""));
}

}  // namespace

std::vector<int> parse_core_list(std::string_view text) {
  constexpr int most = 1 << 20;
  std::set<int> cores;
  for (const std::string& part : split(text, ',')) {
    int first = 0;
    int last = 0;
    const char* const end = part.data() + part.size();
    auto [at, problem] = std::from_chars(part.data(), end, first);
    if (problem != std::errc()) return {};
    last = first;
    if (at != end && *at == '-' && std::from_chars(at + 1, end, last).ec != std::errc()) return {};
    if (first < 0 || last < first || last >= most) return {};
    for (int core = first; core <= last; ++core) cores.insert(core);
  }
  return {cores.begin(), cores.end()};
}

std::string core_list(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t end = i;
    while (end + 1 < cores.size() && cores[end + 1] == cores[end] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cores[i]);
    if (end > i) text += fmt::format("-{}", cores[end]);
    i = end + 1;
  }
  return text;
}

std::optional<std::int64_t> thermal_throttles(const std::vector<int>& cores, const fs::path& root) {
  std::optional<std::int64_t> sum;
  for (const int core : cores) add_to(sum, folder_of_core(root, core) / "thermal_throttle/core_throttle_count");
  return sum;
}

std::optional<Seconds> processor_time(const fs::path& root) {
  // "cpu  user nice system idle iowait irq softirq steal guest guest_nice"; guest times are part of the first two
  std::ifstream file(root / "proc/stat");
  std::string word;
  std::array<double, 8> ticks{};
  if (!(file >> word) || word != "cpu") return std::nullopt;
  for (double& value : ticks)
    if (!(file >> value)) return std::nullopt;
  constexpr std::size_t idle = 3;
  constexpr std::size_t waiting = 4;
  double busy = 0.0;
  for (std::size_t i = 0; i < ticks.size(); ++i)
    if (i != idle && i != waiting) busy += ticks[i];
  return Seconds(busy / static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

RankFacts gather_facts(const GatherSettings& settings) {
  RankFacts facts;
  facts.visible_gpus = variable(settings, "CUDA_VISIBLE_DEVICES");
  facts.step_gpus = variable(settings, "SLURM_STEP_GPUS");
  facts.gpus_of_job = parse_count(variable(settings, "SLURM_GPUS_ON_NODE").value_or(""));
  add_processor(settings.root, facts);
  add_memory(settings.root, facts);
  add_gpus(settings, facts);
  add_network(settings.root, facts);
  std::error_code code;
  add_space("temporary files", variable(settings, "TMPDIR").value_or("/tmp"), facts);
  add_space("working directory", fs::current_path(code), facts);
  add_versions(settings, facts);
  for (const auto& [name, wanted] : settings.variables)
    facts.variables.push_back({.name = name, .wanted = wanted, .value = variable(settings, name)});
  const char* const gpu_aware = "MPICH_GPU_SUPPORT_ENABLED";
  if (const auto value = variable(settings, gpu_aware);
      value && std::none_of(facts.variables.begin(), facts.variables.end(),
                            [&](const Variable& known) { return known.name == gpu_aware; }))
    facts.variables.push_back({.name = gpu_aware, .wanted = "0", .value = value});
  return facts;
}

}  // namespace sailor::preflight
