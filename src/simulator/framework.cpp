#include "simulator/framework.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/files.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"

namespace sailor::simulator {

namespace fs = std::filesystem;

namespace {

constexpr int framework_schema_version = 1;

constexpr std::array<std::string_view, 3> stage_messages_names{"whole", "pieces", "once"};

constexpr Bytes least_bucket = kib * 64.0;
constexpr BytesPerSecond least_rate{1e3};

std::map<Precision, StateBytes> read_state(const TomlTable& root) {
  const TomlTable table = root.table("state");
  std::map<Precision, StateBytes> state;
  for (const Precision precision : all_precisions) {
    if (!table.has(to_string(precision))) continue;
    const TomlTable row = table.table(to_string(precision));
    const auto bytes = [&](std::string_view key, double minimum) {
      return Bytes(row.number(key, {.minimum = minimum, .maximum = 64.0}));
    };
    state[precision] = {.weight = bytes("weight_bytes", 1.0),
                        .gradient = bytes("gradient_bytes", 0.0),
                        .optimizer = bytes("optimizer_bytes", 0.0),
                        .copy = bytes("copy_bytes", 0.0)};
  }
  if (state.empty())
    root.reject("state", "[state] has no precision",
                "add [state.fp32], [state.tf32], [state.bf16], [state.fp16] or [state.fp8]");
  return state;
}

std::vector<Schedule> read_schedules(const TomlTable& table) {
  std::vector<Schedule> schedules;
  for (const std::string& name : table.texts("schedules")) {
    const auto schedule = parse_schedule(name);
    if (!schedule) {
      table.reject("schedules", schedule.error().what, schedule.error().hint);
      return schedules;
    }
    if (std::find(schedules.begin(), schedules.end(), *schedule) != schedules.end())
      table.reject("schedules", fmt::format("schedule '{}' is named twice", name));
    schedules.push_back(*schedule);
  }
  if (schedules.empty()) table.reject("schedules", "'schedules' is empty", "remove it: all schedules");
  return schedules;
}

void read_divided(const TomlTable& table, Framework& framework) {
  constexpr std::string_view key = "tensor_parallel_divides";
  if (!table.has(key)) return;
  for (const std::string& name : table.texts(key)) {
    if (name == "key_value_heads")
      framework.divides_key_value_heads = true;
    else if (name == "feed_forward")
      framework.divides_feed_forward = true;
    else
      table.reject(key, fmt::format("'supports.{}' has '{}'", key, name),
                   "list some of: key_value_heads, feed_forward");
  }
}

/// true stands for zero1, and for predictions of plans with any other, as before there were lists.
void read_shardings(const TomlTable& table, Framework& framework) {
  constexpr std::string_view key = "optimizer_sharding";
  framework.names_shardings = table.is_array(key);
  framework.shardings.clear();
  if (!framework.names_shardings) {
    if (table.boolean(key)) framework.shardings = {OptimizerSharding::zero1};
    return;
  }
  for (const std::string& name : table.texts(key)) {
    const auto sharding = parse_optimizer_sharding(name);
    if (!sharding || *sharding == OptimizerSharding::none) {
      table.reject(key, fmt::format("'supports.{}' has '{}'", key, name), "list some of: zero1, zero2, zero3");
      return;
    }
    if (framework.supports(*sharding)) table.reject(key, fmt::format("'supports.{}' has '{}' twice", key, name));
    framework.shardings.push_back(*sharding);
  }
  std::sort(framework.shardings.begin(), framework.shardings.end());
}

void read_memory(const TomlTable& table, Framework& framework) {
  constexpr NumberRange size{.minimum = 0.0, .maximum = 1e15};
  if (table.has("base_bytes")) {
    framework.base = Bytes(table.number("base_bytes", size));
    framework.base_source = table.text("base_source");
  } else if (table.has("base_source")) {
    table.reject("base_source", "'memory.base_source' is there without base_bytes", "add base_bytes or remove it");
  }
  if (table.has("base_bytes_by_gpu")) {
    const TomlTable by_gpu = table.table("base_bytes_by_gpu");
    for (const std::string& gpu : by_gpu.keys()) framework.base_by_gpu[gpu] = Bytes(by_gpu.number(gpu, size));
  }
  framework.workspace_activations = table.number("workspace_activations", {.minimum = 0.0, .maximum = 1000.0});
  const auto arrays = [&](std::string_view key) {
    return table.number_or(key, 0.0, {.minimum = 0.0, .maximum = 1000.0});
  };
  framework.workspace_scores = arrays("workspace_scores");
  framework.workspace_hidden_states = arrays("workspace_hidden_states");
  framework.workspace_gradients = arrays("workspace_gradients");
  framework.extra_logits = arrays("extra_logits");
  framework.keeps_stage_inputs = table.boolean_or("keeps_stage_inputs", false);
  framework.copies_reduced_gradients = table.boolean("copies_reduced_gradients");
  framework.attention_score = Bytes(table.number("attention_score_bytes", {.minimum = 0.0, .maximum = 64.0}));
}

Efficiency read_efficiency(const TomlTable& table) {
  constexpr NumberRange share{.minimum = 0.01, .maximum = 1.0};
  Efficiency efficiency = generic_efficiency(DeviceKind::gpu, Precision::bf16);
  efficiency.compute = table.number("compute", share);
  efficiency.compute_fp8 = table.number_or("compute_fp8", efficiency.compute_fp8, share);
  efficiency.attention_forward = table.number("attention_forward", share);
  efficiency.attention_backward = table.number("attention_backward", share);
  const auto tokens = [&](std::string_view key) { return table.number_or(key, 0.0, {.minimum = 0.0, .maximum = 1e6}); };
  efficiency.attention_forward_half = tokens("attention_forward_half");
  efficiency.attention_backward_half = tokens("attention_backward_half");
  efficiency.memory = table.number("memory", share);
  efficiency.launch = Seconds(table.number("launch_s", {.minimum = 0.0, .maximum = 1.0}));
  if (table.has("error")) efficiency.error = table.number("error", {.minimum = 0.001, .maximum = 10.0});
  return efficiency;
}

/// Without the table, the values are those from before it was introduced.
void read_layers(const TomlTable& table, Framework& framework) {
  framework.kernels.attention = static_cast<Attention>(
      table.choice_or("attention", {to_string(Attention::unfused), to_string(Attention::fused)}, 0));
  framework.kernels.context_exchange = static_cast<ContextExchange>(table.choice_or(
      "context_exchange", {to_string(ContextExchange::ring), to_string(ContextExchange::all_to_all)}, 0));
  framework.kernels.recomputes_elementwise = table.boolean_or("recomputes_elementwise", false);
  framework.kernels.sequence_parallel = table.boolean_or("sequence_parallel", false);
  framework.kernels.keeps_gathered_inputs = table.boolean_or("keeps_gathered_inputs", false);
  if (framework.kernels.keeps_gathered_inputs && !framework.kernels.sequence_parallel)
    table.reject("keeps_gathered_inputs",
                 "'layers.keeps_gathered_inputs' is true, but without sequence_parallel nothing is gathered",
                 "set sequence_parallel = true, or remove it");
  framework.kernels.rounds_weights_each_pass = table.boolean_or("rounds_weights_each_pass", false);
  framework.kernels.keeps_rounded_inputs = table.boolean_or("keeps_rounded_inputs", true);
  framework.kernels.fused_loss = table.boolean_or("fused_loss", false);
  framework.kernels.fused_norms = table.boolean_or("fused_norms", false);
  framework.states_expert_imbalance = table.has("expert_imbalance");
  framework.kernels.expert_imbalance = table.number_or("expert_imbalance", 1.0, {.minimum = 1.0, .maximum = 1000.0});
  if (table.has("efficiency")) framework.kernels.efficiency = read_efficiency(table.table("efficiency"));
  if (framework.kernels.attention == Attention::fused && framework.attention_score > Bytes(0))
    table.reject("attention",
                 fmt::format("'layers.attention' is \"fused\", which keeps no scores, but attention_score_bytes is {}",
                             framework.attention_score.value()),
                 "set attention_score_bytes to 0");
}

void read_time(const TomlTable& table, Framework& framework) {
  framework.stage_messages = static_cast<StageMessages>(table.choice_or(
      "stage_messages", {stage_messages_names.begin(), stage_messages_names.end()}, 0));  // the only way before the key
  framework.overlaps_transfers = table.boolean("overlaps_transfers");
  framework.overlaps_reduction = table.boolean("overlaps_reduction");
  framework.prefetches_weights = table.boolean_or("prefetches_weights", false);
  framework.reduction_bucket = Bytes(table.number("reduction_bucket_bytes", {.minimum = 0.0, .maximum = 1e15}));
  if (framework.reduction_bucket > Bytes(0) && framework.reduction_bucket < least_bucket)
    table.reject("reduction_bucket_bytes",
                 fmt::format("'time.reduction_bucket_bytes' is {} but must be 0 or at least {}",
                             framework.reduction_bucket.value(), least_bucket.value()));
  framework.transfer_overhead = Seconds(table.number("transfer_overhead_s", {.minimum = 0.0, .maximum = 10.0}));
  framework.reduction_rate =
      BytesPerSecond(table.number("reduction_rate_bytes_per_s", {.minimum = 0.0, .maximum = 1e15}));
  if (framework.reduction_rate > BytesPerSecond(0) && framework.reduction_rate < least_rate)
    table.reject("reduction_rate_bytes_per_s",
                 fmt::format("'time.reduction_rate_bytes_per_s' is {} but must be 0 or at least {}",
                             framework.reduction_rate.value(), least_rate.value()));
  framework.launch_delay_across_nodes =
      Seconds(table.number_or("launch_delay_across_nodes_s", 0.0, {.minimum = 0.0, .maximum = 1.0}));
  framework.profiling_overhead = table.number("profiling_overhead", {.minimum = 0.0, .maximum = 1.0});
  framework.time_error = table.number("time_error", {.minimum = 0.0, .maximum = 1.0});
}

}  // namespace

std::string_view to_string(StageMessages messages) { return stage_messages_names[static_cast<std::size_t>(messages)]; }

double crossing_copies(StageMessages messages, int senders, int receivers) {
  switch (messages) {
    case StageMessages::whole:
      return receivers;
    case StageMessages::pieces:
      return std::max(1.0, static_cast<double>(receivers) / senders);
    case StageMessages::once:
      break;
  }
  return 1.0;
}

Result<StateBytes> Framework::state_of(Precision precision) const {
  const auto found = state.find(precision);
  if (found != state.end()) return found->second;
  std::vector<std::string_view> known;
  for (const auto& [each, bytes] : state) known.push_back(to_string(each));
  return fail(ErrorCode::unavailable,
              fmt::format("framework '{}' does not train with precision {}", name, to_string(precision)),
              fmt::format("use precision {}, or name another framework with --framework", join(known, ", ")));
}

Result<void> Framework::check(OptimizerSharding sharding, int degree) const {
  if (degree > 0 && !supports_sharding_degree)
    return fail(ErrorCode::unavailable,
                fmt::format("framework '{}' shards over all replicas, and sharding_degree is {}", name, degree),
                "remove sharding_degree, or name another framework with --framework, for example torch-fsdp");
  if (!names_shardings || supports(sharding)) return {};
  std::vector<std::string_view> known{to_string(OptimizerSharding::none)};
  for (const OptimizerSharding each : shardings) known.push_back(to_string(each));
  return fail(ErrorCode::unavailable,
              fmt::format("framework '{}' does not train with optimizer_sharding {}", name, to_string(sharding)),
              fmt::format("use optimizer_sharding {}, or name another framework with --framework", join(known, ", ")));
}

Result<void> Framework::check(const Model& model, const Division& division) const {
  const int t = division.tensor_parallel;
  const int c = division.context_parallel;
  const int length = division.sequence_length;
  const auto refuse = [](std::string what, const char* hint = "use smaller degrees") {
    return fail(ErrorCode::infeasible, std::move(what), hint);
  };
  const auto indivisible = [&](const std::string& what) {
    return refuse(fmt::format("tensor_parallel {} does not divide the {} of {}, as it has to for framework {}", t, what,
                              model.name, name),
                  "use a smaller degree");
  };
  if (model.attention_heads % t != 0) return indivisible(fmt::format("{} attention heads", model.attention_heads));
  if (divides_key_value_heads && model.key_value_heads % t != 0)
    return indivisible(fmt::format("{} key-value heads", model.key_value_heads));
  if (divides_feed_forward)
    for (const auto& [key, width] : model.feed_forward_widths())
      if (width % t != 0) return indivisible(fmt::format("{} {}", key, width));
  if (!can_exchange(model, kernels, t, c))
    return refuse(
        fmt::format("framework {} exchanges heads of attention: tensor_parallel {} x context_parallel {} has "
                    "to divide the {} key-value heads of {}",
                    name, t, c, model.key_value_heads, model.name));
  if (kernels.sequence_parallel && t > 1 && length % (c * t) != 0)
    return refuse(fmt::format("framework {} divides sequences, too (sequence parallelism): tensor_parallel {} x "
                              "context_parallel {} has to divide the {} tokens",
                              name, t, c, length),
                  "use smaller degrees, or another sequence length");
  if (division.precision != Precision::fp8 || fp8_multiple == 1) return {};
  if (const auto part = model.part_that_is_no_multiple(t, fp8_multiple))
    return refuse(fmt::format("framework {} multiplies multiples of {} in fp8, but tensor_parallel {} leaves {} of {} "
                              "on a rank",
                              name, fp8_multiple, t, part->first, part->second),
                  "use other degrees, or precision bf16");
  const int ranks = c * (kernels.sequence_parallel ? t : 1);
  if (const std::int64_t tokens = std::int64_t{division.micro_batch} * length;
      tokens % (std::int64_t{fp8_multiple} * ranks) != 0)
    return refuse(
        fmt::format("framework {} multiplies multiples of {} in fp8, but a micro-batch of {} tokens is divided "
                    "among {}",
                    name, fp8_multiple, tokens, plural(static_cast<std::size_t>(ranks), "rank")),
        "use another micro-batch, other degrees, or precision bf16");
  return {};
}

Result<Framework> parse_framework(std::string_view text, std::string_view source_name) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(framework_schema_version, TomlKind::framework);
  const TomlTable root = document->root();
  Framework framework;
  framework.name = root.text("name");
  framework.source = root.text("source");
  framework.state = read_state(root);
  if (root.has("supports")) {
    const TomlTable supports = root.table("supports");
    framework.supports_recompute = supports.boolean("recompute");
    read_shardings(supports, framework);
    framework.supports_tensor_parallel = supports.boolean("tensor_parallel");
    read_divided(supports, framework);
    framework.fp8_multiple = static_cast<int>(supports.integer_or("fp8_multiple", 1, {.minimum = 1, .maximum = 4096}));
    framework.supports_context_parallel = supports.boolean_or("context_parallel", false);
    framework.supports_expert_parallel = supports.boolean_or("expert_parallel", false);
    framework.supports_sharding_degree = supports.boolean_or("sharding_degree", false);
    if (supports.has("schedules")) framework.schedules = read_schedules(supports);
    framework.uniformity = {.pipelines_alike = supports.boolean_or("pipelines_alike", false),
                            .one_tensor_parallel = supports.boolean_or("one_tensor_parallel_degree", false),
                            .one_recompute = supports.boolean_or("one_recompute", false)};
  }
  read_memory(root.table("memory"), framework);
  if (root.has("layers")) read_layers(root.table("layers"), framework);
  read_time(root.table("time"), framework);
  SAILOR_CHECK(document->finish());
  return framework;
}

Result<Framework> load_framework(const fs::path& path) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_framework(*text, path.string());
}

namespace {

/// All frameworks of a folder, by file name. Errors: not_found; those of load_framework().
Result<std::vector<Framework>> frameworks_in(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> files;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    if (entry->path().extension() == ".toml") files.push_back(entry->path());
  if (code)
    return fail(ErrorCode::not_found,
                fmt::format("cannot list the frameworks in '{}': {}", folder.string(), code.message()));
  std::sort(files.begin(), files.end());
  std::vector<Framework> frameworks;
  for (const fs::path& file : files) {
    auto framework = load_framework(file);
    if (!framework) return fail(framework.error());
    frameworks.push_back(*std::move(framework));
  }
  return frameworks;
}

}  // namespace

Result<Framework> find_framework(const std::string& name_or_path, const fs::path& folder) {
  if (name_or_path.ends_with(".toml")) return load_framework(name_or_path);
  const auto all = frameworks_in(folder);
  if (!all) return fail(all.error());
  std::vector<std::string> names;
  for (const Framework& framework : *all) {
    if (equal_ignoring_case(framework.name, name_or_path)) return framework;
    names.push_back(framework.name);
  }
  return fail(
      ErrorCode::not_found,
      fmt::format("framework '{}' is not known (known: {}; from {})", name_or_path, join(names, ", "), folder.string()),
      did_you_mean(name_or_path, names, "use one of these, or a path that ends in .toml"));
}

Result<void> check_trains(const Framework& framework, Precision precision, const fs::path& folder) {
  const auto state = framework.state_of(precision);
  if (state) return {};
  std::vector<std::string> others;
  if (const auto all = frameworks_in(folder))
    for (const Framework& other : *all)
      if (other.state.contains(precision)) others.push_back(other.name);
  std::vector<std::string_view> own;
  for (const auto& [each, bytes] : framework.state) own.push_back(to_string(each));
  return fail(ErrorCode::usage, state.error().what,
              fmt::format("use --precision {}{}", join(own, ", "),
                          others.empty() ? "" : fmt::format(", or --framework {}", join(others, ", "))));
}

}  // namespace sailor::simulator
