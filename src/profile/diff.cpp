#include "profile/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "core/terminal.hpp"
#include "profile/describe.hpp"

namespace sailor {

namespace {

/// Location of a row, in words.
struct Place {
  std::string setting;
  std::string entry;
};

Place place_of(const LayerKey& key) {
  return {describe_setting(key), fmt::format("{}, tensor parallel {}, micro-batch {}", describe_layer(key),
                                             key.tensor_parallel, key.micro_batch)};
}

Judgement judge(const TimeStatistics& a, const TimeStatistics& b) {
  if (a.samples == 0 && b.samples == 0) return a.median == b.median ? Judgement::within : Judgement::unknown;
  const bool b_in_a = b.median >= a.low && b.median <= a.high;
  const bool a_in_b = a.median >= b.low && a.median <= b.high;
  return b_in_a || a_in_b ? Judgement::within : Judgement::outside;
}

class Differ {
 public:
  /// Matches the rows of two tables by key; `compare(place, a, b)` adds what both sides have.
  template <class Row, class Key, class PlaceOf, class Compare>
  void match(std::string_view table, const std::vector<Row>& a, const std::vector<Row>& b, Key key_of, PlaceOf place_of,
             Compare compare) {
    table_ = table;
    std::map<std::decay_t<decltype(key_of(a.front()))>, const Row*> in_b;
    for (const Row& row : b) in_b[key_of(row)] = &row;
    for (const Row& row : a) {
      place_ = place_of(row);
      const auto other = in_b.find(key_of(row));
      if (other == in_b.end()) {
        result.only_a.push_back({table_, place_.setting, place_.entry});
        continue;
      }
      compare(row, *other->second);
      in_b.erase(other);
    }
    for (const Row& row : b)
      if (in_b.contains(key_of(row))) {
        Place place = place_of(row);
        result.only_b.push_back({table_, std::move(place.setting), std::move(place.entry)});
      }
  }

  void add(std::string_view quantity, double a, double b, std::string_view unit, Judgement judgement) {
    result.common.push_back(
        {table_, place_.setting, place_.entry, std::string(quantity), a, b, std::string(unit), judgement});
  }
  void add_time(std::string_view quantity, const TimeStatistics& a, const TimeStatistics& b) {
    add(quantity, a.median.value(), b.median.value(), "s", judge(a, b));
  }
  void add_size(std::string_view quantity, Bytes a, Bytes b) {
    add(quantity, a.value(), b.value(), "byte", a == b ? Judgement::within : Judgement::outside);
  }

  ProfileDifference result;

 private:
  std::string table_;
  Place place_;
};

}  // namespace

std::string_view to_string(Judgement judgement) {
  switch (judgement) {
    case Judgement::within:
      return "within";
    case Judgement::outside:
      return "outside";
    case Judgement::unknown:
      return "unknown";
  }
  return "?";
}

double Difference::ratio() const {
  if (a == b) return 1.0;
  return a == 0.0 ? std::numeric_limits<double>::infinity() : b / a;
}

double Difference::size() const { return std::abs(std::log(ratio())); }

ProfileDifference diff_profiles(const ProfileData& a, const ProfileData& b) {
  Differ differ;
  auto key_of = [](const auto& row) { return row.key; };
  auto layer_place = [](const auto& row) { return place_of(row.key); };
  differ.match("layer_times", a.layer_times, b.layer_times, key_of, layer_place,
               [&](const LayerTime& left, const LayerTime& right) {
                 differ.add_time("forward", left.forward, right.forward);
                 differ.add_time("backward", left.backward, right.backward);
                 differ.add_time("update", left.update, right.update);
                 if (left.cold_forward.median.value() > 0.0 && right.cold_forward.median.value() > 0.0) {
                   differ.add_time("cold forward", left.cold_forward, right.cold_forward);
                   differ.add_time("cold backward", left.cold_backward, right.cold_backward);
                 }
               });
  differ.match("layer_memory", a.layer_memory, b.layer_memory, key_of, layer_place,
               [&](const LayerMemory& left, const LayerMemory& right) {
                 differ.add("parameters", static_cast<double>(left.parameters), static_cast<double>(right.parameters),
                            "1", left.parameters == right.parameters ? Judgement::within : Judgement::outside);
                 differ.add_size("activation", left.activation, right.activation);
                 differ.add_size("output", left.output, right.output);
                 differ.add_size("input", left.input, right.input);
                 differ.add_size("workspace", left.workspace, right.workspace);
               });
  differ.match("out_of_memory", a.out_of_memory, b.out_of_memory, key_of, layer_place,
               [&](const OutOfMemory& left, const OutOfMemory& right) {
                 differ.add_size("available", left.available, right.available);
               });
  differ.match(
      "links", a.links, b.links, [](const LinkMeasurement& row) { return std::pair(row.key, row.message); },
      [](const LinkMeasurement& row) {
        return Place{describe(row.key), format_bytes(row.message)};
      },
      [&](const LinkMeasurement& left, const LinkMeasurement& right) {
        differ.add_time("time", left.time, right.time);
      });
  differ.match(
      "link_fits", a.fits, b.fits, key_of,
      [](const LinkFit& row) {
        return Place{describe(row.key), "fit"};
      },
      [&](const LinkFit& left, const LinkFit& right) {
        const double before = left.curve.bandwidth(mib).value();
        const double after = right.curve.bandwidth(mib).value();
        differ.add("bandwidth at 1 MiB", before, after, "byte/s",
                   before == after ? Judgement::within : Judgement::unknown);
      });
  differ.match(
      "processes", a.processes, b.processes,
      [](const ProcessMeasurement& row) { return std::pair(row.gpu, row.framework); },
      [](const ProcessMeasurement& row) {
        return Place{fmt::format("process of {} on {}", row.framework, row.gpu), "base memory"};
      },
      [&](const ProcessMeasurement& left, const ProcessMeasurement& right) {
        differ.add_size("base memory", left.base_memory, right.base_memory);
      });
  std::stable_sort(differ.result.common.begin(), differ.result.common.end(),
                   [](const Difference& left, const Difference& right) { return left.size() > right.size(); });
  return std::move(differ.result);
}

std::vector<DifferenceSummary> summarize(const ProfileDifference& difference) {
  struct Sum {
    DifferenceSummary summary;
    double logarithms = 0.0;
    int counted = 0;
  };
  std::map<std::pair<std::string, std::string>, Sum> sums;
  for (const Difference& row : difference.common) {
    Sum& sum = sums[{row.setting, row.quantity}];
    DifferenceSummary& summary = sum.summary;
    const double ratio = row.ratio();
    summary.setting = row.setting;
    summary.quantity = row.quantity;
    summary.smallest = summary.entries == 0 ? ratio : std::min(summary.smallest, ratio);
    summary.largest = summary.entries == 0 ? ratio : std::max(summary.largest, ratio);
    ++summary.entries;
    if (row.judgement == Judgement::outside) ++summary.outside;
    if (row.a > 0.0 && row.b > 0.0) {
      sum.logarithms += std::log(ratio);
      ++sum.counted;
    }
  }
  std::vector<DifferenceSummary> summaries;
  for (auto& [key, sum] : sums) {
    if (sum.counted > 0) sum.summary.geometric_mean = std::exp(sum.logarithms / sum.counted);
    summaries.push_back(std::move(sum.summary));
  }
  return summaries;
}

}  // namespace sailor
