#include "planner/outline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/text.hpp"

namespace sailor::planner {

namespace {

/// Layers of the stages from `first` to `last`: "13", "2x6", "3 2x4", "3+3" for two chunks.
std::string layers_text(const std::vector<Stage>& stages, std::size_t first, std::size_t last) {
  std::vector<std::string> runs;
  for (std::size_t i = first; i < last;) {
    const auto sizes = [&](const Stage& stage) {
      std::vector<int> chunks;
      for (int c = 0; c < stage.chunks(); ++c) chunks.push_back(stage.chunk(c).size());
      return chunks;
    };
    const std::vector<int> same = sizes(stages[i]);
    std::size_t end = i + 1;
    while (end < last && sizes(stages[end]) == same) ++end;
    const std::string layers = join(same, "+");
    runs.push_back(end - i > 1 ? fmt::format("{}x{}", end - i, layers) : layers);
    i = end;
  }
  return join(runs, " ");
}

/// "A100-40 tp4: 13 | V100-16 tp4: 2x6"; with "@zone" behind the GPU type where asked.
std::string stages_text(const std::vector<Stage>& stages, bool with_zones) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < stages.size();) {
    std::size_t end = i + 1;
    const Stage& stage = stages[i];
    while (end < stages.size() && stages[end].gpu == stage.gpu &&
           stages[end].tensor_parallel == stage.tensor_parallel && stages[end].recompute == stage.recompute &&
           (!with_zones || stages[end].zone == stage.zone))
      ++end;
    std::string part = stage.gpu;
    if (with_zones && !stage.zone.empty()) part += "@" + stage.zone;
    part += fmt::format(" tp{}", stage.tensor_parallel);
    if (stage.recompute != Recompute::none) part += fmt::format(" recompute {}", to_string(stage.recompute));
    if (stages.size() > 1) part += ": " + layers_text(stages, i, end);
    parts.push_back(std::move(part));
    i = end;
  }
  return join(parts, " | ");
}

}  // namespace

std::vector<PipelineKind> pipeline_kinds(const Plan& plan) {
  struct Alike {
    const Pipeline* first = nullptr;
    int count = 0;
    int fewest = 0;  // micro-batches
    int most = 0;
    std::int64_t sequences = 0;
    std::set<std::vector<std::string>> pools;  // zones of the stages
  };
  std::vector<Alike> all;
  std::map<std::string, std::size_t> known;
  std::set<std::string> zones;
  for (const Pipeline& pipeline : plan.pipelines) {
    std::vector<std::string> pool;
    std::string key = fmt::format("{}", plan.micro_batch_of(pipeline));
    for (const Stage& stage : pipeline.stages) {
      pool.push_back(stage.zone);
      zones.insert(stage.zone);
      key += fmt::format("|{} {} {}", stage.gpu, stage.tensor_parallel, to_string(stage.recompute));
      for (int c = 0; c < stage.chunks(); ++c) key += fmt::format(" {}", stage.chunk(c).size());
    }
    const auto [entry, fresh] = known.emplace(std::move(key), all.size());
    if (fresh)
      all.push_back(
          {.first = &pipeline, .fewest = pipeline.micro_batches, .most = pipeline.micro_batches, .pools = {}});
    Alike& alike = all[entry->second];
    alike.count += pipeline.count;
    alike.fewest = std::min(alike.fewest, pipeline.micro_batches);
    alike.most = std::max(alike.most, pipeline.micro_batches);
    alike.sequences += std::int64_t{pipeline.count} * pipeline.micro_batches * plan.micro_batch_of(pipeline);
    alike.pools.insert(std::move(pool));
  }
  std::vector<PipelineKind> kinds;
  for (const Alike& alike : all) {
    std::set<std::string> here;
    bool one_zone_each = true;
    for (const std::vector<std::string>& pool : alike.pools) {
      one_zone_each = one_zone_each && std::set<std::string>(pool.begin(), pool.end()).size() == 1;
      here.insert(pool.begin(), pool.end());
    }
    const bool name_stages = zones.size() > 1 && !one_zone_each && alike.pools.size() == 1;
    std::string text = fmt::format("{} x [{}] b{} n{}", alike.count, stages_text(alike.first->stages, name_stages),
                                   plan.micro_batch_of(*alike.first), alike.most);
    if (alike.fewest != alike.most)
      text.insert(text.size() - fmt::format("{}", alike.most).size(), fmt::format("{}-", alike.fewest));
    if (zones.size() > 1 && !name_stages)
      text += here.size() == 1 ? fmt::format(" in {}", *here.begin())
                               : fmt::format(" {} {} zones", one_zone_each ? "in" : "across", here.size());
    kinds.push_back({.count = alike.count,
                     .batch_share = static_cast<double>(alike.sequences) / std::max(1, plan.job.global_batch),
                     .text = std::move(text)});
  }
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const PipelineKind& a, const PipelineKind& b) { return a.batch_share > b.batch_share; });
  return kinds;
}

std::string unusual(const Plan& plan, bool of_several_kinds) {
  std::string text;
  if (plan.schedule != Schedule::one_f_one_b) text += fmt::format(", {}", to_string(plan.schedule));
  if (plan.context_parallel > 1) text += fmt::format(", cp{}", plan.context_parallel);
  if (plan.expert_parallel > 1) text += fmt::format(", ep{}", plan.expert_parallel);
  if (plan.optimizer_sharding != OptimizerSharding::none) text += ", " + sharding_text(plan);
  return of_several_kinds && !text.empty() ? "; all:" + text.substr(1) : text;
}

std::string outline(const Plan& plan) {
  std::string text;
  const std::vector<PipelineKind> kinds = pipeline_kinds(plan);
  for (const PipelineKind& kind : kinds) text += (text.empty() ? "" : " + ") + kind.text;
  return text + unusual(plan, kinds.size() > 1);
}

}  // namespace sailor::planner
