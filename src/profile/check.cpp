#include "profile/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/terminal.hpp"
#include "profile/describe.hpp"

namespace sailor {

namespace {

struct ProblemText {
  std::string_view name;
  std::string_view why;
  std::string_view remedy;
};

ProblemText text_of(Problem problem) {
  switch (problem) {
    case Problem::zero_time:
      return {"zero_time", "a layer that costs nothing makes every plan with it look too fast",
              "measure it again; remove the rows when they were imported"};
    case Problem::inconsistent_statistics:
      return {"inconsistent_statistics", "no samples have such statistics: the row was changed or wrongly imported",
              "measure or import it again"};
    case Problem::missing_layer_kind:
      return {"missing_layer_kind", "plans of these sizes cannot be predicted from measurements",
              "measure the combination with sailor-profile layers, or import it"};
    case Problem::missing_memory:
      return {"missing_memory", "whether such a plan fits into memory is not measured",
              "measure or import it, or plan without this tensor parallel"};
    case Problem::missing_micro_batch:
      return {"missing_micro_batch", "plans with it are predicted from its neighbours, or not at all",
              "measure it with sailor-profile layers --micro-batches, or import it"};
    case Problem::slower_with_tensor_parallel:
      return {"slower_with_tensor_parallel", "more devices should not take longer: noise, or shards that are too small",
              "measure both again; if it stays, it is real and no plan needs the higher degree"};
    case Problem::rising_time_per_sequence:
      return {"rising_time_per_sequence", "a larger micro-batch should cost less per sequence: noise, or short memory",
              "measure it again with more samples"};
    case Problem::backward_faster:
      return {"backward_faster", "backward does about twice the work of forward",
              "measure it again with more samples and warm-up"};
    case Problem::wide_spread:
      return {"wide_spread", "predictions can be off by as much", "measure with more samples on idle nodes"};
    case Problem::wide_interval:
      return {"wide_interval", "the median itself is uncertain by as much", "measure with more samples"};
    case Problem::same_update:
      return {"same_update", "one value for all layers, as publications give it, is no layer's own",
              "measure updates per layer where they matter"};
    case Problem::device_slowed:
      return {"device_slowed", "something else ran, or it ran hot: times are too long by up to as much",
              "measure again on idle, cool nodes"};
    case Problem::clocks_throttled:
      return {"clocks_throttled", "times depend on when they were measured",
              "fix the clocks or cool, then measure again"};
    case Problem::old_session:
      return {"old_session", "drivers, libraries and machines change", "measure again"};
    case Problem::falling_bandwidth:
      return {"falling_bandwidth", "longer messages should not be slower per byte: another protocol, or traffic",
              "measure it again on idle nodes; if it stays, split messages"};
    case Problem::falling_time:
      return {"falling_time", "a longer message cannot take less: noise", "measure it again with more samples"};
    case Problem::poor_fit:
      return {"poor_fit", "predictions between and beyond the measured sizes are off by as much",
              "measure more sizes; look at it with sailor-profile show --plot"};
  }
  return {"?", "", ""};
}

/// Days since 1970 of an ISO 8601 date; std::nullopt if it is none.
std::optional<long> days_of(std::string_view date) {
  if (date.size() < 10 || date[4] != '-' || date[7] != '-') return std::nullopt;
  auto number = [&](std::size_t first, std::size_t length) -> std::optional<int> {
    int value = 0;
    const char* begin = date.data() + first;
    const auto [end, error] = std::from_chars(begin, begin + length, value);
    if (error != std::errc() || end != begin + length) return std::nullopt;
    return value;
  };
  const auto year = number(0, 4);
  const auto month = number(5, 2);
  const auto day = number(8, 2);
  if (!year || !month || !day || *month < 0 || *day < 0) return std::nullopt;
  const std::chrono::year_month_day calendar{std::chrono::year(*year),
                                             std::chrono::month(static_cast<unsigned>(*month)),
                                             std::chrono::day(static_cast<unsigned>(*day))};
  if (!calendar.ok()) return std::nullopt;
  return std::chrono::sys_days(calendar).time_since_epoch().count();
}

std::string percent(double share) { return fmt::format("{:.0f}%", share * 100.0); }

/// The part of a key that rows share which differ in sizes and layer only.
LayerKey setting_of(LayerKey key) {
  key.tensor_parallel = 1;
  key.micro_batch = 1;
  key.kind = LayerKind::embedding;
  key.first_layer = 0;
  return key;
}

std::string sizes_of(const LayerKey& key) {
  return fmt::format("tensor parallel {}, micro-batch {}", key.tensor_parallel, key.micro_batch);
}

struct NamedTime {
  std::string_view name;
  TimeStatistics LayerTime::*time;
};
constexpr std::array<NamedTime, 5> times_of_layer{{{"forward", &LayerTime::forward},
                                                   {"backward", &LayerTime::backward},
                                                   {"update", &LayerTime::update},
                                                   {"cold forward", &LayerTime::cold_forward},
                                                   {"cold backward", &LayerTime::cold_backward}}};
constexpr std::size_t passes = 2;  // forward and backward

class Checker {
 public:
  Checker(const ProfileData& data, std::string_view today, const CheckLimits& limits)
      : data_(data), today_(today), limits_(limits) {}

  std::vector<Finding> run() {
    for (const Session& session : data_.sessions) check_session(session);
    for (const LayerTime& row : data_.layer_times) check_layer(row);
    compare_layers();
    look_for_holes();
    check_updates();
    check_links();
    for (const LinkFit& fit : data_.fits) check_fit(fit);
    std::stable_sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) {
      return std::pair(b.severity, a.problem) < std::pair(a.severity, b.problem);
    });
    return std::move(findings_);
  }

 private:
  void add(Severity severity, Problem problem, std::string where, std::string what, double excess = 0.0) {
    findings_.push_back({problem, severity, std::move(where), std::move(what), excess, 1});
  }

  void check_session(const Session& session) {
    const std::string where = fmt::format("session {}", session.id);
    if (session.slowdown > limits_.slowdown)
      add(Severity::warn, Problem::device_slowed, where,
          fmt::format("reference computations took up to {} longer", percent(session.slowdown - 1.0)),
          session.slowdown);
    if (session.highest_clock_hz > 0.0 && session.lowest_clock_hz < limits_.clock * session.highest_clock_hz)
      add(Severity::warn, Problem::clocks_throttled, where,
          fmt::format("clocks throttled: from {:.2f} GHz down to {:.2f} GHz", session.highest_clock_hz * 1e-9,
                      session.lowest_clock_hz * 1e-9),
          1.0 - session.lowest_clock_hz / session.highest_clock_hz);
    const auto now = days_of(today_);
    const auto then = days_of(session.provenance.date);
    if (now && then && *now - *then > limits_.session_days)
      add(session.provenance.source.empty() ? Severity::warn : Severity::note, Problem::old_session, where,
          fmt::format("{}, {} days ago", session.provenance.date.substr(0, 10), *now - *then),
          static_cast<double>(*now - *then));
  }

  /// The statistics of one time. `what`: "forward of block (tensor parallel 1, micro-batch 2)".
  void check_statistics(const std::string& where, const std::string& what, const TimeStatistics& time) {
    const double median = time.median.value();
    if (time.p10 > time.median || time.p90 < time.median || time.low > time.median || time.high < time.median)
      add(Severity::fail, Problem::inconsistent_statistics, where,
          fmt::format("{}: median {}, but 10th to 90th percentile {} to {}, interval {} to {}", what,
                      format_time(time.median), format_time(time.p10), format_time(time.p90), format_time(time.low),
                      format_time(time.high)));
    if (time.samples == 0 || median <= 0.0) return;
    if (const double spread = time.relative_spread(); spread > limits_.spread)
      add(Severity::warn, Problem::wide_spread, where,
          fmt::format("{}: {}, spread {} (p10 {}, p90 {})", what, format_time(time.median), percent(spread),
                      format_time(time.p10), format_time(time.p90)),
          spread);
    if (const double width = (time.high - time.low) / time.median; width > limits_.interval)
      add(Severity::warn, Problem::wide_interval, where,
          fmt::format("{}: median of {} in {} to {}, {} wide", what,
                      plural(static_cast<std::size_t>(time.samples), "sample"), format_time(time.low),
                      format_time(time.high), percent(width)),
          width);
  }

  void check_layer(const LayerTime& row) {
    const std::string where = describe_setting(row.key);
    const std::string layer = fmt::format("{} ({})", describe_layer(row.key), sizes_of(row.key));
    const bool heavy = row.key.kind == LayerKind::block || row.key.kind == LayerKind::head;
    for (std::size_t i = 0; i < times_of_layer.size(); ++i) {
      const TimeStatistics& time = row.*times_of_layer[i].time;
      check_statistics(where, fmt::format("{} of {}", times_of_layer[i].name, layer), time);
      if (i < passes && time.median.value() == 0.0)
        add(heavy ? Severity::fail : Severity::warn, Problem::zero_time, where,
            fmt::format("{} of {} takes no time", times_of_layer[i].name, layer));
    }
    const TimeStatistics& forward = row.forward;
    const TimeStatistics& backward = row.backward;
    if (row.key.kind != LayerKind::embedding && backward.median.value() > 0.0 && backward.high < forward.low)
      add(Severity::warn, Problem::backward_faster, where,
          fmt::format("{}: backward {}, forward {}", layer, format_time(backward.median), format_time(forward.median)),
          forward.median / backward.median);
  }

  /// Compares each row with the one of the next smaller value of one size, all other fields being equal.
  template <class Compare>
  void compare_neighbours(int LayerKey::*size, Compare compare) const {
    std::map<LayerKey, std::map<int, const LayerTime*>> series;
    for (const LayerTime& row : data_.layer_times) {
      LayerKey key = row.key;
      key.*size = 0;
      series[key][row.key.*size] = &row;
    }
    for (const auto& [key, rows] : series)
      for (auto next = rows.begin(); next != rows.end(); ++next)
        if (next != rows.begin()) compare(*std::prev(next)->second, *next->second);
  }

  void compare_layers() {
    compare_neighbours(&LayerKey::tensor_parallel, [&](const LayerTime& lower, const LayerTime& higher) {
      for (std::size_t i = 0; i < passes; ++i) {
        const TimeStatistics& before = lower.*times_of_layer[i].time;
        const TimeStatistics& after = higher.*times_of_layer[i].time;
        if (before.median.value() <= 0.0 || after.low <= before.high) continue;
        const double ratio = after.median / before.median;
        if (ratio <= 1.0 + limits_.tensor_parallel_rise) continue;
        add(Severity::warn, Problem::slower_with_tensor_parallel, describe_setting(higher.key),
            fmt::format("{} of {} (micro-batch {}): {} at tensor parallel {}, {} at {}", times_of_layer[i].name,
                        describe_layer(higher.key), higher.key.micro_batch, format_time(after.median),
                        higher.key.tensor_parallel, format_time(before.median), lower.key.tensor_parallel),
            ratio);
      }
    });
    compare_neighbours(&LayerKey::micro_batch, [&](const LayerTime& smaller, const LayerTime& larger) {
      for (std::size_t i = 0; i < passes; ++i) {
        const Seconds before = (smaller.*times_of_layer[i].time).median / smaller.key.micro_batch;
        const Seconds after = (larger.*times_of_layer[i].time).median / larger.key.micro_batch;
        if (before.value() <= 0.0 || after / before <= 1.0 + limits_.time_per_sequence_rise) continue;
        add(Severity::warn, Problem::rising_time_per_sequence, describe_setting(larger.key),
            fmt::format("{} of {} (tensor parallel {}): {} per sequence at micro-batch {}, {} at {}",
                        times_of_layer[i].name, describe_layer(larger.key), larger.key.tensor_parallel,
                        format_time(after), larger.key.micro_batch, format_time(before), smaller.key.micro_batch),
            after / before);
      }
    });
  }

  /// Combinations of sizes that were not measured, unless they did not fit.
  void look_for_holes() {
    std::set<LayerKey> did_not_fit;  // kind and first_layer as in setting_of()
    auto combination = [](const LayerKey& key) {
      LayerKey plain = setting_of(key);
      plain.tensor_parallel = key.tensor_parallel;
      plain.micro_batch = key.micro_batch;
      return plain;
    };
    for (const OutOfMemory& row : data_.out_of_memory) {
      LayerKey key = combination(row.key);
      key.busy_ranks = 1;
      did_not_fit.insert(key);
    }
    auto explained = [&](LayerKey key) {
      key.busy_ranks = 1;
      return did_not_fit.contains(key);
    };

    std::map<std::string, std::set<LayerKind>> kinds_of_model;
    std::map<LayerKey, std::set<LayerKind>> kinds;
    std::map<LayerKey, std::set<int>> micro_batches;
    for (const LayerTime& row : data_.layer_times) {
      kinds_of_model[row.key.model].insert(row.key.kind);
      kinds[combination(row.key)].insert(row.key.kind);
      LayerKey key = combination(row.key);
      key.micro_batch = 1;
      micro_batches[key].insert(row.key.micro_batch);
    }
    for (const auto& [key, there] : kinds) {
      if (explained(key)) continue;
      for (const LayerKind kind : kinds_of_model[key.model])
        if (!there.contains(kind))
          add(Severity::fail, Problem::missing_layer_kind, describe_setting(key),
              fmt::format("no times of {} ({})", to_string(kind), sizes_of(key)));
    }
    for (const auto& [key, there] : micro_batches)
      for (auto next = std::next(there.begin()); next != there.end(); ++next)
        for (std::int64_t size = std::int64_t{*std::prev(next)} * 2; size < *next; size *= 2) {
          LayerKey hole = key;
          hole.micro_batch = static_cast<int>(size);
          if (!explained(hole))
            add(Severity::warn, Problem::missing_micro_batch, describe_setting(key),
                fmt::format("no micro-batch {} between {} and {} (tensor parallel {})", size, *std::prev(next), *next,
                            key.tensor_parallel));
        }

    // Memory of any micro-batch counts, and of any GPU if it was published so.
    auto plain = [](LayerKey key, const std::string& gpu) {
      key.gpu = gpu;
      if (key.precision == Precision::tf32) key.precision = Precision::fp32;  // stored alike
      key.micro_batch = 1;
      key.busy_ranks = 1;
      key.first_layer = 0;
      return key;
    };
    std::set<LayerKey> remembered;
    for (const LayerMemory& row : data_.layer_memory) remembered.insert(plain(row.key, row.key.gpu));
    std::set<LayerKey> reported;
    for (const LayerTime& row : data_.layer_times) {
      const LayerKey key = plain(row.key, row.key.gpu);
      if (remembered.contains(key) || remembered.contains(plain(row.key, any_gpu)) || !reported.insert(key).second)
        continue;
      add(Severity::warn, Problem::missing_memory, describe_setting(key),
          fmt::format("times but no memory of {} (tensor parallel {})", to_string(key.kind), key.tensor_parallel));
    }
  }

  void check_updates() {
    struct Updates {
      const LayerTime* first = nullptr;
      int rows = 0;
      bool same = true;
    };
    std::map<LayerKey, Updates> combinations;
    for (const LayerTime& row : data_.layer_times) {
      LayerKey key = row.key;
      key.kind = LayerKind::embedding;
      key.first_layer = 0;
      if (row.update_scope != UpdateScope::layer) continue;  // known to cover more than the layer
      Updates& updates = combinations[key];
      if (updates.first == nullptr) updates.first = &row;
      updates.same = updates.same && row.update.median == updates.first->update.median;
      ++updates.rows;
    }
    for (const auto& [key, updates] : combinations)
      if (updates.same && updates.rows >= 3 && updates.first->update.median.value() > 0.0)
        add(Severity::note, Problem::same_update, describe_setting(key),
            fmt::format("update of all layers: {} ({})", format_time(updates.first->update.median), sizes_of(key)));
  }

  void check_links() {
    std::map<LinkKey, std::map<Bytes, const LinkMeasurement*>> curves;
    for (const LinkMeasurement& row : data_.links) {
      const std::string where = describe(row.key);
      check_statistics(where, format_bytes(row.message), row.time);
      if (row.time.median.value() == 0.0 && row.message.value() > 0.0)
        add(Severity::fail, Problem::zero_time, where, fmt::format("{} take no time", format_bytes(row.message)));
      else
        curves[row.key][row.message] = &row;
    }
    for (const auto& [key, curve] : curves) {
      const LinkMeasurement* previous = nullptr;
      const LinkMeasurement* best = nullptr;  // best bandwidth so far
      auto bandwidth = [](const LinkMeasurement& row) { return row.message / row.time.median; };
      for (const auto& [message, row] : curve) {
        if (previous != nullptr && row->time.high < previous->time.low)
          add(Severity::warn, Problem::falling_time, describe(key),
              fmt::format("{} take {}, but {} take {}", format_bytes(message), format_time(row->time.median),
                          format_bytes(previous->message), format_time(previous->time.median)),
              previous->time.median / row->time.median);
        previous = row;
        if (message.value() <= 0.0) continue;
        if (best != nullptr && bandwidth(*row) < (1.0 - limits_.bandwidth_fall) * bandwidth(*best))
          add(Severity::warn, Problem::falling_bandwidth, describe(key),
              fmt::format("{} with {}, but {} with {}", format_bandwidth(bandwidth(*row)), format_bytes(message),
                          format_bandwidth(bandwidth(*best)), format_bytes(best->message)),
              bandwidth(*best) / bandwidth(*row));
        if (best == nullptr || bandwidth(*row) > bandwidth(*best)) best = row;
      }
    }
  }

  void check_fit(const LinkFit& fit) {
    if (fit.points == 0 || fit.largest_error <= limits_.fit_error) return;
    const bool mostly = fit.median_error > limits_.fit_error;
    add(mostly ? Severity::warn : Severity::note, Problem::poor_fit, describe(fit.key),
        fmt::format("the curve is off by {} (median) to {} (largest) over {}", percent(fit.median_error),
                    percent(fit.largest_error), plural(static_cast<std::size_t>(fit.points), "message")),
        fit.median_error);
  }

  const ProfileData& data_;
  std::string_view today_;
  const CheckLimits& limits_;
  std::vector<Finding> findings_;
};

}  // namespace

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::note:
      return "note";
    case Severity::warn:
      return "warn";
    case Severity::fail:
      return "fail";
  }
  return "?";
}

std::string_view to_string(Problem problem) { return text_of(problem).name; }
std::string_view why_it_matters(Problem problem) { return text_of(problem).why; }
std::string_view remedy(Problem problem) { return text_of(problem).remedy; }

std::vector<Finding> check_profile(const ProfileData& data, std::string_view today, const CheckLimits& limits) {
  return Checker(data, today, limits).run();
}

std::vector<Finding> fold_findings(std::vector<Finding> findings) {
  std::vector<Finding> folded;
  std::map<std::pair<Problem, std::string>, std::size_t> places;
  for (Finding& finding : findings) {
    const auto [place, is_new] = places.emplace(std::pair(finding.problem, finding.where), folded.size());
    if (is_new) {
      folded.push_back(std::move(finding));
      continue;
    }
    Finding& kept = folded[place->second];
    const int count = kept.count + finding.count;
    if (std::pair(finding.severity, finding.excess) > std::pair(kept.severity, kept.excess)) kept = std::move(finding);
    kept.count = count;
  }
  return folded;
}

}  // namespace sailor
