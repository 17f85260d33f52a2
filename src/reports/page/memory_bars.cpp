#include "reports/page/memory_bars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/terminal.hpp"
#include "reports/page/html.hpp"
#include "reports/stage_tables.hpp"

namespace sailor::reports {

using simulator::RankMemory;
using simulator::StagePrediction;

namespace {

struct MemoryItem {
  const char* title;
  Bytes RankMemory::*which;
};

// In the order and with the words of memory_table(). The ninth has a class of its own.
constexpr std::array<MemoryItem, 9> memory_items{{{"weights", &RankMemory::weights},
                                                  {"gradients", &RankMemory::gradients},
                                                  {"optimizer", &RankMemory::optimizer},
                                                  {"copies", &RankMemory::copies},
                                                  {"activations", &RankMemory::activations},
                                                  {"logits", &RankMemory::logits},
                                                  {"workspace", &RankMemory::workspace},
                                                  {"buffers", &RankMemory::communication},
                                                  {"base", &RankMemory::base}}};

std::string item_class(std::size_t item) { return item == 8 ? "base" : fill_class(static_cast<int>(item)); }

/// Consecutive stages of a pipeline that are alike.
struct MemoryBar {
  const StagePrediction* row = nullptr;  ///< the first of the stages
  int last_stage = 0;
  int ranks = 0;
  std::optional<Bytes> measured{};  ///< largest of its ranks
  [[nodiscard]] double fill() const {
    return row->capacity ? row->memory.total() / *row->capacity : row->memory.total().value();
  }
};

bool same_memory(const RankMemory& a, const RankMemory& b) {
  return std::all_of(memory_items.begin(), memory_items.end(),
                     [&](const MemoryItem& item) { return a.*item.which == b.*item.which; });
}

/// Largest measured memory by pipeline entry and stage.
std::map<std::pair<int, int>, Bytes> measured_memory(const Plan& plan, const RunRecord* run) {
  std::map<std::pair<int, int>, Bytes> largest;
  if (run == nullptr) return largest;
  std::map<int, RankRole> roles;
  for (const RankRole& role : rank_roles(plan)) roles.emplace(role.rank, role);
  for (const RankRecord& rank : run->ranks) {
    const auto role = roles.find(rank.rank);
    if (role == roles.end() || !(rank.peak_resident_memory > Bytes{})) continue;
    Bytes& of_stage = largest[{role->second.pipeline_entry, role->second.stage}];
    of_stage = std::max(of_stage, rank.peak_resident_memory);
  }
  return largest;
}

std::vector<MemoryBar> bars_of(const Plan& plan, const simulator::Prediction& prediction, const RunRecord* run) {
  const auto measured = measured_memory(plan, run);
  std::vector<MemoryBar> bars;
  for (const StagePrediction& row : prediction.stages) {
    const Stage& stage = stage_of(plan, row);
    const int ranks = plan.ranks_of(stage) * plan.pipelines[static_cast<std::size_t>(row.pipeline_entry)].count;
    const auto found = measured.find({row.pipeline_entry, row.stage});
    const auto here = found == measured.end() ? std::nullopt : std::optional(found->second);
    if (!bars.empty() && !here && !bars.back().measured) {
      MemoryBar& last = bars.back();
      if (last.row->pipeline_entry == row.pipeline_entry && stage_of(plan, *last.row).gpu == stage.gpu &&
          last.row->capacity == row.capacity && same_memory(last.row->memory, row.memory)) {
        last.last_stage = row.stage;
        last.ranks += ranks;
        continue;
      }
    }
    bars.push_back({.row = &row, .last_stage = row.stage, .ranks = ranks, .measured = here});
  }
  return bars;
}

/// Keeps the fullest ones, in their order.
void keep_fullest(std::vector<MemoryBar>& bars) {
  if (bars.size() <= most_memory_bars) return;
  std::vector<double> fills;
  for (const MemoryBar& bar : bars) fills.push_back(bar.fill());
  std::nth_element(fills.begin(), fills.begin() + most_memory_bars - 1, fills.end(), std::greater<>());
  const double least = fills[most_memory_bars - 1];
  std::erase_if(bars, [&](const MemoryBar& bar) { return bar.fill() < least; });
  if (bars.size() > most_memory_bars) bars.resize(most_memory_bars);
}

/// Length of the longest bar. Bars that would be a tenth of their device or less are drawn larger, without its limit.
double full_scale(const std::vector<MemoryBar>& bars) {
  double used = 0.0;
  double capacity = 0.0;
  for (const MemoryBar& bar : bars) {
    used = std::max({used, bar.row->memory.total().value(), bar.measured.value_or(Bytes{}).value()});
    capacity = std::max(capacity, bar.row->capacity.value_or(Bytes{}).value());
  }
  return (capacity > 0.0 && used > 0.1 * capacity ? std::max(used, capacity) : used) * 1.02;
}

std::string bar_svg(const MemoryBar& bar, double scale) {
  const auto percent = [&](Bytes amount) { return amount.value() / scale * 100.0; };
  std::string svg = "<svg class=\"bar\" role=\"img\">";
  Bytes at{};
  for (std::size_t item = 0; item < memory_items.size(); ++item) {
    const Bytes amount = bar.row->memory.*memory_items[item].which;
    if (!(amount > Bytes{})) continue;
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{:.3f}%\" y=\"3\" width=\"{:.3f}%\" height=\"14\"><title>{} {}</title></rect>",
        item_class(item), percent(at), percent(amount), memory_items[item].title, format_bytes(amount));
    at += amount;
  }
  if (bar.row->capacity && bar.row->capacity->value() <= scale)
    svg += fmt::format(
        "<rect class=\"limit\" x=\"{:.3f}%\" width=\"2\" height=\"20\"><title>the device has {}</title></rect>",
        percent(*bar.row->capacity), format_bytes(*bar.row->capacity));
  if (bar.measured)
    svg += fmt::format(
        "<rect class=\"measured\" x=\"{:.3f}%\" width=\"3\" height=\"20\"><title>measured {}</title></rect>",
        percent(*bar.measured), format_bytes(*bar.measured));
  return svg + "</svg>";
}

std::string bar_label(const Plan& plan, const MemoryBar& bar) {
  const std::string stages = bar.last_stage > bar.row->stage
                                 ? fmt::format("stages {} to {}", bar.row->stage, bar.last_stage)
                                 : fmt::format("stage {}", bar.row->stage);
  const std::string of_pipeline =
      plan.pipelines.size() > 1 ? fmt::format("pipeline {}, ", bar.row->pipeline_entry) : std::string();
  return fmt::format("{}{} on {} ({})", of_pipeline, stages, stage_of(plan, *bar.row).gpu,
                     plural(static_cast<std::size_t>(bar.ranks), "rank"));
}

}  // namespace

std::string memory_bars(const Plan& plan, const simulator::Prediction& prediction, const RunRecord* run) {
  std::vector<MemoryBar> bars = bars_of(plan, prediction, run);
  const std::size_t all = bars.size();
  keep_fullest(bars);
  const double scale = full_scale(bars);
  std::vector<LegendEntry> legend;
  for (std::size_t item = 0; item < memory_items.size(); ++item)
    if (std::any_of(bars.begin(), bars.end(),
                    [&](const MemoryBar& bar) { return bar.row->memory.*memory_items[item].which > Bytes{}; }))
      legend.push_back({item_class(item), memory_items[item].title});
  const bool limits = std::any_of(bars.begin(), bars.end(), [&](const MemoryBar& bar) {
    return bar.row->capacity && bar.row->capacity->value() <= scale;
  });
  if (limits) legend.push_back({"limit", "what the device has"});
  if (std::any_of(bars.begin(), bars.end(), [](const MemoryBar& bar) { return bar.measured.has_value(); }))
    legend.push_back({"measured", "measured, the largest of the ranks"});
  std::string html = html_legend(legend) + "<div class=\"bars\">\n";
  for (const MemoryBar& bar : bars) {
    std::string value = format_bytes(bar.row->memory.total());
    if (bar.row->capacity) value += " of " + format_bytes(*bar.row->capacity);
    html += fmt::format("<div class=\"row\"><span>{}</span>{}<span class=\"{}\">{}</span></div>\n",
                        html_text(bar_label(plan, bar)), bar_svg(bar, scale), bar.row->fits() ? "value" : "value bad",
                        html_text(value + (bar.row->fits() ? "" : ": too much")));
  }
  html += "</div>\n";
  if (bars.size() < all)
    html += fmt::format("<p class=\"source\">The {} of {} bars with the fullest devices are drawn.</p>\n", bars.size(),
                        all);
  return html;
}

}  // namespace sailor::reports
