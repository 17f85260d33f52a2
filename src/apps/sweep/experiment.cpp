#include "apps/sweep/experiment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "cluster/cluster.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "core/toml_reader.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "planner/baselines/baseline.hpp"

namespace sailor::apps::sweep {

namespace {

namespace fs = std::filesystem;

/// The number as an option: the shortest text that reads back as the same number.
std::string number(double value) { return fmt::format("{}", value); }

void add(std::vector<std::string>& options, std::string name, std::string value) {
  options.push_back(std::move(name));
  options.push_back(std::move(value));
}

/// Returns the name; rejects one that another entry has, or with control characters.
std::string own_name(const TomlTable& row, std::set<std::string>& names, const std::string& name) {
  if (name.find_first_of("\r\n\t") != std::string::npos) row.reject("name", "a name has no control characters");
  if (!names.insert(name).second)
    row.reject("name", fmt::format("'{}' is there twice", name), "give one of them another 'name'");
  return name;
}

void check_planner(const TomlTable& row) {
  const std::string planner = row.text("planner");
  if (planner == "sailor") return;
  if (const auto found = planner::baselines::find_baseline(planner); !found)
    row.reject("planner", found.error().what, fmt::format("{}, or sailor", found.error().hint));
}

PlannerChoice read_planner(const TomlTable& row, std::set<std::string>& names) {
  PlannerChoice choice;
  const std::string planner = row.text("planner");
  choice.name = own_name(row, names, row.text_or("name", planner));
  const bool own = planner == "sailor";
  const std::vector<std::string_view> judges{"simulator", "artifact"};
  const std::vector<std::string_view> faults{"fixed", "kept"};
  if (!own) add(choice.options, "--planner", planner);
  if (row.has("faults")) {
    const std::size_t kept = row.choice("faults", faults);
    if (own) row.reject("faults", "the planner 'sailor' has no faults of an adaptation to keep", "leave it out");
    add(choice.options, "--planner-faults", std::string(faults[kept]));
  }
  if (row.has("judge")) {
    const std::size_t judge = row.choice("judge", judges);
    add(choice.options, own ? "--cost-model" : "--judge", std::string(judges[judge]));
  }
  if (row.has("search_time_limit_s"))
    add(choice.options, "--time-limit", number(row.number("search_time_limit_s", {.minimum = 0.001, .maximum = 1e7})));
  if (row.has("seed")) {
    choice.seed = row.integer("seed", {.minimum = 0, .maximum = std::int64_t{1} << 31});
    if (own) row.reject("seed", "the planner 'sailor' draws nothing at random", "leave it out");
  }
  for (const std::string& option : row.texts_or("options", {})) choice.options.push_back(option);
  return choice;
}

void check_model(const TomlTable& row, const fs::path& models) {
  if (const auto found = find_model(row.text("model"), models); !found)
    row.reject("model", found.error().what, found.error().hint);
}

ModelChoice read_model(const TomlTable& row, std::set<std::string>& names) {
  ModelChoice choice;
  const std::string model = row.text("model");
  choice.name = own_name(row, names, row.text_or("name", model));
  add(choice.options, "--model", model);
  add(choice.options, "--global-batch", fmt::format("{}", row.integer("global_batch", {.minimum = 1})));
  if (row.has("sequence_length"))
    add(choice.options, "--sequence-length", fmt::format("{}", row.integer("sequence_length", {.minimum = 1})));
  if (row.has("precision")) {
    std::vector<std::string_view> precisions;
    for (const Precision precision : all_precisions) precisions.push_back(to_string(precision));
    add(choice.options, "--precision", std::string(precisions[row.choice("precision", precisions)]));
  }
  return choice;
}

/// The cluster of a list of GPUs, with zones and nodes in its order: some planners take the first or the last one.
std::string cluster_of_gpus(const TomlTable& row, const std::string& name, const GpuCatalogue& gpus) {
  std::string zones;
  std::string nodes;
  std::set<std::string> known;
  for (const TomlTable& entry : row.tables("gpus")) {
    const std::string gpu = entry.text("gpu");
    const auto type = gpus.find(gpu);
    if (!type) entry.reject("gpu", type.error().what, type.error().hint);
    const std::int64_t per_node = entry.integer_or("gpus_per_node", 4, {.minimum = 1, .maximum = 4096});
    const std::int64_t count = entry.integer("count", {.minimum = 1, .maximum = 1 << 24});
    if (per_node > 0 && count % per_node != 0)
      entry.reject("count", fmt::format("{} GPUs are no whole number of nodes of {}", count, per_node),
                   "say how many a node holds with 'gpus_per_node'");
    const std::string zone = entry.text("zone");
    // "us-central1-a" is in region "us-central1", as the clouds name them.
    const std::string region = entry.text_or("region", zone.substr(0, zone.rfind('-')));
    const double memory = entry.number_or("memory_per_node_bytes", 6.4e11, {.minimum = 1.0, .maximum = 1e16});
    if (known.insert(zone).second)
      zones += fmt::format("\n[[zones]]\nname = {}\nregion = {}\n", toml_quote(zone), toml_quote(region));
    nodes += fmt::format(
        "\n[[nodes]]\ncount = {}\ngpu = {}\ngpus_per_node = {}\nmemory_per_node_bytes = {:.17g}\nzone = {}\n",
        count / std::max<std::int64_t>(per_node, 1), toml_quote(gpu), per_node, memory, toml_quote(zone));
  }
  if (nodes.empty()) row.reject("gpus", "a cluster needs 'gpus' or 'file'", "list its GPUs, or name a cluster.toml");
  return fmt::format("schema_version = 1\nname = {}\n{}{}", toml_quote(name), zones, nodes);
}

ClusterChoice read_cluster(const TomlTable& row, std::set<std::string>& names, const fs::path& folder,
                           const GpuCatalogue& gpus) {
  ClusterChoice choice;
  choice.name = own_name(row, names, row.text("name"));
  if (!row.has("file")) {
    choice.toml = cluster_of_gpus(row, choice.name, gpus);
    return choice;
  }
  if (row.has("gpus")) row.reject("gpus", "a cluster has either 'gpus' or 'file'", "leave out one of them");
  auto text = read_text_file(folder / row.text("file"));
  if (text)
    choice.toml = *std::move(text);
  else
    row.reject("file", text.error().what, text.error().hint);
  return choice;
}

ConstraintChoice read_constraint(const TomlTable& row, std::set<std::string>& names) {
  ConstraintChoice choice;
  const std::vector<std::string_view> objectives{"throughput", "cost", "throughput-per-usd"};
  const std::size_t objective = row.choice_or("objective", objectives, 0);
  choice.name = own_name(row, names, row.text_or("name", std::string(objectives[objective])));
  add(choice.options, "--objective", std::string(objectives[objective]));
  if (row.has("max_cost_usd_per_iteration"))
    add(choice.options, "--max-cost", number(row.number("max_cost_usd_per_iteration", {.minimum = 0.0})));
  if (row.has("min_throughput_iterations_per_s"))
    add(choice.options, "--min-throughput", number(row.number("min_throughput_iterations_per_s", {.minimum = 0.0})));
  if (row.has("max_gpus"))
    add(choice.options, "--max-gpus", fmt::format("{}", row.integer("max_gpus", {.minimum = 1})));
  return choice;
}

/// A key of an exclusion; its value must be a name in the list.
template <class Choice>
std::optional<std::string> excluded(const TomlTable& row, const std::string& key, const std::vector<Choice>& choices) {
  if (!row.has(key)) return std::nullopt;
  std::string name = row.text(key);
  std::vector<std::string> known;
  for (const Choice& choice : choices) known.push_back(choice.name);
  if (std::find(known.begin(), known.end(), name) == known.end())
    row.reject(key, fmt::format("there is no '{}' to leave out", name), fmt::format("one of: {}", join(known, ", ")));
  return name;
}

/// The text as part of a file name: each run of invalid characters becomes one '_'.
std::string file_word(const std::string& text) {
  std::string word;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-')
      word += c;
    else if (!word.empty() && word.back() != '_')
      word += '_';
  return word.substr(0, 40);
}

bool is_excluded(const Point& point, const Exclusion& rule) {
  const auto agrees = [](const std::optional<std::string>& wanted, const std::string& name) {
    return !wanted || *wanted == name;
  };
  return agrees(rule.planner, point.planner) && agrees(rule.model, point.model) &&
         agrees(rule.cluster, point.cluster) && agrees(rule.constraint, point.constraint);
}

std::string id_of(const Point& point) {
  std::string all = point.cluster_toml;
  for (const std::string& option : point.options) all += '\n' + option;
  return fmt::format("{}.{}.{}.{}.{}.{}", file_word(point.planner), file_word(point.model), file_word(point.cluster),
                     file_word(point.constraint), point.repetition, content_hash(all).substr(0, 8));
}

Result<Experiment> read_document(const TomlDocument& document, const fs::path& folder, const GpuCatalogue& gpus,
                                 const fs::path& models_folder) {
  document.require_schema_version(1, TomlKind::experiment);
  const TomlTable root = document.root();
  Experiment experiment;
  experiment.name = root.text("name");
  if (file_word(experiment.name) != experiment.name)
    root.reject("name",
                fmt::format("'{}' names files: letters, digits, '.', '-' and '_', at most 40", experiment.name));
  experiment.title = root.text("title");
  experiment.profile = root.text_or("profile", "published");
  // A bare name is one of Sailor's own stores.
  if (experiment.profile.find('/') != std::string::npos) experiment.profile = (folder / experiment.profile).string();
  experiment.repetitions = static_cast<int>(root.integer_or("repetitions", 1, {.minimum = 1, .maximum = 1000}));
  experiment.most_at_once = static_cast<int>(root.integer_or("most_at_once", 0, {.minimum = 0, .maximum = 4096}));
  experiment.time_limit = Seconds(root.number_or("time_limit_s", 600.0, {.minimum = 1.0, .maximum = 1e7}));
  const bool names_are_known = !models_folder.empty();
  std::set<std::string> planners;
  for (const TomlTable& row : root.tables("planners")) {
    if (names_are_known) check_planner(row);
    experiment.planners.push_back(read_planner(row, planners));
  }
  // A planner's options may name a folder of models of their own.
  const bool other_models =
      std::any_of(experiment.planners.begin(), experiment.planners.end(), [](const PlannerChoice& choice) {
        return std::any_of(choice.options.begin(), choice.options.end(),
                           [](const std::string& option) { return option.starts_with("--models"); });
      });
  std::set<std::string> models;
  for (const TomlTable& row : root.tables("models")) {
    if (names_are_known && !other_models) check_model(row, models_folder);
    experiment.models.push_back(read_model(row, models));
  }
  std::set<std::string> clusters;
  for (const TomlTable& row : root.tables("clusters"))
    experiment.clusters.push_back(read_cluster(row, clusters, folder, gpus));
  std::set<std::string> constraints;
  for (const TomlTable& row : root.tables("constraints"))
    experiment.constraints.push_back(read_constraint(row, constraints));
  if (experiment.constraints.empty())
    experiment.constraints.push_back({.name = "throughput", .options = {"--objective", "throughput"}});
  for (const TomlTable& row : root.tables("exclude")) {
    Exclusion rule{.planner = excluded(row, "planner", experiment.planners),
                   .model = excluded(row, "model", experiment.models),
                   .cluster = excluded(row, "cluster", experiment.clusters),
                   .constraint = excluded(row, "constraint", experiment.constraints)};
    if (!rule.planner && !rule.model && !rule.cluster && !rule.constraint)
      row.reject("", "this would leave out every point", "say which: 'planner', 'model', 'cluster' or 'constraint'");
    experiment.exclusions.push_back(std::move(rule));
  }
  const auto need = [&](const std::string& key, bool empty) {
    if (empty) root.reject(key, fmt::format("there are no [[{}]]", key), fmt::format("add a table [[{}]]", key));
  };
  need("planners", experiment.planners.empty());
  need("models", experiment.models.empty());
  need("clusters", experiment.clusters.empty());
  SAILOR_CHECK(document.finish());
  return experiment;
}

}  // namespace

Result<Experiment> parse_experiment(const std::string& text, const std::string& name, const fs::path& folder,
                                    const GpuCatalogue& gpus, const fs::path& models) {
  auto document = TomlDocument::parse(text, name);
  if (!document) return fail(document.error());
  auto experiment = read_document(*document, folder, gpus, models);
  if (!experiment) return fail(experiment.error());
  // Each cluster is parsed as in sailor-plan, so that errors in it are found before the first point runs.
  for (const ClusterChoice& cluster : experiment->clusters)
    if (const auto read = parse_cluster(cluster.toml, fmt::format("{}: cluster '{}'", name, cluster.name), gpus); !read)
      return fail(read.error());
  experiment->text = text;
  return experiment;
}

Result<Experiment> load_experiment(const fs::path& path, const GpuCatalogue& gpus, const fs::path& models) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse_experiment(*text, path.string(), path.parent_path(), gpus, models);
}

std::string Point::label(const Experiment& experiment) const {
  std::string text = planner;
  if (experiment.models.size() > 1) text += ", " + model;
  if (experiment.clusters.size() > 1) text += ", " + cluster;
  if (experiment.constraints.size() > 1) text += ", " + constraint;
  if (experiment.repetitions > 1) text += fmt::format(", repetition {}", repetition);
  return text;
}

std::vector<Point> points_of(const Experiment& experiment) {
  std::vector<Point> points;
  for (const ClusterChoice& cluster : experiment.clusters)
    for (const ModelChoice& model : experiment.models)
      for (const ConstraintChoice& constraint : experiment.constraints)
        for (const PlannerChoice& planner : experiment.planners)
          for (int repetition = 0; repetition < experiment.repetitions; ++repetition) {
            Point point{.planner = planner.name,
                        .model = model.name,
                        .cluster = cluster.name,
                        .constraint = constraint.name,
                        .repetition = repetition,
                        .cluster_toml = cluster.toml};
            for (const auto* part : {&model.options, &constraint.options, &planner.options})
              point.options.insert(point.options.end(), part->begin(), part->end());
            if (planner.seed) add(point.options, "--planner-seed", fmt::format("{}", *planner.seed + repetition));
            add(point.options, "--profile", experiment.profile);
            point.id = id_of(point);
            if (std::none_of(experiment.exclusions.begin(), experiment.exclusions.end(),
                             [&](const Exclusion& rule) { return is_excluded(point, rule); }))
              points.push_back(std::move(point));
          }
  return points;
}

}  // namespace sailor::apps::sweep
