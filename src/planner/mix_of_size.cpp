// Template mixes of a given number of pipelines: how many of which kind in each pool, by a dynamic program over the
// pools.
#include <algorithm>

#include "core/assert.hpp"
#include "planner/template_mix.hpp"

namespace sailor::planner {

namespace {

constexpr int max_pipelines = 128;  // the work grows with their square
constexpr double precision = 1e-4;  // of the deadline

/// Kinds of pipelines of one pool, and how many of each fit.
struct Kinds {
  std::size_t pool = 0;
  std::vector<std::pair<const PipelineTemplate*, int>> most;
};

/// The best result of a pool, by number of pipelines.
struct Choice {
  std::int64_t sequences = -1;  // negative: cannot hold so many
  const PipelineTemplate* column = nullptr;
};

std::vector<Choice> choices_of(const Kinds& kinds, int pipelines, double deadline) {
  std::vector<Choice> best(static_cast<std::size_t>(pipelines) + 1);
  best[0] = {.sequences = 0};
  for (const auto& [column, most] : kinds.most) {
    const std::int64_t each = column->sequences_by(deadline);
    if (each == 0) continue;
    for (int count = 1; count <= std::min(most, pipelines); ++count) {
      Choice& choice = best[static_cast<std::size_t>(count)];
      if (each * count > choice.sequences) choice = {.sequences = each * count, .column = column};
    }
  }
  return best;
}

/// Max sequences of exactly this number of pipelines, and their templates; negative if there are none.
struct Division {
  std::int64_t sequences = -1;
  std::vector<std::pair<const PipelineTemplate*, int>> by_pool;
};

Division divide(const std::vector<Kinds>& pools, int pipelines, double deadline) {
  const auto width = static_cast<std::size_t>(pipelines) + 1;
  std::vector<std::int64_t> reached(width, -1);
  reached[0] = 0;
  std::vector<std::vector<Choice>> choices;
  std::vector<std::vector<std::size_t>> taken;  // by pool and number so far
  for (const Kinds& kinds : pools) {
    choices.push_back(choices_of(kinds, pipelines, deadline));
    std::vector<std::int64_t> next(width, -1);
    auto& from = taken.emplace_back(width, 0);
    for (std::size_t before = 0; before < width; ++before) {
      if (reached[before] < 0) continue;
      for (std::size_t here = 0; before + here < width; ++here) {
        const std::int64_t sequences = choices.back()[here].sequences;
        if (sequences < 0 || reached[before] + sequences <= next[before + here]) continue;
        next[before + here] = reached[before] + sequences;
        from[before + here] = here;
      }
    }
    reached = std::move(next);
  }
  Division division{.sequences = reached.back(), .by_pool = {}};
  if (division.sequences < 0) return division;
  division.by_pool.resize(pools.size());
  std::size_t left = width - 1;
  for (std::size_t i = pools.size(); i-- > 0;) {
    const std::size_t here = taken[i][left];
    division.by_pool[i] = {choices[i][here].column, static_cast<int>(here)};
    left -= here;
  }
  return division;
}

}  // namespace

std::optional<TemplateMix> MixBuilder::of_size(const MixRequest& request, int pipelines) const {
  for (const Group& group : request.given) pipelines -= group.count;
  if (pipelines < 0 || pipelines > max_pipelines) return std::nullopt;
  const std::vector<int> free = free_devices(request);
  std::vector<Kinds> pools;
  for (std::size_t i = 0; i < request.pools.size(); ++i) {
    const DevicePool& pool = space_.pools[request.pools[i]];
    Kinds& kinds = pools.emplace_back(Kinds{.pool = request.pools[i], .most = {}});
    for (const PipelineTemplate* column : request.columns[pool.type])
      if (const int most = max_copies(*column, pool, space_, free[i]); most > 0) kinds.most.emplace_back(column, most);
  }
  const auto enough = [&](double deadline) {
    std::int64_t given = 0;
    for (const Group& group : request.given) {
      const std::int64_t each = group.column.sequences_by(deadline);
      if (each == 0) return false;
      given += each * group.count;
    }
    const Division division = divide(pools, pipelines, deadline);
    return division.sequences >= 0 && given + division.sequences >= request.batch;
  };
  double high = min_deadline(request);
  if (high == infinity) return std::nullopt;
  double low = high * (1.0 - 1e-5);
  for (int tries = 0; !enough(high); ++tries) {
    if (tries > 40) return std::nullopt;
    low = high;
    high *= 1.5;
  }
  while (high - low > precision * high) {
    const double middle = 0.5 * (low + high);
    (enough(middle) ? high : low) = middle;
  }
  TemplateMix mix;
  mix.groups = request.given;
  const Division division = divide(pools, pipelines, high);
  for (std::size_t i = 0; i < pools.size(); ++i) {
    const auto& [column, count] = division.by_pool[i];
    if (count == 0) continue;
    Group& group = mix.groups.emplace_back(Group{.column = *column, .count = count});
    for (TemplateStage& stage : group.column.stages) stage.pool = pools[i].pool;
    SAILOR_ASSERT(count * column->devices <= free[i], "the pipelines take more devices than their pool has");
    pipelines -= count;
  }
  SAILOR_ASSERT(pipelines == 0, "the mix has another number of pipelines than was asked for");
  return mix;
}

}  // namespace sailor::planner
