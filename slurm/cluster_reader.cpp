#include "slurm/cluster_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <vector>

#include "core/files.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "slurm/query.hpp"

namespace sailor::slurm {

namespace {

constexpr std::string_view without_slurm = "use --cluster FILE to plan without Slurm";

/// From child to parent: a word, then fields, each ended by a byte that no text holds.
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

/// The child's work: everything that touches libslurm, which also reads the variable by itself.
std::string read_in_child(const GpuCatalogue& catalogue, const SlurmEnvironment& environment) {
  if (environment.configuration.empty())
    ::unsetenv("SLURM_CONF");
  else
    ::setenv("SLURM_CONF", environment.configuration.c_str(), 1);
  auto answer = query_controller(environment.configuration);
  if (!answer) return encode_error(answer.error());
  auto reading =
      assemble_cluster(printable(answer->cluster_name), std::move(answer->partitions), answer->nodes, catalogue);
  if (!reading) return encode_error(reading.error());
  std::vector<std::string> fields{"cluster", cluster_to_toml(reading->cluster)};
  fields.insert(fields.end(), reading->warnings.begin(), reading->warnings.end());
  return encode(fields);
}

/// The line of libslurm's chatter that says most: the last fatal one, else the last error, else the last one.
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

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\"");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\"") - first + 1);
}

/// The configuration file that libslurm would read here, if it is in a usual place.
std::optional<std::filesystem::path> configuration_file(const SlurmEnvironment& environment) {
  if (!environment.configuration.empty()) return environment.configuration;
  std::error_code code;
  for (const char* usual : {"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"})
    if (std::filesystem::exists(usual, code)) return usual;
  return std::nullopt;
}

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
  if (const auto file = configuration_file(environment))
    if (const auto text = read_text_file(*file)) address = parse_controller_address(*text);
  return fail(ErrorCode::unavailable, fmt::format("slurmctld{} does not answer ({})", address.describe(), reason),
              "is the controller up? use --cluster FILE to plan without it");
}

Result<ClusterReading> decode_answer(const ProcessOutcome& outcome, const GpuCatalogue& catalogue,
                                     const SlurmEnvironment& environment) {
  std::vector<std::string> fields = decode(outcome.output);
  if (fields.size() >= 4 && fields[0] == "error") {
    const auto code = static_cast<ErrorCode>(std::stoi(fields[1]));
    if (code == ErrorCode::unavailable) {
      const std::string words = last_words(outcome.errors);
      return silent_controller(environment, words.empty() ? fields[2] : fmt::format("{}; {}", fields[2], words));
    }
    return fail(code, code == ErrorCode::failure ? "slurmctld: " + fields[2] : fields[2],
                fields[3].empty() ? std::string(without_slurm) : fields[3]);
  }
  if (fields.size() < 2 || fields[0] != "cluster") return child_died(outcome, true);
  ClusterReading reading;
  auto cluster = parse_cluster(fields[1], "slurm", catalogue);
  if (!cluster) return fail(cluster.error(), "what slurmctld said");
  reading.cluster = *std::move(cluster);
  reading.warnings.assign(fields.begin() + 2, fields.end());
  return reading;
}

}  // namespace

Result<ClusterReading> read_cluster(const GpuCatalogue& catalogue, const SlurmEnvironment& environment) {
  if (!has_libslurm()) return fail(query_controller(environment.configuration).error());
  std::error_code code;
  // libslurm would retry for a minute, then exit.
  if (!environment.configuration.empty() && !std::filesystem::is_regular_file(environment.configuration, code))
    return fail(ErrorCode::unavailable,
                std::filesystem::exists(environment.configuration, code)
                    ? fmt::format("SLURM_CONF names '{}', which is not a file", environment.configuration.string())
                    : fmt::format("SLURM_CONF names '{}', which does not exist", environment.configuration.string()),
                fmt::format("correct or unset it, or {}", without_slurm));
  auto outcome = run_in_child([&] { return read_in_child(catalogue, environment); }, environment.deadline);
  if (!outcome) return fail(outcome.error());
  const bool configured = configuration_file(environment).has_value();
  if (outcome->timed_out && configured) return silent_controller(environment, outcome->how_it_ended());
  if (!outcome->succeeded()) return child_died(*outcome, configured);
  return decode_answer(*outcome, catalogue, environment);
}

Result<Partition> require_partition(const Cluster& cluster, std::string_view name) {
  if (const Partition* partition = cluster.find_partition(name)) {
    if (partition->up) return *partition;
    return fail(ErrorCode::unavailable, fmt::format("partition '{}' is down: it starts no jobs", name),
                "use another one with --partition NAME, or wait for the administrator to set it up");
  }
  std::vector<std::string> known;
  for (const Partition& partition : cluster.partitions) known.push_back(partition.name);
  std::sort(known.begin(), known.end());
  const auto near = closest(name, known);
  return fail(ErrorCode::not_found,
              fmt::format("partition '{}' not found (known: {})", name,
                          known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))),
              near ? fmt::format("did you mean '{}'? use --partition NAME", *near) : "use --partition NAME");
}

std::string ControllerAddress::describe() const {
  std::string text;
  if (!cluster.empty()) text += " of cluster " + cluster;
  if (!host.empty()) text += fmt::format(" at {}:{}", host, port);
  return text;
}

ControllerAddress parse_controller_address(std::string_view slurm_conf) {
  ControllerAddress address;
  for (const std::string& whole_line : split(slurm_conf, '\n')) {
    const std::string_view line = std::string_view(whole_line).substr(0, whole_line.find('#'));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = trimmed(line.substr(0, equals));
    const std::string_view value = trimmed(line.substr(equals + 1));
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
