#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/files.hpp"
#include "core/names.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"
#include "plan/plan.hpp"
#include "plan/plan_checks.hpp"
#include "plan/plan_names.hpp"

namespace sailor {

namespace {

const std::vector<std::string_view> origin_names{"measured", "published", "interpolated", "estimated"};

constexpr int plan_schema_version = 1;

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

}  // namespace

Plan read_plan(const TomlTable& root) {
  constexpr IntegerRange positive{.minimum = 1, .maximum = max_plan_ranks};
  constexpr IntegerRange degree{.minimum = 1, .maximum = 1024};

  Plan plan;
  const TomlTable job = root.table("job");
  plan.job.model = job.text("model");
  plan.job.global_batch = static_cast<int>(job.integer("global_batch", {.minimum = 1, .maximum = 1 << 28}));
  plan.job.sequence_length = static_cast<int>(job.integer("sequence_length", {.minimum = 1, .maximum = 1 << 24}));
  plan.job.precision = static_cast<Precision>(job.choice("precision", plan_names::precisions));
  plan.job.optimizer = static_cast<Optimizer>(job.choice("optimizer", plan_names::optimizers));
  plan.micro_batch = static_cast<int>(root.integer("micro_batch", positive));
  plan.schedule = static_cast<Schedule>(root.choice("schedule", plan_names::schedules));
  plan.optimizer_sharding =
      static_cast<OptimizerSharding>(root.choice_or("optimizer_sharding", plan_names::shardings, 0));
  plan.sharding_degree =
      static_cast<int>(root.integer_or("sharding_degree", 0, {.minimum = 0, .maximum = max_plan_ranks}));
  plan.keep_together = static_cast<KeepTogether>(root.choice_or("keep_together", plan_names::kept_together, 0));
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
      stage.recompute = static_cast<Recompute>(row.choice_or("recompute", plan_names::recomputations, 0));
      pipeline.stages.push_back(std::move(stage));
    }
    if (const auto problem = find_problem(pipeline, plan.schedule)) {
      const TomlTable& table = problem->stage >= 0 ? stages[static_cast<std::size_t>(problem->stage)] : entry;
      table.reject(problem->key, problem->what, problem->hint);
    }
    ranks += std::int64_t{pipeline.count} * pipeline.ranks() * plan.context_parallel;
    if (ranks > max_plan_ranks) entry.reject("count", fmt::format("the plan has more than {} ranks", max_plan_ranks));
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
                   .profile_hash = origin.text_or("profile_hash", ""),
                   .model_file = origin.text_or("model_file", "")};
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
  if (begins_json_object(text))
    return fail(ErrorCode::invalid_input, fmt::format("{}: this is JSON, not a plan", source_name),
                "let sailor-plan --output plan.toml write the plan");
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(plan_schema_version, TomlKind::plan);
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
        text += fmt::format("layers = [{}]  # half-open\n", join(chunks, ", "));
      }
      quoted("gpu", stage.gpu);
      line("tensor_parallel", stage.tensor_parallel);
      if (!stage.zone.empty()) quoted("zone", stage.zone);
      quoted("recompute", to_string(stage.recompute));
    }
  }

  const PlanOrigin& origin = plan.origin;
  const std::array<std::pair<std::string_view, const std::string*>, 8> origins{
      {{"tool", &origin.tool},
       {"cluster", &origin.cluster},
       {"partition", &origin.partition},
       {"profile_store", &origin.profile_store},
       {"framework", &origin.framework},
       {"cluster_hash", &origin.cluster_hash},
       {"profile_hash", &origin.profile_hash},
       {"model_file", &origin.model_file}}};
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

}  // namespace sailor
