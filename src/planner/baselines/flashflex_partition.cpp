#include "planner/baselines/flashflex_partition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#ifdef SAILOR_HAVE_METIS
#include <metis.h>
#endif

namespace sailor::planner::baselines::flashflex_detail {

namespace {

/// The order in which CPython 3 iterates over a set of small non-negative integers that were added one after another:
/// the artifact takes the nodes of a part in it.
std::vector<int> python_set_order(const std::vector<int>& added) {
  constexpr std::size_t linear_probes = 9;
  std::vector<int> table(8, -1);
  const auto insert = [&](int value) {
    const std::size_t mask = table.size() - 1;
    auto perturb = static_cast<std::size_t>(value);
    for (std::size_t slot = perturb & mask;; slot = (slot * 5 + 1 + (perturb >>= 5)) & mask)
      for (std::size_t probe = 0; probe <= (slot + linear_probes <= mask ? linear_probes : 0); ++probe) {
        if (table[slot + probe] == value) return false;
        if (table[slot + probe] >= 0) continue;
        table[slot + probe] = value;
        return true;
      }
  };
  std::size_t used = 0;
  for (const int value : added) {
    if (!insert(value)) continue;
    if (++used * 5 < (table.size() - 1) * 3) continue;
    std::vector<int> before = std::move(table);
    std::size_t size = 8;
    while (size <= used * 4) size *= 2;
    table.assign(size, -1);
    for (const int entry : before)
      if (entry >= 0) insert(entry);
  }
  std::erase(table, -1);
  return table;
}

/// How the GPUs of one node may be divided into groups.
const std::vector<std::vector<int>>& divisions(int gpus) {
  static const std::vector<std::vector<std::vector<int>>> known{{},
                                                                {{1}},
                                                                {{2}, {1, 1}},
                                                                {{2, 1}, {1, 1, 1}},
                                                                {{4}, {2, 2}, {2, 1, 1}},
                                                                {{4, 1}, {2, 2, 1}},
                                                                {{4, 2}, {2, 2, 2}},
                                                                {{4, 2, 1}, {2, 2, 2, 1}},
                                                                {{8}, {4, 4}, {4, 2, 2}}};
  return known[gpus < static_cast<int>(known.size()) ? gpus : 0];
}

#ifdef SAILOR_HAVE_METIS
/// Integers for METIS. Where its integers have 32 bits, weights whose sum exceeds `limit` are scaled down.
std::vector<idx_t> integers(const std::vector<double>& weights, double limit) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double factor = sizeof(idx_t) == 4 && total > limit ? limit / total : 1.0;
  std::vector<idx_t> result;
  for (const double weight : weights) result.push_back(static_cast<idx_t>(std::llround(weight * factor)));
  return result;
}
/// Sums of edges around a part are smaller than this, and METIS multiplies sums of vertices.
constexpr double max_edge_sum = 1 << 29;
constexpr double max_vertex_sum = 1 << 20;
#endif

}  // namespace

#ifdef SAILOR_HAVE_METIS
bool has_graph_partitioning() { return true; }
bool has_published_partitions() { return sizeof(idx_t) == 8; }

Result<std::vector<int>> partition(const Graph& graph, int parts) {
  const int vertices = static_cast<int>(graph.vertices.size());
  parts = std::min(parts, vertices);
  if (parts <= 1) return std::vector<int>(vertices, 0);
  std::vector<idx_t> offsets{0};
  std::vector<idx_t> neighbours;
  std::vector<double> edges;
  for (int from = 0; from < vertices; ++from) {
    for (int to = 0; to < vertices; ++to) {
      if (to == from) continue;
      neighbours.push_back(to);
      edges.push_back(std::round(graph.edge(from, to)));
    }
    offsets.push_back(static_cast<idx_t>(neighbours.size()));
  }
  std::vector<idx_t> edge_weights = integers(edges, max_edge_sum);
  std::vector<idx_t> vertex_weights = integers(graph.vertices, max_vertex_sum);
  std::vector<idx_t> options(METIS_NOPTIONS);
  METIS_SetDefaultOptions(options.data());
  options[METIS_OPTION_CONTIG] = 1;
  idx_t count = vertices;
  idx_t constraints = 1;
  idx_t wanted = parts;
  idx_t cut = 0;
  std::vector<idx_t> result(vertices, 0);
  // METIS seeds and draws from rand(), which all threads share.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  // The method that pymetis.part_graph() chooses.
  auto* const method = parts <= 8 ? METIS_PartGraphRecursive : METIS_PartGraphKway;
  const int status = method(&count, &constraints, offsets.data(), neighbours.data(), vertex_weights.data(), nullptr,
                            edge_weights.data(), &wanted, nullptr, nullptr, options.data(), &cut, result.data());
  if (status != METIS_OK)
    return fail(ErrorCode::failure,
                fmt::format("METIS could not divide {} devices into {} parts (status {})", vertices, parts, status));
  // Parts may be empty.
  std::map<idx_t, int> numbers;
  for (const idx_t part : result) numbers.emplace(part, 0);
  int next = 0;
  for (auto& [part, number] : numbers) number = next++;
  std::vector<int> numbered;
  for (const idx_t part : result) numbered.push_back(numbers[part]);
  return numbered;
}
#else
bool has_graph_partitioning() { return false; }
bool has_published_partitions() { return false; }

Result<std::vector<int>> partition(const Graph&, int) {
  return fail(ErrorCode::unavailable, "FlashFlex divides devices with the METIS library, which this build is without",
              "install METIS (Debian: libmetis-dev) and build with -DSAILOR_METIS=ON");
}
#endif

std::vector<int> order_of_parts(int parts, const std::function<double(int, int)>& link, Faults faults) {
  const auto bandwidth_of = [&](const std::vector<int>& walk) {
    double sum = 0.0;
    for (std::size_t i = 1; i < walk.size(); ++i) sum += link(walk[i - 1], walk[i]);
    return sum;
  };
  std::vector<int> walk(parts);
  std::iota(walk.begin(), walk.end(), 0);
  std::vector<int> best = walk;
  if (faults == Faults::fixed) {
    while (std::next_permutation(walk.begin(), walk.end()))
      if (bandwidth_of(walk) > bandwidth_of(best)) best = walk;
    return best;
  }
  // For each start the lexicographically last walk; of these the one with the lowest bandwidth. The parts are then
  // sorted by the entry of the walk at their index, which is its inverse permutation.
  double least = std::numeric_limits<double>::infinity();
  for (int start = 0; start < parts; ++start) {
    std::vector<int> candidate{start};
    for (int part = parts; part-- > 0;)
      if (part != start) candidate.push_back(part);
    if (bandwidth_of(candidate) >= least) continue;
    least = bandwidth_of(candidate);
    best = candidate;
  }
  std::vector<int> order(parts);
  for (int part = 0; part < parts; ++part) order[best[part]] = part;
  return order;
}

Result<std::vector<std::vector<int>>> groups_of(const std::vector<std::vector<int>>& parts, const Shape& shape,
                                                const Devices& devices, Faults faults) {
  std::vector<std::vector<int>> stages;
  for (const std::vector<int>& part : parts) {
    std::vector<int> nodes;
    for (const int device : part) nodes.push_back(devices.list[device].node);
    std::vector<int> order = python_set_order(nodes);
    if (faults == Faults::fixed) std::sort(order.begin(), order.end());
    // Devices are in the order of their nodes: if the set has another order, groups span nodes.
    auto first = part.begin();
    for (const int node : order) {
      const int gpus = static_cast<int>(std::count(nodes.begin(), nodes.end(), node));
      if (divisions(gpus).empty())
        return fail(ErrorCode::invalid_input, fmt::format("FlashFlex cannot divide the {} GPUs of a node", gpus),
                    "it takes nodes of at most 8");
      double fastest = std::numeric_limits<double>::infinity();
      std::vector<std::vector<int>> best;
      for (const std::vector<int>& division : divisions(gpus)) {
        Pipeline alone;
        auto device = first;
        int left = shape.layers;
        for (const int size : division) {
          alone.stages.emplace_back(device, device + size);
          alone.layers.push_back(shape.layers * size / gpus);
          left -= alone.layers.back();
          device += size;
        }
        alone.layers.back() += left;
        if (const double seconds = pipeline_time(alone, shape, devices); seconds < fastest) {
          fastest = seconds;
          best = std::move(alone.stages);
        }
      }
      stages.insert(stages.end(), best.begin(), best.end());
      first += gpus;
    }
  }
  return stages;
}

std::vector<int> layers_of(const std::vector<std::vector<int>>& stages, const Shape& shape, const Devices& devices) {
  const int count = static_cast<int>(stages.size());
  std::vector<double> memory;
  for (const std::vector<int>& stage : stages) {
    double sum = 0.0;
    for (const int device : stage) sum += devices.list[device].memory_gib;
    memory.push_back(sum);
  }
  const double total = std::accumulate(memory.begin(), memory.end(), 0.0);
  std::vector<int> layers(count, 0);
  int placed = 0;
  for (bool some = true; some && placed < shape.layers;) {
    some = false;
    for (int i = 0; i < count && placed < shape.layers; ++i) {
      if ((layers[i] + 1.0) / shape.layers > memory[i] / total) continue;
      ++layers[i];
      ++placed;
      some = true;
    }
  }
  std::vector<int> by_memory(count);
  std::iota(by_memory.begin(), by_memory.end(), 0);
  std::stable_sort(by_memory.begin(), by_memory.end(), [&](int a, int b) { return memory[a] < memory[b]; });
  std::reverse(by_memory.begin(), by_memory.end());
  for (int i = 0; placed < shape.layers; ++i, ++placed) ++layers[by_memory[i % count]];
  for (int i = 0; i < count; ++i) {
    const int degree = static_cast<int>(stages[i].size());
    if (stage_memory(layers[i], degree, i == 0, i + 1 == count, shape) > memory[i] / degree) return {};
  }
  return layers;
}

}  // namespace sailor::planner::baselines::flashflex_detail
