// Gathers what a rank knows of itself and its node: from /proc, /sys, NVIDIA's management library and the environment.
// No rank is asked, and nothing is measured but how busy the node is.
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
  std::map<std::string, std::string> environment{};              ///< of the process
  std::vector<std::pair<std::string, std::string>> variables{};  ///< that the site wants
  std::vector<Version> versions{};                               ///< that the caller knows: sailor, MPI
  std::filesystem::path root{"/"};                               ///< where proc and sys are
};

/// All but rank, host, planned, busy_cores, speed and what is counted while measuring.
RankFacts gather_facts(const GatherSettings& settings);

/// Thermal throttles of these cores since the node started; nothing if the system does not count them.
std::optional<std::int64_t> thermal_throttles(const std::vector<int>& cores, const std::filesystem::path& root = "/");

/// Processor time that the node has spent, in all; nothing if the system does not say. Two of them and the time
/// between say how many cores were busy.
std::optional<Seconds> processor_time(const std::filesystem::path& root = "/");

/// "0-3,8" -> {0, 1, 2, 3, 8}; empty for what is no such list.
std::vector<int> parse_core_list(std::string_view text);
/// The other way round.
std::string core_list(const std::vector<int>& cores);

}  // namespace sailor::preflight
