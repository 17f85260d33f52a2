#include "planner/baselines/metis_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace sailor::planner::baselines::metis_detail {

namespace {

constexpr int largest_degree = 4;
constexpr double ms_per_s = 1000.0;
constexpr double mb = 1024.0 * 1024.0;
/// Bandwidth inside a node of one GPU.
constexpr double unlimited_bandwidth = 1024.0 * 1024.0 * 1024.0 * 1024.0;
/// The artifact's loader reads the measurements of this micro-batch first, by the order of a directory.
constexpr int optimizer_micro_batch = 2;

double sum_of(const std::vector<double>& values, int first, int last) {
  return std::accumulate(values.begin() + first, values.begin() + last, 0.0);
}

}  // namespace

Result<Tables> Tables::build(const Inputs& inputs, int global_batch, int sequence_length,
                             const std::vector<OfferedNodes>& nodes, const std::vector<std::string>& measured,
                             const std::string& model_gpu, Faults faults) {
  Tables tables;
  tables.nodes_ = nodes;
  tables.global_batch_ = global_batch;
  tables.hidden_elements_ = static_cast<double>(sequence_length) * inputs.model().hidden;
  tables.vocabulary_elements_ = sequence_length * vocabulary(inputs, faults);
  tables.reuses_micro_batch_ = faults == Faults::kept;

  tables.max_micro_batch_ = std::numeric_limits<int>::max();
  for (const std::string& gpu : measured) {
    int largest = 0;
    for (const int micro_batch : inputs.micro_batches(gpu))
      for (const int degree : inputs.degrees(gpu, micro_batch)) {
        if (degree == 1) largest = micro_batch;
        if (degree <= largest_degree) tables.max_degree_ = std::max(tables.max_degree_, degree);
      }
    tables.max_micro_batch_ = std::min(tables.max_micro_batch_, largest);
  }
  const LayerTimes* reference = inputs.times(measured.front(), 1, 1);
  for (int layer = 0; layer < inputs.layers() && reference != nullptr; ++layer)
    tables.layer_shares_.push_back(reference->compute(layer, layer + 1) / reference->compute(0, inputs.layers()));
  for (const double count : inputs.sizes(1)->parameters) tables.parameter_bytes_.push_back(4.0 * count);
  for (int degree = 0; degree <= largest_degree; ++degree) tables.sizes_.push_back(inputs.sizes(degree));

  const LayerTimes* optimizer = nullptr;
  for (const std::string& gpu : {model_gpu, measured.front()})
    for (const int micro_batch : {optimizer_micro_batch, 1})
      for (const int degree : {1, 2, 4})
        if (optimizer == nullptr) optimizer = inputs.times(gpu, micro_batch, degree);
  if (optimizer == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no times of {} on {} with micro-batch 1 or 2", inputs.model().name,
                            measured.front()),
                "Metis needs them");
  // The measured time is that of a whole step; the artifact adds it up for all layers, and doubles it.
  tables.optimizer_ms_ = faults == Faults::kept ? 2.0 * ms_per_s * sum_of(optimizer->update, 0, inputs.layers())
                                                : ms_per_s * optimizer->update.front();

  for (const OfferedNodes& offered : nodes) {
    const auto twin = std::find_if(tables.types_.begin(), tables.types_.end(),
                                   [&](const TypeFigures& type) { return type.gpu == offered.gpu; });
    tables.type_of_offer_.push_back(static_cast<int>(twin - tables.types_.begin()));
    const LinkCoefficients* between = inputs.inter(offered.gpu, offered.zone, offered.gpus_per_node, offered.gpu,
                                                   offered.zone, offered.gpus_per_node);
    const LinkCoefficients* inside =
        offered.gpus_per_node == 1 ? nullptr : inputs.intra(offered.gpu, offered.gpus_per_node);
    if (between == nullptr || (offered.gpus_per_node > 1 && inside == nullptr))
      return fail(
          ErrorCode::not_found,
          fmt::format("the profile has no link {} {} nodes in zone '{}' for {} GPUs",
                      between == nullptr ? "between" : "inside", offered.gpu, offered.zone, offered.gpus_per_node),
          "Metis needs the bandwidth between and inside nodes");
    const double inside_bandwidth = inside == nullptr ? unlimited_bandwidth : inside->max_bandwidth;
    if (twin != tables.types_.end()) {
      twin->bandwidth = std::min(twin->bandwidth, between->max_bandwidth);
      twin->node_bandwidth = std::min(twin->node_bandwidth, inside_bandwidth);
      continue;
    }
    tables.types_.push_back(
        {offered.gpu, inside_bandwidth, between->max_bandwidth, inputs.configured_memory(offered.gpu) / mb});
    auto& of_type = tables.times_.emplace_back(largest_degree + 1);
    for (const int micro_batch : inputs.micro_batches(offered.gpu))
      for (const int degree : inputs.degrees(offered.gpu, micro_batch)) {
        if (degree > largest_degree) continue;
        auto& of_degree = of_type[degree];
        if (static_cast<int>(of_degree.size()) <= micro_batch) of_degree.resize(micro_batch + 1);
        const LayerTimes* times = inputs.times(offered.gpu, micro_batch, degree);
        for (int layer = 0; layer < inputs.layers(); ++layer)
          of_degree[micro_batch].push_back(ms_per_s * (times->forward[layer] + times->backward[layer]));
      }
  }
  return tables;
}

Ranks Tables::ranks(const std::vector<int>& sequence) const {
  Ranks ranks;
  int node = 0;
  for (const int type : sequence)
    for (std::size_t offer = 0; offer < nodes_.size(); ++offer) {
      if (type_of_offer_[offer] != type) continue;
      for (int i = 0; i < nodes_[offer].nodes; ++i, ++node)
        for (int gpu = 0; gpu < nodes_[offer].gpus_per_node; ++gpu) {
          ranks.type.push_back(type);
          ranks.node.push_back(node);
          ranks.offer.push_back(static_cast<int>(offer));
        }
    }
  return ranks;
}

bool Tables::is_mixed(const Ranks& ranks, int first_rank, int group) {
  // Ranks are sorted by type.
  return ranks.type[first_rank] != ranks.type[first_rank + group - 1];
}

std::optional<double> Tables::time(int type, Strategy strategy, int micro_batch, int first, int last) const {
  if (strategy.tensor_parallel > largest_degree) return std::nullopt;
  const auto& of_degree = times_[type][strategy.tensor_parallel];
  if (micro_batch >= static_cast<int>(of_degree.size()) || of_degree[micro_batch].empty()) return std::nullopt;
  return sum_of(of_degree[micro_batch], first, last);
}

std::optional<double> Tables::mixed_time(const Ranks& ranks, int first_rank, int group, Strategy strategy,
                                         const std::vector<int>& micro_batches, int first, int last) const {
  double slowest = 0.0;
  for (int replica = 0; replica < strategy.data_parallel; ++replica) {
    const int type = ranks.type[first_rank + group / strategy.data_parallel * replica];
    double seconds = 0.0;
    int left = micro_batches[replica];
    for (int power = 1 << 30; power > 0; power /= 2) {
      if (left < power) continue;
      left -= power;
      const auto part = power > max_micro_batch_ ? std::nullopt : time(type, strategy, power, first, last);
      if (!part) return std::nullopt;
      seconds += *part;
    }
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

std::optional<double> Tables::memory(int degree, int micro_batch, int first, int last) const {
  if (degree > largest_degree || sizes_[degree] == nullptr) return std::nullopt;
  const LayerSizes& sizes = *sizes_[degree];
  double sum = 0.0;
  for (int layer = first; layer < last; ++layer)
    sum += (20.0 * sizes.parameters[layer] + 4.0 * sizes.activation[layer] * micro_batch) / mb;
  return sum;
}

double Tables::link(const Ranks& ranks, const std::vector<int>& members) const {
  double slowest = std::numeric_limits<double>::infinity();
  bool is_one_node = true;
  for (const int rank : members) {
    is_one_node = is_one_node && ranks.node[rank] == ranks.node[members.front()];
    slowest = std::min(slowest, types_[ranks.type[rank]].bandwidth);
  }
  return is_one_node ? types_[ranks.type[members.front()]].node_bandwidth : slowest;
}

/// Over groups of one tensor-parallel rank per replica, as Metis forms them: they have as many ranks as the
/// tensor-parallel degree, so that replicas of one GPU always communicate inside a node.
double Tables::reduction_bandwidth(const Ranks& ranks, int first_rank, Strategy strategy) const {
  double slowest = std::numeric_limits<double>::infinity();
  std::vector<int> members(strategy.tensor_parallel);
  for (int group = 0; group < strategy.data_parallel; ++group) {
    for (int i = 0; i < strategy.tensor_parallel; ++i) members[i] = first_rank + group + i * strategy.data_parallel;
    slowest = std::min(slowest, link(ranks, members));
  }
  return slowest;
}

/// Sequences of each replica, in proportion to speed; the largest remainders get one more.
std::vector<int> Tables::shares_of_batch(const Ranks& ranks, int first_rank, int group, Strategy strategy,
                                         int sequences) const {
  std::vector<double> speed;
  for (int replica = 0; replica < strategy.data_parallel; ++replica) {
    const auto seconds =
        time(ranks.type[first_rank + group / strategy.data_parallel * replica], strategy, 1, 0, layers());
    speed.push_back(seconds ? 1.0 / *seconds : 0.0);
  }
  const double total = sum_of(speed, 0, strategy.data_parallel);
  std::vector<int> shares;
  std::vector<double> remainders;
  int left = sequences;
  for (const double one : speed) {
    const double exact = total > 0.0 ? sequences * (one / total) : 0.0;
    shares.push_back(static_cast<int>(exact));
    remainders.push_back(exact - shares.back());
    left -= shares.back();
  }
  std::vector<int> order(shares.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return remainders[a] > remainders[b]; });
  for (int i = 0; i < left; ++i) ++shares[order[i % order.size()]];
  return shares;
}

std::optional<double> Tables::cost(const Arrangement& plan, const Ranks& ranks, int stages, bool is_equal) const {
  double slowest = 0.0;
  double total = 0.0;
  double transfer = 0.0;
  double reduction = 0.0;
  double update = 0.0;
  int first_rank = 0;
  int reused = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const int group = plan.groups[stage];
    const Strategy strategy = plan.strategies[stage];
    const int first = plan.boundaries[stage];
    const int last = plan.boundaries[stage + 1];
    const int micro_batch = global_batch_ / strategy.data_parallel / plan.batches;
    std::optional<double> compute;
    if (!is_mixed(ranks, first_rank, group)) {
      compute = time(ranks.type[first_rank], strategy, micro_batch, first, last);
    } else {
      // In the artifact, the variable for an equal micro-batch keeps the value of the previous stage.
      const int equal = is_equal ? micro_batch : reuses_micro_batch_ ? reused : 0;
      compute =
          mixed_time(ranks, first_rank, group, strategy,
                     equal > 0 ? std::vector<int>(strategy.data_parallel, equal)
                               : shares_of_batch(ranks, first_rank, group, strategy, global_batch_ / plan.batches),
                     first, last);
    }
    if (!compute) return std::nullopt;
    reused = micro_batch;
    slowest = std::max(slowest, *compute);
    total += *compute;
    if (stage + 1 < stages) {
      // Metis divides elements, not bytes, by bytes per second.
      const double elements = last == layers() - 1 ? micro_batch * vocabulary_elements_ / strategy.tensor_parallel
                                                   : micro_batch * hidden_elements_;
      std::vector<int> members(group + plan.groups[stage + 1]);
      std::iota(members.begin(), members.end(), first_rank);
      transfer += elements / link(ranks, members) * ms_per_s;
    }
    const double parameters = sum_of(parameter_bytes_, first, last) / strategy.tensor_parallel;
    const int replicas = strategy.data_parallel;
    if (replicas > 1)
      reduction =
          std::max(reduction, 2.0 * (replicas - 1) / (replicas * reduction_bandwidth(ranks, first_rank, strategy)) *
                                  parameters * ms_per_s);
    update = std::max(update, optimizer_ms_ / strategy.tensor_parallel * (last - first) / layers());
    first_rank += group;
  }
  return (plan.batches - 1) * slowest + total + update + reduction + transfer;
}

}  // namespace sailor::planner::baselines::metis_detail
