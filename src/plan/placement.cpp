#include "plan/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>

#include "core/assert.hpp"

namespace sailor {

namespace {

constexpr std::int64_t any_number = std::int64_t{1} << 40;

Result<void> check_size(const Stage& stage, const std::vector<NodeSizes::Size>& sizes) {
  if (sizes.empty() || stage.tensor_parallel <= sizes.front().devices) return {};
  return fail(ErrorCode::invalid_input, fmt::format("tensor_parallel {} needs more {} than the {} of one node",
                                                    stage.tensor_parallel, stage.gpu, sizes.front().devices));
}

struct UnusedNodes {
  int devices = 0;
  std::int64_t count = 0;
};

/// Unused nodes in the order in which they are filled: the known ones, then any number of each size, smallest first.
/// For an unknown type, nodes as large as each of the groups.
template <class Add>
void for_unused_nodes(const std::vector<NodeSizes::Size>& known, const std::vector<int>& group_sizes, Add add) {
  if (known.empty())
    for (const int size : group_sizes) add(UnusedNodes{size, any_number});
  for (const NodeSizes::Size& size : known)
    if (size.count > 0) add(UnusedNodes{size.devices, size.count});
  for (auto size = known.rbegin(); size != known.rend(); ++size) add(UnusedNodes{size->devices, any_number});
}

/// Inserts a value, keeping `values` ascending and without duplicates.
void insert_once(std::vector<int>& values, int value) {
  const auto at = std::lower_bound(values.begin(), values.end(), value);
  if (at == values.end() || *at != value) values.insert(at, value);
}

/// The nodes of a GPU type in a zone, one by one.
class NodePool {
 public:
  NodePool(const std::vector<NodeSizes::Size>& known, const std::vector<int>& group_sizes) {
    for_unused_nodes(known, group_sizes, [&](const UnusedNodes& nodes) { unused_.push_back(nodes); });
  }

  /// The first node in use with room, else a new one, numbered `next_node`.
  int place(int size, int& next_node) {
    auto first = open_.end();
    for (auto room = open_.lower_bound(size); room != open_.end(); ++room)
      if (first == open_.end() || room->second.top() < first->second.top()) first = room;
    int node = 0;
    int room = 0;
    if (first != open_.end()) {
      node = first->second.top();
      room = first->first;
      first->second.pop();
      if (first->second.empty()) open_.erase(first);
    } else {
      node = next_node++;
      const auto unused = std::find_if(unused_.begin(), unused_.end(), [&](const UnusedNodes& nodes) {
        return nodes.count > 0 && nodes.devices >= size;
      });
      SAILOR_ASSERT(unused != unused_.end(), "a tensor-parallel group is larger than any node");
      room = unused->devices;
      --unused->count;
    }
    if (room > size) open_[room - size].push(node);
    return node;
  }

 private:
  using Nodes = std::priority_queue<int, std::vector<int>, std::greater<>>;  // lowest number on top
  std::map<int, Nodes> open_;                                                // by free devices
  std::vector<UnusedNodes> unused_;
};

}  // namespace

const NodeSizes::List* NodeSizes::find(std::string_view gpu, std::string_view zone) const {
  const auto found = std::find_if(lists_.begin(), lists_.end(),
                                  [&](const List& list) { return list.gpu == gpu && list.zone == zone; });
  return found == lists_.end() ? nullptr : &*found;
}

void NodeSizes::add(std::string_view gpu, std::string_view zone, int devices, int count) {
  if (find(gpu, zone) == nullptr) lists_.push_back({std::string(gpu), std::string(zone), {}});
  std::vector<Size>& sizes = lists_[static_cast<std::size_t>(find(gpu, zone) - lists_.data())].sizes;
  const auto at = std::find_if(sizes.begin(), sizes.end(), [&](const Size& size) { return size.devices <= devices; });
  if (at != sizes.end() && at->devices == devices)
    at->count += count;
  else
    sizes.insert(at, {.devices = devices, .count = count});
}

const std::vector<NodeSizes::Size>& NodeSizes::of(std::string_view gpu, std::string_view zone) const {
  static const std::vector<Size> none;
  const List* list = find(gpu, zone);
  if (list == nullptr) list = find(gpu, "");
  return list == nullptr ? none : list->sizes;
}

StageParts parts_of(const Plan& plan, const Stage& stage, int largest_node) {
  const int context = plan.context_parallel;
  const int all = plan.copies_together() * context;
  // As many groups of a node as fit, whole context-parallel groups or equal shares of one.
  int groups = 1;
  for (int count = 2; count <= all && count * stage.tensor_parallel <= largest_node; ++count)
    if (all % count == 0 && (count % context == 0 || context % count == 0)) groups = count;
  return {.parts = all / groups, .groups = groups, .ranks = groups * stage.tensor_parallel};
}

namespace {

/// Number of devices of the largest node; 0: not known.
int largest_of(const std::vector<NodeSizes::Size>& sizes) { return sizes.empty() ? 0 : sizes.front().devices; }

/// The node index of every part of every stage, by bundle of copies that are placed together.
Result<std::vector<int>> nodes_of_parts(const Plan& plan, const NodeSizes& sizes) {
  using Key = std::pair<std::string, std::string>;  // GPU type and zone
  std::map<Key, std::vector<int>> group_sizes;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const auto& known = sizes.of(stage.gpu, stage.zone);
      SAILOR_CHECK(check_size(stage, known));
      insert_once(group_sizes[Key(stage.gpu, stage.zone)], parts_of(plan, stage, largest_of(known)).ranks);
    }
  std::map<Key, NodePool> pools;
  for (const auto& [key, groups] : group_sizes) pools.emplace(key, NodePool(sizes.of(key.first, key.second), groups));
  std::vector<int> nodes;
  int next_node = 0;
  std::vector<std::pair<NodePool*, StageParts>> of_stage;
  for (const Pipeline& pipeline : plan.pipelines) {
    of_stage.clear();
    for (const Stage& stage : pipeline.stages)
      of_stage.emplace_back(&pools.at(Key(stage.gpu, stage.zone)),
                            parts_of(plan, stage, largest_of(sizes.of(stage.gpu, stage.zone))));
    for (int copy = 0; copy < pipeline.count; copy += plan.copies_together())
      for (const auto& [pool, parts] : of_stage)
        for (int part = 0; part < parts.parts; ++part) nodes.push_back(pool->place(parts.ranks, next_node));
  }
  return nodes;
}

}  // namespace

Result<std::vector<int>> nodes_of_ranks(const Plan& plan, const NodeSizes& sizes) {
  const auto parts = nodes_of_parts(plan, sizes);
  if (!parts) return fail(parts.error());
  std::vector<int> nodes(static_cast<std::size_t>(plan.ranks()));
  const std::vector<std::size_t> order = ranks_by_part(plan);
  std::size_t next = 0;
  std::size_t done = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (int copy = 0; copy < pipeline.count; copy += plan.copies_together())
      for (const Stage& stage : pipeline.stages) {
        const StageParts how = parts_of(plan, stage, largest_of(sizes.of(stage.gpu, stage.zone)));
        for (int part = 0; part < how.parts; ++part, ++next)
          for (int rank = 0; rank < how.ranks; ++rank) nodes[order[done++]] = (*parts)[next];
      }
  return nodes;
}

Result<std::vector<int>> nodes_of_stages(const Plan& plan, const NodeSizes& sizes) {
  // Each stage of each copy is a part of its own then. Searches ask for every plan that they price.
  if (plan.context_parallel == 1 && plan.expert_parallel == 1) return nodes_of_parts(plan, sizes);
  const auto ranks = nodes_of_ranks(plan, sizes);
  if (!ranks) return fail(ranks.error());
  std::vector<int> nodes;
  std::size_t first = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    for (int copy = 0; copy < pipeline.count; ++copy)
      for (const Stage& stage : pipeline.stages) {
        nodes.push_back((*ranks)[first]);
        first += static_cast<std::size_t>(plan.ranks_of(stage));
      }
  return nodes;
}

std::vector<std::size_t> ranks_by_part(const Plan& plan) {
  std::vector<std::size_t> order;
  std::size_t first = 0;  // rank of the bundle's first copy
  const int together = plan.copies_together();
  for (const Pipeline& pipeline : plan.pipelines) {
    const auto ranks = static_cast<std::size_t>(plan.ranks_of(pipeline));
    for (int copy = 0; copy < pipeline.count; copy += together) {
      std::size_t of_stage = first;
      for (const Stage& stage : pipeline.stages) {
        const auto size = static_cast<std::size_t>(plan.ranks_of(stage));
        for (std::size_t each = 0; each < static_cast<std::size_t>(together); ++each)
          for (std::size_t rank = 0; rank < size; ++rank) order.push_back(of_stage + each * ranks + rank);
        of_stage += size;
      }
      first += ranks * static_cast<std::size_t>(together);
    }
  }
  return order;
}

Result<void> NodeUse::place(const Plan& plan, const NodeSizes& sizes) {
  contents_.assign(1, Content{});  // content of an unused node
  full_.assign(1, 0);
  tokens_ = 0;
  SAILOR_CHECK(find_pools(plan, sizes));
  int first_stage = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    place_entry(pipeline, pipeline.count / plan.copies_together(), first_stage);
    first_stage += static_cast<int>(pipeline.stages.size());
  }
  fold();
  SAILOR_ASSERT(ranks() == plan.ranks(), "the ranks of the plan are not placed once each");
  return {};
}

Result<void> NodeUse::find_pools(const Plan& plan, const NodeSizes& sizes) {
  pools_used_ = 0;
  pool_of_.clear();
  parts_.clear();
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      std::size_t at = 0;
      while (at < pools_used_ && (pools_[at].first->gpu != stage.gpu || pools_[at].first->zone != stage.zone)) ++at;
      if (at == pools_used_) {
        if (pools_.size() == pools_used_) pools_.emplace_back();
        Pool& pool = pools_[pools_used_++];
        pool.first = &stage;
        pool.group_sizes.clear();
        pool.runs.clear();
        pool.used = 0;
      }
      const auto& known = sizes.of(stage.gpu, stage.zone);
      SAILOR_CHECK(check_size(stage, known));
      parts_.push_back(parts_of(plan, stage, largest_of(known)));
      insert_once(pools_[at].group_sizes, parts_.back().ranks);
      pool_of_.push_back(at);
    }
  for (std::size_t i = 0; i < pools_used_; ++i) {
    Pool& pool = pools_[i];
    for_unused_nodes(sizes.of(pool.first->gpu, pool.first->zone), pool.group_sizes, [&](const UnusedNodes& nodes) {
      pool.runs.push_back({.room = nodes.devices, .content = 0, .count = nodes.count, .token = -1});
    });
    pool.first = nullptr;  // plans change
  }
  with_next_.assign(pool_of_.size(), true);
  return {};
}

/// `copies`: bundles of copies that are placed together.
void NodeUse::place_entry(const Pipeline& pipeline, std::int64_t copies, int first_stage) {
  const std::size_t stages = pipeline.stages.size();
  const auto first = static_cast<std::size_t>(first_stage);
  for (std::size_t i = 0; i < pools_used_; ++i) pools_[i].least_of_entry = 0;
  std::int64_t groups = 0;  // of a copy
  for (std::size_t i = 0; i < stages; ++i) {
    int& least = pools_[pool_of_[first + i]].least_of_entry;
    const int size = parts_[first + i].ranks;
    least = least == 0 ? size : std::min(least, size);
    groups += parts_[first + i].parts;
  }
  node_of_copy_.resize(stages);
  // Copies fill nodes in a pattern that recurs: it is detected (Brent's cycle finding), then counted.
  constexpr int least_repeated = 4;
  std::int64_t noted_at = 0;
  std::int64_t longest_period = 1;
  if (copies > least_repeated) note_pattern();
  for (std::int64_t copy = 0; copy < copies;) {
    for (std::size_t i = 0; i < stages; ++i) {
      const StageParts& parts = parts_[first + i];
      for (int part = 0; part < parts.parts; ++part)
        node_of_copy_[i] = place_group(pools_[pool_of_[first + i]], first_stage + static_cast<int>(i), parts.ranks);
      if (parts.parts > 1) node_of_copy_[i] = -1 - static_cast<std::int64_t>(i);  // not one node
    }
    for (std::size_t i = 0; i < stages; ++i)
      with_next_[first + i] = with_next_[first + i] && node_of_copy_[i] == node_of_copy_[i + 1 < stages ? i + 1 : 0];
    for (std::size_t i = 0; i < pools_used_; ++i)
      if (pools_[i].least_of_entry > 0) tidy(pools_[i]);
    ++copy;
    if (copies <= least_repeated || copy == copies) continue;
    const std::int64_t period = copy - noted_at;
    if (pattern_is_back()) {
      const std::int64_t times = std::min((copies - copy) / period, repetitions(period * groups));
      if (times > 0) {
        repeat(times);
        copy += times * period;
        longest_period = period;
      }
    }
    if (copy - noted_at >= longest_period) {
      longest_period *= 2;
      noted_at = copy;
      note_pattern();
    }
  }
}

/// Returns a token of the node, which stays the same while this copy is placed.
std::int64_t NodeUse::place_group(Pool& pool, int stage, int size) {
  std::size_t at = 0;
  while (pool.runs[at].room < size) ++at;  // the last runs are as large as any group and unlimited
  SAILOR_ASSERT(pool.runs[at].count > 0, "a node is filled that is used up");
  Run node = pool.runs[at];
  node.count = 1;
  if (node.token < 0) node.token = ++tokens_;
  node.room -= size;
  node.content = content_with(node.content, stage, size);
  const bool in_use = at < pool.used;
  const std::size_t to = in_use ? at : pool.used;  // a node in use stays before those that were equal to it
  const bool was_last = --pool.runs[at].count == 0;
  if (was_last) pool.runs.erase(pool.runs.begin() + static_cast<std::ptrdiff_t>(at));
  if (!in_use || !was_last) ++pool.used;
  pool.runs.insert(pool.runs.begin() + static_cast<std::ptrdiff_t>(to), node);
  return node.token;
}

int NodeUse::content_with(int content, int stage, int size) {
  const auto at = [&](int index) -> Content& { return contents_[static_cast<std::size_t>(index)]; };
  for (int child = at(content).child; child >= 0; child = at(child).sibling)
    if (at(child).stage == stage) return child;
  const int made = static_cast<int>(contents_.size());
  contents_.push_back({.parent = content,
                       .stage = stage,
                       .ranks = at(content).ranks + size,
                       .child = -1,
                       .sibling = at(content).child});
  at(content).child = made;
  full_.push_back(0);
  return made;
}

/// After a copy: removes full nodes, and merges equal neighbours into one run.
void NodeUse::tidy(Pool& pool) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pool.used; ++i) {
    Run run = pool.runs[i];
    run.token = -1;
    if (run.room < pool.group_sizes.front())
      full_[static_cast<std::size_t>(run.content)] += run.count;
    else if (kept > 0 && pool.runs[kept - 1].alike(run))
      pool.runs[kept - 1].count += run.count;
    else
      pool.runs[kept++] = run;
  }
  pool.runs.erase(pool.runs.begin() + static_cast<std::ptrdiff_t>(kept),
                  pool.runs.begin() + static_cast<std::ptrdiff_t>(pool.used));
  pool.used = kept;
}

void NodeUse::note_pattern() {
  for (std::size_t i = 0; i < pools_used_; ++i)
    if (pools_[i].least_of_entry > 0) pools_[i].before = pools_[i].runs;
  full_before_ = full_;
}

bool NodeUse::pattern_is_back() const {
  for (std::size_t i = 0; i < pools_used_; ++i) {
    const Pool& pool = pools_[i];
    if (pool.least_of_entry > 0 &&
        !std::equal(pool.runs.begin(), pool.runs.end(), pool.before.begin(), pool.before.end(),
                    [](const Run& a, const Run& b) { return a.alike(b); }))
      return false;
  }
  return true;
}

/// How many times the change since the pattern was noted, by `groups` groups, repeats in the same way.
std::int64_t NodeUse::repetitions(std::int64_t groups) const {
  std::int64_t times = any_number;
  for (std::size_t i = 0; i < pools_used_; ++i) {
    const Pool& pool = pools_[i];
    if (pool.least_of_entry == 0) continue;
    for (std::size_t r = 0; r < pool.runs.size(); ++r) {
      const std::int64_t change = pool.runs[r].count - pool.before[r].count;
      if (change > 0 && pool.runs[r].room >= pool.least_of_entry) return 0;  // later copies might use the new nodes
      // No run of nodes may be used up within a repetition.
      if (change < 0) times = std::min(times, (pool.runs[r].count - groups - 1) / -change);
    }
  }
  return std::max<std::int64_t>(times, 0);
}

void NodeUse::repeat(std::int64_t times) {
  for (std::size_t i = 0; i < pools_used_; ++i) {
    Pool& pool = pools_[i];
    if (pool.least_of_entry == 0) continue;
    for (std::size_t r = 0; r < pool.runs.size(); ++r)
      pool.runs[r].count += times * (pool.runs[r].count - pool.before[r].count);
  }
  full_before_.resize(full_.size(), 0);
  for (std::size_t c = 0; c < full_.size(); ++c) full_[c] += times * (full_[c] - full_before_[c]);
}

void NodeUse::fold() {
  for (std::size_t i = 0; i < pools_used_; ++i)
    for (std::size_t r = 0; r < pools_[i].used; ++r)
      full_[static_cast<std::size_t>(pools_[i].runs[r].content)] += pools_[i].runs[r].count;
  nodes_.clear();
  groups_.clear();
  for (std::size_t c = 0; c < contents_.size(); ++c) {
    if (full_[c] == 0) continue;
    Node node{.count = full_[c], .ranks = contents_[c].ranks, .first_group = groups_.size(), .groups = 0};
    for (int at = static_cast<int>(c); at != 0; at = contents_[static_cast<std::size_t>(at)].parent) {
      const int stage = contents_[static_cast<std::size_t>(at)].stage;
      const auto first = groups_.begin() + static_cast<std::ptrdiff_t>(node.first_group);
      const auto known = std::find_if(first, groups_.end(), [&](const Group& group) { return group.stage == stage; });
      if (known == groups_.end())
        groups_.push_back({.stage = stage, .count = 1});
      else
        ++known->count;
    }
    node.groups = groups_.size() - node.first_group;
    nodes_.push_back(node);
  }
}

std::int64_t NodeUse::ranks() const {
  std::int64_t sum = 0;
  for (const Node& node : nodes_) sum += node.count * node.ranks;
  return sum;
}

}  // namespace sailor
