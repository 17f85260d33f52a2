#include "apps/train/metrics.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace sailor::apps {

namespace {

using nlohmann::ordered_json;

ordered_json seconds_of(const runtime::PartTimes& parts) {
  ordered_json object;
  for (std::size_t part = 0; part < runtime::part_count; ++part)
    object[fmt::format("{}_s", to_string(static_cast<runtime::Part>(part)))] = parts[part].value();
  return object;
}

}  // namespace

std::string metrics_line(const IterationMetrics& metrics, const std::string& timestamp) {
  const runtime::IterationResult& result = metrics.result;
  const auto memory = [&](Bytes runtime::IterationSummary::*which) {
    return metrics.summary ? ordered_json(static_cast<std::int64_t>(((*metrics.summary).*which).value()))
                           : ordered_json();
  };
  ordered_json line{{"iteration", metrics.iteration},
                    {"loss", result.loss},
                    {"gradient_norm", result.gradient_norm},
                    {"learning_rate", result.learning_rate},
                    {"time_s", result.time.value()},
                    {"tokens_per_s", metrics.tokens / result.time.value()},
                    {"mfu", metrics.utilization ? ordered_json(*metrics.utilization) : ordered_json()},
                    {"peak_tensor_memory_bytes", memory(&runtime::IterationSummary::peak_tensor_memory)},
                    {"peak_resident_memory_bytes", memory(&runtime::IterationSummary::peak_resident_memory)},
                    {"parts", metrics.summary ? ordered_json{{"slowest", seconds_of(metrics.summary->slowest)},
                                                             {"mean", seconds_of(metrics.summary->mean)}}
                                              : ordered_json()},
                    {"timestamp", timestamp}};
  if (metrics.summary && metrics.summary->expert_load > 0.0) {
    line["expert_load"] = metrics.summary->expert_load;
    line["expert_imbalance"] = metrics.summary->expert_imbalance;
  }
  if (metrics.epoch) line["epoch"] = *metrics.epoch;
  return line.dump();
}

Result<MetricsFile> MetricsFile::open(const std::filesystem::path& path) {
  auto lines = LineFile::open(path, "metrics");
  if (!lines) return fail(lines.error());
  return MetricsFile(*std::move(lines));
}

Result<void> MetricsFile::add(const IterationMetrics& metrics) {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const std::string timestamp =
      fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds), (now - seconds).count());
  return lines_.add(metrics_line(metrics, timestamp), false);
}

std::int64_t MetricsFile::last_iteration() const {
  const auto line = nlohmann::json::parse(lines_.last_line(), nullptr, false);
  if (!line.is_object() || !line.contains("iteration") || !line["iteration"].is_number_integer()) return -1;
  return line["iteration"].get<std::int64_t>();
}

}  // namespace sailor::apps
