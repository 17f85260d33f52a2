#include "apps/train/abilities.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/devices.hpp"
#include "plan/plan.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor::apps {

namespace {

/// The precisions of one kind of device.
nlohmann::ordered_json device(const char* kind, bool on_gpus) {
  std::vector<std::string> precisions;
  for (const Precision precision : all_precisions)
    if (is_trainable(precision) && check_precision(precision, on_gpus)) precisions.emplace_back(to_string(precision));
  return {{"kind", kind}, {"precisions", precisions}};
}

template <class... Values>
std::vector<std::string> names_of(Values... values) {
  return {std::string(to_string(values))...};
}

}  // namespace

std::string train_abilities(const Environment& environment) {
  auto devices = nlohmann::ordered_json::array({device("cpu", false)});
  // Only the nodes know whether there are GPUs.
  std::error_code code;
  if (std::filesystem::is_regular_file(gpu_module(environment), code)) devices.push_back(device("cuda", true));
  return nlohmann::ordered_json(
             {{"devices", devices},
              {"schedules", names_of(Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved_1f1b)},
              {"optimizer_sharding", names_of(OptimizerSharding::none, OptimizerSharding::zero1)},
              {"recompute", names_of(Recompute::none, Recompute::selective, Recompute::full)},
              {"mpi", runtime::MpiSession::version()}})
      .dump();
}

}  // namespace sailor::apps
