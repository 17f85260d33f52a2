#include "planner/baselines/metis_search.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/baselines/metis_balancer.hpp"
#include "planner/baselines/metis_groups.hpp"

namespace sailor::planner::baselines::metis_detail {

namespace {

/// Default work limit in place of the artifact's 300 s: pairs of stage sizes and number of micro-batches, and
/// strategies that layers were balanced for. The artifact's figures are reproduced with a hundredth of this or more.
constexpr std::uint64_t default_work = 300'000;
constexpr int max_attempts = 3;
constexpr double memory_factor = 5.0;

class Search {
 public:
  Search(const Problem& problem, const Tables& tables, std::vector<std::vector<int>> sequences)
      : problem_(problem),
        tables_(tables),
        sequences_(std::move(sequences)),
        work_limit_(problem.work_limit > 0 ? problem.work_limit : default_work) {}

  void run() {
    for (std::size_t sequence = 0; sequence < sequences_.size() && !result.out_of_time; ++sequence) {
      // The artifact's clock ends most searches in the first sequence. Equal work for each sequence makes the result
      // independent of which is first.
      limit_ = problem_.faults == Faults::kept ? work_limit_ : work_limit_ * (sequence + 1) / sequences_.size();
      is_over_ = work_ >= limit_;
      go_through(sequence);
      if (is_over_ && !result.out_of_time) result.work_limit_hit = work_limit_;
    }
  }

  SearchResult result;

 private:
  void go_through(std::size_t sequence) {
    sequence_ = sequence;
    ranks_ = tables_.ranks(sequences_[sequence]);
    const int max_stages = std::min(ranks_.size(), problem_.inputs.blocks());
    // From the second sequence on the artifact uses the groups of two stages (or of the next number that has any) where
    // it means one, and counts only the first stage of them.
    const bool is_miscounted = sequence > 0 && problem_.faults == Faults::kept;
    if (is_miscounted) {
      bool has_groups = false;
      for (int stages = 2; stages <= max_stages && !has_groups && !is_over_; ++stages)
        visit_device_groups(ranks_.size(), stages, [&](const std::vector<int>& groups) {
          has_groups = true;
          return visit_batches(groups, 1);
        });
    }
    for (int stages = is_miscounted ? 2 : 1; stages <= max_stages && !is_over_; ++stages)
      visit_device_groups(ranks_.size(), stages,
                          [&](const std::vector<int>& groups) { return visit_batches(groups, stages); });
  }

  bool visit_batches(const std::vector<int>& groups, int counted) {
    capacity_.clear();
    int rank = 0;
    for (const int group : groups) {
      double sum = 0.0;
      for (int i = 0; i < group; ++i, ++rank) sum += tables_.types()[ranks_.type[rank]].memory_mb;
      capacity_.push_back(sum);
    }
    for (int batches = tables_.global_batch(); batches >= 1; --batches) {
      if (tables_.global_batch() % batches != 0) continue;
      result.out_of_time = problem_.is_over();
      is_over_ = work_ >= limit_ || result.out_of_time;
      if (is_over_) return false;
      ++work_;
      visit_strategies(groups, batches, counted);
    }
    return true;
  }

  [[nodiscard]] int micro_batch(Strategy strategy, int batches) const {
    return tables_.global_batch() / strategy.data_parallel / batches;
  }

  /// Visits strategies from data parallelism alone towards tensor parallelism, in the stage with the least memory left
  /// first.
  void visit_strategies(const std::vector<int>& groups, int batches, int counted) {
    Arrangement plan{.groups = groups, .batches = batches};
    for (const int group : groups) plan.strategies.push_back({group, 1});
    std::vector<double> room;
    while (true) {
      bool is_valid = true;
      for (const Strategy& strategy : plan.strategies) {
        const int size = micro_batch(strategy, batches);
        // Later strategies have even larger micro-batches and degrees.
        if (size > tables_.max_micro_batch() || strategy.tensor_parallel > tables_.max_degree()) return;
        is_valid = is_valid && size > 0;
      }
      if (is_valid) {
        if (work_ >= limit_) return;
        ++work_;
        const auto attempts = balance(plan, room);
        if (attempts > 0) {
          const auto ms = tables_.cost(plan, ranks_, counted, false);
          if (ms)
            result.found.push_back({plan, sequence_, *ms});
          else
            ++result.uncosted;
          if (attempts == 1) return;
        }
      }
      if (!advance(plan.strategies, room)) return;
    }
  }

  static bool advance(std::vector<Strategy>& strategies, const std::vector<double>& room) {
    std::vector<double> key = room;
    if (key.empty())
      for (const Strategy& strategy : strategies) key.push_back(1.0 / strategy.data_parallel);
    std::vector<int> order(strategies.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key[a] < key[b]; });
    for (const int stage : order)
      if (strategies[stage].data_parallel > 1) {
        strategies[stage].data_parallel /= 2;
        strategies[stage].tensor_parallel *= 2;
        return true;
      }
    return false;
  }

  /// Sets the boundaries of the plan and the memory left in each stage; returns the number of attempts, 0 if none
  /// succeeded.
  int balance(Arrangement& plan, std::vector<double>& room) const {
    room.clear();
    std::vector<double> shares = speeds(plan);
    if (shares.empty()) return 0;
    for (int attempt = 1; attempt <= max_attempts; ++attempt) {
      plan.boundaries = balance_layers(shares, tables_.layer_shares());
      const std::vector<double> demand = memory_demand(plan);
      if (demand.empty()) return 0;
      bool fits = true;
      for (std::size_t i = 0; i < demand.size(); ++i) fits = fits && capacity_[i] >= demand[i];
      if (fits) {
        for (std::size_t i = 0; i < demand.size(); ++i) room.push_back(capacity_[i] - demand[i]);
        return attempt;
      }
      shares = shifted_shares(shares, capacity_, demand);
      if (shares.empty()) return 0;
    }
    return 0;
  }

  /// Each stage's share of the total speed.
  [[nodiscard]] std::vector<double> speeds(const Arrangement& plan) const {
    std::vector<double> shares;
    int rank = 0;
    double total = 0.0;
    for (std::size_t stage = 0; stage < plan.groups.size(); ++stage) {
      const Strategy strategy = plan.strategies[stage];
      const int size = micro_batch(strategy, plan.batches);
      const auto ms = Tables::is_mixed(ranks_, rank, plan.groups[stage])
                          ? tables_.mixed_time(ranks_, rank, plan.groups[stage], strategy,
                                               std::vector<int>(strategy.data_parallel, size), 0, tables_.layers())
                          : tables_.time(ranks_.type[rank], strategy, size, 0, tables_.layers());
      if (!ms) return {};
      shares.push_back(1.0 / *ms);
      total += shares.back();
      rank += plan.groups[stage];
    }
    for (double& share : shares) share /= total;
    return shares;
  }

  /// In units of 2^20 bytes. If a stage has one type, the demand is that of one GPU, although the capacity is that of
  /// all.
  [[nodiscard]] std::vector<double> memory_demand(const Arrangement& plan) const {
    std::vector<double> demand;
    int rank = 0;
    for (std::size_t stage = 0; stage < plan.groups.size(); ++stage) {
      const Strategy strategy = plan.strategies[stage];
      const int size = micro_batch(strategy, plan.batches);
      const int first = plan.boundaries[stage];
      const int last = plan.boundaries[stage + 1];
      const bool is_mixed = Tables::is_mixed(ranks_, rank, plan.groups[stage]);
      double sum = 0.0;
      for (int power = 1 << 30; power > 0; power /= 2) {
        const int part = is_mixed ? (size & power) : (power == 1 ? size : 0);
        if (part == 0) continue;
        const auto memory = tables_.memory(strategy.tensor_parallel, part, first, last);
        if (!memory) return {};
        sum += *memory * (is_mixed ? strategy.data_parallel : 1);
      }
      demand.push_back(0.001 + memory_factor * sum);
      rank += plan.groups[stage];
    }
    return demand;
  }

  const Problem& problem_;
  const Tables& tables_;
  std::vector<std::vector<int>> sequences_;
  std::uint64_t work_limit_;
  std::size_t sequence_ = 0;
  Ranks ranks_;
  std::vector<double> capacity_;  // by stage of the current groups, 2^20 bytes
  std::uint64_t work_ = 0;
  std::uint64_t limit_ = 0;  // work at which the current sequence ends
  bool is_over_ = false;
};

}  // namespace

std::vector<std::vector<int>> sequences_of(const Tables& tables, const Problem& problem) {
  std::vector<int> types(tables.types().size());
  std::iota(types.begin(), types.end(), 0);
  const auto by_name = [&](int a, int b) { return tables.types()[a].gpu < tables.types()[b].gpu; };
  std::sort(types.begin(), types.end(), by_name);
  if (problem.faults == Faults::kept) {
    std::reverse(types.begin(), types.end());
    for (std::uint64_t i = 0; i < problem.seed % 1000; ++i) std::next_permutation(types.begin(), types.end(), by_name);
  }
  std::vector<int> order(types.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> sequences;
  do {
    std::vector<int>& sequence = sequences.emplace_back();
    for (const int index : order) sequence.push_back(types[index]);
  } while (std::next_permutation(order.begin(), order.end()));
  return sequences;
}

SearchResult search_plans(const Problem& problem, const Tables& tables,
                          const std::vector<std::vector<int>>& sequences) {
  Search search(problem, tables, sequences);
  search.run();
  return std::move(search.result);
}

}  // namespace sailor::planner::baselines::metis_detail
