#include "plan/original_plan.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/terminal.hpp"
#include "core/toml_reader.hpp"
#include "plan/json_value.hpp"

namespace sailor {

namespace {

using Value = JsonValue;

class Reader {
 public:
  explicit Reader(const OriginalPlanOptions& options) : options_(options) {}

  Result<OriginalPlan> read(const Value& root) {
    OriginalPlan original;
    Plan& plan = original.plan;
    plan.job.model = options_.model.name;
    plan.job.sequence_length =
        options_.sequence_length > 0 ? options_.sequence_length : options_.model.max_sequence_length;
    plan.job.precision = options_.precision;
    const auto micro_batch = root.integer_at("mbs", 1, max_plan_ranks);
    if (!micro_batch) return fail(micro_batch.error());
    plan.micro_batch = *micro_batch;
    const auto global_batch = root.integer_at("gbs", 1, 1 << 28);
    if (!global_batch) return fail(global_batch.error());
    plan.job.global_batch = *global_batch;
    if (*global_batch % *micro_batch != 0)
      return root.at("gbs")->invalid(fmt::format("{} is no multiple of mbs ({})", *global_batch, *micro_batch),
                                     "change gbs or mbs");

    const auto pipelines = root.at("pipeline_list");
    if (!pipelines) return fail(pipelines.error());
    const auto count = pipelines->size();
    if (!count) return fail(count.error());
    for (std::size_t i = 0; i < *count; ++i) SAILOR_CHECK(read_pipeline((*pipelines)[i]));

    const int micro_batches = *global_batch / *micro_batch;
    if (static_cast<std::size_t>(micro_batches) < chains_.size())
      return root.at("gbs")->invalid(
          fmt::format("gbs / mbs is {}, less than one micro-batch for each of the {} data-parallel replicas",
                      micro_batches, chains_.size()),
          "change gbs, mbs or the replicas");
    fold(micro_batches, plan);
    if (const auto good = check_plan(plan, options_.model); !good) return fail(good.error(), root.where());

    if (root.has("real")) {
      const auto time = root.at("real")->positive_number();
      if (!time) return fail(time.error());
      original.measured_time = Seconds(*time);
    }
    if (root.has("max_mem")) {
      const auto memory = root.at("max_mem")->positive_number();
      if (!memory) return fail(memory.error());
      original.measured_memory = Bytes(*memory);
    }
    return original;
  }

 private:
  Result<void> read_pipeline(const Value& pipeline) {
    const auto stages = pipeline.integer_at("num_stages", 1, max_plan_ranks);
    if (!stages) return fail(stages.error());
    const auto count = static_cast<std::size_t>(*stages);
    const auto layers = per_stage(pipeline, "layers_per_stage", count);
    if (!layers) return fail(layers.error());
    const auto groups = per_stage(pipeline, "tmp_per_stage", count);
    if (!groups) return fail(groups.error());

    const std::size_t first = chains_.size();
    for (std::size_t s = 0; s < count; ++s) {
      const auto range = layer_range_of((*layers)[s]);
      if (!range) return fail(range.error());
      const Value replicas = (*groups)[s];
      const auto size = replicas.size();
      if (!size) return fail(size.error());
      if (s == 0) chains_.resize(first + *size);
      if (first + *size != chains_.size())
        return replicas.invalid(
            fmt::format("{} here but {} in stage 0", plural(*size, "data-parallel replica"), chains_.size() - first),
            "Sailor's pipelines have as many replicas in every stage");
      for (std::size_t r = 0; r < *size; ++r) {
        auto stage = read_group(replicas[r]);
        if (!stage) return fail(stage.error());
        stage->layers = *range;
        chains_[first + r].push_back(*std::move(stage));
      }
    }
    if (!pipeline.has("dp")) return {};
    const auto degrees = per_stage(pipeline, "dp", count);
    if (!degrees) return fail(degrees.error());
    for (std::size_t s = 0; s < count; ++s) {
      const auto degree = (*degrees)[s].integer(1, max_plan_ranks);
      if (!degree) return fail(degree.error());
      if (const std::size_t replicas = chains_.size() - first; static_cast<std::size_t>(*degree) != replicas)
        return (*degrees)[s].invalid(
            fmt::format("is {} but tmp_per_stage has {}", *degree, plural(replicas, "data-parallel replica")));
    }
    return {};
  }

  /// One replica of a stage: [[[gpu, GPUs, zone], ...], tensor-parallel degree].
  Result<Stage> read_group(const Value& group) {
    const auto size = group.size();
    if (!size) return fail(size.error());
    if (*size != 2) return group.invalid("must be [[[gpu, GPUs, zone], ...], tensor parallel degree]");
    Stage stage;
    const Value machines = group[0];
    const auto count = machines.size();
    if (!count) return fail(count.error());
    std::int64_t gpus = 0;
    for (std::size_t i = 0; i < *count; ++i) {
      const Value machine = machines[i];
      const auto fields = machine.size();
      if (!fields) return fail(fields.error());
      if (*fields != 3) return machine.invalid("must be [gpu, GPUs, zone]");
      auto gpu = find_gpu(machine[0]);
      if (!gpu) return fail(gpu.error());
      const auto number = machine[1].integer(1, max_plan_ranks);
      if (!number) return fail(number.error());
      auto zone = machine[2].text();
      if (!zone) return fail(zone.error());
      gpus += *number;
      if (i > 0 && (*gpu != stage.gpu || *zone != stage.zone))
        return machine.invalid(fmt::format("{} in zone '{}' beside {} in zone '{}' in one tensor-parallel group", *gpu,
                                           *zone, stage.gpu, stage.zone),
                               "Sailor's tensor-parallel groups have one GPU type and one zone");
      stage.gpu = *std::move(gpu);
      stage.zone = *std::move(zone);
    }
    const auto degree = group[1].integer(1, 1024);
    if (!degree) return fail(degree.error());
    if (*degree > gpus)
      return group[1].invalid(
          fmt::format("tensor parallel degree {} on {}", *degree, plural(static_cast<std::size_t>(gpus), "GPU")));
    stage.tensor_parallel = *degree;
    ranks_ += *degree;
    if (ranks_ > max_plan_ranks) return group.invalid(fmt::format("the plan has more than {} ranks", max_plan_ranks));
    return stage;
  }

  Result<std::string> find_gpu(const Value& value) {
    auto text = value.text();
    if (!text) return text;
    if (const auto found = gpus_.find(*text); found != gpus_.end()) return found->second;
    auto name = options_.gpu_name(*text);
    if (!name) return fail(name.error(), value.where());
    gpus_.emplace(*text, *name);
    return name;
  }

  /// Turns the chains into the plan's pipelines: equal ones become one entry.
  void fold(int micro_batches, Plan& plan) {
    std::map<std::string, std::size_t> entries;
    const int replicas = static_cast<int>(chains_.size());
    for (int i = 0; i < replicas; ++i) {
      std::vector<Stage>& stages = chains_[static_cast<std::size_t>(i)];
      const int mine = micro_batches / replicas + (i < micro_batches % replicas ? 1 : 0);
      std::string key = fmt::format("{}", mine);
      for (const Stage& stage : stages)
        key += fmt::format("|{}:{}|{}|{}|{}", stage.layers.first, stage.layers.last, stage.tensor_parallel,
                           toml_quote(stage.gpu), toml_quote(stage.zone));
      const auto [entry, fresh] = entries.emplace(std::move(key), plan.pipelines.size());
      if (fresh)
        plan.pipelines.push_back({.count = 1, .micro_batches = mine, .stages = std::move(stages)});
      else
        ++plan.pipelines[entry->second].count;
    }
  }

  const OriginalPlanOptions& options_;
  std::map<std::string, std::string> gpus_;  // in the catalogue, by the name in the file
  std::vector<std::vector<Stage>> chains_;   // one per data-parallel replica of every pipeline, in the file's order
  std::int64_t ranks_ = 0;
};

}  // namespace

Result<OriginalPlan> parse_original_plan(std::string_view text, std::string_view source_name,
                                         const OriginalPlanOptions& options) {
  const auto root = parse_json(text, source_name);
  if (!root) return fail(root.error());
  return Reader(options).read(Value(*root, source_name, ""));
}

Result<OriginalPlan> load_original_plan(const std::filesystem::path& path, const OriginalPlanOptions& options) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_original_plan(*text, path.string(), options);
}

}  // namespace sailor
