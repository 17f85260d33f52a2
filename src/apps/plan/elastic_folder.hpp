// The folder of an elastic training, as programs beside the controller see it: what runs, and how to ask for another
// plan.
#pragma once

#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "plan/plan.hpp"

namespace sailor::apps {

/// Whether a controller has begun there (FOLDER/controller.json). Errors: not_found.
Result<void> check_elastic_folder(const std::filesystem::path& folder);

/// What the controller's journal says.
struct ElasticState {
  std::optional<Plan> plan;          ///< of the epoch that began last; none: no epoch has begun
  std::vector<std::string> nodes{};  ///< that take part in it
  bool ended = false;                ///< the training is over
};
/// Errors: io; invalid_input (a journal that cannot be read).
Result<ElasticState> read_elastic_state(const std::filesystem::path& folder);

/// Nodes that the training is asked to leave, which the controller reads from FOLDER/exclude: `add` come to those that
/// are there, `take_back` go. Errors: io.
Result<void> exclude_nodes(const std::filesystem::path& folder, const std::vector<std::string>& add,
                           const std::vector<std::string>& take_back);

/// Asks the controller for a plan: writes FOLDER/requests/watch-TIME.toml, which it picks up. The file's path.
Result<std::filesystem::path> request_plan(const std::filesystem::path& folder, const Plan& plan, std::time_t time);

}  // namespace sailor::apps
