#include "simulator/cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/files.hpp"
#include "core/statistics.hpp"
#include "core/toml_reader.hpp"
#include "profile/run_file.hpp"

namespace sailor::simulator {

namespace fs = std::filesystem;

namespace {

constexpr int cases_schema_version = 1;
constexpr NumberRange positive_time{.minimum = 1e-9, .maximum = 1e9};

void read_run(const TomlTable& row, const fs::path& folder, Case& entry) {
  for (const char* key :
       {"plan", "iteration_time_s", "iteration_time_low_s", "iteration_time_high_s", "peak_memory_bytes"})
    if (row.has(key))
      row.reject(key, fmt::format("'{}' stands beside run, which has it", key), "remove one of the two");
  const fs::path path = folder / row.text("run");
  const auto run = load_run(path);
  if (!run) return row.reject("run", run.error().what, run.error().hint);
  auto plan = parse_plan(run->plan_toml, path.string());
  if (!plan) return row.reject("run", plan.error().what, plan.error().hint);
  entry.plan = *std::move(plan);
  const TimeStatistics time = run->iteration_time();
  if (time.samples == 0 || !(time.median > Seconds{}))
    return row.reject(
        "run", fmt::format("'{}' has no iteration after the {} of its warm-up", path.string(), run->warm_up_iterations),
        "train more iterations");
  entry.iteration_time = time.median;
  entry.iteration_time_low = time.low;
  entry.iteration_time_high = time.high;
  if (const Bytes memory = run->peak_resident_memory(); memory > Bytes{}) entry.peak_memory = memory;
}

void read_measured(const TomlTable& row, Case& entry) {
  entry.iteration_time = Seconds(row.number("iteration_time_s", positive_time));
  if (row.has("peak_memory_bytes"))
    entry.peak_memory = Bytes(row.number("peak_memory_bytes", {.minimum = 1.0, .maximum = 1e15}));
  if (!row.has("iteration_time_low_s") && !row.has("iteration_time_high_s")) return;
  entry.iteration_time_low = Seconds(row.number("iteration_time_low_s", positive_time));
  entry.iteration_time_high = Seconds(row.number("iteration_time_high_s", positive_time));
  if (*entry.iteration_time_low > entry.iteration_time || entry.iteration_time > *entry.iteration_time_high)
    row.reject("iteration_time_s",
               fmt::format("iteration_time_s is {} but from iteration_time_low_s to iteration_time_high_s is {} to {}",
                           entry.iteration_time.value(), entry.iteration_time_low->value(),
                           entry.iteration_time_high->value()));
}

Case read_case(const TomlTable& row, const fs::path& folder) {
  Case entry;
  entry.name = row.text("name");
  entry.note = row.text_or("note", "");
  entry.artefact = row.boolean_or("artefact", false);
  if (entry.artefact && entry.note.empty())
    row.reject("artefact", "an artefact needs a reason", "say in 'note' what the run measured instead");
  if (row.has("run")) {
    read_run(row, folder, entry);
    return entry;
  }
  if (row.is_table("plan")) {
    entry.plan = read_plan(row.table("plan"));
  } else if (const std::string name = row.text("plan"); !name.empty()) {
    if (auto plan = load_plan(folder / name))
      entry.plan = *std::move(plan);
    else
      row.reject("plan", plan.error().what, plan.error().hint);
  }
  read_measured(row, entry);
  return entry;
}

}  // namespace

Result<CaseFile> parse_cases(std::string_view text, std::string_view source_name, const fs::path& folder) {
  auto document = TomlDocument::parse(text, source_name);
  if (!document) return fail(document.error());
  document->require_schema_version(cases_schema_version, TomlKind::cases);
  const TomlTable root = document->root();
  CaseFile file;
  file.title = root.text("title");
  file.source = root.text("source");
  file.framework = root.text("framework");
  const std::vector<TomlTable> rows = root.tables("cases");
  if (rows.empty()) root.reject("cases", "the file has no cases", "add at least one [[cases]]");
  std::set<std::string> names;
  for (const TomlTable& row : rows) {
    Case entry = read_case(row, folder);
    if (!names.insert(entry.name).second)
      row.reject("name", fmt::format("two cases have the name '{}'", entry.name), "rename one");
    file.cases.push_back(std::move(entry));
  }
  SAILOR_CHECK(document->finish());
  return file;
}

Result<CaseFile> load_cases(const fs::path& path) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_cases(*text, path.string(), path.parent_path());
}

ErrorSummary summarize_errors(std::span<const double> errors) {
  if (errors.empty()) return {};
  const auto count = static_cast<double>(errors.size());
  std::vector<double> absolute;
  for (const double error : errors) absolute.push_back(std::abs(error));
  return {.cases = errors.size(),
          .mean = std::accumulate(absolute.begin(), absolute.end(), 0.0) / count,
          .median = quantile(absolute, 0.5),
          .p95 = quantile(absolute, 0.95),
          .largest = *std::max_element(absolute.begin(), absolute.end()),
          .bias = std::accumulate(errors.begin(), errors.end(), 0.0) / count,
          .lowest = *std::min_element(errors.begin(), errors.end())};
}

}  // namespace sailor::simulator
