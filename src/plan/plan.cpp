#include "plan/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/files.hpp"
#include "core/names.hpp"
#include "core/terminal.hpp"
#include "core/toml_reader.hpp"

namespace sailor {

namespace {

const std::vector<std::string_view> precision_names{"fp32", "tf32", "bf16", "fp16", "fp8"};
const std::vector<std::string_view> optimizer_names{"adamw"};
const std::vector<std::string_view> schedule_names{"1f1b", "gpipe", "interleaved-1f1b"};
const std::vector<std::string_view> recompute_names{"none", "selective", "full"};
const std::vector<std::string_view> sharding_names{"none", "zero1", "zero2", "zero3"};
const std::vector<std::string_view> together_names{"pipelines", "replicas"};

const std::vector<std::string_view> origin_names{"measured", "published", "interpolated", "estimated"};

constexpr int plan_schema_version = 1;
constexpr int most_ranks = 1 << 20;

/// The problem of one pipeline, with the stage it is in (-1: the pipeline itself); std::nullopt if it is valid.
struct PipelineProblem {
  int stage = -1;
  std::string key;
  std::string what;
  std::string hint;
};

constexpr std::int64_t most_passes = 1 << 26;  // of a stage, per iteration and direction
constexpr const char* use_1f1b = "use schedule = \"1f1b\"";

/// Violations of the schedule's requirements, except the order of the layers.
std::optional<PipelineProblem> find_schedule_problem(const Pipeline& pipeline, Schedule schedule) {
  const std::size_t stages = pipeline.stages.size();
  if (schedule != Schedule::interleaved_1f1b) {
    for (std::size_t i = 0; i < stages; ++i)
      if (const int chunks = pipeline.stages[i].chunks(); chunks > 1)
        return PipelineProblem{static_cast<int>(i), "layers",
                               fmt::format("stage {} holds {} chunks of layers, which schedule {} cannot run", i,
                                           chunks, to_string(schedule)),
                               "give it one range [first, last) or use schedule = \"interleaved-1f1b\""};
    return std::nullopt;
  }
  if (stages < 2)
    return PipelineProblem{
        -1, "stages",
        fmt::format("the pipeline has {} but schedule interleaved-1f1b needs at least 2", plural(stages, "stage")),
        fmt::format("add stages or {}", use_1f1b)};
  for (std::size_t i = 0; i < stages; ++i) {
    const int chunks = pipeline.stages[i].chunks();
    if (chunks < 2)
      return PipelineProblem{
          static_cast<int>(i), "layers",
          fmt::format("stage {} holds one chunk of layers but schedule interleaved-1f1b needs at least 2", i),
          fmt::format("write layers = [[first, last], [first, last]] or {}", use_1f1b)};
    if (chunks != pipeline.chunks())
      return PipelineProblem{
          static_cast<int>(i), "layers",
          fmt::format("stage {} holds {} chunks of layers but stage 0 holds {}", i, chunks, pipeline.chunks()),
          "give every stage of the pipeline the same number"};
  }
  if (std::int64_t{pipeline.micro_batches} * pipeline.chunks() > most_passes)
    return PipelineProblem{-1, "micro_batches",
                           fmt::format("{} micro-batches through {} chunks are more than {} passes",
                                       pipeline.micro_batches, pipeline.chunks(), most_passes),
                           "use larger or fewer micro-batches"};
  // Narayanan et al. 2021, section 2.2.
  if (static_cast<std::size_t>(pipeline.micro_batches) % stages != 0)
    return PipelineProblem{-1, "micro_batches",
                           fmt::format("micro_batches is {}, no multiple of the {} stages, which schedule "
                                       "interleaved-1f1b needs",
                                       pipeline.micro_batches, stages),
                           fmt::format("change micro_batches or {}", use_1f1b)};
  return std::nullopt;
}

std::optional<PipelineProblem> find_problem(const Pipeline& pipeline, Schedule schedule) {
  if (pipeline.stages.empty()) return PipelineProblem{-1, "stages", "the pipeline has no stages", ""};
  if (auto problem = find_schedule_problem(pipeline, schedule)) return problem;
  const bool several = pipeline.chunks() > 1;
  const auto name = [&](int chunk, std::size_t stage) {
    return several ? fmt::format("chunk {} of stage {}", chunk, stage) : fmt::format("stage {}", stage);
  };
  int expected = 0;
  std::string previous;
  for (int chunk = 0; chunk < pipeline.chunks(); ++chunk)
    for (std::size_t i = 0; i < pipeline.stages.size(); ++i) {
      const LayerRange& layers = pipeline.stages[i].chunk(chunk);
      const int stage = static_cast<int>(i);
      if (layers.first >= layers.last)
        return PipelineProblem{stage, "layers",
                               fmt::format("{} holds no layers: [{}, {})", name(chunk, i), layers.first, layers.last),
                               ""};
      if (layers.first != expected)
        return PipelineProblem{stage, "layers",
                               previous.empty()
                                   ? fmt::format("{} starts at layer {}, not 0", name(chunk, i), layers.first)
                                   : fmt::format("{} starts at layer {} but {} ends at {}", name(chunk, i),
                                                 layers.first, previous, expected),
                               ""};
      expected = layers.last;
      previous = name(chunk, i);
    }
  return std::nullopt;
}

std::optional<std::string> batch_problem(const Plan& plan) {
  std::int64_t micro_batches = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    micro_batches += std::int64_t{pipeline.count} * pipeline.micro_batches;
  if (micro_batches > plan.job.global_batch)  // their product may not fit into 64 bits
    return fmt::format("{} micro-batches of {} are more than the {} sequences of global_batch", micro_batches,
                       micro_batch_text(plan), plan.job.global_batch);
  std::int64_t sequences = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    sequences += std::int64_t{pipeline.count} * pipeline.micro_batches * plan.micro_batch_of(pipeline);
  if (sequences == plan.job.global_batch) return std::nullopt;
  return fmt::format("{} micro-batches of {} make {} sequences but global_batch is {}", micro_batches,
                     micro_batch_text(plan), sequences, plan.job.global_batch);
}

/// [first, last), or several of them.
void read_layers(const TomlTable& row, Stage& stage) {
  const auto ranges = row.integer_rows("layers", {.minimum = 0, .maximum = 1 << 24});
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].size() != 2) {
      row.reject("layers", fmt::format("'layers' must be [first, last), two integers, not {}", ranges[i].size()));
      return;
    }
    const LayerRange range{static_cast<int>(ranges[i][0]), static_cast<int>(ranges[i][1])};
    if (i == 0)
      stage.layers = range;
    else
      stage.later_chunks.push_back(range);
  }
}

struct DegreeProblem {
  std::string key;
  std::string what;
  std::string hint;
};

std::optional<DegreeProblem> sharding_problem(const Plan& plan) {
  const int degree = plan.sharding_degree;
  if (degree == 0) return std::nullopt;
  if (plan.optimizer_sharding == OptimizerSharding::none)
    return DegreeProblem{
        "sharding_degree",
        fmt::format("sharding_degree is {} but optimizer_sharding is none: nothing is sharded", degree),
        "remove sharding_degree, or set optimizer_sharding"};
  if (plan.replicas() % degree != 0)
    return DegreeProblem{
        "sharding_degree",
        fmt::format("sharding_degree {} does not divide the {} replicas of a layer ({} x "
                    "context_parallel {})",
                    degree, plan.replicas(), plural(static_cast<std::size_t>(plan.data_parallel()), "pipeline"),
                    plan.context_parallel),
        "change sharding_degree or the number of pipelines"};
  if (degree % plan.expert_parallel != 0)
    return DegreeProblem{
        "sharding_degree",
        fmt::format("sharding_degree {} is no multiple of expert_parallel {}", degree, plan.expert_parallel),
        "change one of them"};
  return std::nullopt;
}

/// Degrees that do not divide the sequence or the ranks of a stage.
std::optional<DegreeProblem> degree_problem(const Plan& plan) {
  const int context = plan.context_parallel;
  const int expert = plan.expert_parallel;
  // In a ring each rank computes an early and a late part of the sequence, so that a causal mask leaves all the same
  // work. sailor-train's ranks have one part each; the rule is the same for all frameworks.
  if (context > 1 && plan.job.sequence_length % (2 * context) != 0)
    return DegreeProblem{"context_parallel",
                         fmt::format("context_parallel {} divides sequences into {} parts (two for each rank), and "
                                     "sequence_length {} is no multiple of that",
                                     context, 2 * context, plan.job.sequence_length),
                         "change context_parallel or sequence_length"};
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) {
    const std::int64_t sharers = std::int64_t{plan.pipelines[i].count} * context;
    if (sharers % expert == 0) continue;
    return DegreeProblem{
        "expert_parallel",
        fmt::format("expert_parallel {} does not divide the {} of pipeline {} that {} the same layers (count {} x "
                    "context_parallel {}; other pipelines' ranks do not join them)",
                    expert, plural(static_cast<std::size_t>(sharers), "rank"), i, sharers == 1 ? "holds" : "hold",
                    plan.pipelines[i].count, context),
        "change expert_parallel, count or context_parallel"};
  }
  return sharding_problem(plan);
}

Result<void> check_experts(const Plan& plan, const Model& model) {
  if (plan.expert_parallel == 1) return {};
  if (model.experts.count == 0)
    return fail(ErrorCode::invalid_input,
                fmt::format("expert_parallel is {} but model {} has no experts", plan.expert_parallel, model.name),
                "remove expert_parallel");
  if (model.experts.count % plan.expert_parallel != 0)
    return fail(ErrorCode::invalid_input,
                fmt::format("expert_parallel {} does not divide the {} experts of {}", plan.expert_parallel,
                            model.experts.count, model.name),
                "use a degree that does");
  return {};
}

}  // namespace

std::string_view to_string(Precision precision) { return precision_names[static_cast<std::size_t>(precision)]; }
std::string_view to_string(Optimizer optimizer) { return optimizer_names[static_cast<std::size_t>(optimizer)]; }
std::string_view to_string(Schedule schedule) { return schedule_names[static_cast<std::size_t>(schedule)]; }
std::string_view to_string(Recompute recompute) { return recompute_names[static_cast<std::size_t>(recompute)]; }
std::string_view to_string(OptimizerSharding sharding) { return sharding_names[static_cast<std::size_t>(sharding)]; }
std::string_view to_string(KeepTogether what) { return together_names[static_cast<std::size_t>(what)]; }

Result<Precision> parse_precision(std::string_view text) {
  return parse_name<Precision>("precision", text, precision_names);
}

std::vector<std::string> precision_choices() { return {precision_names.begin(), precision_names.end()}; }

Result<void> check_precision(Precision precision, bool on_gpus) {
  if (precision == Precision::fp8 && !on_gpus)
    return fail(ErrorCode::unavailable, "precision fp8 is a mode of GPUs' matrix products, which CPUs do not have",
                "use precision fp32 or bf16");
  if (precision != Precision::tf32 || on_gpus) return {};
  return fail(ErrorCode::unavailable, "precision tf32 is a mode of GPUs' matrix products, which CPUs do not have",
              "use precision fp32 or bf16");
}

Result<Schedule> parse_schedule(std::string_view text) {
  return parse_name<Schedule>("schedule", text, schedule_names);
}

Result<OptimizerSharding> parse_optimizer_sharding(std::string_view text) {
  return parse_name<OptimizerSharding>("optimizer_sharding", text, sharding_names);
}

bool Stage::holds(int layer) const {
  const auto in = [layer](const LayerRange& range) { return range.first <= layer && layer < range.last; };
  return in(layers) || std::any_of(later_chunks.begin(), later_chunks.end(), in);
}

int Pipeline::ranks() const {
  int total = 0;
  for (const Stage& stage : stages) total += stage.tensor_parallel;
  return total;
}

int Plan::data_parallel() const {
  int total = 0;
  for (const Pipeline& pipeline : pipelines) total += pipeline.count;
  return total;
}

int Plan::ranks() const {
  int total = 0;
  for (const Pipeline& pipeline : pipelines) total += pipeline.count * ranks_of(pipeline);
  return total;
}

std::vector<RankRole> rank_roles(const Plan& plan) {
  std::vector<RankRole> roles;
  roles.reserve(static_cast<std::size_t>(plan.ranks()));
  int pipeline_index = 0;
  for (std::size_t entry = 0; entry < plan.pipelines.size(); ++entry) {
    const Pipeline& pipeline = plan.pipelines[entry];
    for (int copy = 0; copy < pipeline.count; ++copy, ++pipeline_index)
      for (std::size_t stage = 0; stage < pipeline.stages.size(); ++stage)
        for (int index = 0; index < plan.ranks_of(pipeline.stages[stage]); ++index) {
          const int degree = pipeline.stages[stage].tensor_parallel;
          const int context = index / degree;
          roles.push_back({.rank = static_cast<int>(roles.size()),
                           .pipeline = pipeline_index,
                           .stage = static_cast<int>(stage),
                           .tensor_parallel_index = index % degree,
                           .pipeline_entry = static_cast<int>(entry),
                           .context_parallel_index = context,
                           .expert_parallel_index = (copy * plan.context_parallel + context) % plan.expert_parallel});
        }
  }
  return roles;
}

const Stage& stage_of(const Plan& plan, const RankRole& role) {
  return plan.pipelines[static_cast<std::size_t>(role.pipeline_entry)].stages[static_cast<std::size_t>(role.stage)];
}

std::vector<int> expert_group(const Plan& plan, const RankRole& role) {
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(role.pipeline_entry)];
  const int context = plan.context_parallel;
  const int first = role.rank - role.context_parallel_index * stage_of(plan, role).tensor_parallel;
  std::vector<int> ranks;
  for (int index = 0; index < plan.expert_parallel; ++index) {
    // Relative to the copy of the role's pipeline; copies before it have negative numbers.
    const int sharer = role.context_parallel_index + index - role.expert_parallel_index;
    const int copy = sharer >= 0 ? sharer / context : -((context - 1 - sharer) / context);
    ranks.push_back(first + copy * plan.ranks_of(pipeline) +
                    (sharer - copy * context) * stage_of(plan, role).tensor_parallel);
  }
  return ranks;
}

Result<void> check_trainable(const Plan& plan) {
  if (plan.sharding_groups() > 1)
    return fail(
        ErrorCode::unavailable,
        fmt::format("the plan has sharding_degree = {} of {} replicas, and sailor-train shards over all of them",
                    plan.sharding_degree, plan.replicas()),
        "remove sharding_degree from the plan, or train with another framework");
  if (!is_trainable(plan.job.precision))
    return fail(ErrorCode::unavailable, "the plan has precision = \"fp8\", which sailor-train does not compute",
                "plan with --precision bf16, or train with another framework");
  return {};
}

Result<void> check_plan(const Plan& plan) {
  if (plan.pipelines.empty()) return fail(ErrorCode::invalid_input, "the plan has no pipelines");
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i)
    if (const auto problem = find_problem(plan.pipelines[i], plan.schedule))
      return fail(ErrorCode::invalid_input, fmt::format("pipeline {}: {}", i, problem->what), problem->hint);
  if (const auto problem = batch_problem(plan))
    return fail(ErrorCode::invalid_input, *problem, "change micro_batches, micro_batch or global_batch");
  if (const auto problem = degree_problem(plan)) return fail(ErrorCode::invalid_input, problem->what, problem->hint);
  return {};
}

Result<void> check_plan(const Plan& plan, const Model& model) {
  SAILOR_CHECK(check_plan(plan));
  SAILOR_CHECK(check_experts(plan, model));
  for (std::size_t i = 0; i < plan.pipelines.size(); ++i) {
    const Pipeline& pipeline = plan.pipelines[i];
    const int held = pipeline.stages.back().chunk(pipeline.chunks() - 1).last;
    if (held != model.layers())
      return fail(ErrorCode::invalid_input,
                  fmt::format("pipeline {} holds layers [0, {}) but model {} has {} layers", i, held, model.name,
                              model.layers()),
                  "is the plan for another model, or is a stage missing?");
    for (std::size_t s = 0; s < pipeline.stages.size(); ++s)
      if (const int degree = pipeline.stages[s].tensor_parallel; model.attention_heads % degree != 0)
        return fail(
            ErrorCode::invalid_input,
            fmt::format("pipeline {}, stage {}: tensor_parallel {} does not divide the {} attention heads of {}", i, s,
                        degree, model.attention_heads, model.name),
            "use a degree that does");
  }
  if (plan.job.sequence_length > model.max_sequence_length)
    return fail(ErrorCode::invalid_input, fmt::format("sequence_length {} is over the {} that model {} allows",
                                                      plan.job.sequence_length, model.max_sequence_length, model.name));
  return {};
}

Plan read_plan(const TomlTable& root) {
  constexpr IntegerRange positive{.minimum = 1, .maximum = most_ranks};
  constexpr IntegerRange degree{.minimum = 1, .maximum = 1024};

  Plan plan;
  const TomlTable job = root.table("job");
  plan.job.model = job.text("model");
  plan.job.global_batch = static_cast<int>(job.integer("global_batch", {.minimum = 1, .maximum = 1 << 28}));
  plan.job.sequence_length = static_cast<int>(job.integer("sequence_length", {.minimum = 1, .maximum = 1 << 24}));
  plan.job.precision = static_cast<Precision>(job.choice("precision", precision_names));
  plan.job.optimizer = static_cast<Optimizer>(job.choice("optimizer", optimizer_names));
  plan.micro_batch = static_cast<int>(root.integer("micro_batch", positive));
  plan.schedule = static_cast<Schedule>(root.choice("schedule", schedule_names));
  plan.optimizer_sharding = static_cast<OptimizerSharding>(root.choice_or("optimizer_sharding", sharding_names, 0));
  plan.sharding_degree = static_cast<int>(root.integer_or("sharding_degree", 0, {.minimum = 0, .maximum = most_ranks}));
  plan.keep_together = static_cast<KeepTogether>(root.choice_or("keep_together", together_names, 0));
  plan.context_parallel = static_cast<int>(root.integer_or("context_parallel", 1, degree));
  plan.expert_parallel = static_cast<int>(root.integer_or("expert_parallel", 1, degree));

  const std::vector<TomlTable> pipelines = root.tables("pipelines");
  if (pipelines.empty()) root.reject("pipelines", "the plan has no pipelines", "add at least one [[pipelines]]");
  std::int64_t ranks = 0;
  for (const TomlTable& entry : pipelines) {
    Pipeline pipeline;
    pipeline.count = static_cast<int>(entry.integer_or("count", 1, positive));
    pipeline.micro_batches = static_cast<int>(entry.integer("micro_batches", {.minimum = 1, .maximum = 1 << 24}));
    if (entry.has("micro_batch")) {
      const auto own = static_cast<int>(entry.integer("micro_batch", positive));
      if (own != plan.micro_batch) pipeline.micro_batch = own;
    }
    const std::vector<TomlTable> stages = entry.tables("stages");
    for (const TomlTable& row : stages) {
      Stage stage;
      read_layers(row, stage);
      stage.gpu = row.text("gpu");
      stage.tensor_parallel = static_cast<int>(row.integer_or("tensor_parallel", 1, degree));
      stage.zone = row.text_or("zone", "");
      stage.recompute = static_cast<Recompute>(row.choice_or("recompute", recompute_names, 0));
      pipeline.stages.push_back(std::move(stage));
    }
    if (const auto problem = find_problem(pipeline, plan.schedule)) {
      const TomlTable& table = problem->stage >= 0 ? stages[static_cast<std::size_t>(problem->stage)] : entry;
      table.reject(problem->key, problem->what, problem->hint);
    }
    ranks += std::int64_t{pipeline.count} * pipeline.ranks() * plan.context_parallel;
    if (ranks > most_ranks) entry.reject("count", fmt::format("the plan has more than {} ranks", most_ranks));
    plan.pipelines.push_back(std::move(pipeline));
  }
  if (const auto problem = batch_problem(plan))
    job.reject("global_batch", *problem, "change micro_batches, micro_batch or global_batch");
  if (const auto problem = degree_problem(plan)) root.reject(problem->key, problem->what, problem->hint);

  if (root.has("origin")) {
    const TomlTable origin = root.table("origin");
    plan.origin = {.tool = origin.text_or("tool", ""),
                   .cluster = origin.text_or("cluster", ""),
                   .partition = origin.text_or("partition", ""),
                   .profile_store = origin.text_or("profile_store", ""),
                   .framework = origin.text_or("framework", ""),
                   .cluster_hash = origin.text_or("cluster_hash", ""),
                   .profile_hash = origin.text_or("profile_hash", "")};
  }
  if (root.has("prediction")) {
    const TomlTable prediction = root.table("prediction");
    constexpr NumberRange amount{.minimum = 0.0};
    plan.prediction = PlanPrediction{
        .iteration_time = Seconds(prediction.number("iteration_time_s", amount)),
        .pipeline_time = Seconds(prediction.number("pipeline_time_s", amount)),
        .synchronization_time = Seconds(prediction.number("synchronization_time_s", amount)),
        .update_time = Seconds(prediction.number("update_time_s", amount)),
        .peak_memory = Bytes(prediction.number("peak_memory_bytes", amount)),
        .cost_per_iteration = Usd(prediction.number("cost_usd_per_iteration", amount)),
        .origin = prediction.has("origin") ? std::string(origin_names[prediction.choice("origin", origin_names)]) : ""};
  }
  if (plan.prediction && root.table("prediction").text("plan_fingerprint") != plan_fingerprint(plan)) {
    plan.prediction.reset();
    plan.prediction_is_stale = true;
  }
  return plan;
}

Result<Plan> parse_plan(std::string_view text, std::string_view source_name) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(plan_schema_version);
  Plan plan = read_plan(document->root());
  SAILOR_CHECK(document->finish());
  return plan;
}

Result<Plan> load_plan(const std::filesystem::path& path) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_plan(*text, path.string());
}

std::string plan_to_toml(const Plan& plan) {
  std::string text = "# A Sailor plan. Written by sailor-plan; edit it by hand if you like: every reader checks it.\n";
  auto line = [&](std::string_view key, const auto& value) { text += fmt::format("{} = {}\n", key, value); };
  auto quoted = [&](std::string_view key, std::string_view value) { line(key, toml_quote(value)); };
  line("schema_version", plan_schema_version);
  text += fmt::format("micro_batch = {}  # sequences\n", plan.micro_batch);
  quoted("schedule", to_string(plan.schedule));
  if (plan.optimizer_sharding != OptimizerSharding::none)
    quoted("optimizer_sharding", to_string(plan.optimizer_sharding));
  if (plan.sharding_degree > 0)
    text += fmt::format("sharding_degree = {}  # replicas of a layer that share it\n", plan.sharding_degree);
  if (plan.keep_together != KeepTogether::pipelines) {
    text += "# Nodes at one switch are first for:\n";
    quoted("keep_together", to_string(plan.keep_together));
  }
  if (plan.context_parallel > 1)
    text += fmt::format("context_parallel = {}  # parts of every sequence\n", plan.context_parallel);
  if (plan.expert_parallel > 1)
    text += fmt::format("expert_parallel = {}  # parts of the experts of a layer\n", plan.expert_parallel);

  text += "\n[job]\n";
  quoted("model", plan.job.model);
  text += fmt::format("global_batch = {}  # sequences per iteration\n", plan.job.global_batch);
  text += fmt::format("sequence_length = {}  # tokens\n", plan.job.sequence_length);
  quoted("precision", to_string(plan.job.precision));
  quoted("optimizer", to_string(plan.job.optimizer));

  for (const Pipeline& pipeline : plan.pipelines) {
    text += "\n[[pipelines]]\n";
    text += fmt::format("count = {}  # identical pipelines\n", pipeline.count);
    text += fmt::format("micro_batches = {}  # per iteration, each\n", pipeline.micro_batches);
    if (plan.micro_batch_of(pipeline) != plan.micro_batch)
      text += fmt::format("micro_batch = {}  # sequences\n", pipeline.micro_batch);
    for (const Stage& stage : pipeline.stages) {
      text += "\n[[pipelines.stages]]\n";
      if (stage.later_chunks.empty()) {
        text += fmt::format("layers = [{}, {}]  # half-open\n", stage.layers.first, stage.layers.last);
      } else {
        std::vector<std::string> chunks;
        for (int i = 0; i < stage.chunks(); ++i)
          chunks.push_back(fmt::format("[{}, {}]", stage.chunk(i).first, stage.chunk(i).last));
        text += fmt::format("layers = [{}]  # half-open\n", fmt::join(chunks, ", "));
      }
      quoted("gpu", stage.gpu);
      line("tensor_parallel", stage.tensor_parallel);
      if (!stage.zone.empty()) quoted("zone", stage.zone);
      quoted("recompute", to_string(stage.recompute));
    }
  }

  const PlanOrigin& origin = plan.origin;
  const std::array<std::pair<std::string_view, const std::string*>, 7> origins{
      {{"tool", &origin.tool},
       {"cluster", &origin.cluster},
       {"partition", &origin.partition},
       {"profile_store", &origin.profile_store},
       {"framework", &origin.framework},
       {"cluster_hash", &origin.cluster_hash},
       {"profile_hash", &origin.profile_hash}}};
  if (std::any_of(origins.begin(), origins.end(), [](const auto& entry) { return !entry.second->empty(); })) {
    text += "\n[origin]\n";
    for (const auto& [key, value] : origins)
      if (!value->empty()) quoted(key, *value);
  }
  if (plan.prediction) {
    const PlanPrediction& p = *plan.prediction;
    text += "\n[prediction]  # void once the plan above is edited\n";
    quoted("plan_fingerprint", plan_fingerprint(plan));
    // fmt writes the shortest digits that read back to the same double; "1" and "1e30" are no TOML floats.
    auto number = [&](std::string_view key, double value) {
      std::string digits = fmt::format("{}", value);
      if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
      line(key, digits);
    };
    number("iteration_time_s", p.iteration_time.value());
    number("pipeline_time_s", p.pipeline_time.value());
    number("synchronization_time_s", p.synchronization_time.value());
    number("update_time_s", p.update_time.value());
    number("peak_memory_bytes", p.peak_memory.value());
    number("cost_usd_per_iteration", p.cost_per_iteration.value());
    if (!p.origin.empty()) quoted("origin", p.origin);
  }
  return text;
}

std::string plan_fingerprint(const Plan& plan) {
  Plan body = plan;
  body.origin = {};
  body.prediction.reset();
  return content_hash(plan_to_toml(body));
}

Result<void> save_plan(const Plan& plan, const std::filesystem::path& path) {
  return write_file_atomically(path, plan_to_toml(plan));
}

std::string sharding_text(const Plan& plan) {
  const std::string_view name = to_string(plan.optimizer_sharding);
  return plan.sharding_degree > 0 ? fmt::format("{} over {}", name, plan.sharding_degree) : std::string(name);
}

std::string micro_batch_text(const Plan& plan) {
  if (plan.pipelines.empty()) return fmt::to_string(plan.micro_batch);
  const auto [least, most] = std::minmax_element(
      plan.pipelines.begin(), plan.pipelines.end(),
      [&](const Pipeline& a, const Pipeline& b) { return plan.micro_batch_of(a) < plan.micro_batch_of(b); });
  const int smallest = plan.micro_batch_of(*least);
  const int largest = plan.micro_batch_of(*most);
  return smallest == largest ? fmt::to_string(smallest) : fmt::format("{} to {}", smallest, largest);
}

std::string describe(const Plan& plan) {
  const bool one_micro_batch = std::all_of(plan.pipelines.begin(), plan.pipelines.end(), [&](const Pipeline& pipeline) {
    return plan.micro_batch_of(pipeline) == plan.micro_batch_of(plan.pipelines.front());
  });
  std::map<std::string_view, std::set<std::string_view>> zones;  // by GPU type
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) zones[stage.gpu].insert(stage.zone);
  std::vector<std::string> parts;
  for (const Pipeline& pipeline : plan.pipelines) {
    std::vector<std::string> kinds;
    for (const Stage& stage : pipeline.stages) {
      std::string kind =
          stage.tensor_parallel > 1 ? fmt::format("{} x{}", stage.gpu, stage.tensor_parallel) : stage.gpu;
      if (zones.at(stage.gpu).size() > 1 && !stage.zone.empty()) kind += " in " + stage.zone;
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(std::move(kind));
    }
    const std::string chunks = pipeline.chunks() > 1 ? fmt::format(" of {} chunks", pipeline.chunks()) : "";
    const std::string own = one_micro_batch ? "" : fmt::format(" with micro-batch {}", plan.micro_batch_of(pipeline));
    parts.push_back(fmt::format("{} of {}{} on {}{}", plural(static_cast<std::size_t>(pipeline.count), "pipeline"),
                                plural(pipeline.stages.size(), "stage"), chunks, fmt::join(kinds, ", "), own));
  }
  const std::string sharding = plan.optimizer_sharding == OptimizerSharding::none ? "" : ", " + sharding_text(plan);
  std::string degrees;
  if (plan.context_parallel > 1) degrees += fmt::format(", context parallel {}", plan.context_parallel);
  if (plan.expert_parallel > 1) degrees += fmt::format(", expert parallel {}", plan.expert_parallel);
  const std::string common = one_micro_batch ? ", micro-batch " + micro_batch_text(plan) : "";
  return fmt::format("{}{}{}{}", fmt::join(parts, " + "), common, degrees, sharding);
}

}  // namespace sailor
