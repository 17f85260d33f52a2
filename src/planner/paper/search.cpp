#include "planner/paper/search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "planner/paper/triple.hpp"
#include "simulator/closed_form.hpp"

namespace sailor::planner {

namespace {

/// Limits on the work on plans that bounds do not rule out.
struct Thoroughness {
  std::size_t undominated;     ///< templates that end in the same pool and degree
  std::size_t columns;         ///< the same where all plans are tried
  std::uint64_t first_fronts;  ///< of templates of few stages
  std::uint64_t fronts;        ///< of templates of any number of stages
  std::uint64_t all_fronts;    ///< of templates where all plans are tried
  PaperBudget plans;
};
constexpr int few_devices = 64;
constexpr Thoroughness thorough{400, 20'000, 20'000'000, 20'000'000, 100'000'000, {10'000'000, 200'000}};
constexpr Thoroughness quick{60, 2'000, 300'000, 300'000, 300'000, {200'000, 500}};
constexpr int few_stages = 3;
constexpr int price_steps = 30;
constexpr std::uint64_t max_of_a_front = 20'000;  // plans for a Pareto front besides those of the search

class PaperSearch {
 public:
  PaperSearch(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop, PaperEffort effort)
      : prices_(prices),
        request_(prices.request()),
        space_(prices.space()),
        solutions_(solutions),
        stop_(stop),
        effort_(effort == PaperEffort::thorough && prices.space().devices() <= few_devices ? thorough : quick),
        reductions_of_(prices) {
    const Limits& limits = request_.limits;
    if (limits.throughput) caps_.time = 1.0 / *limits.throughput;
    if (limits.wall_time) caps_.time = std::min(caps_.time, limits.wall_time->value() / *request_.iterations);
    if (limits.cost) caps_.money = limits.cost->value();
    // The limits apply to the event-driven time.
    caps_.time *= simulator::most_above_event_driven;
    caps_.money *= simulator::most_above_event_driven;
  }

  double run() {
    make_triples();
    std::vector<PaperTriple*> open;
    for (PaperTriple& triple : triples_) open.push_back(&triple);
    // Pipelines of few stages are quickly searched, and the scores found rule out most others.
    for (const bool few : {true, false}) {
      std::uint64_t work = few ? effort_.first_fronts : effort_.fronts;
      for (PaperTriple* triple : open)
        if ((triple->stages->kind().stages <= few_stages) == few && triple->least < solutions_.best_score() && !stop_())
          search(*triple, work);
    }
    const auto by_least = [](const PaperTriple* a, const PaperTriple* b) { return a->least < b->least; };
    std::stable_sort(open.begin(), open.end(), by_least);
    PaperBudget budget = effort_.plans;
    std::uint64_t work = effort_.all_fronts;
    for (PaperTriple* triple : open) {
      if (triple->least >= solutions_.best_score() || work == 0 || stop_()) break;
      TripleSolver solver(prices_, solutions_, stop_, *triple, caps_, false, effort_.columns, work);
      if (solver.try_all(budget) && solver.has_all_templates()) triple->least = infinity;
    }
    double least = solutions_.best_score();
    for (const PaperTriple* triple : open) least = std::min(least, triple->least);
    if (request_.pareto) add_front();
    if (solutions_.best().empty() && !stop_()) explain_failure();
    return least;
  }

 private:
  void make_triples() {
    const Pins& pins = request_.pins;
    const int devices = std::min(space_.devices(), space_.max_gpus.value_or(space_.devices()));
    for (int stages = pins.pipeline_parallel.value_or(1);
         stages <= std::min(pins.pipeline_parallel.value_or(prices_.layers()), devices); ++stages)
      for (const int micro_batch : space_.micro_batches) {
        if (stop_()) break;
        const int all = request_.job.global_batch / micro_batch;
        for (int pipelines = pins.data_parallel.value_or(1);
             pipelines <= std::min({pins.data_parallel.value_or(all), all, devices / stages}); ++pipelines) {
          const PaperKind kind{stages, micro_batch, std::min(stages, all / pipelines)};
          auto& of_kind = kinds_[kind];
          if (!of_kind) of_kind = std::make_unique<PaperStages>(prices_, reductions_of_, kind);
          if (!of_kind->possible() || of_kind->min_devices() > devices / pipelines) continue;
          PaperTriple triple{.stages = of_kind.get(),
                             .pipelines = pipelines,
                             .micro_batches = all / pipelines,
                             .longer = all % pipelines};
          triple.least = min_of(triple, 0.0);
          if (triple.least < infinity && request_.objective == Objective::throughput)
            triple.least = min_deadline(triple, triple.least, caps_.time, 0.0, 0.02, 8);
          if (triple.least < infinity) triples_.push_back(triple);
        }
      }
    std::stable_sort(triples_.begin(), triples_.end(),
                     [](const PaperTriple& a, const PaperTriple& b) { return a.least < b.least; });
  }

  /// Min score, from the quickest and cheapest candidates of every stage.
  double min_of(const PaperTriple& triple, double tail) const {
    const PaperStages& stages = *triple.stages;
    const double time = stages.min_through() + stages.min_round() * (triple.max_micro_batches() - 1) + tail;
    const double price = triple.pipelines * stages.min_price();
    if (time > caps_.time * (1.0 + 1e-9) || time * price > caps_.money * (1.0 + 1e-9)) return infinity;
    return paper_score(request_.objective, time, price);
  }

  void search(PaperTriple& triple, std::uint64_t& work) {
    const bool by_time = request_.objective == Objective::throughput;
    const double deadline = by_time ? std::min(solutions_.best_score(), caps_.time) : caps_.time;
    double tail = 0.0;
    for (const bool with_tail : {false, true}) {  // the tail takes longer to look up than the rest
      if (with_tail) tail = triple.stages->min_tail(triple.pipelines);
      triple.least = std::max(triple.least, min_of(triple, tail));
      if (triple.least >= solutions_.best_score()) return;
      if (deadline == infinity || enough_devices(triple, deadline, tail)) continue;
      triple.least = by_time && solutions_.best_score() <= caps_.time ? std::max(triple.least, deadline) : infinity;
      return;
    }
    if (work == 0) {
      if (by_time)
        triple.least = std::max(triple.least, min_deadline(triple, triple.least, deadline, tail, 1e-3, price_steps));
      return;
    }
    TripleSolver solver(prices_, solutions_, stop_, triple, caps_, true, effort_.undominated, work);
    if (solver.has_all_templates())
      // Templates that were left out because they are no better than the best plan do not count here.
      triple.least = std::max(triple.least, std::min(solver.bound(), solutions_.best_score()));
    else if (by_time)
      triple.least = std::max(triple.least, min_deadline(triple, triple.least, deadline, tail, 1e-4, price_steps));
    if (triple.least < solutions_.best_score()) solver.try_some();
  }

  /// Whether D pipelines without a stage slower than the deadline allows could be made of fractions of devices: no
  /// prices of devices are known at which the cheapest stages cost more than all devices.
  bool enough_devices(const PaperTriple& triple, double deadline, double tail, int steps = price_steps) const {
    const std::size_t width = space_.pools.size() + 1;
    std::vector<double> devices;
    for (const DevicePool& pool : space_.pools) devices.push_back(pool.devices());
    devices.push_back(std::min(space_.devices(), space_.max_gpus.value_or(space_.devices())));
    std::vector<double> prices(width);
    for (std::size_t p = 0; p < width; ++p) prices[p] = 1.0 / devices[p] / static_cast<double>(width);
    const double spare = deadline * (1.0 + 1e-9) - tail - triple.stages->min_through();
    if (spare < 0.0) return false;
    const int counts[] = {triple.longer, triple.pipelines - triple.longer};
    double rounds[] = {spare / triple.micro_batches, infinity};
    if (triple.micro_batches > 1) rounds[1] = spare / (triple.micro_batches - 1);
    std::vector<double> asked(width);
    for (int step = 0; step < steps; ++step) {
      std::fill(asked.begin(), asked.end(), 0.0);
      double total = 0.0;
      for (int i = 0; i < 2; ++i) {
        if (counts[i] == 0) continue;
        const std::vector<double> each = triple.stages->cheapest(prices, rounds[i]);
        if (each.empty()) return false;
        for (std::size_t p = 0; p < width; ++p) {
          asked[p] += each[p] * counts[i];
          total += each[p] * counts[i] * prices[p];
        }
      }
      if (total > 1.0 + 1e-9) return false;
      bool enough = true;
      double sum = 0.0;
      for (std::size_t p = 0; p < width; ++p) {
        enough = enough && asked[p] <= devices[p];
        prices[p] *= std::exp(0.5 * std::clamp(asked[p] / devices[p] - 1.0, -1.0, 2.0));
        sum += prices[p] * devices[p];
      }
      if (enough) return true;
      for (double& price : prices) price /= sum;
    }
    return true;
  }

  /// Min deadline with enough devices, to a relative precision, with `steps` steps of the prices.
  double min_deadline(const PaperTriple& triple, double low, double high, double tail, double precision,
                      int steps) const {
    if (enough_devices(triple, low, tail, steps)) return low;
    double step = precision;
    while (high == infinity || high - low > precision * low) {  // most are near the min possible one
      const double middle = low * (1.0 + step) < high ? low * (1.0 + step) : 0.5 * (low + high);
      if (enough_devices(triple, middle, tail, steps))
        high = middle;
      else
        low = middle;
      step *= 2.0;
      if (low > 1e3 * min_of(triple, tail)) break;
    }
    return low;
  }

  /// Tries every kind of pipeline by itself, for each number of micro-batches.
  void add_front() {
    std::uint64_t work = effort_.fronts;
    const std::uint64_t end = solutions_.considered() + max_of_a_front;
    for (const PaperTriple& triple : triples_) {
      if (solutions_.considered() >= end || stop_()) return;
      const int all = request_.job.global_batch / triple.stages->kind().micro_batch;
      const int rounds = triple.max_micro_batches();
      const bool fewest = triple.pipelines == (all + rounds - 1) / rounds;
      if (!fewest && !request_.pins.data_parallel) continue;
      TripleSolver(prices_, solutions_, stop_, triple, caps_, true, 8, work, false).try_singles();
    }
  }

  /// Tries plans without limits, so that the solution pool knows what could be reached, or what is nearest to fitting.
  void explain_failure() {
    caps_ = {};
    triples_.clear();
    make_triples();
    std::size_t tried = 0;
    std::uint64_t work = effort_.fronts;
    for (const PaperTriple& triple : triples_) {
      if (++tried > 2000 || stop_()) break;
      TripleSolver(prices_, solutions_, stop_, triple, caps_, true, 8, work, false).try_singles();
    }
    if (solutions_.considered() > 0) return;
    const int stages = request_.pins.pipeline_parallel.value_or(prices_.layers());
    const int micro_batch = space_.micro_batches.front();
    for (std::size_t p = 0; p < space_.pools.size(); ++p) {
      const DevicePool& pool = space_.pools[p];
      const int degree = *std::max_element(pool.tensor_parallel.begin(), pool.tensor_parallel.end());
      const int count = std::min(stages, pool.groups(degree));
      if (!space_.allows(pool.type, degree, micro_batch) || (request_.pins.pipeline_parallel && count != stages))
        continue;
      PipelineTemplate column{.stages = {}, .micro_batch = micro_batch};
      const int even = prices_.layers() / count;
      for (int s = 0, first = 0; s < count; ++s) {
        const int last = first + even + (s >= count - prices_.layers() % count ? 1 : 0);
        column.stages.push_back({p, degree, {Recompute::none}, first, last});
        first = last;
      }
      solutions_.add({.groups = {{.column = column, .count = 1}}}, {{0, 1, request_.job.global_batch / micro_batch}});
    }
  }

  StagePrices& prices_;
  const Request& request_;
  const SearchSpace& space_;
  SolutionPool& solutions_;
  const StopCheck& stop_;
  PaperCaps caps_;
  Thoroughness effort_;
  PaperReductions reductions_of_;
  std::map<PaperKind, std::unique_ptr<PaperStages>> kinds_;
  std::vector<PaperTriple> triples_;  // by least score
};

}  // namespace

double search_paper(StagePrices& prices, SolutionPool& solutions, const StopCheck& stop, PaperEffort effort) {
  solutions.begin({Step::paper_space});
  return PaperSearch(prices, solutions, stop, effort).run();
}

}  // namespace sailor::planner
