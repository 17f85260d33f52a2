// Every operation of a stream on the GPU against the CPU. Exit status: 0 all agree, 1 some do not, 3 no usable GPU.
#include <fmt/format.h>

#include <exception>
#include <memory>

#include "runtime/cpu/cpu_device.hpp"
#include "runtime/cuda/cuda_device.hpp"
#include "tests/fakes/device_cases.hpp"

namespace {

using namespace sailor::runtime;

std::vector<std::vector<double>> results_of(Device& device, const test::DeviceCase& test_case, DataType type) {
  test::Bench bench(device, type);
  test_case.run(bench);
  return std::move(bench.results);
}

}  // namespace

int main() {
  std::unique_ptr<Device> gpu;
  try {
    gpu = make_cuda_device({.tf32 = false});
  } catch (const std::exception& error) {
    fmt::print("no usable GPU: {}\n", error.what());
    return 3;
  }
  const auto cpu = make_cpu_device();
  fmt::print("# every operation on {} ({}) against the CPU: largest difference\n", gpu->name(), gpu->versions());
  int failed = 0;
  int passed = 0;
  struct Kind {
    DataType type;
    const char* name;
    double tolerance;
  };
  for (const auto& [type, name, tolerance] :
       {Kind{DataType::float32, "float32", 2e-5}, Kind{DataType::bfloat16, "bfloat16", 2.4e-2},
        Kind{DataType::float16, "float16", 3e-3}})
    for (const test::DeviceCase& test_case : test::device_cases()) {
      try {
        const auto expected = results_of(*cpu, test_case, type);
        const auto results = results_of(*gpu, test_case, type);
        const double difference = test::difference(results, expected);
        const bool same = test::difference(results_of(*gpu, test_case, type), results) == 0.0;
        const bool good = difference <= tolerance && same;
        if (!good)
          fmt::print("FAILED {} {}: {:.3g}{}\n", name, test_case.name, difference, same ? "" : ", other bits again");
        (good ? passed : failed) += 1;
      } catch (const std::exception& error) {
        fmt::print("FAILED {} {}: {}\n", name, test_case.name, error.what());
        failed += 1;
      }
    }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
