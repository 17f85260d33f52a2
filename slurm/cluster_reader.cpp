#include "slurm/cluster_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include "core/files.hpp"
#include "core/parse.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "slurm/query.hpp"
#include "slurm/task_role.hpp"
#include "slurm/topology.hpp"

namespace sailor::slurm {

namespace {

constexpr std::string_view without_slurm = "use --cluster FILE to plan without Slurm";

/// Message from child to parent: a word, then fields, each ended by a byte that no text holds.
constexpr char field_end = '\0';

std::string encode(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) {
    text += field;
    text += field_end;
  }
  return text;
}

std::vector<std::string> decode(std::string_view text) {
  std::vector<std::string> fields;
  for (std::size_t end = text.find(field_end); end != std::string_view::npos; end = text.find(field_end)) {
    fields.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return fields;
}

std::string encode_error(const Error& error) {
  return encode({"error", std::to_string(static_cast<int>(error.code)), error.what, error.hint});
}

/// libslurm also reads the variable by itself.
void set_configuration(const SlurmEnvironment& environment) {
  if (environment.configuration.empty())
    ::unsetenv("SLURM_CONF");
  else
    ::setenv("SLURM_CONF", environment.configuration.c_str(), 1);
}

/// For releases whose libslurm does not report the switches.
void ask_scontrol_for_switches(ControllerAnswer& answer, Seconds deadline) {
  const auto outcome =
      run_command({.arguments = {"scontrol", "-o", "show", "topology"}, .input = {}, .deadline = deadline});
  if (!outcome || !outcome->succeeded()) return;  // as without topology plugin
  const auto topology = parse_topology(outcome->output);
  if (!topology) {
    answer.warnings.push_back("switches are not known: " + topology.error().what);
    return;
  }
  set_switches(answer.nodes, topology->leaf_of_node);
  if (topology->kind != TopologyKind::flat) answer.topology = to_string(topology->kind);
}

constexpr char license_end = '\x1e';
constexpr char part_end = '\x1f';

std::string encode_licenses(const std::vector<License>& licenses) {
  std::string text;
  for (const License& license : licenses)
    text += fmt::format("{}{}{}{}{}{}", license.name, part_end, license.total, part_end, license.taken, license_end);
  return text;
}

std::vector<License> decode_licenses(std::string_view text) {
  std::vector<License> licenses;
  for (const std::string& entry : split(text, license_end))
    if (const std::vector<std::string> parts = split(entry, part_end); parts.size() == 3)
      licenses.push_back(
          {.name = parts[0], .total = parse_count(parts[1]).value_or(0), .taken = parse_count(parts[2]).value_or(0)});
  return licenses;
}

std::string yes_or_no(bool value) { return value ? "yes" : "no"; }

/// The child's work: everything that touches libslurm.
std::string read_in_child(const GpuCatalogue& catalogue, const SlurmEnvironment& environment) {
  set_configuration(environment);
  auto answer = query_controller(environment.configuration, environment.reservation);
  if (!answer) return encode_error(answer.error());
  if (!answer->switches_known) ask_scontrol_for_switches(*answer, environment.deadline / 3.0);
  const std::string name = printable(answer->cluster_name);
  Result<std::vector<GpuRule>> rules;
  if (environment.gpu_rules) rules = environment.gpu_rules(name);
  if (!rules) return encode_error(rules.error());
  auto reading = assemble_cluster(name, std::move(answer->partitions), answer->nodes, catalogue, *rules);
  if (!reading) return encode_error(reading.error());
  reading->cluster.reservations = std::move(answer->reservations);
  reading->cluster.topology = answer->topology;
  std::map<std::vector<std::string>, std::vector<std::string>> hidden;  // nodes by their partitions
  for (const auto& [node, partitions] : answer->hidden_nodes) hidden[partitions].push_back(node);
  for (auto& [partitions, nodes] : hidden)
    reading->cluster.left_out.push_back(
        {.nodes = std::move(nodes),
         .partitions = partitions,
         .reason = "slurmctld does not show them (cloud nodes that are powered down)",
         .remedy = "ask the administrator for PrivateData=cloud in slurm.conf, or plan with a --cluster file that has "
                   "them"});
  const ControllerFacts& facts = answer->facts;
  std::vector<std::string> fields{"cluster",
                                  cluster_to_toml(reading->cluster),
                                  facts.version,
                                  yes_or_no(facts.accounting),
                                  yes_or_no(facts.enforces_associations),
                                  yes_or_no(facts.enforces_limits),
                                  yes_or_no(facts.enforces_qos),
                                  yes_or_no(facts.enforces_safely),
                                  yes_or_no(facts.usage_decays),
                                  yes_or_no(facts.billing_takes_largest),
                                  facts.job_submit_plugins,
                                  facts.switch_type,
                                  encode_licenses(facts.licenses)};
  fields.insert(fields.end(), answer->warnings.begin(), answer->warnings.end());
  fields.insert(fields.end(), reading->warnings.begin(), reading->warnings.end());
  return encode(fields);
}

std::string ask_start_in_child(const StartQuestion& question, const SlurmEnvironment& environment) {
  set_configuration(environment);
  const auto start = query_start(environment.configuration, question);
  if (!start) return encode_error(start.error());
  return encode({"start", std::to_string(start->start_unix_s), start->nodes});
}

/// The most useful line of libslurm's error output: the last fatal one, else the last error, else the last one.
std::string last_words(std::string_view errors) {
  std::string chosen;
  for (const std::string_view mark : {"fatal:", "error:", ""}) {
    for (const std::string& line : split(errors, '\n'))  // "sailor-plan: fatal: ..."
      if (const std::size_t found = line.find(mark); found != std::string::npos) chosen = line.substr(found);
    if (!chosen.empty()) break;
  }
  return printable(chosen);
}

std::string in_parentheses(std::string_view text) { return text.empty() ? "" : fmt::format(" ({})", text); }

tl::unexpected<Error> child_died(const ProcessOutcome& outcome, bool configured) {
  const std::string words = last_words(outcome.errors);
  if (!configured)
    return fail(ErrorCode::unavailable, fmt::format("no Slurm configuration found{}", in_parentheses(words)),
                fmt::format("set SLURM_CONF to the cluster's slurm.conf, or {}", without_slurm));
  return fail(ErrorCode::unavailable,
              fmt::format("libslurm gave up{}", in_parentheses(words.empty() ? outcome.how_it_ended() : words)),
              fmt::format("does `sinfo` work here? if not, ask the administrator, or {}", without_slurm));
}

tl::unexpected<Error> silent_controller(const SlurmEnvironment& environment, std::string_view reason) {
  ControllerAddress address;
  if (const auto file = configuration_file(environment.configuration))
    if (const auto text = read_text_file(*file)) address = parse_controller_address(*text);
  return fail(ErrorCode::unavailable, fmt::format("slurmctld{} does not answer ({})", address.describe(), reason),
              "is the controller up? use --cluster FILE to plan without it");
}

/// Runs `body`, which calls libslurm, in a child process; returns its message, whose first word must be `expected`.
Result<std::vector<std::string>> ask_in_child(const SlurmEnvironment& environment, std::string_view expected,
                                              const std::function<std::string()>& body) {
  if (auto there = check_configuration(environment.configuration); !there) {
    there.error().hint += fmt::format(", or {}", without_slurm);
    return fail(there.error());
  }
  const auto outcome = run_in_child(body, environment.deadline);
  if (!outcome) return fail(outcome.error());
  const bool configured = configuration_file(environment.configuration).has_value();
  if (outcome->timed_out && configured) return silent_controller(environment, outcome->how_it_ended());
  if (!outcome->succeeded()) return child_died(*outcome, configured);
  std::vector<std::string> fields = decode(outcome->output);
  if (fields.size() >= 4 && fields[0] == "error") {
    const auto error = static_cast<ErrorCode>(std::stoi(fields[1]));
    if (error == ErrorCode::unavailable) {
      const std::string words = last_words(outcome->errors);
      return silent_controller(environment, words.empty() ? fields[2] : fmt::format("{}; {}", fields[2], words));
    }
    return fail(error, error == ErrorCode::failure ? "slurmctld: " + fields[2] : fields[2],
                fields[3].empty() ? std::string(without_slurm) : fields[3]);
  }
  if (fields.empty() || fields[0] != expected) return child_died(*outcome, true);
  return fields;
}

}  // namespace

Result<void> check_configuration(const std::filesystem::path& configuration) {
  std::error_code code;
  if (configuration.empty() || std::filesystem::is_regular_file(configuration, code)) return {};
  return fail(ErrorCode::unavailable,
              fmt::format("SLURM_CONF names '{}', which {}", configuration.string(),
                          std::filesystem::exists(configuration, code) ? "is not a file" : "does not exist"),
              "correct or unset it");
}

Result<ClusterReading> read_cluster(const GpuCatalogue& catalogue, const SlurmEnvironment& environment) {
  if (!has_libslurm()) return fail(query_controller(environment.configuration, {}).error());
  const auto fields = ask_in_child(environment, "cluster", [&] { return read_in_child(catalogue, environment); });
  if (!fields) return fail(fields.error());
  constexpr std::size_t first_warning = 13;
  if (fields->size() < first_warning) return fail(ErrorCode::failure, "what slurmctld said was cut short");
  ClusterReading reading;
  auto cluster = parse_cluster((*fields)[1], "slurm", catalogue);
  if (!cluster) return fail(cluster.error(), "what slurmctld said");
  reading.cluster = *std::move(cluster);
  reading.facts = {.version = (*fields)[2],
                   .accounting = (*fields)[3] == "yes",
                   .enforces_associations = (*fields)[4] == "yes",
                   .enforces_limits = (*fields)[5] == "yes",
                   .enforces_qos = (*fields)[6] == "yes",
                   .enforces_safely = (*fields)[7] == "yes",
                   .usage_decays = (*fields)[8] == "yes",
                   .billing_takes_largest = (*fields)[9] == "yes",
                   .job_submit_plugins = (*fields)[10],
                   .licenses = decode_licenses((*fields)[12]),
                   .switch_type = (*fields)[11]};
  reading.warnings.assign(fields->begin() + first_warning, fields->end());
  return reading;
}

Result<ExpectedStart> expected_start(const StartQuestion& question, const SlurmEnvironment& environment) {
  if (!has_libslurm()) return fail(query_start(environment.configuration, question).error());
  const auto fields = ask_in_child(environment, "start", [&] { return ask_start_in_child(question, environment); });
  if (!fields) return fail(fields.error());
  if (fields->size() < 3) return fail(ErrorCode::failure, "what slurmctld said was cut short");
  return ExpectedStart{.start_unix_s = std::stoll((*fields)[1]), .nodes = (*fields)[2]};
}

std::string partition_problem(const Partition& partition) {
  if (partition.up && partition.takes_jobs) return {};
  if (partition.up) return fmt::format("partition '{}' is draining: it takes no new jobs", partition.name);
  if (partition.takes_jobs) return fmt::format("partition '{}' is down: it starts no jobs", partition.name);
  return fmt::format("partition '{}' is inactive: it takes no jobs and starts none", partition.name);
}

std::string reservation_needed(std::string_view partition) {
  return fmt::format("partition '{}' takes only jobs in a reservation (ReqResv)", partition);
}

Result<Partition> known_partition(const Cluster& cluster, std::string_view name) {
  if (const Partition* partition = cluster.find_partition(name)) return *partition;
  std::vector<std::string> known;
  for (const Partition& partition : cluster.partitions) known.push_back(partition.name);
  std::sort(known.begin(), known.end());
  const auto near = closest(name, known);
  return fail(ErrorCode::not_found, fmt::format("partition '{}' not found (known: {})", name, join_or_none(known)),
              near ? fmt::format("did you mean '{}'? use --partition NAME", *near) : "use --partition NAME");
}

Result<Partition> require_partition(const Cluster& cluster, std::string_view name) {
  auto partition = known_partition(cluster, name);
  if (!partition) return partition;
  if (std::string problem = partition_problem(*partition); !problem.empty())
    return fail(ErrorCode::unavailable, std::move(problem),
                "use another one with --partition NAME, or wait for the administrator to set it up");
  return partition;
}

std::string ControllerAddress::describe() const {
  std::string text;
  if (!cluster.empty()) text += " of cluster " + cluster;
  if (!host.empty()) text += fmt::format(" at {}:{}", host, port);
  return text;
}

ControllerAddress parse_controller_address(std::string_view slurm_conf) {
  constexpr std::string_view blanks_and_quotes = " \t\r\"";
  ControllerAddress address;
  for (const std::string& whole_line : split(slurm_conf, '\n')) {
    const std::string_view line = std::string_view(whole_line).substr(0, whole_line.find('#'));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = trimmed(line.substr(0, equals), blanks_and_quotes);
    const std::string_view value = trimmed(line.substr(equals + 1), blanks_and_quotes);
    if (equal_ignoring_case(key, "ClusterName")) address.cluster = printable(value);
    // "ctl1(10.0.0.1)", and further lines for backup controllers
    if ((equal_ignoring_case(key, "SlurmctldHost") || equal_ignoring_case(key, "ControlMachine")) &&
        address.host.empty())
      address.host = printable(value.substr(0, value.find('(')));
    if (equal_ignoring_case(key, "SlurmctldPort"))  // may be a range: the first one
      std::from_chars(value.data(), value.data() + value.size(), address.port);
  }
  return address;
}

}  // namespace sailor::slurm
