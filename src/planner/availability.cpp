#include "planner/availability.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "core/files.hpp"
#include "core/text.hpp"
#include "plan/cluster_nodes.hpp"

namespace sailor::planner {

namespace {

constexpr int usual_node_size = 4;
constexpr int max_gpus = 1 << 24;
constexpr double latest_s = 1e12;  // 30,000 years, either way

/// Fields of a line of CSV without quotes.
std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    std::string_view field = line.substr(0, line.find(','));
    const bool last = field.size() == line.size();
    line.remove_prefix(std::min(field.size() + 1, line.size()));
    while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
    while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
    if (field.size() >= 2 && field.front() == '"' && field.back() == '"') field = field.substr(1, field.size() - 2);
    fields.push_back(field);
    if (last) return fields;
  }
}

std::optional<double> number(std::string_view text) {
  double value = 0.0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// "A100-40_us-central1-a" -> the GPU type and the zone. A type may have underscores: the longest known name counts.
std::optional<AvailableGpus> column_of(std::string_view title, const GpuCatalogue& gpus) {
  for (std::size_t at = title.rfind('_'); at != std::string_view::npos && at > 0; at = title.rfind('_', at - 1)) {
    const auto type = gpus.find(title.substr(0, at));
    if (type && at + 1 < title.size()) return AvailableGpus{type->name, std::string(title.substr(at + 1)), 0};
  }
  return std::nullopt;
}

class TraceReader {
 public:
  TraceReader(std::string_view source, const GpuCatalogue& gpus) : source_(source), gpus_(gpus) {}

  Result<void> read_line(std::string_view line) {
    ++line_;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty()) return {};
    if (valid_utf8(line) != line) return invalid("the line is not UTF-8", "save the file as UTF-8");
    return columns_.empty() ? read_titles(line) : read_step(line);
  }

  Result<std::vector<AvailabilityStep>> finish(Seconds last_step) {
    if (steps_.empty()) return invalid("has no step", "write a line of titles and one for each step");
    const Seconds first = steps_.front().start;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      steps_[i].duration = i + 1 < steps_.size() ? steps_[i + 1].start - steps_[i].start : last_step;
      steps_[i].start -= first;
    }
    return std::move(steps_);
  }

 private:
  // Content of a column: nothing, the time, or GPUs (index into gpus of a step).
  static constexpr int nothing = -2;
  static constexpr int time = -1;

  [[nodiscard]] tl::unexpected<Error> invalid(const std::string& what, std::string hint) const {
    return fail(ErrorCode::invalid_input, fmt::format("{}:{}: {}", source_, line_, what), std::move(hint));
  }

  Result<void> read_titles(std::string_view line) {
    for (const std::string_view title : fields_of(line)) {
      if (title.empty()) {
        columns_.push_back(nothing);
      } else if (title == "Timestamp") {
        if (std::find(columns_.begin(), columns_.end(), time) != columns_.end())
          return invalid("there are two columns Timestamp", "leave one out");
        columns_.push_back(time);
      } else if (auto column = column_of(title, gpus_)) {
        for (const AvailableGpus& other : present_)
          if (other == *column)
            return invalid(fmt::format("{} in zone {} has two columns", column->gpu, column->zone), "leave one out");
        columns_.push_back(static_cast<int>(present_.size()));
        present_.push_back(*std::move(column));
      } else {
        return invalid(fmt::format("column '{}' is no GPU type of the catalogue, an underscore and a zone", title),
                       "name it as A100-40_us-central1-a, for example");
      }
    }
    if (std::find(columns_.begin(), columns_.end(), time) == columns_.end())
      return invalid("there is no column Timestamp", "add it: seconds");
    if (present_.empty()) return invalid("there is no column of GPUs", "add one, such as A100-40_us-central1-a");
    return {};
  }

  Result<void> read_step(std::string_view line) {
    const auto fields = fields_of(line);
    if (fields.size() != columns_.size())
      return invalid(fmt::format("{} fields under {} titles", fields.size(), columns_.size()), "give one for each");
    AvailabilityStep step;
    step.gpus = present_;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (columns_[i] == nothing) continue;
      const auto value = number(fields[i]);
      if (!value) return invalid(fmt::format("'{}' is no number", fields[i]), "write a number");
      if (columns_[i] == time) {
        if (std::abs(*value) > latest_s)
          return invalid(fmt::format("'{}' is no time", fields[i]), fmt::format("write seconds, up to {:g}", latest_s));
        step.start = Seconds(*value);
        continue;
      }
      if (*value < 0.0 || *value > max_gpus || std::trunc(*value) != *value)
        return invalid(fmt::format("'{}' is no number of GPUs", fields[i]), "write a whole number, 0 or more");
      step.gpus[static_cast<std::size_t>(columns_[i])].count = static_cast<int>(*value);
    }
    if (last_time_ && step.start <= *last_time_)
      return invalid(
          fmt::format("time {} s is not after that of the line before, {} s", step.start.value(), last_time_->value()),
          "order the lines by time");
    last_time_ = step.start;
    if (steps_.empty() || steps_.back().gpus != step.gpus) steps_.push_back(std::move(step));
    return {};
  }

  std::string_view source_;
  const GpuCatalogue& gpus_;
  int line_ = 0;
  std::vector<int> columns_;
  std::vector<AvailableGpus> present_;  // by column, all counts zero
  std::vector<AvailabilityStep> steps_;
  std::optional<Seconds> last_time_;
};

/// A described group of nodes of this type, in this zone if there is one; null if there is none.
const NodeGroup* described(const Cluster* like, const AvailableGpus& gpus) {
  const NodeGroup* elsewhere = nullptr;
  if (like != nullptr)
    for (const NodeGroup& group : like->groups) {
      if (group.gpu != gpus.gpu) continue;
      if (group.zone == gpus.zone) return &group;
      if (elsewhere == nullptr) elsewhere = &group;
    }
  return elsewhere;
}

std::string region_of(const std::string& zone) {
  const std::size_t dash = zone.rfind('-');
  return dash != std::string::npos && dash > 0 && zone.size() - dash == 2 ? zone.substr(0, dash) : zone;
}

}  // namespace

Result<std::vector<AvailabilityStep>> parse_trace(std::string_view text, std::string_view source_name,
                                                  const GpuCatalogue& gpus, Seconds last_step) {
  TraceReader reader(source_name, gpus);
  if (constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF"; text.starts_with(byte_order_mark))
    text.remove_prefix(byte_order_mark.size());
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    SAILOR_CHECK(reader.read_line(line));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return reader.finish(last_step);
}

Result<std::vector<AvailabilityStep>> load_trace(const std::filesystem::path& path, const GpuCatalogue& gpus,
                                                 Seconds last_step) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_trace(*text, path.string(), gpus, last_step);
}

Cluster cluster_at(const AvailabilityStep& step, const Cluster* like, const GpuCatalogue& gpus) {
  Cluster cluster;
  if (like != nullptr) {
    cluster.name = like->name;
    cluster.origin = like->origin;
    cluster.zones = like->zones;
    cluster.links = like->links;
  } else {
    cluster.name = "availability trace";
  }
  for (const AvailableGpus& available : step.gpus) {
    const bool known = std::any_of(cluster.zones.begin(), cluster.zones.end(),
                                   [&](const Zone& zone) { return zone.name == available.zone; });
    if (!known) cluster.zones.push_back({.name = available.zone, .region = region_of(available.zone), .prices = {}});
    const NodeGroup* const example = described(like, available);
    const int size = example != nullptr ? example->gpus_per_node : usual_node_size;
    NodeGroup group;
    group.gpu = available.gpu;
    group.zone = available.zone;
    group.cpus_per_node = example != nullptr ? example->cpus_per_node : size;
    Bytes memory{1.0};  // of the host, which counts for CPUs only
    if (const auto type = gpus.find(available.gpu)) memory = std::max(memory, type->memory * size);
    group.memory_per_node = example != nullptr ? example->memory_per_node : memory;
    group.gpus_per_node = size;
    group.count = available.count / size;
    if (group.count > 0) cluster.groups.push_back(group);
    if (const int left = available.count % size; left > 0) {
      group.memory_per_node *= static_cast<double>(left) / size;
      group.gpus_per_node = left;
      group.count = 1;
      cluster.groups.push_back(group);
    }
  }
  return cluster;
}

bool holds(const Cluster& cluster, const Plan& plan) {
  return place_on_nodes(plan, placement_nodes(cluster.usable("", false))).has_value();
}

StepOutcome outcome(const PricedPlan& plan, Seconds duration, Seconds lost) {
  const Seconds useful = std::max(Seconds(0.0), duration - lost);
  const Usd cost = plan.cost_per_iteration * (duration / plan.iteration_time);
  return {.iterations = useful / plan.iteration_time, .cost = cost};
}

bool change_pays(Objective objective, const PricedPlan& running, const PricedPlan& found, Seconds duration,
                 Seconds reconfiguration) {
  const StepOutcome kept = outcome(running, duration, Seconds(0.0));
  const StepOutcome changed = outcome(found, duration, reconfiguration);
  if (changed.iterations <= 0.0) return false;
  switch (objective) {
    case Objective::throughput:
      return changed.iterations > kept.iterations;
    case Objective::cost:
      return changed.cost / changed.iterations < kept.cost / kept.iterations;
    case Objective::throughput_per_usd:  // iterations per second x iterations per USD
      return changed.iterations * changed.iterations * kept.cost.value() >
             kept.iterations * kept.iterations * changed.cost.value();
  }
  return false;
}

double gain_of_change(Objective objective, const PricedPlan& running, const PricedPlan& found, Seconds duration,
                      Seconds reconfiguration) {
  const StepOutcome kept = outcome(running, duration, Seconds(0.0));
  const StepOutcome changed = outcome(found, duration, reconfiguration);
  if (changed.iterations <= 0.0 || kept.iterations <= 0.0) return -1.0;
  const double iterations = changed.iterations / kept.iterations;
  const double cost = changed.cost > Usd(0.0) ? kept.cost / changed.cost : 1.0;
  switch (objective) {
    case Objective::throughput:
      return iterations - 1.0;
    case Objective::cost:
      return iterations * cost - 1.0;
    case Objective::throughput_per_usd:
      return iterations * iterations * cost - 1.0;
  }
  return 0.0;
}

double gain(Objective objective, const PricedPlan& running, const PricedPlan& found) {
  const double time = running.iteration_time / found.iteration_time;
  const double cost = found.cost_per_iteration > Usd(0.0) ? running.cost_per_iteration / found.cost_per_iteration : 1.0;
  switch (objective) {
    case Objective::throughput:
      return time - 1.0;
    case Objective::cost:
      return cost - 1.0;
    case Objective::throughput_per_usd:
      return time * cost - 1.0;
  }
  return 0.0;
}

std::string_view to_string(Decision decision) {
  switch (decision) {
    case Decision::start:
      return "start";
    case Decision::keep:
      return "keep";
    case Decision::change:
      return "change";
    case Decision::forced:
      return "forced";
    case Decision::resume:
      return "resume";
    case Decision::pause:
      return "pause";
  }
  return "";
}

Result<std::vector<TraceStep>> replan(const std::vector<AvailabilityStep>& steps, const Cluster* like,
                                      const GpuCatalogue& gpus, Objective objective, Seconds reconfiguration,
                                      const TracePlanner& planner) {
  std::vector<TraceStep> result;
  std::optional<Plan> running;
  bool started = false;
  for (const AvailabilityStep& step : steps) {
    TraceStep row{.step = step, .plan = {}, .found = {}, .outcome = {}, .gain = {}, .problem = {}};
    const Cluster cluster = cluster_at(step, like, gpus);
    Result<PricedPlan> found = fail(ErrorCode::infeasible, "there are no GPUs");
    if (!cluster.groups.empty()) found = planner.find(cluster);
    if (!found && found.error().code != ErrorCode::infeasible && found.error().code != ErrorCode::not_found)
      return fail(found.error());
    if (found)
      row.found = *std::move(found);
    else
      row.problem = found.error().message();

    if (running && holds(cluster, *running)) {
      auto kept = planner.price(*running, cluster);
      if (!kept) return fail(kept.error());
      row.decision = Decision::keep;
      row.plan = *std::move(kept);
      if (row.found) row.gain = gain(objective, *row.plan, *row.found);
      if (row.found && plan_fingerprint(row.found->plan) != plan_fingerprint(row.plan->plan) &&
          change_pays(objective, *row.plan, *row.found, step.duration, reconfiguration)) {
        row.decision = Decision::change;
        row.plan = row.found;
      }
    } else if (row.found) {
      row.decision = running ? Decision::forced : started ? Decision::resume : Decision::start;
      row.plan = row.found;
    }
    const bool lost =
        row.decision == Decision::change || row.decision == Decision::forced || row.decision == Decision::resume;
    running.reset();
    if (row.plan) {
      started = true;
      running = row.plan->plan;
      row.outcome = outcome(*row.plan, step.duration, lost ? reconfiguration : Seconds(0.0));
    }
    result.push_back(std::move(row));
  }
  return result;
}

}  // namespace sailor::planner
