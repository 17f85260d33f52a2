#include "apps/devices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "runtime/cpu/blas_memory.hpp"
#include "runtime/cpu/cpu_device.hpp"
#include "runtime/cpu/host_cpu.hpp"

namespace sailor::apps {

namespace {

using runtime::GpuDescription;

/// One of the GPUs that this process sees.
struct OwnGpu {
  const runtime::GpuBackend* backend = nullptr;
  GpuDescription gpu;
  int index = 0;
};

/// Finds the GPU of this rank. `before`: number of ranks of this node with lower ranks.
Result<OwnGpu> find_gpu(std::size_t before, const std::string& host, Precision precision,
                        const Environment& environment) {
  const auto visible = visible_gpus(environment);
  if (!visible)
    return fail(visible.error().code, fmt::format("no usable GPU: {} (on {})", visible.error().what, host),
                visible.error().hint);
  const std::vector<GpuDescription>& gpus = visible->gpus;
  // A launcher that binds tasks to GPUs shows each task only its own; otherwise every task sees all GPUs.
  const std::size_t index = gpus.size() == 1 ? 0 : before;
  if (index >= gpus.size())
    return fail(ErrorCode::unavailable,
                fmt::format("{} has {} for more than {}", host, plural(gpus.size(), "GPU"), plural(index, "rank")),
                "start one rank per GPU");
  const GpuDescription& gpu = gpus[index];
  constexpr int first_with_bf16 = 80;
  if (precision == Precision::bf16 && gpu.compute_capability < first_with_bf16)
    return fail(ErrorCode::unavailable,
                fmt::format("{} of {} multiplies no bfloat16 matrices (compute capability {}.{})", gpu.name, host,
                            gpu.compute_capability / 10, gpu.compute_capability % 10),
                "use precision fp16");
  return OwnGpu{.backend = visible->backend, .gpu = gpu, .index = static_cast<int>(index)};
}

/// NCCL refuses two ranks on one GPU, unless NCCL_HOSTID claims that they are on different hosts.
Result<void> check_not_shared(const std::vector<std::string>& places, int rank, const Environment& environment) {
  const auto first = std::find(places.begin(), places.end(), places[static_cast<std::size_t>(rank)]);
  if (first - places.begin() == rank || environment.contains("NCCL_HOSTID")) return {};
  return fail(ErrorCode::unavailable,
              fmt::format("ranks {} and {} have the same GPU, {}", first - places.begin(), rank, *first),
              "start one rank per GPU (srun --gpus-per-task=1)");
}

Result<RankDevice> open_cpu(const Environment& environment) {
  RankDevice opened;
  const int threads = runtime::cpu::compute_threads(environment);
  SAILOR_CHECK(runtime::cpu::reserve_blas_memory(threads));
  opened.device = runtime::make_cpu_device(threads);
  return opened;
}

Result<RankDevice> open_gpu(const OwnGpu& own, const DeviceRequest& request, const std::string& host) {
  RankDevice opened;
  try {
    opened.device = own.backend->make_device(
        {.index = own.index, .tf32 = request.precision == Precision::tf32, .deterministic = request.deterministic});
  } catch (const std::runtime_error& error) {
    return fail(ErrorCode::unavailable, fmt::format("no usable GPU: {} (on {})", error.what(), host),
                "nvidia-smi says what else runs there");
  }
  opened.gpu = own.gpu;
  opened.backend = own.backend;
  return opened;
}

}  // namespace

std::filesystem::path gpu_module(const Environment& environment) {
  const auto named = environment.find("SAILOR_GPU_MODULE");
  if (named != environment.end() && !named->second.empty()) return named->second;
  return runtime::installed_gpu_module();
}

Result<VisibleGpus> visible_gpus(const Environment& environment) {
  const auto backend = runtime::load_gpu_backend(gpu_module(environment));
  if (!backend) return fail(backend.error());
  auto gpus = (*backend)->gpus();
  if (!gpus) return fail(gpus.error());
  return VisibleGpus{.backend = *backend, .gpus = *std::move(gpus)};
}

Result<RankDevice> open_device(const DeviceRequest& request, const Environment& environment,
                               runtime::Control& control) {
  if (!request.on_gpus) {
    auto opened = open_cpu(environment);
    SAILOR_CHECK(agree(control, opened));
    return opened;
  }
  const std::string host = control.host();
  const std::vector<std::string> hosts = runtime::all_texts(control, host);
  const auto here = hosts.begin() + control.rank();
  const auto own =
      find_gpu(static_cast<std::size_t>(std::count(hosts.begin(), here, host)), host, request.precision, environment);
  SAILOR_CHECK(agree(control, own));
  const auto places = runtime::all_texts(control, fmt::format("{} of {}", own->gpu.bus_id, host));
  SAILOR_CHECK(agree(control, check_not_shared(places, control.rank(), environment)));
  auto opened = open_gpu(*own, request, host);
  SAILOR_CHECK(agree(control, opened));
  auto transport = make_device_transport(*opened, request.timeout, control);
  if (!transport) return fail(transport.error());
  opened->transport = *std::move(transport);
  return opened;
}

Result<RankDevice> open_own_device(const DeviceRequest& request, const Environment& environment, int local_rank,
                                   const std::string& host) {
  if (!request.on_gpus) return open_cpu(environment);
  const auto own = find_gpu(static_cast<std::size_t>(local_rank), host, request.precision, environment);
  if (!own) return fail(own.error());
  return open_gpu(*own, request, host);
}

Result<std::unique_ptr<runtime::Transport>> make_device_transport(const RankDevice& own, Seconds timeout,
                                                                  runtime::Control& control) {
  if (!own.gpu || control.size() == 1) return nullptr;
  std::unique_ptr<runtime::Transport> transport = own.backend->make_transport(control, *own.device, timeout);
  SAILOR_CHECK(agree(control, transport != nullptr ? Result<void>()
                                                   : fail(ErrorCode::unavailable,
                                                          "this build has no NCCL, which moves tensors between GPUs",
                                                          "build it where NCCL is (see README.md), or use one GPU")));
  return transport;
}

std::string describe(const RankDevice& own, runtime::Control& control) {
  std::map<std::string, int> counts;
  for (const std::string& name : runtime::all_texts(control, own.device->name())) ++counts[name];
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts) parts.push_back(own.gpu ? fmt::format("{} x {}", count, name) : name);
  const std::string devices = join(parts, ", ");
  return own.gpu ? devices : fmt::format("CPUs ({})", devices);
}

}  // namespace sailor::apps
