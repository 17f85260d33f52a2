// A libnvidia-ml.so.1 for machines without NVIDIA's driver: its GPUs are those of the file that FAKE_NVML names, a line
// for each:
//   NAME|UUID|BUS-ID|MEMORY-MIB|USED-MIB|CELSIUS|MHZ|HIGHEST-MHZ|THROTTLE-REASONS|UNCORRECTED-ERRORS|PENDING
//   |MIG|PENDING-MIG|MILLIWATTS|DEFAULT-MILLIWATTS|NVLINKS-UP|LANES|HIGHEST-LANES|HIGHEST-PCIE-GENERATION|READABLE-PEERS
// It has 18 NVLinks, and reads the memory of the first READABLE-PEERS others.
// A field that is "-" or not there makes its function answer "not supported". Declared as NVIDIA's nvml.h does.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int success = 0;
constexpr int not_supported = 3;
constexpr int not_loaded = 9;

enum Field {
  name,
  uuid,
  bus_id,
  memory,
  used,
  celsius,
  mhz,
  highest_mhz,
  reasons,
  errors,
  pending,
  mig,
  pending_mig,
  milliwatts,
  default_milliwatts,
  nvlinks_up,
  lanes,
  highest_lanes,
  highest_generation,
  peers,
  fields
};
using Gpu = std::array<std::string, fields>;

std::vector<Gpu>& gpus() {
  static std::vector<Gpu> all;
  return all;
}

const std::string& field(void* device, Field which) { return (*static_cast<Gpu*>(device))[which]; }

template <class Number>
int answer(void* device, Field which, Number* value) {
  if (field(device, which) == "-" || field(device, which).empty()) return not_supported;
  *value = static_cast<Number>(std::strtoull(field(device, which).c_str(), nullptr, 10));
  return success;
}

int answer(void* device, Field which, char* text, unsigned int length) {
  std::snprintf(text, length, "%s", field(device, which).c_str());
  return success;
}

}  // namespace

extern "C" {
struct FakeMemory {
  unsigned long long total, free, used;
};
struct FakePci {
  char legacy[16];
  unsigned int domain, bus, device, id, subsystem;
  char bus_id[32];
};

int nvmlInit_v2() {
  const char* const path = std::getenv("FAKE_NVML");
  if (path == nullptr) return not_loaded;
  std::ifstream file(path);
  gpus().clear();
  for (std::string line; std::getline(file, line);) {
    Gpu& gpu = gpus().emplace_back();
    std::istringstream words(line);
    for (std::string& word : gpu) std::getline(words, word, '|');
  }
  return success;
}
int nvmlShutdown() { return success; }
const char* nvmlErrorString(int) { return "Driver Not Loaded"; }
int nvmlSystemGetDriverVersion(char* text, unsigned int length) {
  std::snprintf(text, length, "570.86.15");
  return success;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 12080;
  return success;
}
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(gpus().size());
  return success;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = &gpus()[index];
  return success;
}
/// Both ids may have the eight digits of a domain that the library writes, or the four of /sys.
int nvmlDeviceGetHandleByPciBusId_v2(const char* wanted, void** device) {
  const auto short_id = [](const std::string& id) { return id.substr(id.find(':') - 4); };
  for (Gpu& gpu : gpus())
    if (short_id(gpu[bus_id]) == short_id(wanted)) {
      *device = &gpu;
      return success;
    }
  return not_supported;
}
int nvmlDeviceGetName(void* device, char* text, unsigned int length) { return answer(device, name, text, length); }
int nvmlDeviceGetUUID(void* device, char* text, unsigned int length) { return answer(device, uuid, text, length); }
int nvmlDeviceGetPciInfo_v3(void* device, FakePci* pci) {
  return answer(device, bus_id, pci->bus_id, sizeof(pci->bus_id));
}
int nvmlDeviceGetMemoryInfo(void* device, FakeMemory* facts) {
  if (answer(device, memory, &facts->total) != success || answer(device, used, &facts->used) != success)
    return not_supported;
  facts->total <<= 20U;
  facts->used <<= 20U;
  facts->free = facts->total - facts->used;
  return success;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned int* value) { return answer(device, celsius, value); }
int nvmlDeviceGetClockInfo(void* device, int, unsigned int* value) { return answer(device, mhz, value); }
int nvmlDeviceGetMaxClockInfo(void* device, int, unsigned int* value) { return answer(device, highest_mhz, value); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* value) {
  return answer(device, reasons, value);
}
int nvmlDeviceGetMigMode(void* device, unsigned int* now, unsigned int* after_reset) {
  const int status = answer(device, mig, now);
  return status == success ? answer(device, pending_mig, after_reset) : status;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned int* value) { return answer(device, milliwatts, value); }
int nvmlDeviceGetPowerManagementDefaultLimit(void* device, unsigned int* value) {
  return answer(device, default_milliwatts, value);
}
int nvmlDeviceGetNvLinkState(void* device, unsigned int link, int* is_up) {
  unsigned int up = 0;
  const int status = answer(device, nvlinks_up, &up);
  *is_up = link < up ? 1 : 0;
  return status;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned int* value) { return answer(device, lanes, value); }
int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned int* value) { return answer(device, highest_lanes, value); }
int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned int* value) {
  return answer(device, highest_generation, value);
}
int nvmlDeviceGetP2PStatus(void* device, void* peer, int index, int* status) {
  int readable = 0;
  if (answer(device, peers, &readable) != success || index != 0) return not_supported;
  int number = 0;  // of the peer among the others
  for (Gpu& gpu : gpus()) {
    if (&gpu == peer) break;
    if (&gpu != device) ++number;
  }
  *status = number < readable ? 0 : 1;  // chipset not supported
  return success;
}
int nvmlDeviceGetTotalEccErrors(void* device, int type, int, unsigned long long* value) {
  return type == 1 ? answer(device, errors, value) : not_supported;
}
int nvmlDeviceGetRetiredPages(void*, int, unsigned int* count, unsigned long long*) {
  *count = 2;
  return 7;  // the array is too short: so many there are
}
int nvmlDeviceGetRemappedRows(void* device, unsigned int* corrected, unsigned int* uncorrected,
                              unsigned int* is_pending, unsigned int* failed) {
  *corrected = 1;
  *uncorrected = 2;
  *failed = 0;
  return answer(device, pending, is_pending);
}
}
