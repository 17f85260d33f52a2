#include "profile/advice.hpp"

#include <fmt/format.h>

namespace sailor {

std::string layers_advice(std::optional<DeviceKind> kind, std::string_view options) {
  if (!kind)
    return fmt::format("measure CPUs with sailor-profile layers{}, import times of GPUs with sailor-profile import",
                       options);
  if (can_be_measured(*kind)) return fmt::format("measure it with sailor-profile layers{}", options);
  return "import times of it with sailor-profile import: sailor-profile layers measures CPUs only";
}

std::string layers_advice(const GpuCatalogue& gpus, std::string_view gpu, std::string_view options) {
  const auto type = gpus.find(gpu);
  return layers_advice(type ? std::optional(type->kind) : std::nullopt, options);
}

std::string links_advice(std::optional<DeviceKind> kind, std::string_view options) {
  const std::string_view add = "add it with its bandwidth to [[links]] of the cluster file";
  if (!kind)
    return fmt::format(
        "measure links of CPUs with sailor-profile links{}, import those of GPUs with sailor-profile import", options);
  if (can_be_measured(*kind)) return fmt::format("{}, or measure it with sailor-profile links{}", add, options);
  return fmt::format("{}, or import it with sailor-profile import: sailor-profile links measures CPUs only", add);
}

}  // namespace sailor
