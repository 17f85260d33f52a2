#include "reports/page/plan_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/node_placement.hpp"
#include "reports/page/html.hpp"
#include "reports/stage_tables.hpp"

namespace sailor::reports {

namespace {

constexpr double picture_width = 1100.0;  ///< pixels
constexpr double label_height = 22.0;     ///< of the line above the boxes of a pipeline
constexpr double row_gap = 14.0;
constexpr double line_height = 15.0;  ///< in a box
constexpr double box_letter = 6.6;    ///< pixels, about, of a letter of 12 pixels

/// Names of the nodes of every stage, by pipeline entry and stage, in natural order and each once.
std::map<std::pair<int, int>, std::vector<std::string>> nodes_of_stages(const Plan& plan,
                                                                        const std::vector<std::string>& nodes) {
  std::map<std::pair<int, int>, std::vector<std::string>> found;
  if (nodes.empty()) return found;
  for (const RankRole& role : rank_roles(plan))
    found[{role.pipeline_entry, role.stage}].push_back(nodes.at(static_cast<std::size_t>(role.rank)));
  for (auto& [stage, names] : found) {
    std::sort(names.begin(), names.end(), natural_less);
    names.erase(std::unique(names.begin(), names.end()), names.end());
  }
  return found;
}

/// "pipeline 0 (2 alike): 8 micro-batches of 2 sequences"
std::string pipeline_title(const Plan& plan, std::size_t entry) {
  const Pipeline& pipeline = plan.pipelines[entry];
  return fmt::format("pipeline {}{}: {} micro-batch{} of {}", entry,
                     pipeline.count > 1 ? fmt::format(" ({} alike)", pipeline.count) : std::string(),
                     pipeline.micro_batches, pipeline.micro_batches == 1 ? "" : "es",
                     plural(static_cast<std::size_t>(plan.micro_batch_of(pipeline)), "sequence"));
}

struct StageBox {
  double left = 0.0;
  double right = 0.0;
  double top = 0.0;
  double height = 0.0;
  int color = 0;
  std::vector<std::string> lines{};  ///< the first ones are shown where there is room, all of them as a tooltip
};

/// The whole line, its last word alone ("stage 12": 12), its first letters, or nothing.
std::string as_much_as_fits(const std::string& line, double letters) {
  const auto most = static_cast<std::size_t>(std::max(0.0, letters));
  if (line.size() <= most) return line;
  if (line.starts_with("stage ")) {
    const std::string number = line.substr(6);
    return number.size() <= most ? number : "";
  }
  return most < 8 ? "" : line.substr(0, most - 2) + "..";
}

std::string to_svg(const StageBox& box) {
  const double width = box.right - box.left;
  std::string svg = fmt::format(
      "<g><title>{}</title><rect class=\"{} frame\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
      "rx=\"3\"/>",
      html_text(join(box.lines, ", ")), fill_class(box.color), box.left, box.top, width, box.height);
  double y = box.top + line_height;
  for (const std::string& line : box.lines) {
    const std::string shown = as_much_as_fits(line, (width - 8.0) / box_letter);
    if (!shown.empty())
      svg += fmt::format("<text class=\"box {}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", letters_class(box.color),
                         box.left + 5.0, y, html_text(shown));
    y += line_height;
  }
  return svg + "</g>\n";
}

}  // namespace

std::string plan_picture(const Plan& plan, const std::vector<std::string>& nodes) {
  const auto kinds = kinds_of(plan);
  const bool zones =
      std::any_of(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.second != kinds.front().second; });
  std::vector<LegendEntry> legend;
  for (std::size_t k = 0; k < kinds.size(); ++k)
    legend.push_back({fill_class(static_cast<int>(k)), zones ? name_of_kind(kinds[k]) : kinds[k].first});
  const auto placed = nodes_of_stages(plan, nodes);
  const double height = line_height * (placed.empty() ? 3.0 : 4.0) + 8.0;
  int layers = 1;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) layers = std::max(layers, stage.chunk(stage.chunks() - 1).last);
  const std::size_t rows = std::min(plan.pipelines.size(), most_drawn_pipelines);
  const double row_height = label_height + height + row_gap;
  std::string svg = fmt::format("<svg class=\"wide\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                picture_width, static_cast<double>(rows) * row_height, html_text(describe(plan)));
  for (std::size_t entry = 0; entry < rows; ++entry) {
    const double top = static_cast<double>(entry) * row_height;
    svg += fmt::format("<text x=\"2\" y=\"{:.1f}\">{}</text>\n", top + 15.0, html_text(pipeline_title(plan, entry)));
    const std::vector<Stage>& stages = plan.pipelines[entry].stages;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Stage& stage = stages[s];
      const auto kind = std::find(kinds.begin(), kinds.end(), std::pair(stage.gpu, stage.zone));
      std::vector<std::string> lines{
          fmt::format("stage {}", s), fmt::format("layers {}", layers_text(stage)),
          stage.tensor_parallel > 1
              ? fmt::format("{} x{} (tp {})", stage.gpu, stage.tensor_parallel, stage.tensor_parallel)
              : stage.gpu};
      if (stage.recompute != Recompute::none) lines[1] += fmt::format(", recompute {}", to_string(stage.recompute));
      if (const auto found = placed.find({static_cast<int>(entry), static_cast<int>(s)}); found != placed.end())
        lines.push_back((found->second.size() == 1 ? "node " : "nodes ") + name_some(found->second));
      for (int chunk = 0; chunk < stage.chunks(); ++chunk)
        svg += to_svg({.left = picture_width * stage.chunk(chunk).first / layers,
                       .right = picture_width * stage.chunk(chunk).last / layers,
                       .top = top + label_height,
                       .height = height,
                       .color = static_cast<int>(kind - kinds.begin()),
                       .lines = lines});
    }
  }
  std::string caption = fmt::format("A box is a stage, as wide as it has layers (of {}).", layers);
  if (rows < plan.pipelines.size())
    caption += fmt::format(" The first {} of {} kinds of pipelines are drawn.", rows, plan.pipelines.size());
  return fmt::format("<figure>\n{}<div class=\"scroll\">{}</svg></div><figcaption>{}</figcaption></figure>\n",
                     html_legend(legend), svg, html_text(caption));
}

}  // namespace sailor::reports
