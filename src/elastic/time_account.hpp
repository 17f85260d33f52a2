// Where the time of an elastic training went, summed up from its events (FOLDER/events.jsonl).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/units.hpp"

namespace sailor::elastic {

class TimeAccount {
 public:
  /// Adds an event, in the order in which they happened. The event "begins" starts a new account: events of an earlier
  /// start of the job do not count.
  void add(const nlohmann::json& event);
  [[nodiscard]] bool has_begun() const { return begun_ > 0.0; }
  /// From the end of the first iteration until `now`, a UNIX time in seconds.
  [[nodiscard]] Seconds total(double now) const { return Seconds(has_begun() ? now - begun_ : 0.0); }
  /// Duration of all interruptions, planned ones included, and of the one that goes on `now`.
  [[nodiscard]] Seconds without_training(double now) const;
  /// Duration of iterations that were run a second time, by the time of an iteration before the interruption.
  [[nodiscard]] Seconds again() const { return again_; }
  /// Share of the time until `now` in which iterations were run for the first time, 0 to 1. 1 before the training has
  /// begun.
  [[nodiscard]] double goodput(double now) const;
  /// When the last event that was added happened, a UNIX time in seconds.
  [[nodiscard]] double last() const { return last_; }

 private:
  double begun_ = 0.0;                   // UNIX time
  double last_ = 0.0;                    // UNIX time
  Seconds without_training_{};           // of interruptions that are over
  std::optional<double> lost_{};         // UNIX time of the first loss since iterations were run
  std::optional<double> interrupted_{};  // since this UNIX time nothing is trained
  Seconds again_{};
};

/// A number of an event; `missing` if it does not have it.
double number_in(const nlohmann::json& event, const char* key, double missing = 0.0);

/// Events from the text of a run file, an object of JSON per line; other lines are left out.
std::vector<nlohmann::json> events_in(const std::string& text);

}  // namespace sailor::elastic
