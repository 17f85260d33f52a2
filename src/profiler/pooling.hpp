// Gathers numbers of all ranks on rank 0. Internal to the profiler.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/control.hpp"

namespace sailor::profiler {

/// On rank 0, the numbers of every rank, indexed by rank; empty on other ranks. Ranks may have different counts.
inline std::vector<std::vector<double>> gather_numbers(runtime::Control& control, const std::vector<double>& numbers) {
  std::string bytes(numbers.size() * sizeof(double), '\0');
  if (!numbers.empty()) std::memcpy(bytes.data(), numbers.data(), bytes.size());
  std::vector<std::vector<double>> all;
  for (const std::string& text : control.gather(bytes)) {
    std::vector<double>& values = all.emplace_back(text.size() / sizeof(double));
    if (!values.empty()) std::memcpy(values.data(), text.data(), text.size());
  }
  return all;
}

}  // namespace sailor::profiler
