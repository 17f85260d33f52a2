#include "planner/baselines/metis_groups.hpp"

#include <algorithm>
#include <numeric>

namespace sailor::planner::baselines::metis_detail {

namespace {

/// Max number of groups; in longer lists, groups are merged before their orders are enumerated (table 4 of the Metis
/// paper: 10).
constexpr int max_length = 10;
/// The smallest group, in units of devices / stages.
constexpr double min_share = 0.5;

using Block = std::vector<int>;

int size_of(const Block& block) { return std::accumulate(block.begin(), block.end(), 0); }

/// Merges pairs of the smallest blocks until the list is short enough or nothing changes. `groups` are ascending.
std::vector<Block> merged(const std::vector<int>& groups) {
  std::vector<Block> blocks;
  for (const int group : groups) blocks.push_back({group});
  int excess = static_cast<int>(blocks.size()) - max_length;
  while (excess > 0) {
    const int smallest = size_of(blocks.front());
    const auto other = std::find_if(blocks.begin(), blocks.end(), [&](const Block& b) { return b != blocks.front(); });
    const int alike = std::min(static_cast<int>(other - blocks.begin()) + 1, static_cast<int>(blocks.size()));
    const int pairs = std::max(excess, alike / 2);
    std::vector<Block> next;
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      if (static_cast<int>(i / 2) >= pairs) {
        next.insert(next.end(), blocks.begin() + static_cast<std::ptrdiff_t>(i), blocks.end());
        break;
      }
      next.push_back(blocks[i]);
      if (i + 1 == blocks.size()) break;
      if (size_of(blocks[i]) == smallest && size_of(blocks[i + 1]) == smallest)
        next.back().insert(next.back().end(), blocks[i + 1].begin(), blocks[i + 1].end());
      else
        next.push_back(blocks[i + 1]);
    }
    blocks = std::move(next);
    const int left = static_cast<int>(blocks.size()) - max_length;
    if (left == pairs) break;
    excess = left;
  }
  return blocks;
}

}  // namespace

bool visit_orders(std::vector<Block> blocks,
                  const std::function<bool(const std::vector<const std::vector<int>*>&)>& visit) {
  const int count = static_cast<int>(blocks.size());
  if (count == 0) return true;
  std::sort(blocks.rbegin(), blocks.rend());
  constexpr int none = -1;
  // A linked list, to avoid moving values; `head`, and two of its nodes: the end of the longest non-increasing prefix,
  // and the node after it.
  std::vector<int> next(count);
  std::iota(next.begin(), next.end(), 1);
  next.back() = none;
  int head = 0;
  int end = std::max(0, count - 2);
  int behind = count - 1;
  std::vector<const Block*> order(count);
  const auto show = [&] {
    int node = head;
    for (const Block*& block : order) {
      block = &blocks[node];
      node = next[node];
    }
    return visit(order);
  };
  if (!show()) return false;
  while (next[behind] != none || blocks[behind] < blocks[head]) {
    const bool is_further = next[behind] != none && !(blocks[end] < blocks[next[behind]]);
    const int before = is_further ? behind : end;
    const int moved = next[before];
    next[before] = next[moved];
    next[moved] = head;
    if (blocks[moved] < blocks[head]) end = moved;
    behind = next[end];
    head = moved;
    if (!show()) return false;
  }
  return true;
}

bool visit_device_groups(int devices, int stages, const std::function<bool(const std::vector<int>&)>& visit) {
  const double smallest = min_share * std::max(devices / stages, stages / devices);
  std::vector<int> sizes;
  for (int size = 1; size <= devices; size *= 2)
    if (size >= smallest) sizes.push_back(size);
  if (sizes.empty()) return true;
  std::vector<int> groups;
  std::vector<int> flat;
  const auto expand = [&] {
    return visit_orders(merged(groups), [&](const std::vector<const Block*>& order) {
      flat.clear();
      for (const Block* block : order) flat.insert(flat.end(), block->begin(), block->end());
      return visit(flat);
    });
  };
  const std::function<bool(std::size_t, int)> choose = [&](std::size_t first, int left) {
    const int open = stages - static_cast<int>(groups.size());
    if (open == 0) return left > 0 || expand();
    for (std::size_t i = first; i < sizes.size() && sizes[i] * open <= left; ++i) {
      if (sizes.back() * (open - 1) < left - sizes[i]) continue;
      groups.push_back(sizes[i]);
      const bool goes_on = choose(i, left - sizes[i]);
      groups.pop_back();
      if (!goes_on) return false;
    }
    return true;
  };
  return choose(0, devices);
}

}  // namespace sailor::planner::baselines::metis_detail
