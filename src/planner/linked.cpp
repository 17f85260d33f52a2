#include "planner/linked.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "core/text.hpp"
#include "profile/advice.hpp"

namespace sailor::planner {

namespace {

constexpr double some_bytes = 1e6;
constexpr std::size_t most_named = 3;

bool linked(StagePrices& prices, std::size_t a, std::size_t b) {
  const int micro_batch = prices.space().micro_batches.front();
  return prices.boundary(a, 1, b, 1, micro_batch, false).forward < infinity ||
         prices.reduction(a, b, 1, 1, 2, false, some_bytes) < infinity;
}

std::string place_text(const DevicePool& pool) {
  return pool.zone.empty() ? pool.gpu : fmt::format("{} in {}", pool.gpu, pool.zone);
}

}  // namespace

std::string not_linked(StagePrices& prices) {
  const std::vector<DevicePool>& pools = prices.space().pools;
  // `together`: devices of each pool alone that a plan can use. `component`: pools that are joined have the same.
  std::vector<int> together;
  std::vector<std::size_t> component(pools.size());
  std::iota(component.begin(), component.end(), std::size_t{0});
  std::vector<std::string> missing;
  for (std::size_t a = 0; a < pools.size(); ++a) {
    const bool several = pools[a].nodes.size() > 1 || pools[a].nodes.front().nodes > 1;
    const bool inside = !several || linked(prices, a, a);
    together.push_back(inside ? pools[a].devices() : pools[a].largest_node());
    if (!inside) missing.push_back(fmt::format("between two nodes of {}", place_text(pools[a])));
    for (std::size_t b = 0; b < a; ++b) {
      if (linked(prices, a, b) || linked(prices, b, a))
        std::replace(component.begin(), component.end(), component[a], component[b]);
      else
        missing.push_back(fmt::format("between {} and {}", place_text(pools[b]), place_text(pools[a])));
    }
  }
  int all = 0;
  int most = 0;
  for (std::size_t c = 0; c < pools.size(); ++c) {
    all += pools[c].devices();
    int here = 0;
    for (std::size_t p = 0; p < pools.size(); ++p)
      if (component[p] == c) here += together[p];
    most = std::max(most, here);
  }
  if (most == all) return "";
  const std::size_t more = missing.size() > most_named ? missing.size() - most_named : 0;
  missing.resize(missing.size() - more);
  std::set<DeviceKind> kinds;
  for (const DevicePool& pool : pools)
    if (const auto type = prices.env().gpus.find(pool.gpu)) kinds.insert(type->kind);
  const std::optional<DeviceKind> kind = kinds.size() == 1 ? std::optional(*kinds.begin()) : std::nullopt;
  return fmt::format(
      "{} of {} {} cannot be used together with the others: no link {}{} was measured or stated; state "
      "between_nodes_bytes_per_s in [network] of the cluster file, or {}",
      (all - most) * prices.space().context_parallel, all * prices.space().context_parallel,
      kind == DeviceKind::gpu ? "GPUs" : "devices", join(missing, ", "),
      more > 0 ? fmt::format(" and {} more", more) : "", links_advice(kind));
}

}  // namespace sailor::planner
