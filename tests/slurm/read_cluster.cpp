// Prints the live cluster as cluster.toml, with what was left out on stderr: what the tests ask about the reader.
// Usage: read_cluster [PARTITION], with SLURM_CONF in the environment.
#include <fmt/format.h>

#include <cstdlib>

#include "core/log.hpp"
#include "slurm/cluster_reader.hpp"

int main(int argc, char** argv) {
  using namespace sailor;
  const char* const program = "read_cluster";
  auto gpus = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml");
  if (!gpus) return report(program, gpus.error());
  const char* configuration = std::getenv("SLURM_CONF");
  auto reading = slurm::read_cluster(*gpus, {.configuration = configuration == nullptr ? "" : configuration});
  if (!reading) return report(program, reading.error());
  for (const std::string& warning : reading->warnings) fmt::print(stderr, "{}: warning: {}\n", program, warning);
  for (const LeftOutNodes& nodes : reading->cluster.left_out)
    fmt::print(stderr, "{}: warning: {}\n", program, nodes.message());
  if (argc > 1)
    if (auto partition = slurm::require_partition(reading->cluster, argv[1]); !partition)
      return report(program, partition.error());
  fmt::print("{}", cluster_to_toml(reading->cluster));
  return 0;
}
