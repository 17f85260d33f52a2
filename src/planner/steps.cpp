#include "planner/steps.hpp"

#include <fmt/format.h>

#include "core/text.hpp"

namespace sailor::planner {

namespace {

struct Names {
  std::string_view name;
  std::string_view text;
};

Names names_of(Step step) {
  switch (step) {
    case Step::coarse:
      return {"coarse", "plans of one template with powers of two of stages"};
    case Step::one_template:
      return {"one_template", "plans of one template"};
    case Step::many_templates:
      return {"many_templates", "mixes of templates"};
    case Step::filled_pools:
      return {"filled_pools", "stages that fill pools in turn"};
    case Step::two_pools:
      return {"two_pools", "templates over two pools"};
    case Step::spanning_pools:
      return {"spanning_pools", "templates over all pools of a set"};
    case Step::interleaved:
      return {"interleaved", "interleaved templates"};
    case Step::local_search:
      return {"local_search", "local search"};
    case Step::local_search_by_events:
      return {"local_search_by_events", "local search event by event"};
    case Step::alike:
      return {"alike", "one template by when its reductions are done"};
    case Step::all_plans:
      return {"all_plans", "going through all plans"};
    case Step::hints:
      return {"hints", "templates that the bound would use"};
    case Step::paper_space:
      return {"paper_space", "the paper's space"};
    case Step::part_of_cluster:
      return {"part_of_cluster", "a part of the cluster on its own"};
    case Step::other_limits:
      return {"other_limits", "a search without limits"};
  }
  return {"?", "?"};
}

}  // namespace

std::string_view to_string(Step step) { return names_of(step).name; }

std::string describe(const Steps& steps) {
  std::vector<std::string_view> texts;
  for (const Step step : steps) texts.push_back(names_of(step).text);
  return join(texts, ", then ");
}

}  // namespace sailor::planner
