// Plans through the installed libraries: consumer SHARE, the folder share/sailor/profiles of the prefix.
#include <fmt/format.h>

#include <optional>
#include <string>

#include "cluster/cluster.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "planner/planner.hpp"
#include "profile/profile.hpp"
#include "profile/store.hpp"
#include "simulator/framework.hpp"

namespace {

constexpr const char* eight_gpus = R"(schema_version = 1
name = "eight GPUs"
[[nodes]]
count = 2
gpu = "A100-40"
gpus_per_node = 4
memory_per_node_bytes = 1e12
)";

sailor::Result<double> best_time(const std::string& share) {
  const auto gpus = sailor::GpuCatalogue::load(share + "/gpus.toml");
  SAILOR_CHECK(gpus);
  const auto model = sailor::find_model("opt-350m-sailor", share + "/models");
  SAILOR_CHECK(model);
  const auto framework = sailor::simulator::find_framework("sailor", share + "/frameworks");
  SAILOR_CHECK(framework);
  auto data = sailor::load_profile(share + "/published.h5");
  SAILOR_CHECK(data);
  const sailor::Profile profile(*std::move(data));
  const auto cluster = sailor::parse_cluster(eight_gpus, "eight GPUs", *gpus);
  SAILOR_CHECK(cluster);
  sailor::planner::Request request;
  request.job = {.model = model->name, .global_batch = 64, .sequence_length = 2048};
  request.job.precision = sailor::Precision::tf32;
  const auto found = sailor::planner::find_plans(
      request, {.model = *model, .profile = profile, .gpus = *gpus, .framework = *framework, .cluster = &*cluster});
  SAILOR_CHECK(found);
  return found->plans.front().prediction.iteration_time.value();
}

}  // namespace

int main(int argc, char** argv) {
  const auto time = best_time(argc > 1 ? argv[1] : ".");
  if (!time) {
    fmt::print(stderr, "consumer: {}\n", time.error().message());
    return 1;
  }
  fmt::print("{}\n", *time);
}
