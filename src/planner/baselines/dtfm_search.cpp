#include "planner/baselines/dtfm_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>

#include "planner/baselines/assignment.hpp"

namespace sailor::planner::baselines::dtfm_detail {

namespace {

constexpr int population = 10;
constexpr int trials = 40;
constexpr int inherited_devices = 5;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Costs of the edges between two stages, by row and column.
class Edges {
 public:
  using Pairs = std::optional<std::vector<int>>;  ///< column by row; std::nullopt if not all rows can have one

  Edges(const Devices& devices, const std::vector<int>& from, const std::vector<int>& to, double bytes)
      : size_(static_cast<int>(from.size())) {
    costs_.reserve(from.size() * to.size());
    for (const int i : from)
      for (const int j : to) costs_.push_back(devices.seconds_per_byte(i, j) * bytes);
  }

  /// The min cost such that edges of at most that cost pair all devices.
  [[nodiscard]] double bottleneck() const {
    const std::set<double> distinct(costs_.begin(), costs_.end());
    const std::vector<double> values(distinct.begin(), distinct.end());
    std::size_t low = 0;
    std::size_t high = values.size() - 1;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (is_enough(values[middle]))
        high = middle;
      else
        low = middle + 1;
    }
    return values[high];
  }
  /// Whether edges of at most that cost pair all devices. Their costs are set to 0, which makes the search much faster.
  [[nodiscard]] bool is_enough(double limit) const {
    std::vector<double> costs = costs_;
    for (double& cost : costs) cost = cost > limit ? infinity : 0.0;
    return Assignment(size_, std::move(costs)).solve();
  }
  /// The pairs with the min sum if edges of more than `limit` cost `instead`.
  [[nodiscard]] Pairs pairs(double limit, double instead) const {
    std::vector<double> costs = costs_;
    for (double& cost : costs)
      if (cost > limit) cost = instead;
    Assignment assignment(size_, std::move(costs));
    if (!assignment.solve()) return std::nullopt;
    return assignment.columns();
  }
  /// The artifact removes edges, the most expensive first, until the rest does not pair all devices, and returns the
  /// pairs with the min sum at that point, which use as few of the removed edges as possible.
  ///
  /// In two points a literal reading of its code does not agree with its results. Edges of equal cost are removed at
  /// once here: its search times allow for dozens of matchings, not for one per edge. A removed edge costs 1e6, which
  /// in its units (seconds / 64e9) is less than other edges cost; but its plans have no pairs across regions where none
  /// is necessary, so that here the edge costs more than all others.
  [[nodiscard]] std::vector<int> pairs_of_the_artifact() const {
    const double sum = std::accumulate(costs_.begin(), costs_.end(), 0.0);
    return *pairs(std::nextafter(bottleneck(), 0.0), sum);
  }

 private:
  int size_;
  std::vector<double> costs_;
};

/// The stage of every device.
std::vector<int> stage_of_devices(const Stages& stages, int devices) {
  std::vector<int> owner(static_cast<std::size_t>(devices), 0);
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (const int device : stages[stage]) owner[static_cast<std::size_t>(device)] = static_cast<int>(stage);
  return owner;
}

/// The devices of every stage in ascending order.
Stages stages_of(const std::vector<int>& owner, std::size_t stages) {
  Stages result(stages);
  for (std::size_t device = 0; device < owner.size(); ++device)
    result[static_cast<std::size_t>(owner[device])].push_back(static_cast<int>(device));
  return result;
}

/// Gradient time of the member that waits longest: it exchanges a share of the gradients with every other, and back.
double gradient_seconds(const Devices& devices, const Stages& stages, double bytes) {
  double slowest = 0.0;
  for (const std::vector<int>& stage : stages)
    for (const int member : stage) {
      double seconds = 0.0;
      for (const int other : stage)
        if (other != member)
          seconds += 2.0 * devices.seconds_per_byte(member, other) * bytes / static_cast<double>(stage.size());
      slowest = std::max(slowest, seconds);
    }
  return slowest;
}

struct Scored {
  Stages stages;
  double cost = 0.0;
};

class Scorer {
 public:
  Scorer(const Devices& devices, const Messages& messages, Faults faults)
      : devices_(devices), messages_(messages), faults_(faults) {}

  [[nodiscard]] Scored score(Stages stages) const {
    const double pipeline = path(stages).second;
    const double cost = gradient_seconds(devices_, stages, messages_.gradients) + 2.0 * pipeline;
    return {std::move(stages), cost};
  }

  /// Stages along the shortest path, replicas side by side.
  [[nodiscard]] Arrangement align(const Scored& best) const {
    Arrangement arrangement;
    arrangement.cost = best.cost;
    std::size_t before = 0;
    for (const int next : path(best.stages).first) {
      const auto stage = static_cast<std::size_t>(next);
      if (arrangement.stages.empty()) {
        arrangement.stages.push_back(best.stages[stage]);
      } else {
        const std::vector<int>& low = best.stages[std::min(before, stage)];
        const std::vector<int>& high = best.stages[std::max(before, stage)];
        const std::vector<int> columns = pair_stages(devices_, low, high, faults_);
        std::vector<int> partner(static_cast<std::size_t>(devices_.count()), -1);
        for (std::size_t row = 0; row < low.size(); ++row) {
          const int other = high[static_cast<std::size_t>(columns[row])];
          partner[static_cast<std::size_t>(low[row])] = other;
          partner[static_cast<std::size_t>(other)] = low[row];
        }
        std::vector<int> members;
        for (const int device : arrangement.stages.back()) members.push_back(partner[static_cast<std::size_t>(device)]);
        arrangement.stages.push_back(std::move(members));
      }
      before = stage;
    }
    return arrangement;
  }

 private:
  [[nodiscard]] std::pair<std::vector<int>, double> path(const Stages& stages) const {
    const std::size_t count = stages.size();
    std::vector<double> costs(count * count, 0.0);
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t j = i + 1; j < count; ++j)
        costs[i * count + j] = costs[j * count + i] = bottleneck(devices_, stages[i], stages[j], messages_.activation);
    return shortest_path(static_cast<int>(count), costs);
  }

  const Devices& devices_;
  const Messages& messages_;
  Faults faults_;
};

/// A few devices take the stage that they have in the other parent; the sizes are then made equal again.
Stages cross(const Stages& giver, const Stages& receiver, int devices, Random& random) {
  const std::vector<int> from = stage_of_devices(giver, devices);
  std::vector<int> owner = stage_of_devices(receiver, devices);
  std::vector<int> order(static_cast<std::size_t>(devices));
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(order);
  for (int i = 0; i < std::min(inherited_devices, devices); ++i) {
    const auto device = static_cast<std::size_t>(order[static_cast<std::size_t>(i)]);
    owner[device] = from[device];
  }
  const std::size_t members = receiver.front().size();
  std::vector<std::size_t> sizes(receiver.size(), 0);
  for (const int stage : owner) ++sizes[static_cast<std::size_t>(stage)];
  for (int& stage : owner) {
    if (sizes[static_cast<std::size_t>(stage)] <= members) continue;
    const auto room = static_cast<std::size_t>(
        std::find_if(sizes.begin(), sizes.end(), [&](std::size_t size) { return size < members; }) - sizes.begin());
    --sizes[static_cast<std::size_t>(stage)];
    ++sizes[room];
    stage = static_cast<int>(room);
  }
  return stages_of(owner, receiver.size());
}

}  // namespace

int Random::below(int limit) {
  // Numbers past the last whole multiple of the limit are drawn again.
  const auto range = static_cast<std::uint64_t>(limit);
  const std::uint64_t last = std::numeric_limits<std::uint64_t>::max() / range * range;
  std::uint64_t value = generator_();
  while (value >= last) value = generator_();
  return static_cast<int>(value % range);
}

void Random::shuffle(std::vector<int>& values) {
  for (std::size_t left = values.size(); left > 1; --left)
    std::swap(values[left - 1], values[static_cast<std::size_t>(below(static_cast<int>(left)))]);
}

Result<Devices> Devices::build(const Problem& problem) {
  Devices devices;
  for (std::size_t index = 0; index < problem.offers.size(); ++index) {
    const Offer& offer = problem.offers[index];
    if (offer.gpus < 0 || offer.gpus_per_node < 1)
      return fail(ErrorCode::invalid_input,
                  fmt::format("the offer of {} {} in zone '{}' with {} per node is not possible", offer.gpus, offer.gpu,
                              offer.zone, offer.gpus_per_node));
    for (int i = 0; i < offer.gpus; ++i) {
      devices.node_of_.push_back(devices.count() / offer.gpus_per_node);
      devices.offer_of_.push_back(static_cast<int>(index));
    }
    const LinkCoefficients* inside = problem.inputs.intra(offer.gpu, 2);
    const LinkCoefficients* network = problem.inputs.inter(offer.gpu, offer.zone, 1, offer.gpu, offer.zone, 1);
    if (inside == nullptr) inside = network;
    devices.inside_.push_back(inside == nullptr ? 0.0 : 1.0 / inside->max_bandwidth);
  }
  for (const Offer& from : problem.offers)
    for (const Offer& to : problem.offers) {
      const LinkCoefficients* link = problem.inputs.inter(from.gpu, from.zone, 1, to.gpu, to.zone, 1);
      if (link == nullptr || link->max_bandwidth <= 0.0)
        return fail(ErrorCode::not_found,
                    fmt::format("the profile has no link from {} in zone '{}' to {} in zone '{}' with one sender",
                                from.gpu, from.zone, to.gpu, to.zone),
                    "DTFM arranges devices by their links; import or measure them, or leave the offer out");
      devices.between_.push_back(1.0 / link->max_bandwidth);
    }
  if (devices.count() == 0) return fail(ErrorCode::invalid_input, "no devices are offered", "offer at least two");
  return devices;
}

double bottleneck(const Devices& devices, const std::vector<int>& from, const std::vector<int>& to, double bytes) {
  return Edges(devices, from, to, bytes).bottleneck();
}

std::vector<int> pair_stages(const Devices& devices, const std::vector<int>& from, const std::vector<int>& to,
                             Faults faults) {
  const Edges edges(devices, from, to, 1.0);
  return faults == Faults::kept ? edges.pairs_of_the_artifact() : *edges.pairs(edges.bottleneck(), infinity);
}

std::pair<std::vector<int>, double> shortest_path(int count, const std::vector<double>& costs) {
  // best[set][last]: the shortest path through the set that ends at last.
  const auto stages = static_cast<std::size_t>(count);
  const std::size_t sets = std::size_t{1} << stages;
  std::vector<double> best(sets * stages, infinity);
  std::vector<signed char> before(sets * stages, -1);
  for (std::size_t stage = 0; stage < stages; ++stage) best[(std::size_t{1} << stage) * stages + stage] = 0.0;
  for (std::size_t set = 1; set < sets; ++set)
    for (std::size_t last = 0; last < stages; ++last) {
      const double length = best[set * stages + last];
      if (length == infinity) continue;
      for (std::size_t next = 0; next < stages; ++next) {
        if ((set >> next & 1U) != 0) continue;
        const std::size_t slot = (set | std::size_t{1} << next) * stages + next;
        if (const double longer = length + costs[last * stages + next]; longer < best[slot]) {
          best[slot] = longer;
          before[slot] = static_cast<signed char>(last);
        }
      }
    }
  std::size_t set = sets - 1;
  const auto end = best.begin() + static_cast<std::ptrdiff_t>(set * stages);
  auto last = static_cast<std::size_t>(std::min_element(end, best.end()) - end);
  const double length = best[set * stages + last];
  std::vector<int> order;
  for (std::size_t left = stages; left > 0; --left) {
    order.push_back(static_cast<int>(last));
    const auto previous = before[set * stages + last];
    set &= ~(std::size_t{1} << last);
    if (left > 1) last = static_cast<unsigned char>(previous);
  }
  std::reverse(order.begin(), order.end());
  return {order, length};
}

Arrangement arrange(const Devices& devices, int stages, const Messages& messages, Faults faults, Random& random,
                    const std::function<bool()>& is_over) {
  const Scorer scorer(devices, messages, faults);
  const int members = devices.count() / stages;
  std::vector<Scored> candidates;
  for (int i = 0; i < population && (i == 0 || !is_over()); ++i) {
    std::vector<int> order(static_cast<std::size_t>(devices.count()));
    std::iota(order.begin(), order.end(), 0);
    random.shuffle(order);
    Stages drawn;
    for (int stage = 0; stage < stages; ++stage)
      drawn.emplace_back(order.begin() + std::ptrdiff_t{stage} * members,
                         order.begin() + std::ptrdiff_t{stage + 1} * members);
    candidates.push_back(scorer.score(std::move(drawn)));
  }
  const int parents = static_cast<int>(candidates.size());
  for (int trial = 0; trial < trials && !is_over(); ++trial) {
    const auto first = static_cast<std::size_t>(random.below(parents));
    const auto second = static_cast<std::size_t>(random.below(parents));
    Stages child = cross(candidates[first].stages, candidates[second].stages, devices.count(), random);
    Scored offspring = scorer.score(improve_by_cycles(devices, child, messages.activation, faults));
    // The artifact compares with the first parent only: with the maximum of its cost and a boolean.
    const double limit =
        faults == Faults::kept ? candidates[first].cost : std::max(candidates[first].cost, candidates[second].cost);
    if (offspring.cost <= limit)
      std::swap(offspring, candidates[candidates[first].cost > candidates[second].cost ? first : second]);
    candidates.push_back(std::move(offspring));
  }
  return scorer.align(*std::min_element(candidates.begin(), candidates.end(),
                                        [](const Scored& a, const Scored& b) { return a.cost < b.cost; }));
}

}  // namespace sailor::planner::baselines::dtfm_detail
