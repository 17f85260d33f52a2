// Writes Chrome trace events (JSON), which ui.perfetto.dev and chrome://tracing show: processes with tracks, and
// slices, instants, arrows and counters in them.
//
// Format: "Trace Event Format", Google (docs linked from perfetto.dev); times in microseconds, written to the
// nanosecond.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor {

/// Larger traces are refused: viewers that run in a browser do not open them.
inline constexpr std::size_t most_trace_events = 5'000'000;

using Nanoseconds = std::int64_t;
/// Rounded. |time| must be below 9e9 s.
Nanoseconds nanoseconds(Seconds time);

/// The text as a JSON string, with its quotes.
std::string json_text(std::string_view text);

/// `args` are JSON objects; empty: none. The slices of a track must not overlap, except for one that is within another.
class TraceEvents {
 public:
  using Sink = std::function<Result<void>(std::string_view)>;
  explicit TraceEvents(Sink sink) : sink_(std::move(sink)) {}

  /// `about`: a JSON object. Comes first.
  void begin(std::string_view about);
  /// Processes are shown by their number.
  void process(int process, std::string_view name);
  /// Tracks of a process are shown by their number, which no other process may use.
  void track(int process, std::size_t track, std::string_view name);
  void slice(int process, std::size_t track, Nanoseconds start, Nanoseconds end, std::string_view name,
             std::string_view category, std::string_view args);
  void instant(int process, std::size_t track, Nanoseconds at, std::string_view name, std::string_view category,
               std::string_view args);
  /// The value holds until the next one.
  void counter(int process, Nanoseconds at, std::string_view name, double value);
  /// One end of an arrow, within a slice: the ends of an arrow have the same `id`, the first is where it begins.
  void arrow_end(int process, std::size_t track, Nanoseconds at, bool begins, std::size_t id, std::string_view name);
  /// Hands over what has gathered, if that is much. Errors: those of the sink.
  Result<void> flush();
  /// Comes last. Errors: those of the sink.
  Result<void> end();

 private:
  void open(std::string_view phase, int process, std::size_t track, Nanoseconds at);
  void put(Nanoseconds time);
  void put_text(std::string_view text);
  void put_args(std::string_view args);

  Sink sink_;
  std::string out_;
  bool first_ = true;
};

/// Hands `write` a sink that collects its text.
Result<std::string> trace_text(const std::function<Result<void>(const TraceEvents::Sink&)>& write);
/// The same into a file, atomically and without holding it in memory. Errors: also io.
Result<void> save_trace_text(const std::filesystem::path& path,
                             const std::function<Result<void>(const TraceEvents::Sink&)>& write);

}  // namespace sailor
