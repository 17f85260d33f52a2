// The GPU's kernels, run on the CPU thread by thread (tests/fakes/cuda), against the CPU's own.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <new>

#include "runtime/cpu/cpu_device.hpp"
#include "runtime/cuda/cuda_device.hpp"
#include "tests/fakes/cuda/fake_runtime.hpp"
#include "tests/fakes/device_cases.hpp"

namespace sailor::runtime::cuda_kernels_test {
namespace {

using test::Bench;
using test::DeviceCase;
using test::difference;
using Results = std::vector<std::vector<double>>;

constexpr DataType types[]{DataType::float32, DataType::bfloat16, DataType::float16};

/// Two roundings to the type, and sums in another order.
double tolerance(DataType type) {
  if (type == DataType::float32) return 2e-5;
  return type == DataType::float16 ? 3e-3 : 2.4e-2;
}

/// Behind everything that is allocated, up to the next 16 bytes, begins memory that nobody may touch: a kernel that
/// reads or writes behind an array ends the test.
class GuardedMemory final : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t used = (bytes + 15) / 16 * 16;
    const std::size_t mapped = (used + page - 1) / page * page + page;
    void* const start = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    char* const guard = static_cast<char*>(start) + mapped - page;
    if (::mprotect(guard, page, PROT_NONE) != 0) throw std::bad_alloc();
    char* const memory = guard - used;
    mapped_[memory] = {start, mapped};
    return memory;
  }
  void release(void* memory) override {
    cudaDeviceSynchronize();  // it may still be in use
    const auto [start, bytes] = mapped_.at(memory);
    ::munmap(start, bytes);
    mapped_.erase(memory);
  }

 private:
  std::map<void*, std::pair<void*, std::size_t>> mapped_;
};

Results results_of(Device& device, const DeviceCase& test_case, DataType type) {
  static GuardedMemory memory;
  Bench bench(device, type, &memory);
  test_case.run(bench);
  return std::move(bench.results);
}

class CudaKernels : public ::testing::Test {
 protected:
  ~CudaKernels() override { emulator::settings.left_out = {}; }
  std::unique_ptr<Device> cpu_ = make_cpu_device();
  std::unique_ptr<Device> gpu_ = make_cuda_device();
};

TEST_F(CudaKernels, ComputeWhatTheCpuComputesInAnyOrderOfThreads) {
  for (const DeviceCase& test_case : test::device_cases())
    for (const DataType type : types) {
      const Results expected = results_of(*cpu_, test_case, type);
      for (const std::uint64_t seed : {1, 2}) {
        emulator::settings.seed = seed;
        const Results results = results_of(*gpu_, test_case, type);
        EXPECT_LE(difference(results, expected), tolerance(type))
            << test_case.name << ", type " << static_cast<int>(type) << ", seed " << seed;
      }
    }
}

TEST_F(CudaKernels, GiveTheSameBitsInAnyOrderOfThreads) {
  for (const DeviceCase& test_case : test::device_cases()) {
    emulator::settings.seed = 3;
    const Results first = results_of(*gpu_, test_case, DataType::float32);
    emulator::settings.seed = 4;
    EXPECT_EQ(difference(results_of(*gpu_, test_case, DataType::float32), first), 0.0) << test_case.name;
  }
}

// With any barrier left out something is wrong: results, or threads that wait for one another.
TEST_F(CudaKernels, EveryBarrierIsNeeded) {
  emulator::settings.seed = 5;
  std::map<std::string, Results> expected;
  std::map<std::string, std::set<emulator::Site>> sites_of;
  std::set<emulator::Site> all;
  const std::vector<DeviceCase> cases = test::device_cases();
  for (const DeviceCase& test_case : cases) {
    emulator::settings.sites.clear();
    expected[test_case.name] = results_of(*gpu_, test_case, DataType::float32);
    sites_of[test_case.name] = emulator::settings.sites;
    all.insert(emulator::settings.sites.begin(), emulator::settings.sites.end());
  }
  EXPECT_GE(all.size(), 10u);
  for (const emulator::Site& site : all) {
    bool shows = false;
    emulator::settings.left_out = site;
    for (const DeviceCase& test_case : cases) {
      if (shows) break;
      if (!sites_of[test_case.name].contains(site)) continue;
      for (const std::uint64_t seed : {6, 7, 8, 9}) {
        emulator::settings.seed = seed;
        try {
          const Results results = results_of(*gpu_, test_case, DataType::float32);
          shows = shows || difference(results, expected[test_case.name]) > tolerance(DataType::float32);
        } catch (const std::runtime_error&) {
          shows = true;
          emulator::failure.clear();
        }
      }
    }
    EXPECT_TRUE(shows) << site.first << ":" << site.second;
  }
}

}  // namespace
}  // namespace sailor::runtime::cuda_kernels_test
