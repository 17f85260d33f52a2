#include "apps/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cluster/gpu_counts.hpp"
#include "cluster/host_list.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "preflight/system.hpp"
#include "profile/store.hpp"
#include "slurm/cluster_reader.hpp"
#include "slurm/reservations.hpp"

namespace sailor::apps {

namespace shared {

Option cluster_file() {
  return {
      .name = "cluster", .value_name = "FILE", .help = "cluster description (cluster.toml), instead of asking Slurm"};
}

Option required_profile() {
  Option option = profile_store();
  option.help += "; see sailor-profile";
  return option;
}

Option catalogue_or_counts() {
  Option option = gpus_file();
  option.value_name = "FILE|NxM:TYPE";
  option.help += "; or, instead of a cluster, the GPUs that there are, as for sailor-plan: 16x4:GH200-96";
  return option;
}

Option measured_only() {
  return {.name = "measured-only", .help = "refuse layer times that would have to be interpolated or estimated"};
}

Option reservation() {
  return {.name = "reservation",
          .value_name = "NAME",
          .help = "run in this reservation of Slurm's: on its nodes, which are taken as whole, and on no others"};
}

Option licenses() {
  return {.name = "licenses",
          .letter = 'L',
          .value_name = "LIST",
          .help = "licenses of the cluster that the job takes, as Slurm writes them: matlab:2,disk"};
}

Option gpu_type() {
  return {
      .name = "gpu-type",
      .value_name = "[NODES=]NAME",
      .help =
          "GPU type (a name of the GPU catalogue) where Slurm gives none or an ambiguous one: of all such nodes, or "
          "of the named ones (n[1-4]=A100-80)"};
}

}  // namespace shared

std::string catalogue_file(const ClusterOptions& options, const Environment& environment) {
  return are_gpu_counts(*options.gpus) ? profiles_folder(environment) + "/gpus.toml"
                                       : gpus_file(options.gpus, environment);
}

Result<std::string> required(const AnyOptionValue& option) {
  if (option.has()) return option.text();
  return fail(ErrorCode::usage, fmt::format("option --{} is missing", option.name()),
              option.name() == "profile"
                  ? "name a store that sailor-profile measured, or the figures that come with Sailor: "
                    "--profile published, --profile measured"
                  : "see --help");
}

std::vector<std::string> partitions_of(const OptionValue<std::string>& partition) {
  std::vector<std::string> names;
  for (std::string& name : split(*partition, ','))
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  return names;
}

Result<slurm::Site> read_site(const OptionValue<std::string>& site, const OptionValue<std::string>& own_catalogue,
                              const Environment& environment, const GpuCatalogue& gpus,
                              const std::string& cluster_name) {
  auto chosen = slurm::choose_site(*site, cluster_name, sites_folder(environment), gpus);
  if (chosen && !own_catalogue.has())
    for (const std::string& gpu : chosen->unknown_gpus)
      log_warning("{} speaks of '{}', which is not in the GPU catalogue", chosen->origin, gpu);
  if (chosen && !chosen->unreadable.empty())
    log_warning("site file {} is used; another one cannot be read: {}", chosen->origin, chosen->unreadable);
  return chosen;
}

std::filesystem::path slurm_configuration(const Environment& environment) {
  const auto configured = environment.find("SLURM_CONF");
  return configured == environment.end() ? "" : configured->second;
}

Result<slurm::ClusterReading> ask_slurm_alone(const Environment& environment, const GpuCatalogue& gpus,
                                              const LiveQuestion& question) {
  const auto rules = [&](const std::string& cluster_name) -> Result<std::vector<slurm::GpuRule>> {
    auto site = slurm::choose_site(question.site, cluster_name, sites_folder(environment), gpus);
    if (!site) return fail(site.error());
    std::vector<slurm::GpuRule> all = std::move(site->gpu_types);
    all.insert(all.end(), question.rules.begin(), question.rules.end());
    return all;
  };
  return slurm::read_cluster(
      gpus,
      {.configuration = slurm_configuration(environment), .reservation = question.reservation, .gpu_rules = rules});
}

void warn_of_left_out(const Cluster& cluster, const std::vector<std::string>& partitions) {
  for (const LeftOutNodes& nodes : cluster.left_out_of(partitions)) log_warning("{}", nodes.message());
}

Result<std::vector<slurm::GpuRule>> gpu_type_rules(const std::vector<std::string>& gpu_type, const GpuCatalogue& gpus) {
  std::vector<slurm::GpuRule> rules;
  std::string words;  // lists of nodes contain commas, at which the values were split
  for (const std::string& part : gpu_type) {
    words += (words.empty() ? "" : ",") + part;
    const std::size_t equals = words.rfind('=');
    const std::string name = equals == std::string::npos ? words : words.substr(equals + 1);
    const auto type = gpus.find(name);
    if (equals == std::string::npos && !type) continue;  // nodes; their GPU follows
    if (!type) return fail(ErrorCode::usage, "--gpu-type: " + type.error().what, type.error().hint);
    if (type->kind != DeviceKind::gpu)
      return fail(ErrorCode::usage, fmt::format("--gpu-type: {} is not a GPU", name), "name a GPU of the catalogue");
    slurm::GpuRule rule{.gpu = type->name, .where_nothing_else_says_it = true};
    if (equals != std::string::npos) {
      auto nodes = expand_host_list(words.substr(0, equals));
      if (!nodes) return fail(ErrorCode::usage, "--gpu-type: " + nodes.error().what, nodes.error().hint);
      rule.nodes = *std::move(nodes);
    }
    rules.push_back(std::move(rule));
    words.clear();
  }
  if (words.empty()) return rules;
  const auto type = gpus.find(words);
  return fail(ErrorCode::usage,
              "--gpu-type: " + (type ? fmt::format("'{}' is no list of nodes and GPU", words) : type.error().what),
              type ? "write NODES=NAME" : type.error().hint);
}

std::vector<slurm::GpuRule> rules_of_plan(const Plan& plan, const GpuCatalogue& gpus) {
  std::set<std::string> names;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      if (const auto type = gpus.find(stage.gpu); type && type->kind == DeviceKind::gpu) names.insert(type->name);
  if (names.size() != 1) return {};
  return {{.gpu = *names.begin(), .where_nothing_else_says_it = true}};
}

Result<void> use_reservation(const std::string& reservation, const std::vector<std::string>& partitions,
                             Cluster& cluster) {
  const preflight::Identity identity = preflight::current_identity();
  // Only the accounting database knows the parents of the job's account.
  const auto found = slurm::require_reservation(cluster, reservation, identity.user, {}, preflight::now_unix_s());
  if (!found) return fail(found.error());
  auto part = slurm::part_of(cluster, *found, partitions);
  if (!part) return fail(part.error());
  cluster = *std::move(part);
  return {};
}

Result<Cluster> ask_slurm(const Environment& environment, const GpuCatalogue& gpus, const LiveQuestion& question,
                          slurm::ControllerFacts* facts) {
  auto reading = ask_slurm_alone(environment, gpus, question);
  if (!reading) return fail(reading.error());
  for (const std::string& warning : reading->warnings) log_warning("{}", warning);
  const auto site = slurm::choose_site(question.site, reading->cluster.name, sites_folder(environment), gpus);
  if (!site) return fail(site.error());
  slurm::add_site(*site, reading->cluster);
  if (!question.any_features)
    slurm::keep_nodes_that_satisfy(site->launch.constraint, "site " + site->name, reading->cluster);
  if (facts != nullptr) *facts = std::move(reading->facts);
  return std::move(reading->cluster);
}

Result<std::optional<Cluster>> described_cluster(const ClusterOptions& options, const GpuCatalogue& gpus) {
  const bool counted = are_gpu_counts(*options.gpus);
  if (counted && (options.cluster.has() || options.partition.has()))
    return fail(ErrorCode::usage, "--gpus says which GPUs there are, and so does --cluster or --partition",
                "leave out one of them");
  if (!counted && !options.cluster.has()) return std::nullopt;
  auto cluster = counted ? cluster_of_gpu_counts(*options.gpus, gpus) : load_cluster(*options.cluster, gpus);
  if (!cluster) return fail(cluster.error());
  return std::optional<Cluster>(*std::move(cluster));
}

Result<std::optional<Cluster>> read_cluster(const ClusterOptions& options, const Environment& environment,
                                            const GpuCatalogue& gpus, const LiveQuestion& question) {
  auto described = described_cluster(options, gpus);
  if (!described || *described || !options.partition.has()) return described;
  auto cluster = ask_slurm(environment, gpus, question);
  if (!cluster) return fail(cluster.error());
  warn_of_left_out(*cluster, partitions_of(options.partition));
  for (const std::string& partition : partitions_of(options.partition))
    SAILOR_CHECK(slurm::require_partition(*cluster, partition));
  return std::optional<Cluster>(*std::move(cluster));
}

Result<std::optional<Precision>> read_precision(const OptionValue<std::string>& precision) {
  if (!precision.has()) return std::nullopt;
  const auto known = parse_precision(*precision);
  if (!known) return fail(known.error());
  return std::optional(*known);
}

Result<Profile> read_profile(const OptionValue<std::string>& profile, const Environment& environment,
                             const std::string& usual) {
  auto store = usual.empty() ? required(profile) : usual;
  if (profile.has()) store = *profile;
  if (!store) return fail(store.error());
  auto data = load_profile(find_store(*store, environment));
  if (!data) return fail(data.error());
  return Profile(std::move(*data));
}

}  // namespace sailor::apps
