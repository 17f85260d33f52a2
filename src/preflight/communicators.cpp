#include "preflight/communicators.hpp"

#include <algorithm>
#include <vector>

#include "runtime/gradient_groups.hpp"

namespace sailor::preflight {

Communicators count_communicators(const Plan& plan, const Model& model) {
  const runtime::ParameterMap map(plan, model);
  std::vector<int> of_rank(map.roles().size(), 1);  // the world
  Communicators found{.most_per_rank = 0, .of_job = 1};
  for (const runtime::GradientGroup& group : map.groups()) {
    if (group.ranks.size() < 2) continue;
    ++found.of_job;
    for (const int rank : group.ranks) ++of_rank[static_cast<std::size_t>(rank)];
  }
  for (const RankRole& role : map.roles()) {
    if (map.degree(role.rank) < 2) continue;
    ++of_rank[static_cast<std::size_t>(role.rank)];
    if (role.tensor_parallel_index == 0) ++found.of_job;
  }
  if (plan.context_parallel > 1) {
    for (int& count : of_rank) ++count;
    found.of_job += plan.ranks() / plan.context_parallel;
  }
  if (plan.expert_parallel > 1) {
    for (int& count : of_rank) ++count;
    found.of_job += plan.ranks() / plan.expert_parallel;
  }
  if (!of_rank.empty()) found.most_per_rank = *std::max_element(of_rank.begin(), of_rank.end());
  return found;
}

}  // namespace sailor::preflight
