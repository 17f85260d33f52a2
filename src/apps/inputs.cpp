#include "apps/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>

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

Option measured_only() {
  return {.name = "measured-only",
          .type = OptionType::flag,
          .help = "refuse layer times that would have to be interpolated or estimated"};
}

Option reservation() {
  return {.name = "reservation",
          .value_name = "NAME",
          .help = "run in this reservation of Slurm's: on its nodes, which are taken as whole, and on no others"};
}

}  // namespace shared

Result<std::string> required(const Options& options, std::string_view name) {
  if (options.has(name)) return options.text(name);
  return fail(ErrorCode::usage, fmt::format("option --{} is missing", name), "see --help");
}

std::vector<std::string> partitions_of(const Options& options) {
  std::vector<std::string> names;
  for (std::string& name : split(options.text("partition"), ','))
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  return names;
}

Result<slurm::Site> read_site(const Options& options, const Environment& environment, const GpuCatalogue& gpus,
                              const std::string& cluster_name) {
  const std::string folder = sites_folder(environment);
  if (options.has("site")) return slurm::named_site(options.text("site"), folder, gpus);
  return slurm::find_site(cluster_name, folder, gpus);
}

std::filesystem::path slurm_configuration(const Environment& environment) {
  const auto configured = environment.find("SLURM_CONF");
  return configured == environment.end() ? "" : configured->second;
}

Result<slurm::ClusterReading> ask_slurm_alone(const Environment& environment, const GpuCatalogue& gpus,
                                              const std::string& reservation) {
  return slurm::read_cluster(gpus, {.configuration = slurm_configuration(environment), .reservation = reservation});
}

Result<void> use_reservation(const Options& options, Cluster& cluster) {
  const preflight::Identity identity = preflight::current_identity();
  // Which accounts are above the job's own, only the accounting database knows.
  const auto reservation =
      slurm::require_reservation(cluster, options.text("reservation"), identity.user, {}, preflight::now_unix_s());
  if (!reservation) return fail(reservation.error());
  auto part = slurm::part_of(cluster, *reservation, partitions_of(options));
  if (!part) return fail(part.error());
  cluster = *std::move(part);
  return {};
}

Result<Cluster> ask_slurm(const Environment& environment, const GpuCatalogue& gpus, const std::string& reservation) {
  auto reading = ask_slurm_alone(environment, gpus, reservation);
  if (!reading) return fail(reading.error());
  for (const std::string& warning : reading->warnings) spdlog::warn("{}", warning);
  const auto site = slurm::find_site(reading->cluster.name, sites_folder(environment), gpus);
  if (!site) return fail(site.error());
  slurm::add_site(*site, reading->cluster);
  return std::move(reading->cluster);
}

Result<std::optional<Cluster>> read_cluster(const Options& options, const Environment& environment,
                                            const GpuCatalogue& gpus) {
  Result<Cluster> cluster;
  if (options.has("cluster")) {
    cluster = load_cluster(options.text("cluster"), gpus);
    if (!cluster) return fail(cluster.error());
  } else if (options.has("partition")) {
    cluster = ask_slurm(environment, gpus);
    if (!cluster) return fail(cluster.error());
    for (const std::string& partition : partitions_of(options))
      SAILOR_CHECK(slurm::require_partition(*cluster, partition));
  } else {
    return std::nullopt;
  }
  return std::optional<Cluster>(std::move(*cluster));
}

Result<Precision> read_precision(const Options& options, const Profile& profile, const std::string& model) {
  if (options.has("precision")) return parse_precision(options.text("precision"));
  const auto known = profile.precisions(model);
  if (known.empty()) return Precision::fp32;
  const bool has_tf32 = std::find(known.begin(), known.end(), Precision::tf32) != known.end();
  return has_tf32 ? Precision::tf32 : known.front();  // fp32 comes first
}

Result<Profile> read_profile(const Options& options, const Environment& environment, const std::string& usual) {
  auto store = usual.empty() ? required(options, "profile") : usual;
  if (options.has("profile")) store = options.text("profile");
  if (!store) return fail(store.error());
  auto data = load_profile(find_store(*store, environment));
  if (!data) return fail(data.error());
  return Profile(std::move(*data));
}

}  // namespace sailor::apps
