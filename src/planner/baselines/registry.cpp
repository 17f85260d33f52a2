#include <fmt/format.h>

#include <algorithm>

#include "core/text.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::planner::baselines {

const std::vector<const Baseline*>& all_baselines() {
  static const std::vector<const Baseline*> all{
      &aceso(),     &amp(),   &artifact_sailor(), &atlas(), &dtfm(),   &flashflex(),
      &galvatron(), &metis(), &oobleck(),         &piper(), &varuna(),
  };
  return all;
}

Result<const Baseline*> find_baseline(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Baseline* baseline : all_baselines()) {
    if (baseline->name() == name) return baseline;
    known.push_back(baseline->name());
  }
  return fail(ErrorCode::not_found, fmt::format("there is no planner '{}'", name),
              fmt::format("one of: {}", join(known, ", ")));
}

}  // namespace sailor::planner::baselines
