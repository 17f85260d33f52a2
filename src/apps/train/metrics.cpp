#include "apps/train/metrics.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
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

tl::unexpected<Error> failed(const std::string& what, const std::string& path) {
  return fail(ErrorCode::io, fmt::format("cannot {} '{}': {}", what, path, std::strerror(errno)));
}

/// Where the last whole line ends.
Result<off_t> end_of_lines(int descriptor, off_t size, const std::string& path) {
  std::array<char, 4096> block{};
  while (size > 0) {
    const off_t first = std::max<off_t>(0, size - static_cast<off_t>(block.size()));
    const ssize_t count = pread(descriptor, block.data(), static_cast<std::size_t>(size - first), first);
    if (count <= 0) return failed("read", path);
    const std::size_t at = std::string_view(block.data(), static_cast<std::size_t>(count)).rfind('\n');
    if (at != std::string_view::npos) return first + static_cast<off_t>(at) + 1;
    size = first;
  }
  return 0;
}

}  // namespace

std::string metrics_line(const IterationMetrics& metrics, const std::string& timestamp) {
  const runtime::IterationResult& result = metrics.result;
  ordered_json line{
      {"iteration", metrics.iteration},
      {"loss", result.loss},
      {"gradient_norm", result.gradient_norm},
      {"learning_rate", result.learning_rate},
      {"time_s", result.time.value()},
      {"tokens_per_s", metrics.tokens / result.time.value()},
      {"mfu", metrics.utilization ? ordered_json(*metrics.utilization) : ordered_json()},
      {"peak_tensor_memory_bytes", static_cast<std::int64_t>(metrics.summary.peak_tensor_memory.value())},
      {"peak_resident_memory_bytes", static_cast<std::int64_t>(metrics.summary.peak_resident_memory.value())},
      {"parts", {{"slowest", seconds_of(metrics.summary.slowest)}, {"mean", seconds_of(metrics.summary.mean)}}},
      {"timestamp", timestamp}};
  if (metrics.epoch) line["epoch"] = *metrics.epoch;
  return line.dump();
}

Result<MetricsFile> MetricsFile::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  struct stat status {};
  if (stat(name.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    return fail(ErrorCode::io, fmt::format("cannot write '{}': it is not a regular file", name), "name another file");
  const int descriptor = ::open(name.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
  if (descriptor < 0) return failed("write", name);
  MetricsFile file(name, descriptor);
  if (fstat(descriptor, &status) != 0) return failed("read", name);
  if (status.st_size == 0) return file;
  char first = 0;
  if (pread(descriptor, &first, 1, 0) != 1) return failed("read", name);
  if (first != '{')
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' is there and has no metrics: it does not begin with {{", name), "name another file");
  const auto end = end_of_lines(descriptor, status.st_size, name);
  if (!end) return fail(end.error());
  if (*end < status.st_size && ftruncate(descriptor, *end) != 0) return failed("write", name);
  return file;
}

MetricsFile::MetricsFile(MetricsFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<void> MetricsFile::add(const IterationMetrics& metrics) {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const std::string line =
      metrics_line(metrics, fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(seconds), (now - seconds).count())) +
      "\n";
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t count = write(descriptor_, left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("write", path_);
    left.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace sailor::apps
