// The page as a whole, and its heading.
#include "reports/page/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/terminal.hpp"
#include "reports/stage_tables.hpp"

namespace sailor::reports {

using simulator::Prediction;

namespace {

/// The cards of the heading.
class Cards {
 public:
  void add(std::string_view title, const std::string& value, const std::string& below = {}) {
    html_ += fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", html_text(title), html_text(value),
                         below.empty() ? "" : fmt::format("<small>{}</small>", html_text(below)));
  }
  [[nodiscard]] std::string html() const { return "<dl class=\"cards\">\n" + html_ + "</dl>\n"; }

 private:
  std::string html_;
};

/// "64 A100-40, 32 V100-16"
std::string devices_text(const Plan& plan) {
  std::vector<std::pair<std::string, int>> types;  // in the order of the plan
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      auto found = std::find_if(types.begin(), types.end(), [&](const auto& type) { return type.first == stage.gpu; });
      if (found == types.end()) found = types.insert(types.end(), {stage.gpu, 0});
      found->second += plan.ranks_of(stage) * pipeline.count;
    }
  std::string text;
  for (const auto& [gpu, count] : types) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, gpu);
  return text;
}

std::string tokens_per_second(const Plan& plan, Seconds time) {
  const double rate = plan.job.tokens() / time.value();
  return rate < 100.0 ? fmt::format("{:#.3g} tokens/s", rate) : fmt::format("{:.0f} tokens/s", rate);
}

void add_predicted_cards(const PageInput& input, const std::string& word, Cards& cards) {
  const Prediction& prediction = *input.prediction;
  const bool spread = prediction.iteration_time_p95 > prediction.iteration_time_p5;
  cards.add("iteration time" + word, format_time(prediction.iteration_time),
            spread ? fmt::format("P5 to P95: {} to {}", format_time(prediction.iteration_time_p5),
                                 format_time(prediction.iteration_time_p95))
                   : "");
  cards.add(
      "throughput" + word, tokens_per_second(input.plan, prediction.iteration_time),
      prediction.utilization ? fmt::format("model FLOP utilization {:.2g}%", *prediction.utilization * 100.0) : "");
  cards.add("cost" + word, format_usd(prediction.cost_per_iteration) + " per iteration",
            fmt::format("{} per million tokens",
                        format_usd(Usd(prediction.cost_per_iteration.value() / input.plan.job.tokens() * 1e6))));
  cards.add("peak memory" + word, format_bytes(prediction.peak_memory), "largest over ranks");
}

void add_measured_cards(const PageInput& input, Cards& cards) {
  const TimeStatistics time = input.run->iteration_time();
  if (time.samples > 0 && time.median > Seconds{}) {
    cards.add("iteration time, measured", format_time(time.median),
              fmt::format("P10 to P90: {} to {}", format_time(time.p10), format_time(time.p90)));
    cards.add("throughput, measured", tokens_per_second(input.plan, time.median));
  }
  if (const Bytes memory = input.run->peak_resident_memory(); memory > Bytes{})
    cards.add("peak memory, measured", format_bytes(memory), "largest over ranks");
  if (!input.run->iterations.empty())
    cards.add("iterations", fmt::format("{}", input.run->iterations.size()),
              fmt::format("last loss {:.4g} nat/token", input.run->iterations.back().loss));
}

std::string verdict(const PageInput& input) {
  const auto badge = [](const char* kind, const std::string& text) {
    return fmt::format("<p class=\"verdict {}\">{}</p>\n", kind, html_text(text));
  };
  const std::string who = input.run != nullptr ? "predicted: " : "";  // the run has shown it
  if (!input.memory_problem.empty()) return badge("bad", who + "does not fit into memory: " + input.memory_problem);
  const Prediction* prediction = input.prediction;
  if (input.run != nullptr && (prediction == nullptr || prediction->stages.empty())) return "";
  if (prediction == nullptr || prediction->stages.empty()) return badge("open", "whether it fits was not computed");
  double fullest = 0.0;
  for (const simulator::StagePrediction& stage : prediction->stages) {
    if (!stage.capacity)
      return badge("open", fmt::format("whether it fits is not known: the memory of {} is not (name the nodes with "
                                       "--cluster or --partition)",
                                       stage_of(input.plan, stage).gpu));
    fullest = std::max(fullest, stage.memory.total() / *stage.capacity);
  }
  return badge("good", fmt::format("{}fits: the fullest device is {:.0f}% full", who, fullest * 100.0));
}

}  // namespace

std::optional<Prediction> stored_prediction(const Plan& plan) {
  if (!plan.prediction) return std::nullopt;
  const PlanPrediction& stored = *plan.prediction;
  Prediction prediction;
  prediction.iteration_time = stored.iteration_time;
  prediction.iteration_time_p5 = stored.iteration_time;
  prediction.iteration_time_p95 = stored.iteration_time;
  prediction.pipeline_time = stored.pipeline_time;
  prediction.synchronization_time = stored.synchronization_time;
  prediction.update_time = stored.update_time;
  prediction.peak_memory = stored.peak_memory;
  prediction.cost_per_iteration = stored.cost_per_iteration;
  return prediction;
}

std::string page_heading(const PageInput& input) {
  const Plan& plan = input.plan;
  std::string html = fmt::format("<h1>{} in {}</h1>\n<p class=\"lead\">{}</p>\n", html_text(plan.job.model),
                                 to_string(plan.job.precision), html_text(describe(plan)));
  html += verdict(input);
  Cards cards;
  cards.add("global batch", plural(static_cast<std::size_t>(plan.job.global_batch), "sequence"),
            fmt::format("of {} tokens", plan.job.sequence_length));
  cards.add("devices", devices_text(plan), input.cluster.empty() ? "" : fmt::format("of cluster '{}'", input.cluster));
  if (input.prediction != nullptr) add_predicted_cards(input, input.run != nullptr ? ", predicted" : "", cards);
  if (input.run != nullptr) add_measured_cards(input, cards);
  html += cards.html();
  if (input.notes.empty()) return html;
  html += "<ul class=\"notes\">\n";
  for (const std::string& note : input.notes) html += fmt::format("<li>{}</li>\n", html_text(note));
  return html + "</ul>\n";
}

std::string report_page(const PageInput& input) {
  std::vector<HtmlSection> sections;
  add_comparison_section(input, sections);
  add_plan_sections(input, sections);
  add_run_sections(input, sections);
  add_front_section(input, sections);
  const std::string name = std::filesystem::path(input.file).filename().string();
  return html_page(fmt::format("{}: {}", name, input.plan.job.model), page_heading(input), sections,
                   fmt::format("Made by {} from {}.", input.made_by, input.file));
}

}  // namespace sailor::reports
