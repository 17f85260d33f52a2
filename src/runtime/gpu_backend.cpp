#include "runtime/gpu_backend.hpp"

#include <fmt/format.h>

#include <string_view>
#include <system_error>

#include "core/shared_library.hpp"

namespace sailor::runtime {

namespace {

namespace fs = std::filesystem;

constexpr const char* file_name = "libsailor_cuda.so";

}  // namespace

fs::path installed_gpu_module() {
  std::error_code code;
  const fs::path here = fs::read_symlink("/proc/self/exe", code).parent_path();
  for (const fs::path& folder : {here, here / SAILOR_MODULE_FOLDER})
    if (fs::path file = folder / file_name; fs::exists(file, code)) return file.lexically_normal();
  return {};
}

Result<const GpuBackend*> load_gpu_backend(const fs::path& file) {
  if (file.empty())
    return SAILOR_HAS_CUDA_MODULE
               ? fail(ErrorCode::unavailable, fmt::format("{} is not beside the programs", file_name),
                      "build it: cmake --build FOLDER --target sailor_cuda, with the folder that Sailor was built in")
               : fail(ErrorCode::unavailable, "this build of Sailor has no CUDA",
                      "build it where the CUDA toolkit is (see README.md), or compute on CPUs");
  const SharedLibrary library(file.c_str());
  if (!library.is_there())
    return fail(ErrorCode::unavailable, library.problem(),
                "load the CUDA module that Sailor was built with (module load cuda), or set LD_LIBRARY_PATH");
  const auto* const module = library.find<const GpuModule>("sailor_gpu_module");
  if (module == nullptr)
    return fail(ErrorCode::unavailable, fmt::format("{} is not Sailor's module for GPUs", file.string()),
                "unset SAILOR_GPU_MODULE");
  if (module->version != std::string_view(SAILOR_VERSION))
    return fail(ErrorCode::unavailable,
                fmt::format("{} is of Sailor {}, and this is {}", file.string(), module->version, SAILOR_VERSION),
                "install both from the same build");
  return module->backend;
}

}  // namespace sailor::runtime
