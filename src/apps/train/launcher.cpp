#include "apps/train/launcher.hpp"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "core/files.hpp"
#include "core/parse.hpp"

namespace sailor::apps {

namespace {

constexpr std::string_view parameter = "odls_base_sigkill_timeout";
constexpr Seconds open_mpi_default(1.0);
// Enough for an iteration and a small checkpoint; the right value depends on the model and the disks. It only has to
// recognise the default.
constexpr Seconds least(10.0);

std::optional<Seconds> seconds_of(std::string_view text) {
  const auto count = parse_count(trimmed(text));
  return count ? std::optional(Seconds(*count)) : std::nullopt;
}

std::optional<Seconds> said_in(const std::string& file) {
  constexpr std::size_t largest_file = 1 << 20;
  const auto text = read_text_file(file, largest_file);
  if (!text) return std::nullopt;
  std::optional<Seconds> found;
  for (std::string_view rest = *text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    line = line.substr(0, line.find('#'));
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos && trimmed(line.substr(0, equals)) == parameter)
      found = seconds_of(line.substr(equals + 1));
  }
  return found;
}

}  // namespace

std::vector<std::string> parameter_files(const Environment& environment) {
  std::vector<std::string> files;
  if (const auto home = environment.find("HOME"); home != environment.end())
    files.push_back(home->second + "/.openmpi/mca-params.conf");
  files.emplace_back("/etc/openmpi/openmpi-mca-params.conf");
  return files;
}

std::optional<Seconds> time_before_kill(const Environment& environment, const std::vector<std::string>& files) {
  if (!environment.contains("OMPI_COMM_WORLD_SIZE")) return std::nullopt;
  for (const char* prefix : {"OMPI_MCA_", "PRTE_MCA_"})  // Open MPI 4 and 5
    if (const auto value = environment.find(prefix + std::string(parameter)); value != environment.end())
      if (const auto time = seconds_of(value->second)) return time;
  for (const std::string& file : files)
    if (const auto time = said_in(file)) return time;
  return open_mpi_default;
}

std::string warning_of_kill(const std::optional<Seconds>& time) {
  if (!time || *time >= least) return {};
  return fmt::format(
      "mpirun kills its ranks {:g} s after it has told them of Ctrl-C, which may be before they have written a "
      "checkpoint: "
      "start it with --mca {} 30 (it then tells them after 30 s), or stop the training with kill -USR2 of mpirun, "
      "which "
      "kills nobody",
      time->value(), parameter);
}

}  // namespace sailor::apps
