// What a task finds out about itself: NAME=VALUE lines as its environment, and below an empty line its slurm.conf.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "slurm/task_role.hpp"

namespace {

sailor::Plan small_plan() {
  sailor::Plan plan;
  plan.pipelines.resize(1);
  plan.pipelines[0].stages.resize(2);
  for (sailor::Stage& stage : plan.pipelines[0].stages) stage.gpu = "GH200-96";
  plan.pipelines[0].stages[1].tensor_parallel = 3;
  plan.pipelines[0].stages[1].zone = "a";
  return plan;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto gpus = sailor::GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml");
  static const sailor::Plan plan = small_plan();
  static const std::filesystem::path conf =
      std::filesystem::temp_directory_path() / ("sailor-fuzz-" + std::to_string(::getpid()) + ".conf");
  std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
  std::map<std::string, std::string> variables;
  std::string line;
  while (std::getline(text, line) && !line.empty())
    variables[line.substr(0, line.find('='))] = line.substr(std::min(line.find('='), line.size() - 1) + 1);
  const sailor::slurm::Lookup lookup = sailor::slurm::lookup_in(variables);
  auto step = sailor::slurm::read_step(lookup);
  if (!step || !gpus || step->nodes.size() > 1000) return 0;
  std::ofstream(conf) << text.rdbuf();
  (void)sailor::slurm::add_node_facts(*step, conf);
  std::filesystem::remove(conf);
  if (const auto task = sailor::slurm::find_role(plan, *step, &*gpus)) {
    (void)sailor::slurm::role_environment(*task, plan, "/plan.toml", lookup);
    (void)sailor::slurm::cores_of_task(*task, {0, 1, 2, 3}, lookup);
  }
  return 0;
}
