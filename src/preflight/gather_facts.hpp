// Gathers the facts of a rank about itself and its node: from /proc, /sys, NVIDIA's management library and the
// environment. No communication; nothing is measured except how busy the node is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "preflight/rank_facts.hpp"

namespace sailor::preflight {

struct GatherSettings {
  std::map<std::string, std::string> environment{};              ///< environment of the process
  std::vector<std::pair<std::string, std::string>> variables{};  ///< variables that the site wants
  std::vector<Version> versions{};                               ///< versions that the caller knows: sailor, MPI
  std::filesystem::path root{"/"};                               ///< folder that contains proc and sys
};

/// All facts except rank, host, planned, busy_cores, speed and what is counted while measuring.
RankFacts gather_facts(const GatherSettings& settings);

/// Thermal throttles of these cores since the node started; std::nullopt if the system does not count them.
std::optional<std::int64_t> thermal_throttles(const std::vector<int>& cores, const std::filesystem::path& root = "/");

/// Total processor time that the node has spent; std::nullopt if the system does not say. Two values and the time
/// between them give the number of busy cores.
std::optional<Seconds> processor_time(const std::filesystem::path& root = "/");

/// "0-3,8" -> {0, 1, 2, 3, 8}; empty if it is no such list.
std::vector<int> parse_core_list(std::string_view text);
/// The inverse of parse_core_list().
std::string core_list(const std::vector<int>& cores);

}  // namespace sailor::preflight
