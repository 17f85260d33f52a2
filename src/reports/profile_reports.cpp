#include "reports/profile_reports.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "core/terminal.hpp"

namespace sailor::reports {

using nlohmann::ordered_json;

namespace {

constexpr std::size_t most_differences = 40;
constexpr std::size_t most_one_sided = 10;

std::string format_value(const Difference& row, double value) {
  if (row.unit == "s") return format_time(Seconds(value));
  if (row.unit == "byte") return format_bytes(Bytes(value));
  if (row.unit == "byte/s") return format_bandwidth(BytesPerSecond(value));
  return fmt::format("{:.0f}", value);
}

/// "+12.3%"; "new" if the ratio is not finite.
std::string format_change(double ratio) {
  return std::isfinite(ratio) ? fmt::format("{:+.1f}%", (ratio - 1.0) * 100.0) : "new";
}

std::string_view verdict(Judgement judgement) {
  switch (judgement) {
    case Judgement::within:
      return "no";
    case Judgement::outside:
      return "yes";
    case Judgement::unknown:
      return "-";
  }
  return "?";
}

std::string one_sided_text(const std::vector<OneSided>& rows, const std::string& name, bool all) {
  if (rows.empty()) return "";
  std::string text = fmt::format("\nOnly in {} ({}):\n", name, plural(rows.size(), "row"));
  if (all || rows.size() <= most_one_sided) {
    for (const OneSided& row : rows) text += fmt::format("  {}: {}: {}\n", row.table, row.setting, row.entry);
    return text;
  }
  std::map<std::pair<std::string, std::string>, std::size_t> counts;
  for (const OneSided& row : rows) ++counts[{row.table, row.setting}];
  std::size_t shown = 0;
  for (const auto& [place, count] : counts) {
    if (shown++ == most_differences) break;
    text += fmt::format("  {}: {}: {}\n", place.first, place.second, plural(count, "row"));
  }
  if (counts.size() > most_differences)
    text += fmt::format("  and {} more settings: --all\n", counts.size() - most_differences);
  return text;
}

ordered_json one_sided_json(const std::vector<OneSided>& rows) {
  ordered_json array = ordered_json::array();
  for (const OneSided& row : rows)
    array.push_back({{"table", row.table}, {"setting", row.setting}, {"entry", row.entry}});
  return array;
}

bool above(const Difference& row, double threshold) { return std::abs(row.ratio() - 1.0) > threshold; }

}  // namespace

std::string findings_report(const std::vector<Finding>& findings) {
  std::string text;
  std::optional<std::pair<Severity, Problem>> heading;
  for (const Finding& finding : findings) {
    const std::pair<Severity, Problem> place{finding.severity, finding.problem};
    if (heading != place)
      text += fmt::format("{}{}: {}\n  {}; {}\n", text.empty() ? "" : "\n", to_string(finding.severity),
                          to_string(finding.problem), why_it_matters(finding.problem), remedy(finding.problem));
    heading = place;
    text += fmt::format("  - {}: {}{}\n", finding.where, finding.what,
                        finding.count > 1 ? fmt::format(" (worst of {})", finding.count) : "");
  }
  return text;
}

ordered_json findings_to_json(const std::vector<Finding>& findings) {
  ordered_json array = ordered_json::array();
  for (const Finding& finding : findings)
    array.push_back({{"severity", to_string(finding.severity)},
                     {"problem", to_string(finding.problem)},
                     {"where", finding.where},
                     {"what", finding.what},
                     {"why", why_it_matters(finding.problem)},
                     {"remedy", remedy(finding.problem)},
                     {"count", finding.count}});
  return array;
}

std::string difference_report(const ProfileDifference& difference, const DiffView& view) {
  std::string text = fmt::format("A: {}\nB: {}\n", view.name_a, view.name_b);
  if (difference.common.empty()) text += "\nA and B have nothing in common.\n";

  Table summary({{"", Align::left},
                 {"figure", Align::left},
                 {"figures"},
                 {"B/A (geometric mean)"},
                 {"smallest"},
                 {"largest"},
                 {"outside noise"}});
  std::size_t equal = 0;
  for (const DifferenceSummary& row : summarize(difference)) {
    if (row.smallest == 1.0 && row.largest == 1.0 && !view.all) {
      ++equal;
      continue;
    }
    summary.add_row({row.setting, row.quantity, fmt::to_string(row.entries), fmt::format("{:.3f}", row.geometric_mean),
                     fmt::format("{:.3f}", row.smallest), fmt::format("{:.3f}", row.largest),
                     fmt::to_string(row.outside)});
  }
  if (summary.rows() > 0) text += "\nSummary\n" + summary.to_string();
  if (equal > 0)
    text += fmt::format("{}{} more: the same in all rows\n", summary.rows() > 0 ? "" : "\n", plural(equal, "line"));

  std::vector<const Difference*> shown;
  for (const Difference& row : difference.common)
    if (above(row, view.threshold)) shown.push_back(&row);
  const std::size_t listed = view.all ? shown.size() : std::min(shown.size(), most_differences);
  Table table({{"", Align::left},
               {"entry", Align::left},
               {"figure", Align::left},
               {"A"},
               {"B"},
               {"change"},
               {"outside noise", Align::left}});
  for (std::size_t i = 0; i < listed; ++i) {
    const Difference& row = *shown[i];
    table.add_row({row.setting, row.entry, row.quantity, format_value(row, row.a), format_value(row, row.b),
                   format_change(row.ratio()), std::string(verdict(row.judgement))});
  }
  if (table.rows() > 0) {
    const std::string caption = table.fold_constant_columns({"", "entry", "figure"});
    text += fmt::format(
        "\nDifferences over {:.4g}% (B against A, largest first; outside noise: outside both 95% "
        "intervals, -: no samples)\n{}{}",
        view.threshold * 100.0, caption.empty() ? "" : "all:" + (caption[0] == ' ' ? caption : " " + caption) + "\n",
        table.to_string());
  } else if (!difference.common.empty()) {
    text += fmt::format("\nNo difference over {:.4g}%.\n", view.threshold * 100.0);
  }
  if (listed < shown.size()) text += fmt::format("and {} more, none larger: --all\n", shown.size() - listed);
  return text + one_sided_text(difference.only_a, "A", view.all) + one_sided_text(difference.only_b, "B", view.all);
}

ordered_json difference_to_json(const ProfileDifference& difference, const DiffView& view) {
  ordered_json summaries = ordered_json::array();
  for (const DifferenceSummary& row : summarize(difference))
    summaries.push_back({{"setting", row.setting},
                         {"quantity", row.quantity},
                         {"entries", row.entries},
                         {"outside", row.outside},
                         {"geometric_mean_ratio", row.geometric_mean},
                         {"smallest_ratio", row.smallest},
                         {"largest_ratio", row.largest}});
  ordered_json rows = ordered_json::array();
  for (const Difference& row : difference.common)
    if (above(row, view.threshold))
      rows.push_back({{"table", row.table},
                      {"setting", row.setting},
                      {"entry", row.entry},
                      {"quantity", row.quantity},
                      {"unit", row.unit},
                      {"a", row.a},
                      {"b", row.b},
                      {"ratio", row.ratio()},
                      {"judgement", to_string(row.judgement)}});
  return {{"a", view.name_a},
          {"b", view.name_b},
          {"threshold", view.threshold},
          {"summary", std::move(summaries)},
          {"differences", std::move(rows)},
          {"only_a", one_sided_json(difference.only_a)},
          {"only_b", one_sided_json(difference.only_b)}};
}

std::vector<StageMemory> compare_stage_memory(const Plan& plan, const simulator::Prediction& prediction,
                                              const RunRecord& run) {
  std::map<std::pair<int, int>, Bytes> measured;
  for (const RankRecord& rank : run.ranks) {
    int first = 0;
    for (std::size_t entry = 0; entry < plan.pipelines.size(); ++entry) {
      const int next = first + plan.pipelines[entry].count;
      if (rank.pipeline >= first && rank.pipeline < next) {
        Bytes& largest = measured[{static_cast<int>(entry), rank.stage}];
        largest = std::max(largest, rank.peak_resident_memory);
      }
      first = next;
    }
  }
  std::vector<StageMemory> stages;
  for (const simulator::StagePrediction& stage : prediction.stages)
    if (const auto found = measured.find({stage.pipeline_entry, stage.stage}); found != measured.end())
      stages.push_back({stage.pipeline_entry, stage.stage, stage.memory.total(), found->second});
  return stages;
}

std::string stage_memory_report(const std::vector<StageMemory>& stages) {
  Table table({{"pipeline"}, {"stage"}, {"predicted memory"}, {"measured"}, {"error"}});
  for (const StageMemory& row : stages)
    table.add_row({fmt::to_string(row.pipeline_entry), fmt::to_string(row.stage), format_bytes(row.predicted),
                   format_bytes(row.measured),
                   row.measured.value() > 0.0 ? format_change(row.predicted / row.measured) : "-"});
  return table.to_string();
}

ordered_json stage_memory_to_json(const std::vector<StageMemory>& stages) {
  ordered_json array = ordered_json::array();
  for (const StageMemory& row : stages)
    array.push_back({{"pipeline", row.pipeline_entry},
                     {"stage", row.stage},
                     {"predicted_memory_bytes", row.predicted.value()},
                     {"measured_memory_bytes", row.measured.value()}});
  return array;
}

}  // namespace sailor::reports
