#include "elastic/run_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "core/units.hpp"
#include "elastic/time_account.hpp"
#include "plan/trace_events.hpp"

namespace sailor::elastic {

namespace {

using TraceArguments = nlohmann::ordered_json;

constexpr int training = 0;  // process of what concerns no single host
enum TrainingTrack : std::size_t { epochs_track, interruptions_track, events_track, first_member_track };

std::string text_in(const nlohmann::json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// -1: not known.
std::int64_t iteration_in(const nlohmann::json& event) {
  return static_cast<std::int64_t>(number_in(event, "iteration", -1.0));
}

std::string dumped(const TraceArguments& arguments) {
  return arguments.dump(-1, ' ', false, TraceArguments::error_handler_t::replace);
}

/// A process that takes part.
struct TracedMember {
  std::string host;
  std::string gpu;
  std::int64_t process = 0;
};

struct TracedEpoch {
  struct Place {  // of a rank
    std::size_t member = 0;
    std::optional<double> end{};  // if it left before the epoch's end
    std::string left{};           // why it is not in the next epoch
  };
  std::int64_t number = 0;
  std::string plan;
  int ranks = 0;  // the others are spares
  double tokens_per_iteration = 0.0;
  std::vector<Place> places{};  // by rank; empty: not known
  double start = 0.0;           // UNIX time, as all that follow
  std::optional<double> end{};
  std::optional<double> first_iteration_end{};
  std::int64_t first_iteration = -1;
  std::int64_t next_iteration = -1;  // at the end
  bool is_planned_end = false;
  std::string state_from{};
  std::string ended_by{};

  /// Mean from the end of the first iteration on.
  [[nodiscard]] std::optional<double> tokens_per_s() const {
    if (!first_iteration_end || !end || first_iteration < 0 || tokens_per_iteration <= 0.0) return std::nullopt;
    const auto iterations = static_cast<double>(next_iteration - (first_iteration + 1));
    const double time = *end - *first_iteration_end;
    if (iterations <= 0.0 || time <= 0.0) return std::nullopt;
    return iterations * tokens_per_iteration / time;
  }
};

struct TracedInterruption {
  double start = 0.0;
  double end = 0.0;
  std::string why;
  nlohmann::json event{};  // "goes_on"; null: the training did not go on
};

struct TracedInstant {
  double time = 0.0;
  std::string name;
  nlohmann::json event;
};

/// "lost: rank 3, n4"
std::string instant_name(const nlohmann::json& event) {
  const std::string what = text_in(event, "what");
  std::string name = what == "change" ? "planned change" : what;
  if (what == "done" && number_in(event, "status", 1.0) != 0.0)
    name = event.contains("status") ? fmt::format("ended with status {}", number_in(event, "status"))
                                    : "ended: " + text_in(event, "error");
  std::replace(name.begin(), name.end(), '_', ' ');
  std::string whom;
  if (const double rank = number_in(event, "rank", -1.0); rank >= 0.0) whom = fmt::format("rank {}", rank);
  if (const std::string host = text_in(event, "host"); !host.empty()) whom += (whom.empty() ? "" : ", ") + host;
  if (whom.empty()) whom = text_in(event, "why");
  return whom.empty() ? name : fmt::format("{}: {}", name, whom);
}

/// Follows the training through its events.
class RunHistory {
 public:
  void add(const nlohmann::json& event) {
    const std::string what = text_in(event, "what");
    const double time = number_in(event, "unix_time_s", now_);
    if (what.empty() || !(time > 0.0)) return;
    if (start_ <= 0.0) start_ = time;
    now_ = std::max(now_, time);  // a clock may be set back
    account_.add(event);
    if (what == "epoch") {
      begin_epoch(event);
    } else if (what == "begins" || what == "goes_on") {
      end_first_iteration(event, what == "goes_on");
    } else if (what == "lost" || what == "failed") {
      note_member(event, what == "lost" ? "lost: it " + text_in(event, "how") : std::string());
      interrupt(event, fmt::format("rank {} on {} {}", number_in(event, "rank"), text_in(event, "host"),
                                   what == "lost" ? text_in(event, "how") : "reports: " + text_in(event, "why")));
    } else if (what == "hangs") {
      interrupt(event, text_in(event, "why"));
    } else if (what == "change") {
      interrupt(event, "planned change: " + text_in(event, "why"));
    } else if (what == "left" || what == "sent_home") {
      spare_leaves(event, what == "left" ? text_in(event, "how") : "excluded");
    } else if (what == "done") {
      end_epoch(event, "the end of the training");
      end_interruption({});
    } else if (what == "written") {
      last_iteration_ = number_in(event, "iteration", -1.0);
    }
    if (what != "epoch" && what != "begins" && what != "goes_on" && what != "written")
      instants.push_back({.time = now_, .name = instant_name(event), .event = event});
    // A job that goes on later begins a new account.
    if (what == "done" || what == "begins") has_ended_ = what == "done";
    if (account_.has_begun() && (!has_ended_ || what == "done")) goodput.emplace_back(now_, account_.goodput(now_));
  }

  /// After the last event.
  void finish() {
    end_epoch({{"iteration", last_iteration_}}, {});
    end_interruption({});
  }

  [[nodiscard]] double start() const { return start_; }

  std::vector<TracedMember> members{};
  std::vector<TracedEpoch> epochs{};
  std::vector<TracedInterruption> interruptions{};
  std::vector<TracedInstant> instants{};
  std::vector<std::pair<double, double>> goodput{};  // time and share

 private:
  /// The epoch under way; nullptr if there is none.
  TracedEpoch* current() { return epochs.empty() || epochs.back().end ? nullptr : &epochs.back(); }

  std::size_t member_of(const nlohmann::json& entry) {
    TracedMember member{.host = text_in(entry, "host"),
                        .gpu = text_in(entry, "gpu"),
                        .process = static_cast<std::int64_t>(number_in(entry, "process"))};
    const auto [found, is_new] = index_of_.emplace(std::pair(member.host, member.process), members.size());
    if (is_new) members.push_back(std::move(member));
    return found->second;
  }

  void begin_epoch(const nlohmann::json& event) {
    end_epoch({}, "not known: the job was lost with its controller");
    TracedEpoch epoch{.number = static_cast<std::int64_t>(number_in(event, "epoch")),
                      .plan = text_in(event, "plan"),
                      .ranks = static_cast<int>(number_in(event, "ranks")),
                      .tokens_per_iteration = number_in(event, "tokens_per_iteration"),
                      .start = now_};
    if (const auto entries = event.find("members"); entries != event.end() && entries->is_array())
      for (const nlohmann::json& entry : *entries)
        if (entry.is_object()) epoch.places.push_back({.member = member_of(entry)});
    epochs.push_back(std::move(epoch));
  }

  void end_first_iteration(const nlohmann::json& event, bool was_interrupted) {
    TracedEpoch* epoch = current();
    // Earlier controllers did not say when an epoch began.
    if (epoch == nullptr || epoch->number != static_cast<std::int64_t>(number_in(event, "epoch"))) {
      begin_epoch(event);
      epoch = current();
    }
    epoch->first_iteration_end = now_;
    epoch->first_iteration = iteration_in(event);
    epoch->state_from = text_in(event, "from");
    if (was_interrupted) note_next_iteration(event);
    end_interruption(was_interrupted ? event : nlohmann::json());
  }

  void interrupt(const nlohmann::json& event, const std::string& why) {
    if (!interrupted_) {
      interrupted_ = now_;
      why_ = why;
    }
    end_epoch(event, why);
  }

  /// `event`: may say which iteration was under way.
  void end_epoch(const nlohmann::json& event, const std::string& why) {
    TracedEpoch* epoch = current();
    if (epoch == nullptr) return;
    epoch->end = now_;
    epoch->ended_by = why;
    if (event.is_object()) epoch->next_iteration = iteration_in(event);
    epoch->is_planned_end = event.is_object() && text_in(event, "what") == "change";
  }

  /// The controller hears of iterations now and then, and how far they got when the training goes on.
  void note_next_iteration(const nlohmann::json& goes_on) {
    const auto trained = std::find_if(std::next(epochs.rbegin()), epochs.rend(),
                                      [](const TracedEpoch& epoch) { return epoch.first_iteration_end.has_value(); });
    // After a planned change was wanted, iterations went on.
    if (trained == epochs.rend() || trained->is_planned_end) return;
    const auto again = static_cast<std::int64_t>(number_in(goes_on, "iterations_again"));
    if (iteration_in(goes_on) >= 0) trained->next_iteration = iteration_in(goes_on) + again;
  }

  void end_interruption(const nlohmann::json& goes_on) {
    if (goes_on.is_object()) {
      const double start = now_ - number_in(goes_on, "seconds");
      interruptions.push_back({.start = std::max(start, interruptions.empty() ? start_ : interruptions.back().end),
                               .end = now_,
                               .why = text_in(goes_on, "why"),
                               .event = goes_on});
    } else if (interrupted_) {
      interruptions.push_back({.start = *interrupted_, .end = now_, .why = why_});
    }
    interrupted_.reset();
  }

  /// The rank is one of the latest epoch, which may have been interrupted before.
  void note_member(const nlohmann::json& event, const std::string& left) {
    const double rank = number_in(event, "rank", -1.0);
    if (left.empty() || epochs.empty() || rank < 0.0 ||
        epochs.back().number != static_cast<std::int64_t>(number_in(event, "epoch")))
      return;
    if (rank < static_cast<double>(epochs.back().places.size()))
      epochs.back().places[static_cast<std::size_t>(rank)].left = left;
  }

  void spare_leaves(const nlohmann::json& event, const std::string& why) {
    const auto known =
        index_of_.find(std::pair(text_in(event, "host"), static_cast<std::int64_t>(number_in(event, "process"))));
    if (known == index_of_.end() || epochs.empty()) return;
    for (TracedEpoch::Place& place : epochs.back().places)
      if (place.member == known->second && place.left.empty()) {
        place.left = why;
        place.end = now_;
      }
  }

  double start_ = 0.0;  // UNIX times
  double now_ = 0.0;
  TimeAccount account_;
  std::map<std::pair<std::string, std::int64_t>, std::size_t> index_of_;  // of members
  std::optional<double> interrupted_;
  std::string why_;
  double last_iteration_ = -1.0;
  bool has_ended_ = false;
};

class RunTraceWriter {
 public:
  explicit RunTraceWriter(const std::vector<nlohmann::json>& events) {
    for (const nlohmann::json& event : events) history_.add(event);
    history_.finish();
  }

  [[nodiscard]] Result<void> check() const {
    if (history_.start() <= 0.0)
      return fail(ErrorCode::invalid_input, "there are no events of an elastic training, or they have no times",
                  "name the run file or the events.jsonl of a training with sailor-train --elastic");
    std::size_t count = history_.instants.size() + history_.interruptions.size() + history_.goodput.size();
    for (const TracedEpoch& epoch : history_.epochs) count += epoch.places.size() + 4;
    if (count <= most_trace_events) return {};
    return fail(ErrorCode::invalid_input,
                fmt::format("the trace would have {} events; viewers open {} at most", count, most_trace_events),
                "look at the page of sailor-report instead");
  }

  [[nodiscard]] Result<void> write(const TraceEvents::Sink& sink) const {
    TraceEvents trace(sink);
    trace.begin(dumped({{"start_unix_time_s", history_.start()},
                        {"epochs", history_.epochs.size()},
                        {"members", history_.members.size()}}));
    trace.process(training, "elastic training");
    trace.track(training, epochs_track, "epochs");
    trace.track(training, interruptions_track, "interruptions");
    trace.track(training, events_track, "events");
    write_training(trace);
    SAILOR_CHECK(write_members(trace));
    return trace.end();
  }

 private:
  [[nodiscard]] Nanoseconds at(double unix_time) const { return nanoseconds(Seconds(unix_time - history_.start())); }

  void write_training(TraceEvents& trace) const {
    for (const TracedEpoch& epoch : history_.epochs) {
      trace.slice(training, epochs_track, at(epoch.start), at(*epoch.end),
                  fmt::format("epoch {}: {}", epoch.number, epoch.plan), "epoch", dumped(arguments_of(epoch)));
      if (!epoch.first_iteration_end) continue;
      if (*epoch.first_iteration_end > epoch.start)
        trace.slice(training, epochs_track, at(epoch.start), at(*epoch.first_iteration_end),
                    "state and first iteration", "state",
                    epoch.state_from.empty() ? std::string() : dumped({{"state_from", epoch.state_from}}));
      const auto tokens_per_s = epoch.tokens_per_s();
      if (!tokens_per_s) continue;
      trace.counter(training, at(*epoch.first_iteration_end), "tokens/s", *tokens_per_s);
      trace.counter(training, at(*epoch.end), "tokens/s", 0.0);
    }
    for (const TracedInterruption& interruption : history_.interruptions)
      trace.slice(training, interruptions_track, at(interruption.start), at(interruption.end),
                  "interrupted: " + interruption.why, "interruption", arguments_of(interruption.event));
    for (const TracedInstant& instant : history_.instants)
      trace.instant(training, events_track, at(instant.time), instant.name, text_in(instant.event, "what"),
                    arguments_of(instant.event));
    for (const auto& [time, share] : history_.goodput)
      trace.counter(training, at(time), "goodput (%)", std::round(share * 1e5) / 1e3);
  }

  [[nodiscard]] Result<void> write_members(TraceEvents& trace) const {
    std::vector<std::string> hosts;  // in the order in which they came
    std::map<std::string, std::vector<std::size_t>> members_on;
    for (std::size_t member = 0; member < history_.members.size(); ++member) {
      const std::string& host = history_.members[member].host;
      if (!members_on.contains(host)) hosts.push_back(host);
      members_on[host].push_back(member);
    }
    std::vector<std::pair<int, std::size_t>> track_of(history_.members.size());  // and process
    std::size_t track = first_member_track;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      const int process = static_cast<int>(host) + 1;
      trace.process(process, hosts[host]);
      for (const std::size_t member : members_on.at(hosts[host])) {
        const TracedMember& one = history_.members[member];
        trace.track(process, track, fmt::format("process {}, {}", one.process, one.gpu));
        track_of[member] = {process, track++};
      }
    }
    for (const TracedEpoch& epoch : history_.epochs)
      for (std::size_t rank = 0; rank < epoch.places.size(); ++rank) {
        const TracedEpoch::Place& place = epoch.places[rank];
        const bool is_spare = static_cast<int>(rank) >= epoch.ranks;
        TraceArguments arguments{{"epoch", epoch.number}, {"plan", epoch.plan}};
        if (!is_spare) arguments["rank"] = rank;
        if (!place.left.empty()) arguments["left"] = place.left;
        const auto [process, number] = track_of[place.member];
        trace.slice(process, number, at(epoch.start),
                    at(std::clamp(place.end.value_or(*epoch.end), epoch.start, *epoch.end)),
                    fmt::format("{} in epoch {}: {}", is_spare ? "spare" : fmt::format("rank {}", rank), epoch.number,
                                epoch.plan),
                    is_spare ? "spare" : "rank", dumped(arguments));
        SAILOR_CHECK(trace.flush());
      }
    return {};
  }

  static TraceArguments arguments_of(const TracedEpoch& epoch) {
    TraceArguments arguments{{"epoch", epoch.number}, {"ranks", epoch.ranks}, {"plan", epoch.plan}};
    if (!epoch.places.empty()) arguments["spares"] = static_cast<int>(epoch.places.size()) - epoch.ranks;
    if (epoch.first_iteration >= 0) arguments["first_iteration"] = epoch.first_iteration;
    if (!epoch.ended_by.empty()) arguments["ended_by"] = epoch.ended_by;
    return arguments;
  }

  /// The fields of the event but its name and time. Empty: it has no others.
  static std::string arguments_of(const nlohmann::json& event) {
    if (!event.is_object()) return {};
    TraceArguments arguments = TraceArguments::object();
    for (const auto& [key, value] : event.items())
      if (key != "what" && key != "unix_time_s") arguments[key] = value;
    return arguments.empty() ? std::string() : dumped(arguments);
  }

  RunHistory history_;
};

}  // namespace

Result<std::string> to_run_trace_json(const std::vector<nlohmann::json>& events) {
  const RunTraceWriter writer(events);
  SAILOR_CHECK(writer.check());
  return trace_text([&](const TraceEvents::Sink& sink) { return writer.write(sink); });
}

Result<void> save_run_trace(const std::vector<nlohmann::json>& events, const std::filesystem::path& path) {
  const RunTraceWriter writer(events);
  SAILOR_CHECK(writer.check());
  return save_trace_text(path, [&](const TraceEvents::Sink& sink) { return writer.write(sink); });
}

}  // namespace sailor::elastic
