#include "profile/advice.hpp"

#include <fmt/format.h>

namespace sailor {

std::string layers_advice(std::optional<DeviceKind> kind, std::string_view options) {
  if (kind == DeviceKind::cpu) return fmt::format("measure it with sailor-profile layers{}", options);
  return fmt::format("measure it with sailor-profile layers{}{}, or import it with sailor-profile import",
                     kind ? " --gpu NAME" : "", options);
}

std::string layers_advice(Precision precision, std::optional<DeviceKind> kind, std::string_view options) {
  if (is_trainable(precision)) return layers_advice(kind, options);
  return "choose another precision, or import it with sailor-profile import";
}

std::string layers_advice(const GpuCatalogue& gpus, std::string_view gpu, std::string_view options) {
  const auto type = gpus.find(gpu);
  return layers_advice(type ? std::optional(type->kind) : std::nullopt, options);
}

std::string links_advice(std::optional<DeviceKind> kind, std::string_view options) {
  const std::string_view add = "add it with its bandwidth to [[links]] of the cluster file";
  const std::string measure =
      fmt::format("measure it with sailor-profile links{}{}", kind == DeviceKind::gpu ? " --gpu NAME" : "", options);
  return kind ? fmt::format("{}, or {}", add, measure)
              : fmt::format("{}, or import it with sailor-profile import", measure);
}

}  // namespace sailor
