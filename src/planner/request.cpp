#include "planner/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "core/names.hpp"
#include "core/text.hpp"
#include "planner/planner.hpp"

namespace sailor::planner {

namespace {

// In the order of Heuristic.
constexpr std::array<std::string_view, 17> heuristic_names{
    "one-kind",  "gradient-levels", "pool-sets",       "single-pipeline", "mixed",        "spanning",
    "alike",     "hints",           "divide-again",    "leave-out",       "change-count", "exchange",
    "add-group", "move-layers",     "change-sharding", "refine-printed",  "parts"};

tl::unexpected<Error> unknown(std::string_view what, std::string_view value, const std::vector<std::string>& known) {
  return fail(ErrorCode::usage, fmt::format("--pin: {} '{}' is not known (known: {})", what, value, join(known, ", ")),
              did_you_mean(value, known, "see --help"));
}

Result<int> parse_count(std::string_view key, std::string_view value) {
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < 1 || number > 1 << 24)
    return fail(ErrorCode::usage, fmt::format("--pin {}={}: not a whole number from 1 to {}", key, value, 1 << 24),
                fmt::format("write --pin {}=4, for example", key));
  return number;
}

/// Parses one of the values of an enumeration by its name.
template <class Value, std::size_t n>
Result<Value> parse_choice(std::string_view key, std::string_view text, const std::array<Value, n>& values) {
  std::vector<std::string> names;
  for (const Value value : values) {
    if (text == to_string(value)) return value;
    names.emplace_back(to_string(value));
  }
  return unknown(key, text, names);
}

}  // namespace

bool limits_time(const Request& request) {
  const Limits& limits = request.limits;
  return limits.throughput || limits.cost || limits.wall_time || limits.node_hours;
}

bool keeps_limits(const Request& request, Seconds time, Usd cost, std::optional<int> nodes) {
  constexpr double rounding = 1.0 + 1e-9;
  const Limits& limits = request.limits;
  if (limits.throughput && time.value() * *limits.throughput > rounding) return false;
  if (limits.cost && cost > *limits.cost * rounding) return false;
  if (!request.iterations) return true;
  if (limits.wall_time && time * *request.iterations > *limits.wall_time * rounding) return false;
  return !limits.node_hours || !nodes ||
         *nodes * time.value() / 3600.0 * *request.iterations <= *limits.node_hours * rounding;
}

std::string where_of(const Request& request) {
  if (request.partitions.empty()) return "the cluster";
  return fmt::format("partition{} '{}'", request.partitions.size() == 1 ? "" : "s", join(request.partitions, "', '"));
}

std::string_view to_string(Objective objective) {
  switch (objective) {
    case Objective::throughput:
      return "throughput";
    case Objective::cost:
      return "cost";
    case Objective::throughput_per_usd:
      return "throughput-per-usd";
  }
  return "";
}

std::string_view to_string(Space space) { return space == Space::paper ? "paper" : "full"; }

std::string_view to_string(Heuristic heuristic) { return heuristic_names[static_cast<std::size_t>(heuristic)]; }

std::vector<std::string> heuristic_choices() { return {heuristic_names.begin(), heuristic_names.end()}; }

Result<Heuristic> parse_heuristic(std::string_view text) {
  return parse_name<Heuristic>("heuristic", text, heuristic_names, ErrorCode::usage);
}

std::string_view to_string(Stop stop) {
  switch (stop) {
    case Stop::done:
      return "done";
    case Stop::work_limit:
      return "work limit";
    case Stop::time_limit:
      return "time limit";
    case Stop::interrupted:
      return "interruption";
  }
  return "";
}

tl::unexpected<Error> refuse_pin(std::string_view key, std::string_view value, std::string_view framework) {
  return fail(ErrorCode::usage, fmt::format("--pin {}={}: framework {} does not have it", key, value, framework),
              "choose another framework, or leave the pin out");
}

Result<void> add_pin(std::string_view text, Pins& pins) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size())
    return fail(ErrorCode::usage, fmt::format("--pin '{}' is not KEY=VALUE", text),
                "write --pin pipeline_parallel=4, for example");
  const std::string_view key = text.substr(0, equals);
  const std::string_view value = text.substr(equals + 1);
  const std::map<std::string, std::optional<int> Pins::*, std::less<>> counts{
      {"pipeline_parallel", &Pins::pipeline_parallel}, {"data_parallel", &Pins::data_parallel},
      {"tensor_parallel", &Pins::tensor_parallel},     {"micro_batch", &Pins::micro_batch},
      {"context_parallel", &Pins::context_parallel},   {"expert_parallel", &Pins::expert_parallel},
      {"sharding_degree", &Pins::sharding_degree}};
  if (const auto count = counts.find(key); count != counts.end()) {
    auto number = parse_count(key, value);
    if (!number) return fail(number.error());
    pins.*(count->second) = *number;
    return {};
  }
  if (key == "gpu") {
    pins.gpus.emplace_back(value);
    return {};
  }
  if (key == "zone") {
    pins.zones.emplace_back(value);
    return {};
  }
  if (key == "schedule") {
    auto schedule =
        parse_choice(key, value, std::array{Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved_1f1b});
    if (!schedule) return fail(schedule.error());
    pins.schedule = *schedule;
    return {};
  }
  if (key == "recompute") {
    auto recompute = parse_choice(key, value, std::array{Recompute::none, Recompute::selective, Recompute::full});
    if (!recompute) return fail(recompute.error());
    pins.recompute = *recompute;
    return {};
  }
  if (key == "optimizer_sharding") {
    auto sharding = parse_choice(key, value,
                                 std::array{OptimizerSharding::none, OptimizerSharding::zero1, OptimizerSharding::zero2,
                                            OptimizerSharding::zero3});
    if (!sharding) return fail(sharding.error());
    pins.optimizer_sharding = *sharding;
    return {};
  }
  return unknown("key", key,
                 {"pipeline_parallel", "data_parallel", "tensor_parallel", "micro_batch", "schedule", "recompute",
                  "optimizer_sharding", "sharding_degree", "context_parallel", "expert_parallel", "gpu", "zone"});
}

}  // namespace sailor::planner
