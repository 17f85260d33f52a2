// The functions are declared here as in NVIDIA's nvml.h: their signatures are stable, and the header comes only with
// the CUDA toolkit.
#include "preflight/nvml.hpp"

#include <fmt/format.h>

#include <array>

#include "core/shared_library.hpp"

namespace sailor::preflight {

namespace {

using Device = struct nvmlDevice*;
using Status = int;
constexpr Status success = 0;
constexpr Status insufficient_size = 7;  // an array was too short; the count gives the required length

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct PciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  std::array<char, 32> bus_id;
};

using Text = std::array<char, 96>;

/// A number that a function writes through its last argument.
template <class Number, class... Arguments>
std::optional<Number> number(const SharedLibrary& nvml, const char* name, Arguments... arguments) {
  Number value{};
  if (!nvml.call<Arguments..., Number*>(name, arguments..., &value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> wide(const std::optional<unsigned long long>& value) {
  return value ? std::optional(static_cast<std::int64_t>(*value)) : std::nullopt;
}

std::string text(const SharedLibrary& nvml, const char* name, Device device) {
  Text buffer{};
  if (!nvml.call<Device, char*, unsigned int>(name, device, buffer.data(), buffer.size() - 1)) return {};
  return buffer.data();
}

/// "00000000:01:00.0" -> "0000:01:00.0", as in /sys
std::string system_bus_id(std::string id) {
  for (char& c : id)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  const std::size_t colon = id.find(':');
  return colon != std::string::npos && colon > 4 ? id.substr(colon - 4) : id;
}

/// Number of elements that a function reports for an array of length zero.
template <class... Arguments>
std::optional<std::int64_t> count(const SharedLibrary& nvml, const char* name, Arguments... arguments) {
  auto* const function = nvml.find<Status(Arguments..., unsigned int*, void*)>(name);
  if (function == nullptr) return std::nullopt;
  unsigned int elements = 0;
  const Status status = function(arguments..., &elements, nullptr);
  if (status != success && status != insufficient_size) return std::nullopt;
  return elements;
}

void add_errors(const SharedLibrary& nvml, Device device, GpuFacts& gpu) {
  constexpr int uncorrected = 1;
  constexpr int since_loaded = 0;
  constexpr int ever = 1;
  const auto errors = [&](int counter) {
    return wide(number<unsigned long long, Device, int, int>(nvml, "nvmlDeviceGetTotalEccErrors", device, uncorrected,
                                                             counter));
  };
  gpu.uncorrected_errors = errors(since_loaded);
  gpu.uncorrected_errors_ever = errors(ever);
  // Up to Volta pages are retired, for two causes; since Ampere rows are remapped.
  for (const int cause : {0, 1})
    if (const auto pages = count<Device, int>(nvml, "nvmlDeviceGetRetiredPages", device, cause))
      gpu.retired_pages = gpu.retired_pages.value_or(0) + *pages;
  if (const auto pending = number<int, Device>(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", device))
    gpu.repair_pending = *pending != 0;
  std::array<unsigned int, 4> rows{};  // corrected, uncorrected, pending, failed
  if (nvml.call<Device, unsigned int*, unsigned int*, unsigned int*, unsigned int*>(
          "nvmlDeviceGetRemappedRows", device, &rows[0], &rows[1], &rows[2], &rows[3])) {
    gpu.remapped_rows = std::int64_t{rows[0]} + rows[1];
    gpu.repair_pending = gpu.repair_pending.value_or(false) || rows[2] != 0;
    gpu.repair_failed = rows[3] != 0;
  }
}

/// Links of the GPU to the node and to its other GPUs.
void add_links(const SharedLibrary& nvml, Device device, const std::vector<Device>& all, GpuFacts& gpu) {
  constexpr unsigned int most_nvlinks = 18;  // NVML_NVLINK_MAX_LINKS
  for (unsigned int link = 0; link < most_nvlinks; ++link)
    if (const auto is_up = number<int, Device, unsigned int>(nvml, "nvmlDeviceGetNvLinkState", device, link))
      gpu.nvlinks_up = gpu.nvlinks_up.value_or(0) + (*is_up != 0 ? 1 : 0);
  gpu.pcie_lanes = number<unsigned int, Device>(nvml, "nvmlDeviceGetCurrPcieLinkWidth", device);
  gpu.highest_pcie_lanes = number<unsigned int, Device>(nvml, "nvmlDeviceGetMaxPcieLinkWidth", device);
  gpu.highest_pcie_generation = number<unsigned int, Device>(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", device);
  constexpr int reading = 0;  // NVML_P2P_CAPS_INDEX_READ
  constexpr int works = 0;    // NVML_P2P_STATUS_OK
  for (const Device peer : all)
    if (peer != device)
      if (const auto status = number<int, Device, Device, int>(nvml, "nvmlDeviceGetP2PStatus", device, peer, reading))
        gpu.unreadable_peers = gpu.unreadable_peers.value_or(0) + (*status == works ? 0 : 1);
}

GpuFacts facts_of(const SharedLibrary& nvml, Device device, const std::vector<Device>& all) {
  constexpr int of_the_chip = 0;    // NVML_TEMPERATURE_GPU
  constexpr int of_processors = 1;  // NVML_CLOCK_SM
  GpuFacts gpu{.name = text(nvml, "nvmlDeviceGetName", device), .uuid = text(nvml, "nvmlDeviceGetUUID", device)};
  PciInfo pci{};
  if (nvml.call<Device, PciInfo*>("nvmlDeviceGetPciInfo_v3", device, &pci)) {
    pci.bus_id.back() = '\0';
    gpu.bus_id = system_bus_id(pci.bus_id.data());
  }
  Memory memory{};
  if (nvml.call<Device, Memory*>("nvmlDeviceGetMemoryInfo", device, &memory)) {
    gpu.memory_total = Bytes(static_cast<double>(memory.total));
    gpu.memory_used = Bytes(static_cast<double>(memory.used));
  }
  gpu.temperature_celsius = number<unsigned int, Device, int>(nvml, "nvmlDeviceGetTemperature", device, of_the_chip);
  if (const auto mhz = number<unsigned int, Device, int>(nvml, "nvmlDeviceGetClockInfo", device, of_processors))
    gpu.clock_hz = 1e6 * *mhz;
  if (const auto mhz = number<unsigned int, Device, int>(nvml, "nvmlDeviceGetMaxClockInfo", device, of_processors))
    gpu.highest_clock_hz = 1e6 * *mhz;
  gpu.throttle_reasons =
      wide(number<unsigned long long, Device>(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", device));
  if (const auto mode = number<int, Device>(nvml, "nvmlDeviceGetComputeMode", device)) gpu.compute_mode = *mode;
  std::array<unsigned int, 2> mig{};  // now, and after the next reset
  if (nvml.call<Device, unsigned int*, unsigned int*>("nvmlDeviceGetMigMode", device, &mig[0], &mig[1])) {
    gpu.mig = mig[0] != 0;
    gpu.mig_pending = mig[1] != 0;
  }
  const auto watts = [&](const char* name) -> std::optional<double> {
    const auto milliwatts = number<unsigned int, Device>(nvml, name, device);
    return milliwatts ? std::optional(*milliwatts / 1e3) : std::nullopt;
  };
  gpu.power_limit_watts = watts("nvmlDeviceGetEnforcedPowerLimit");
  gpu.default_power_limit_watts = watts("nvmlDeviceGetPowerManagementDefaultLimit");
  gpu.processes = count<Device>(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", device);
  add_errors(nvml, device, gpu);
  add_links(nvml, device, all, gpu);
  return gpu;
}

}  // namespace

Result<Nvml> ask_nvml(const char* library) {
  const SharedLibrary nvml(library);
  if (!nvml.is_there()) return fail(ErrorCode::unavailable, fmt::format("there is no {}", library));
  auto* const start = nvml.find<Status()>("nvmlInit_v2");
  const Status started = start == nullptr ? -1 : start();
  if (started != success) {
    auto* const words = nvml.find<const char*(Status)>("nvmlErrorString");
    return fail(
        ErrorCode::unavailable,
        fmt::format("{}: {}", library, words == nullptr || start == nullptr ? "is another library" : words(started)));
  }
  Nvml found;
  Text version{};
  if (nvml.call<char*, unsigned int>("nvmlSystemGetDriverVersion", version.data(), version.size() - 1))
    found.driver = version.data();
  if (const auto cuda = number<int>(nvml, "nvmlSystemGetCudaDriverVersion_v2"))
    found.cuda = fmt::format("{}.{}", *cuda / 1000, *cuda % 1000 / 10);
  const unsigned int gpus = number<unsigned int>(nvml, "nvmlDeviceGetCount_v2").value_or(0);
  std::vector<Device> devices;
  for (unsigned int i = 0; i < gpus; ++i)
    if (const auto device = number<Device, unsigned int>(nvml, "nvmlDeviceGetHandleByIndex_v2", i))
      devices.push_back(*device);
  for (const Device device : devices) found.gpus.push_back(facts_of(nvml, device, devices));
  nvml.call("nvmlShutdown");
  return found;
}

std::string nccl_version(const char* library) {
  const auto version = number<int>(SharedLibrary(library), "ncclGetVersion");
  if (!version) return {};
  // 22304 is 2.23.4; before 2.9 there was one digit less: 2804 is 2.8.4
  const int unit = *version >= 10000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", *version / unit, *version % unit / 100, *version % 100);
}

std::string libfabric_version(const char* library) {
  auto* const version = SharedLibrary(library).find<std::uint32_t()>("fi_version");
  if (version == nullptr) return {};
  const std::uint32_t number = version();
  return fmt::format("{}.{}", number >> 16U, number & 0xFFFFU);
}

}  // namespace sailor::preflight
