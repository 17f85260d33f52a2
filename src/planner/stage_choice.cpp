#include "planner/stage_choice.hpp"

namespace sailor::planner {

Result<std::vector<StageChoice>> stage_choices(const Request& request, const simulator::Framework& framework) {
  if (const auto& pinned = request.pins.recompute) {
    if (*pinned != Recompute::none && !framework.supports_recompute)
      return refuse_pin("recompute", to_string(*pinned), framework.name);
    return std::vector<StageChoice>{{.recompute = *pinned}};
  }
  if (!framework.supports_recompute || request.space == Space::paper) return std::vector<StageChoice>{{}};
  return std::vector<StageChoice>{
      {.recompute = Recompute::none}, {.recompute = Recompute::selective}, {.recompute = Recompute::full}};
}

void choose(const StageChoice& choice, LayerKey& key) { key.recompute = choice.recompute; }

void choose(const StageChoice& choice, Stage& stage) { stage.recompute = choice.recompute; }

}  // namespace sailor::planner
