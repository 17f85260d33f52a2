#include "planner/artifact/parts.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace sailor::planner::artifact {

namespace {

constexpr std::size_t max_orders = 6;
constexpr int max_senders = 8;  // per node: links differ by their number

std::vector<int> zones_of(const std::vector<Pool>& pools) {
  std::vector<int> zones;
  for (const Pool& pool : pools)
    if (std::find(zones.begin(), zones.end(), pool.zone) == zones.end()) zones.push_back(pool.zone);
  return zones;
}

}  // namespace

std::vector<double> signature(const Tables& tables, const std::vector<Pool>& pools) {
  std::vector<double> told;
  for (const Pool& a : pools) {
    for (const std::int64_t number : {std::int64_t{a.gpu}, std::int64_t{a.chunk}, a.devices})
      told.push_back(static_cast<double>(number));
    for (const Pool& b : pools) {
      told.push_back(a.zone == b.zone ? 1.0 : 0.0);
      told.push_back(tables.egress_price(a.zone, b.zone));
      for (int from = 1; from <= max_senders; from *= 2)
        for (int to = 1; to <= max_senders; to *= 2) {
          const Curve* curve = tables.link(a.gpu, a.zone, from, b.gpu, b.zone, to);
          for (std::size_t i = 0; i < Curve{}.size(); ++i) told.push_back(curve == nullptr ? unlimited : (*curve)[i]);
        }
    }
  }
  return told;
}

std::vector<std::vector<int>> pool_orders(const std::vector<Pool>& pools) {
  const std::vector<int> zones = zones_of(pools);
  std::vector<std::vector<int>> orders;
  std::vector<int> order(zones.size());
  std::iota(order.begin(), order.end(), 0);
  if (zones.size() <= 3) {
    do orders.push_back(order);
    while (std::next_permutation(order.begin(), order.end()));
  } else {
    for (std::size_t start = 0; start < zones.size(); ++start) {
      orders.push_back(order);
      std::rotate(order.begin(), order.begin() + 1, order.end());
    }
    std::reverse(order.begin(), order.end());
    orders.push_back(order);
  }
  std::vector<std::vector<int>> found;
  for (const auto& one : orders) {
    found.emplace_back();
    for (const int index : one)
      for (std::size_t p = 0; p < pools.size(); ++p)
        if (pools[p].zone == zones[index]) found.back().push_back(static_cast<int>(p));
  }
  if (found.size() > max_orders) found.resize(max_orders);
  return found;
}

}  // namespace sailor::planner::artifact
