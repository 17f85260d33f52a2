#include "apps/train/abilities.hpp"

#include <nlohmann/json.hpp>

#include "plan/plan.hpp"
#include "runtime/layer.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor::apps {

namespace {

/// Those that the trainer does not refuse.
std::vector<std::string> precisions() {
  std::vector<std::string> names;
  for (const Precision precision : all_precisions) {
    Plan plan;
    plan.job.precision = precision;
    if (runtime::check_supported(plan, Model{})) names.emplace_back(to_string(precision));
  }
  return names;
}

template <class... Values>
std::vector<std::string> names_of(Values... values) {
  return {std::string(to_string(values))...};
}

}  // namespace

std::string train_abilities() {
  const nlohmann::ordered_json cpu = {{"kind", "cpu"}, {"precisions", precisions()}};
  return nlohmann::ordered_json(
             {{"devices", nlohmann::ordered_json::array({cpu})},
              {"schedules", names_of(Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved_1f1b)},
              {"optimizer_sharding", names_of(OptimizerSharding::none, OptimizerSharding::zero1)},
              {"recompute", names_of(Recompute::none, Recompute::selective, Recompute::full)},
              {"mpi", runtime::MpiSession::version()}})
      .dump();
}

}  // namespace sailor::apps
