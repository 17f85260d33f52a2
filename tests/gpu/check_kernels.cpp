// Every operation of a stream on the GPU against the CPU. Exit status: 0 all agree, 1 some do not, 3 no usable GPU.
#include <fmt/format.h>

#include <exception>
#include <memory>

#include "runtime/cpu/cpu_device.hpp"
#include "runtime/cuda/cuda_device.hpp"
#include "tests/fakes/device_cases.hpp"

namespace {

using namespace sailor::runtime;

struct Kind {
  DataType type;
  const char* name;
  double tolerance;
};

/// Counts what agrees with the CPU, and prints what does not.
struct Comparison {
  Device& cpu;
  int passed = 0;
  int failed = 0;

  void compare(Device& gpu, const Kind& kind, const test::DeviceCase& test_case);
};

std::vector<std::vector<double>> results_of(Device& device, const test::DeviceCase& test_case, DataType type) {
  test::Bench bench(device, type);
  test_case.run(bench);
  return std::move(bench.results);
}

void Comparison::compare(Device& gpu, const Kind& kind, const test::DeviceCase& test_case) {
  try {
    const auto expected = results_of(cpu, test_case, kind.type);
    const auto results = results_of(gpu, test_case, kind.type);
    const double difference = test::difference(results, expected);
    const bool same = test::difference(results_of(gpu, test_case, kind.type), results) == 0.0;
    const bool good = difference <= kind.tolerance && same;
    if (!good)
      fmt::print("FAILED {} {}: {:.3g}{}\n", kind.name, test_case.name, difference, same ? "" : ", other bits again");
    (good ? passed : failed) += 1;
  } catch (const std::exception& error) {
    fmt::print("FAILED {} {}: {}\n", kind.name, test_case.name, error.what());
    failed += 1;
  }
}

}  // namespace

int main() {
  std::unique_ptr<Device> gpu;
  std::unique_ptr<Device> with_own_attention;
  try {
    gpu = make_cuda_device({.tf32 = false, .deterministic = true});
    with_own_attention = make_cuda_device({.tf32 = false, .fused_attention = false});
  } catch (const std::exception& error) {
    fmt::print("no usable GPU: {}\n", error.what());
    return 3;
  }
  const auto cpu = make_cpu_device();
  fmt::print("# every operation on {} ({}) against the CPU: largest difference\n", gpu->name(), gpu->versions());
  Comparison comparison{*cpu};
  for (const Kind& kind : {Kind{DataType::float32, "float32", 2e-5}, Kind{DataType::bfloat16, "bfloat16", 2.4e-2},
                           Kind{DataType::float16, "float16", 4e-3}}) {
    for (const test::DeviceCase& test_case : test::large_device_cases()) comparison.compare(*gpu, kind, test_case);
    for (const test::DeviceCase& test_case : test::device_cases()) {
      comparison.compare(*gpu, kind, test_case);
      if (test_case.name.starts_with("attention ") && gpu->versions() != with_own_attention->versions())
        comparison.compare(*with_own_attention, kind, {test_case.name + ", by our kernels", test_case.run});
    }
  }
  fmt::print("{} passed, {} failed\n", comparison.passed, comparison.failed);
  return comparison.failed == 0 ? 0 : 1;
}
