#include "apps/sweep/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "apps/sweep/outcome.hpp"
#include "core/files.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "core/stopwatch.hpp"
#include "core/terminal.hpp"

namespace sailor::apps::sweep {

namespace {

namespace fs = std::filesystem;

fs::path point_file(const Sweep& sweep, const Point& point) { return sweep.folder / "points" / (point.id + ".json"); }

/// std::nullopt if the point has no file, or one that cannot be read: it is then run again.
std::optional<Outcome> read_outcome(const Sweep& sweep, const Point& point) {
  const fs::path path = point_file(sweep, point);
  const auto text = read_text_file(path);
  if (!text) return std::nullopt;
  auto outcome = parse_outcome(*text, path.string());
  if (outcome) return *std::move(outcome);
  log_warning("{}", outcome.error().what);
  return std::nullopt;
}

Result<void> make_folders(const fs::path& folder) {
  for (const char* part : {"points", "clusters"})
    SAILOR_CHECK(create_folders(folder / part, "choose another one with --output FOLDER"));
  return {};
}

/// Short description of the result of a point.
std::string in_short(const SweepRow& row) {
  if (row.status == SweepStatus::plan)
    return fmt::format("{:.4g} iterations/s, {}/iteration", row.judged.throughput.value_or(0.0),
                       format_usd(row.judged.cost.value_or(Usd())));
  return fmt::format("{}: {}", to_string(row.status), row.why);
}

/// Progress of the workers; the main thread shows it.
class Board {
 public:
  Board(const Sweep& sweep, const std::vector<std::size_t>& points) : sweep_(sweep), points_(points) {}

  /// The next point; std::nullopt if all have begun, or the run is over.
  std::optional<std::size_t> take() {
    const std::lock_guard lock(mutex_);
    if (over_ || next_ == points_.size()) return std::nullopt;
    ++running_;
    return points_[next_++];
  }
  void finish(const Point& point, Result<SweepRow> row) {
    const std::lock_guard lock(mutex_);
    --running_;
    if (!row) {
      if (!error_) error_ = row.error();
      over_ = true;
    } else {
      ++done_;
      news_.push_back(
          fmt::format("{} of {}: {}: {}", done_, points_.size(), point.label(sweep_.experiment), in_short(*row)));
    }
    changed_.notify_all();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  /// Shows the progress until all points are done.
  void show(const std::function<bool()>& is_cancelled) {
    Progress progress(sweep_.experiment.name, points_.size());
    std::unique_lock lock(mutex_);
    while (running_ > 0 || (!over_ && next_ < points_.size())) {
      changed_.wait_for(lock, std::chrono::milliseconds(200));
      if (is_cancelled && is_cancelled()) over_ = true;
      const std::size_t to_do = points_.size() - done_;
      progress.update(done_, fmt::format("{} to do, {} running{}", plural(to_do, "point"), running_,
                                         news_.empty() ? "" : "; last " + news_.back()));
      for (; told_ < news_.size(); ++told_)
        if (!progress.is_active()) log_info("{}", news_[told_]);
    }
    progress.finish();
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  [[nodiscard]] std::size_t done() const { return done_; }

 private:
  const Sweep& sweep_;
  const std::vector<std::size_t>& points_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0;
  std::size_t running_ = 0;
  std::size_t done_ = 0;
  std::size_t told_ = 0;
  bool over_ = false;
  std::vector<std::string> news_;
  std::optional<Error> error_;
};

/// Runs a point and stores its outcome. A cancelled point leaves nothing.
Result<SweepRow> run_point(const Sweep& sweep, const Point& point, const RunOptions& options) {
  if (auto made = create_file_atomically(cluster_file(sweep, point), point.cluster_toml); !made)
    return fail(made.error());
  const auto start = std::chrono::steady_clock::now();
  const auto ended = run_command({.arguments = command_of(sweep, point, options.threads),
                                  .input = {},
                                  .deadline = sweep.experiment.time_limit,
                                  .is_cancelled = options.is_cancelled});
  if (!ended) return fail(ended.error());
  if (ended->cancelled || (options.is_cancelled && options.is_cancelled() && !ended->succeeded()))
    return fail(ErrorCode::failure, "cancelled");
  const Seconds wall(seconds_since(start));
  Outcome outcome = outcome_of(*ended, wall, sweep.inputs);
  auto row = row_of(sweep.experiment, point, outcome);
  if (!row) {
    outcome.status = SweepStatus::failed;
    outcome.why = row.error().what;
    outcome.answer.clear();
    row = row_of(sweep.experiment, point, outcome);
  }
  SAILOR_CHECK(write_file_atomically(point_file(sweep, point), outcome_to_json(point, outcome)));
  return row;
}

}  // namespace

// Named by its content: points with the same cluster share it.
fs::path cluster_file(const Sweep& sweep, const Point& point) {
  return sweep.folder / "clusters" / (content_hash(point.cluster_toml) + ".toml");
}

std::vector<std::string> command_of(const Sweep& sweep, const Point& point, int threads) {
  std::vector<std::string> command{sweep.program.string()};
  const auto add = [&](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  add(point.options);
  add(sweep.options);
  add({"--cluster", cluster_file(sweep, point).string(), "--top", "1", "--format", "json"});
  // Published planners search in one thread.
  if (std::find(point.options.begin(), point.options.end(), "--planner") == point.options.end())
    add({"--threads", std::to_string(threads)});
  return command;
}

Result<Pending> pending_points(const Sweep& sweep, bool again) {
  Pending pending;
  for (std::size_t i = 0; i < sweep.points.size(); ++i) {
    const auto outcome = again ? std::nullopt : read_outcome(sweep, sweep.points[i]);
    if (outcome && outcome->is_finished() && outcome->inputs == sweep.inputs) continue;
    if (outcome && outcome->inputs != sweep.inputs) ++pending.changed;
    pending.points.push_back(i);
  }
  return pending;
}

Result<void> run_points(const Sweep& sweep, const std::vector<std::size_t>& points, const RunOptions& options) {
  SAILOR_CHECK(make_folders(sweep.folder));
  if (points.empty()) return {};
  Board board(sweep, points);
  const auto work = [&] {
    while (const auto next = board.take())
      board.finish(sweep.points[*next], run_point(sweep, sweep.points[*next], options));
  };
  std::vector<std::thread> workers;
  const std::size_t count = std::min(points.size(), static_cast<std::size_t>(std::max(options.jobs, 1)));
  for (std::size_t i = 0; i < count; ++i) workers.emplace_back(work);
  board.show(options.is_cancelled);
  board.stop();
  for (std::thread& worker : workers) worker.join();
  if (options.is_cancelled && options.is_cancelled())
    return fail(ErrorCode::failure, fmt::format("stopped after {} of {}", board.done(), plural(points.size(), "point")),
                "the same command goes on with the others");
  if (board.error()) return fail(*board.error());
  return {};
}

Result<std::vector<SweepRow>> rows_of(const Sweep& sweep) {
  std::vector<SweepRow> rows;
  for (const Point& point : sweep.points) {
    const auto outcome = read_outcome(sweep, point);
    auto row = row_of(sweep.experiment, point, outcome.value_or(Outcome{.why = "not done yet"}));
    if (!row) return fail(row.error());
    if (!outcome) {
      row->wall_time.reset();
      row->processor_time.reset();
      row->peak_resident_memory.reset();
    }
    rows.push_back(*std::move(row));
  }
  return rows;
}

}  // namespace sailor::apps::sweep
