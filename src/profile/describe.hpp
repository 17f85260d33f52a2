// Describes in words what was measured, for messages and reports.
#pragma once

#include <string>

#include "profile/measurements.hpp"

namespace sailor {

/// "tiny-gpt on cpu, fp32, sequence 128"; with recompute and busy ranks where they are not the common ones.
std::string describe_setting(const LayerKey& key);
/// "block", "block from layer 3".
std::string describe_layer(const LayerKey& key);
/// "A100-40 x4 (us-central1-a)".
std::string describe(const LinkEnd& end);
/// "send_receive A100-40 x4 -> V100-16, inter_node"; collectives with their ranks.
std::string describe(const LinkKey& key);

}  // namespace sailor
