#include "apps/train/recording.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "core/files.hpp"
#include "core/log.hpp"
#include "plan/trace.hpp"
#include "profile/utilization.hpp"

namespace sailor::apps {

namespace fs = std::filesystem;

std::vector<Option> recording_options(TrainOptions& options) {
  return {
      option(options.metrics,
             {.name = "metrics",
              .value_name = "FILE",
              .help = "append a line of JSON per iteration: loss, time, tokens/s, MFU, memory, time per part"}),
      option(options.trace,
             {.name = "trace",
              .value_name = "FILE",
              .help =
                  "write what every rank did in the last iteration, for ui.perfetto.dev (as sailor-simulate --trace)"}),
      option(options.trace_iteration,
             {.name = "trace-iteration", .value_name = "N", .help = "trace iteration N instead", .minimum = 0})};
}

Recording::Recording(const TrainOptions& options, const Plan& plan, const Model& model, const GpuCatalogue& gpus)
    : plan_(plan),
      model_(model),
      gpus_(gpus),
      metrics_path_(*options.metrics),
      trace_path_(*options.trace),
      trace_iteration_(options.trace_iteration.given() ? *options.trace_iteration : -1) {}

Result<void> Recording::open(const std::vector<std::string>& inputs) {
  for (const auto& [option, path] : {std::pair("--metrics", metrics_path_), std::pair("--trace", trace_path_)}) {
    std::error_code code;
    for (const std::string& input : inputs)
      if (!path.empty() && fs::equivalent(path, input, code))
        return fail(ErrorCode::usage, fmt::format("{} '{}' is another file of this run", option, path),
                    "name another file");
  }
  if (!metrics_path_.empty() && metrics_path_ == trace_path_)
    return fail(ErrorCode::usage, fmt::format("--metrics and --trace are both '{}'", trace_path_), "name two files");
  if (trace_iteration_ >= 0 && trace_path_.empty())
    return fail(ErrorCode::usage, "--trace-iteration without --trace", "name a file: --trace FILE");
  if (!trace_path_.empty())
    if (auto good = check_can_write(trace_path_); !good) return fail(good.error(), "--trace");
  if (metrics_path_.empty()) return {};
  auto file = MetricsFile::open(metrics_path_);
  if (!file) return fail(file.error(), "--metrics");
  metrics_.emplace(std::move(*file));
  return {};
}

void Recording::before(std::int64_t iteration, runtime::Trainer& trainer) const {
  trainer.timeline().keep_events(!trace_path_.empty() && (trace_iteration_ < 0 || trace_iteration_ == iteration));
}

std::optional<runtime::IterationSummary> Recording::after(std::int64_t iteration,
                                                          const runtime::IterationResult& result,
                                                          runtime::Trainer& trainer, bool wanted) {
  if (!trace_path_.empty() && iteration == trace_iteration_)
    if (const auto written = write_trace(trainer); !written) log_warning("{}", written.error().message());
  if (metrics_path_.empty() && !wanted) return std::nullopt;
  const runtime::IterationSummary summary = trainer.summary();
  if (metrics_)
    add_metrics({.iteration = iteration,
                 .result = result,
                 .summary = summary,
                 .tokens = plan_.job.tokens(),
                 .epoch = epoch_,
                 .utilization = model_flop_utilization(plan_, model_, gpus_, result.time)});
  return summary;
}

void Recording::add_missed(std::int64_t iteration, const runtime::IterationResult& result) {
  if (!metrics_ || metrics_->last_iteration() != iteration - 1) return;
  add_metrics({.iteration = iteration,
               .result = result,
               .summary = std::nullopt,
               .tokens = plan_.job.tokens(),
               .epoch = epoch_});
}

void Recording::add_metrics(const IterationMetrics& metrics) {
  const auto added = metrics_->add(metrics);
  if (!added && !std::exchange(warned_, true)) log_warning("--metrics: {}", added.error().message());
}

Result<void> Recording::finish(runtime::Trainer& trainer) {
  if (trace_path_.empty() || traced_) return {};
  if (trace_iteration_ < 0) return write_trace(trainer);
  if (trainer.role().rank == 0) log_warning("--trace: there is none, as iteration {} was not run", trace_iteration_);
  return {};
}

Result<void> Recording::write_trace(runtime::Trainer& trainer) {
  traced_ = true;
  const Timeline timeline = trainer.gather_timeline();
  if (trainer.role().rank != 0) return {};
  if (auto saved = save_trace(plan_, timeline, trace_path_); !saved) return fail(saved.error(), "--trace");
  return {};
}

PartsRecord parts_record(std::int64_t iteration, const runtime::IterationSummary& summary) {
  const auto part = [&](runtime::Part which) -> PartsRecord::Part {
    const auto index = static_cast<std::size_t>(which);
    return {.mean = summary.mean[index], .slowest = summary.slowest[index]};
  };
  using enum runtime::Part;
  return {.iteration = iteration,
          .forward = part(forward),
          .backward = part(backward),
          .wait_activation = part(wait_activation),
          .wait_gradient = part(wait_gradient),
          .reduction = part(reduction),
          .update = part(update)};
}

}  // namespace sailor::apps
