#include "profile/describe.hpp"

#include <fmt/format.h>

namespace sailor {

std::string describe_setting(const LayerKey& key) {
  std::string text =
      fmt::format("{} on {}, {}, sequence {}", key.model, key.gpu, to_string(key.precision), key.sequence_length);
  if (key.recompute != Recompute::none) text += fmt::format(", recompute {}", to_string(key.recompute));
  if (key.busy_ranks != 1) text += fmt::format(", {} busy ranks", key.busy_ranks);
  return text;
}

std::string describe_layer(const LayerKey& key) {
  const std::string kind(to_string(key.kind));
  return key.first_layer == 0 ? kind : fmt::format("{} from layer {}", kind, key.first_layer);
}

std::string describe(const LinkEnd& end) {
  return end.gpu + (end.ranks == 1 ? "" : fmt::format(" x{}", end.ranks)) +
         (end.zone.empty() ? "" : fmt::format(" ({})", end.zone));
}

std::string describe(const LinkKey& key) {
  return fmt::format("{} {} -> {}, {}{}", to_string(key.operation), describe(key.from), describe(key.to),
                     to_string(key.scope),
                     key.operation == LinkOperation::send_receive ? "" : fmt::format(", {} ranks", key.ranks));
}

}  // namespace sailor
