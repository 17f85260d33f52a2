#include "apps/sweep/outcome.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/text.hpp"

namespace sailor::apps::sweep {

namespace {

using nlohmann::ordered_json;

/// The value of a key that may be missing or null.
template <class T>
std::optional<T> maybe(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return found->get<T>();
}

template <class Unit>
std::optional<Unit> maybe_amount(const ordered_json& object, const char* key) {
  const auto value = maybe<double>(object, key);
  return value ? std::optional<Unit>(Unit(*value)) : std::nullopt;
}

SweepScore score_of(const ordered_json& json) {
  SweepScore score{.iteration_time = maybe_amount<Seconds>(json, "iteration_time_s"),
                   .throughput = maybe<double>(json, "throughput_iterations_per_s"),
                   .cost = maybe_amount<Usd>(json, "cost_usd_per_iteration"),
                   .egress_cost = maybe_amount<Usd>(json, "egress_cost_usd_per_iteration"),
                   .peak_memory = maybe_amount<Bytes>(json, "peak_memory_bytes"),
                   .fits = maybe<bool>(json, "fits")};
  if (!score.throughput && score.iteration_time && score.iteration_time->value() > 0.0)
    score.throughput = 1.0 / score.iteration_time->value();
  return score;
}

/// Number of devices by type: from the counts of the answer, else from the plan.
std::map<std::string, std::int64_t> devices_of(const ordered_json& best) {
  std::map<std::string, std::int64_t> devices;
  if (const auto counted = best.find("gpus"); counted != best.end() && counted->is_object()) {
    for (const auto& [gpu, count] : counted->items()) devices[gpu] += count.get<std::int64_t>();
    return devices;
  }
  const auto plan = best.find("plan");
  if (plan == best.end() || plan->is_null()) return devices;
  for (const ordered_json& pipeline : plan->at("pipelines"))
    for (const ordered_json& stage : pipeline.at("stages"))
      devices[stage.at("gpu").get<std::string>()] +=
          pipeline.at("count").get<std::int64_t>() * stage.at("tensor_parallel").get<std::int64_t>();
  return devices;
}

std::string joined(const ordered_json& lines) {
  std::string text;
  for (const ordered_json& line : lines) text += (text.empty() ? "" : "; ") + line.get<std::string>();
  return text;
}

void read_answer(const ordered_json& answer, SweepRow& row) {
  row.search_time = maybe_amount<Seconds>(answer, "search_time_s");
  row.proposed = maybe<std::int64_t>(answer, "proposed");
  // With --cost-model, sailor-plan counts the plans that do not fit among all plans tried: these were never proposed.
  if (answer.contains("planner")) row.did_not_fit = maybe<std::int64_t>(answer, "did_not_fit");
  row.rejected_by_limits = maybe<std::int64_t>(answer, "rejected_by_limits");
  row.out_of_time = maybe<bool>(answer, "out_of_time");
  if (const auto stop = maybe<std::string>(answer, "stop")) row.out_of_time = *stop == "time limit";
  for (const char* notes : {"notes", "left_out"})
    if (const auto lines = answer.find(notes); lines != answer.end() && lines->is_array())
      row.notes += (row.notes.empty() || lines->empty() ? "" : "; ") + joined(*lines);
  const auto plans = answer.find("plans");
  if (plans == answer.end() || plans->empty()) return;
  const ordered_json& best = plans->front();
  row.judged = score_of(best);
  row.description = maybe<std::string>(best, "description").value_or("");
  if (const auto devices = devices_of(best); !devices.empty()) {
    row.gpus = 0;
    for (const auto& [gpu, count] : devices) {
      *row.gpus += count;
      row.gpu_types += fmt::format("{}{} {}", row.gpu_types.empty() ? "" : " + ", count, gpu);
    }
  }
  if (const auto expected = best.find("expected"); expected != best.end() && expected->is_object()) {
    row.expected_throughput = maybe<double>(*expected, "throughput_iterations_per_s");
    row.expected_cost = maybe_amount<Usd>(*expected, "cost_usd_per_iteration");
  }
  const bool by_artifact = maybe<std::string>(answer, "cost_model") == "artifact";
  if (const auto score = best.find("artifact"); score != best.end() && score->is_object())
    row.artifact = score_of(*score);
  else if (by_artifact)
    row.artifact = row.judged;
  if (const auto score = best.find("simulator"); score != best.end() && score->is_object()) {
    row.simulator = score_of(*score);
    row.simulator_is_bound = maybe<bool>(*score, "is_bound");
  } else if (maybe<std::string>(answer, "cost_model") == "simulator") {
    row.simulator = row.judged;
    row.simulator_is_bound = false;
  }
}

/// The text after "sailor-plan: error: " on stderr, in one line; if there is none, the last line.
std::string last_words(const std::string& errors) {
  const std::string mark = "error: ";
  const std::size_t at = errors.rfind(mark);
  std::string words;
  for (const std::string& line : split(at == std::string::npos ? errors : errors.substr(at + mark.size()), '\n')) {
    const std::size_t first = line.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    if (at == std::string::npos) words.clear();
    words += (words.empty() ? "" : " ") + line.substr(first);
  }
  constexpr std::size_t most = 400;
  if (words.size() > most) words = words.substr(0, most) + "...";
  return valid_utf8(words);
}

}  // namespace

Outcome outcome_of(const ProcessOutcome& ended, Seconds wall_time, std::string inputs) {
  Outcome outcome{.inputs = std::move(inputs),
                  .wall_time = wall_time,
                  .processor_time = ended.processor_time,
                  .peak_resident_memory = ended.peak_resident_memory};
  const bool no_plan = ended.signal == 0 && ended.exit_status == 3;
  const std::string words = last_words(ended.errors);
  if ((!ended.succeeded() && !no_plan) || ended.timed_out || ended.cancelled || ended.too_long) {
    outcome.why =
        words.empty() || ended.timed_out ? ended.how_it_ended() : fmt::format("{} ({})", words, ended.how_it_ended());
    return outcome;
  }
  if (no_plan) outcome.why = words.empty() ? "no plan" : words;
  ordered_json answer = ordered_json::parse(ended.output, nullptr, false);
  if (answer.is_discarded() || !answer.is_object()) {
    if (no_plan) outcome.status = SweepStatus::no_plan;  // some searches without a plan report it only on stderr
    if (!no_plan) outcome.why = "sailor-plan wrote no JSON";
    return outcome;
  }
  const auto plans = answer.find("plans");
  const bool has_plan = plans != answer.end() && plans->is_array() && !plans->empty();
  if (has_plan && plans->size() > 1) *plans = ordered_json::array({plans->front()});
  if (!no_plan && !has_plan) {
    outcome.why = "sailor-plan wrote no plan, though its exit status says so";
    return outcome;
  }
  outcome.status = no_plan ? SweepStatus::no_plan : SweepStatus::plan;
  outcome.answer = answer.dump();
  return outcome;
}

std::string outcome_to_json(const Point& point, const Outcome& outcome) {
  const ordered_json json{
      {"schema_version", 1},
      {"kind", "sailor-sweep-point"},
      {"id", point.id},
      {"options", point.options},
      {"inputs", outcome.inputs},
      {"status", to_string(outcome.status)},
      {"why", outcome.why},
      {"wall_time_s", outcome.wall_time.value()},
      {"processor_time_s", outcome.processor_time.value()},
      {"peak_resident_memory_bytes", outcome.peak_resident_memory.value()},
      {"answer", outcome.answer.empty() ? ordered_json(nullptr) : ordered_json::parse(outcome.answer, nullptr, false)}};
  return json.dump(1) + "\n";
}

Result<Outcome> parse_outcome(const std::string& text, const std::string& name) {
  const ordered_json json = ordered_json::parse(text, nullptr, false);
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::invalid_input, fmt::format("point file '{}': {}", name, what), "remove it");
  };
  if (json.is_discarded() || !json.is_object()) return wrong("it is no JSON");
  try {
    if (json.at("kind") != "sailor-sweep-point" || json.at("schema_version") != 1)
      return wrong("it is no point of this version of sailor-sweep");
    Outcome outcome{.why = json.at("why"),
                    .inputs = json.at("inputs"),
                    .wall_time = Seconds(json.at("wall_time_s").get<double>()),
                    .processor_time = Seconds(json.at("processor_time_s").get<double>()),
                    .peak_resident_memory = Bytes(json.at("peak_resident_memory_bytes").get<double>())};
    for (const SweepStatus status : {SweepStatus::plan, SweepStatus::no_plan, SweepStatus::failed})
      if (json.at("status") == to_string(status)) outcome.status = status;
    if (const ordered_json& answer = json.at("answer"); !answer.is_null()) outcome.answer = answer.dump();
    return outcome;
  } catch (const ordered_json::exception& error) {
    return wrong(error.what());
  }
}

Result<SweepRow> row_of(const Experiment& experiment, const Point& point, const Outcome& outcome) {
  SweepRow row{.experiment = experiment.name,
               .planner = point.planner,
               .model = point.model,
               .cluster = point.cluster,
               .constraint = point.constraint,
               .repetition = point.repetition,
               .status = outcome.status,
               .why = outcome.why,
               .wall_time = outcome.wall_time,
               .processor_time = outcome.processor_time,
               .peak_resident_memory = outcome.peak_resident_memory};
  if (outcome.answer.empty()) return row;
  try {
    read_answer(ordered_json::parse(outcome.answer), row);
  } catch (const ordered_json::exception& error) {
    return fail(
        ErrorCode::invalid_input,
        fmt::format("point {}: the answer of sailor-plan is not understood: {}", point.label(experiment), error.what()),
        "run the point again with --again, by the sailor-plan of this version");
  }
  return row;
}

}  // namespace sailor::apps::sweep
