#include "cluster/availability_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "core/files.hpp"
#include "core/text.hpp"

namespace sailor {

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

Result<std::vector<AvailabilityStep>> parse_availability_trace(std::string_view text, std::string_view source_name,
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

Result<std::vector<AvailabilityStep>> load_availability_trace(const std::filesystem::path& path,
                                                              const GpuCatalogue& gpus, Seconds last_step) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_availability_trace(*text, path.string(), gpus, last_step);
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

}  // namespace sailor
