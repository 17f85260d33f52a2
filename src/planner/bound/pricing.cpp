#include "planner/bound/pricing.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/index.hpp"

namespace sailor::planner {

namespace {

constexpr double least_rate = 0.01;                     // of the fastest, that a pool's devices are taken to have
constexpr std::size_t labels_at_once = 4;               // number of boxes: fixed, as results must not depend on threads
constexpr int few = 9;                                  // micro-batches of a pipeline
constexpr int unlimited_micro_batches = 1'000'000'000;  // no pipeline has more

}  // namespace

PricingProblem::PricingProblem(StagePrices& prices, const std::function<bool()>& stop)
    : prices_(prices), space_(prices.space()), request_(prices.request()), stop_(stop) {
  shares_update_ = space_.sharding.back() != OptimizerSharding::none;
  interleaves_ = space_.schedules.front() == Schedule::interleaved_1f1b;
  if (request_.limits.throughput) latest_ = 1.0 / *request_.limits.throughput;
  if (request_.limits.wall_time) latest_ = std::min(latest_, request_.limits.wall_time->value() / *request_.iterations);
  const auto& env = prices_.env();
  // A sharded optimizer gathers its weights after the step, which waits for all stages.
  const bool all_gather =
      std::find(space_.sharding.begin(), space_.sharding.end(), OptimizerSharding::none) == space_.sharding.end();
  order_ = {.overlaps = env.framework.overlaps_reduction, .after = all_gather ? 0.5 : 0.0};
  const auto state = env.framework.state_of(request_.job.precision);
  const double exchanged = state ? min_exchanged(space_, *state) : 0.0;
  std::vector<double> amounts{0.0};  // bytes that layers [0, i) exchange, of all ranks together
  for (int layer = 0; layer < prices_.layers(); ++layer)
    amounts.push_back(amounts.back() + exchanged * prices_.parameters(layer, layer + 1));
  number_amounts(amounts);
  amounts_before_ = std::move(amounts);
  for (const DevicePool& pool : space_.pools) largest_node_ = std::max(largest_node_, pool.largest_node());
  for (const DevicePool& pool : space_.pools)
    degrees_.insert(degrees_.end(), pool.tensor_parallel.begin(), pool.tensor_parallel.end());
  std::sort(degrees_.begin(), degrees_.end());
  degrees_.erase(std::unique(degrees_.begin(), degrees_.end()), degrees_.end());
  const std::size_t groups = space_.pools.size() * degrees_.size();
  reductions_ = std::make_shared<KnownReductions>(groups * distinct_amounts_.size() * at(largest_node_ + 1),
                                                  groups * distinct_amounts_.size());

  const std::vector<std::string> zones = space_.zones();
  zones_ = zones.size() > 1 ? zones.size() : space_.pools.size();
  for (std::size_t p = 0; p < space_.pools.size(); ++p)
    zone_.push_back(zones.size() > 1 ? static_cast<std::size_t>(
                                           std::find(zones.begin(), zones.end(), space_.pools[p].zone) - zones.begin())
                                     : p);

  const auto wanted = request_.pins.pipeline_parallel;
  const std::size_t pools = space_.pools.size();
  singles_.resize(pools);
  inside_.resize(pools);
  fluid_rate_.assign(pools, 0.0);
  const int layers = prices_.layers();
  for (const int micro_batch : space_.micro_batches) {
    if (stop_ && stop_()) return;
    std::vector<StageCandidate> all;
    LayerWork& layer_work = layer_work_.emplace_back(LayerWork{.micro_batch = micro_batch});
    for (std::size_t p = 0; p < pools; ++p) {
      std::vector<StageCandidate> candidates = stage_candidates(prices_, p, micro_batch);
      double work = 0.0;
      for (int layer = 0; layer < layers; ++layer) {
        double min_work = infinity;
        for (const StageCandidate& candidate : candidates)
          min_work = std::min(min_work, candidate.tensor_parallel * candidate.layer[at(layer)]);
        work += min_work;
        layer_work.work.push_back(min_work);
      }
      if (work > 0.0 && work < infinity) fluid_rate_[p] = std::max(fluid_rate_[p], micro_batch / work);
      for (const StageCandidate& candidate : candidates) {
        const double time = candidate.time[0][at(layers)];
        if (time == infinity || wanted.value_or(1) != 1) continue;
        double update = infinity;
        double backward = 0.0;
        for_each_table(prices_, candidate, micro_batch, [&](const StageTable& table) {
          update = std::min(update, prices_.update(table, 0, layers));
          backward = std::max(backward, table.backward.back());
        });
        singles_[p].push_back({.micro_batch = micro_batch,
                               .devices = candidate.tensor_parallel,
                               .time = time,
                               .backward = order_.overlaps ? backward : 0.0,
                               .update = shares_update_ || update == infinity ? 0.0 : update});
      }
      all.insert(all.end(), candidates.begin(), candidates.end());
    }
    if (wanted.value_or(2) == 1) continue;
    find_boundaries(prices_, all, micro_batch);
    if (interleaves_) {
      if (pools == 1 && env.framework.uniformity.one_tensor_parallel) add_interleaved(all, micro_batch);
      continue;
    }
    for (std::size_t p = 0; p < pools; ++p) {
      std::vector<StageCandidate> here;
      for (const StageCandidate& candidate : all)
        if (candidate.pool == p) here.push_back(candidate);
      StageProgram program(prices_, std::move(here), micro_batch, true);
      if (program.possible()) inside_[p].push_back(std::move(program));
    }
    if (pools > 1) {
      StageProgram program(prices_, std::move(all), micro_batch, false);
      if (program.possible()) across_.push_back(std::move(program));
    }
  }
}

PricingProblem::PricingProblem(const PricingProblem& other, StagePrices& prices)
    : prices_(prices),
      space_(prices.space()),
      request_(prices.request()),
      stop_(other.stop_),
      zone_(other.zone_),
      zones_(other.zones_),
      shares_update_(other.shares_update_),
      order_(other.order_),
      interleaves_(other.interleaves_),
      degrees_(other.degrees_),
      singles_(other.singles_),
      inside_(other.inside_.size()),
      interleaved_(other.interleaved_),
      fluid_rate_(other.fluid_rate_),
      layer_work_(other.layer_work_),
      reductions_(other.reductions_),
      amounts_before_(other.amounts_before_),
      amount_numbers_(other.amount_numbers_),
      distinct_amounts_(other.distinct_amounts_),
      largest_node_(other.largest_node_),
      latest_(other.latest_) {
  for (std::size_t p = 0; p < inside_.size(); ++p)
    for (const StageProgram& program : other.inside_[p]) inside_[p].push_back(program.another());
  for (const StageProgram& program : other.across_) across_.push_back(program.another());
}

void PricingProblem::set_precision(double share) {
  narrow_ = std::clamp(share * 0.15, 0.001, 0.1);
  step_ = share * 0.05;
  steps_ = std::clamp(std::ceil(8.0 / share), 32.0, 512.0);
  limits_.clear();
}

bool PricingProblem::any_inside() const {
  return std::any_of(inside_.begin(), inside_.end(), [](const auto& programs) { return !programs.empty(); });
}

std::uint64_t PricingProblem::work() const {
  std::uint64_t sum = work_;
  for (const auto& row : inside_)
    for (const StageProgram& program : row) sum += program.work();
  for (const StageProgram& program : across_) sum += program.work();
  return sum;
}

// All gradients of a stage are reduced after its passes, one all-reduce after the other. Let w be the longest such time
// of a first stage in the plan. Every pipeline q is done at least w before the end: the first of that stage's
// all-reduces waits for the stage of q that holds its last layer, which is done before q by backward passes and
// messages only. Since w is no more than the branch says, that layer is not far back: every pipeline has passed all
// layers forward and those from it on backward at least w before the end.
double PricingProblem::single(std::size_t pool, const TimeRange& times, const Branch& branch, double each,
                              ViolatedColumn& violated) {
  enter(branch, times);
  double worth = 0.0;
  ++work_;
  for (const Single& single : singles_[pool]) {
    const double taken = reduction(pool, single.devices, 0, prices_.layers(), 0, branch);
    if (taken > branch.reduction_up_to) continue;
    const double longest = std::max(taken + single.update, branch.reduction_over);
    const double after = std::max(order_.after_passes(longest, single.backward), single.update);
    const double count = std::floor((std::min(times.longest, latest_ * slack) - after) / single.time * slack);
    const double sequences = count * single.micro_batch * until_deadline(count * single.time + after);
    if (count < 1.0 || sequences - each <= worth * single.devices) continue;
    worth = (sequences - each) / single.devices;
    violated.sequences = sequences;
    violated.uses.assign(space_.pools.size(), 0.0);
    violated.uses[pool] = single.devices;
  }
  return worth;
}

double PricingProblem::inside(std::size_t pool, const TimeRange& times, const Branch& branch, double each,
                              double needed, ViolatedColumn& violated) {
  if (std::any_of(branch.holders.begin(), branch.holders.end(),
                  [&](int holder) { return holder >= 0 && at(holder) != zone_[pool]; }))
    return needed;
  enter(branch, times);
  for (StageProgram& program : inside_[pool]) {
    program.set_prices({});
    needed = longer(program, times.longest, branch, each, needed, violated);
  }
  return needed;
}

double PricingProblem::across(const std::vector<double>& device_price, const TimeRange& times, const Branch& branch,
                              double each, double needed, ViolatedColumn& violated) {
  enter(branch, times);
  for (StageProgram& program : across_) {
    program.set_prices(device_price);
    needed = longer(program, times.longest, branch, each, needed, violated);
  }
  return needed;
}

double PricingProblem::min_price_per_sequence(const std::vector<double>& device_price) {
  double min_price = interleaves_ ? fluid_price(device_price) : infinity;
  for (std::size_t p = 0; p < space_.pools.size(); ++p) {
    for (const Single& single : singles_[p])
      min_price = std::min(min_price, device_price[p] * single.devices * single.time / single.micro_batch);
    for (StageProgram& program : inside_[p]) {
      program.set_prices({});
      min_price = std::min(min_price, device_price[p] * min_price_per_micro_batch(program) / program.micro_batch());
    }
  }
  for (StageProgram& program : across_) {
    program.set_prices(device_price);
    min_price = std::min(min_price, min_price_per_micro_batch(program) / program.micro_batch());
  }
  return min_price < infinity ? min_price : 0.0;
}

std::vector<double> PricingProblem::fluid_rates() const {
  const double fastest = *std::max_element(fluid_rate_.begin(), fluid_rate_.end());
  if (fastest <= 0.0) return {};
  std::vector<double> rates = fluid_rate_;
  for (double& rate : rates) rate = std::max(rate, least_rate * fastest);
  return rates;
}

double PricingProblem::fluid_price(const std::vector<double>& device_price) const {
  double min_price = infinity;
  const std::size_t layers = at(prices_.layers());
  for (const LayerWork& row : layer_work_) {
    double price = 0.0;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      double min_of_layer = infinity;
      for (std::size_t p = 0; p < device_price.size(); ++p)
        min_of_layer = std::min(min_of_layer, device_price[p] * row.work[p * layers + layer]);
      price += min_of_layer;
    }
    min_price = std::min(min_price, price / row.micro_batch);
  }
  return min_price;
}

// Ranges of the slowest stage are split, that of the least bound first. A pipeline of n micro-batches takes S + (n - 1)
// t for them.
double PricingProblem::min_price_per_micro_batch(StageProgram& program) const {
  struct Range {
    double bound;
    int from;
    int to;
    bool operator<(const Range& other) const { return bound > other.bound; }
  };
  const int max_count = std::max(1, request_.job.global_batch / program.micro_batch());
  const auto bounded = [&](int from, int to) {
    const double slowest = program.level(from);
    const double through = std::max(program.through(), slowest);
    double bound = infinity;
    for (int count = 1; count <= std::min(program.max_in_flight(), max_count); ++count) {
      const double price = program.solve(to, 0, count, StageProgram::unlimited)->min;
      const int most = count == program.max_in_flight() ? max_count : count;
      bound = std::min(bound, price * (slowest + (through - slowest) / most));
    }
    return Range{bound, from, to};
  };
  std::vector<Range> heap{bounded(0, program.levels())};
  while (true) {
    std::pop_heap(heap.begin(), heap.end());
    const Range least = heap.back();
    heap.pop_back();
    if (least.to - least.from <= 1 || least.bound == infinity) return least.bound;
    const int middle = (least.from + least.to) / 2;
    for (const Range& half : {bounded(least.from, middle), bounded(middle, least.to)}) {
      heap.push_back(half);
      std::push_heap(heap.begin(), heap.end());
    }
  }
}

/// The most promising boxes are split until they are narrow. Labels price up to labels_at_once of those together.
double PricingProblem::longer(StageProgram& program, double deadline, const Branch& branch, double each, double needed,
                              ViolatedColumn& violated) {
  const int longest_first = branch.reduction_over > 0.0 ? longest_first_stage(branch) : 0;
  fixed_delay_ = branch.reduction_over > 0.0
                     ? program.through_to(order_.passed_from(longest_first - 1, longest_first)) + branch.reduction_over
                     : 0.0;
  std::vector<Box> heap;
  std::vector<Box> for_labels;
  const auto put = [&](Box box) {
    if (box.worth <= needed) return;
    heap.push_back(std::move(box));
    std::push_heap(heap.begin(), heap.end());
  };
  const auto push = [&](Box box) {
    find_worth(program, box, deadline, branch, each, needed);
    put(std::move(box));
  };
  const auto price_by_labels = [&] {
    find_ready_worth(program, for_labels, deadline, branch, each, needed);
    for (Box& box : for_labels) put(std::move(box));
    for_labels.clear();
  };
  // Small numbers of micro-batches are told apart at once; for large ones, the slowest stage says how many there can
  // be.
  for (int min = 1, max = 1; min <= few && deadline > program.level(0) * (min - 1); min = max + 1) {
    max = min < few ? std::max(min, min * 5 / 4) : unlimited_micro_batches;
    push({.from = 0, .to = program.levels(), .min_micro_batches = min, .max_micro_batches = max});
  }
  while (!heap.empty() || !for_labels.empty()) {
    if (stop_ && stop_()) break;
    if (heap.empty() || for_labels.size() == labels_at_once) {
      price_by_labels();
      continue;
    }
    std::pop_heap(heap.begin(), heap.end());
    Box top = std::move(heap.back());
    heap.pop_back();
    if (top.quickest_of_one > 0.0) {
      for_labels.push_back(std::move(top));
      continue;
    }
    if (is_narrow(program, top, deadline, 1.0)) {
      if (!for_labels.empty()) {  // these may still be worth more
        put(std::move(top));
        price_by_labels();
        continue;
      }
      // With more micro-batches, stages have less time for their reductions.
      const double quickest = program.level(top.from);
      if (top.count > top.min_micro_batches && program.remember(limits(program, deadline - quickest * (top.count - 1),
                                                                       top.count, deadline, branch)) != top.limits) {
        Box low = top;
        Box high = top;
        low.max_micro_batches = top.count - 1;
        high.min_micro_batches = top.count;
        push(low);
        push(high);
        continue;
      }
      violated.sequences = top.sequences;
      violated.uses.assign(space_.pools.size(), 0.0);
      const double price = std::max(violated.sequences - each, 0.0) / top.worth;
      if (program.inside()) {
        violated.uses[program.candidates().front().pool] = price;
        if (hints_ != nullptr && !top.stages.empty()) hints_->push_back({top.stages, program.micro_batch()});
      } else {
        std::vector<TemplateStage> stages = !top.stages.empty()
                                                ? top.stages
                                                : program.stages_of(top.to, program.weights / 2, top.min_micro_batches,
                                                                    top.limits, top.candidate, top.last);
        double sum = 0.0;
        for (const TemplateStage& stage : stages) {
          violated.uses[stage.pool] += stage.tensor_parallel;
          sum += stage.tensor_parallel * program.device_price(stage.pool);
        }
        for (double& use : violated.uses) use *= sum > 0.0 ? price / sum : 0.0;
        if (hints_ != nullptr && !stages.empty()) hints_->push_back({std::move(stages), program.micro_batch()});
      }
      return top.worth;
    }
    Box low = top;
    Box high = top;
    low.to = high.from = (top.from + top.to) / 2;
    push(low);
    push(high);
  }
  return needed;
}

PassDelay PricingProblem::delay_of(const StageProgram& program, const Branch& branch) const {
  return {.behind = 1.0 - program.backward(),
          .over = branch.reduction_over - program.backward_more(),
          .fixed = fixed_delay_ / slack,
          .after = order_.after * branch.reduction_over};
}

// By the closed form a pipeline of n micro-batches is done after S + (n - 1) t: S from end to end and back for one, t
// the slowest stage. For any weight w >= 0 its price is at least min(price + w S) - w S.
void PricingProblem::find_worth(StageProgram& program, Box& box, double deadline, const Branch& branch, double each,
                                double needed) {
  box.worth = box.quickest_of_one = 0.0;
  box.stages.clear();
  const int micro_batch = program.micro_batch();
  const PassDelay delay = delay_of(program, branch);
  // Seconds after the passes of a first stage until its reductions are done.
  const auto taken_after = [&](const StageCandidate& candidate, int last, double taken) {
    return order_.after_passes(taken, program.level(box.to) - candidate.forward[at(last)]);
  };
  double min_taken = infinity;
  for (const StageCandidate& candidate : program.candidates())
    min_taken = std::min(
        min_taken, taken_after(candidate, 1, reduction(candidate.pool, candidate.tensor_parallel, 0, 1, 0, branch)));
  const auto micro_batches_at = [&](double slowest, double through, double taken) {
    const double left = deadline - std::max(through + taken, delay(through));
    const double count = left < 0.0 ? 0.0 : std::floor(left / slowest * slack) + 1.0;
    return count < box.min_micro_batches ? 0.0 : std::min<double>(count, box.max_micro_batches);
  };
  // Limits the slowest stages to those for which there is time, and for which the devices are not too dear for their
  // work.
  const double left_over = deadline - std::max(program.through() + min_taken, delay(program.through()));
  if (!(left_over >= 0.0)) return;
  const double longest = box.min_micro_batches > 1 ? left_over / (box.min_micro_batches - 1) : deadline;
  if (longest * slack < program.level(box.from)) return;
  box.to = std::min(box.to, program.level_below(longest * slack) + 1);
  box.max_micro_batches = static_cast<int>(
      micro_batches_at(program.level(box.from), std::max(program.through(), program.level(box.from)), min_taken));
  if (box.max_micro_batches == 0) return;
  // Of pipelines whose slowest stage and time from end to end and back are no shorter. More micro-batches are worth
  // more: a pipeline takes less time for each of them, also for the first if it is counted until the deadline.
  const auto sequences_at = [&](double slowest, double through, double taken, double count) {
    const double done = std::max(through + taken, delay(through)) + slowest * (count - 1.0);
    return count * micro_batch * until_deadline(done);
  };
  const double too_dear_below =
      needed * program.fluid_price(1.0) /
      (sequences_at(program.level(box.from), std::max(program.through(), program.level(box.from)), min_taken,
                    box.max_micro_batches) -
       each);
  if (!(too_dear_below >= 0.0) || too_dear_below > program.level(box.to) * slack) return;
  box.from = std::max(box.from, std::min(program.level_below(too_dear_below / slack), box.to - 1));
  // Only few different levels, so that cached results serve again.
  int step = 1;
  while (step < (box.to - box.from) / 2) step *= 2;
  box.from -= box.from % step;
  box.to = std::min((box.to + step - 1) / step * step, program.levels());
  const double quickest = program.level(box.from);
  const double min_through = std::max(program.through(), quickest);
  const auto micro_batches = [&](double through, double taken) { return micro_batches_at(quickest, through, taken); };
  const auto sequences = [&](double count, double taken) { return sequences_at(quickest, min_through, taken, count); };
  const auto longest_through = [&](double count, double taken) {
    const double left = deadline - quickest * (count - 1.0) * (1.0 - 1e-12);
    return std::min(left - std::max(taken, delay.after),
                    delay.behind > 0.0 ? (left - delay.over) / delay.behind : infinity);
  };
  // For a slowest stage of t seconds, n t is at most this, and all devices together take work / t.
  const auto fluid = [&](double slowest) {
    const double through = std::max(program.through(), slowest);
    const double taken = std::max(through + min_taken, delay(through));
    return (micro_batch * std::max(0.0, deadline - taken + slowest) - each * slowest) / program.fluid_price(1.0);
  };
  const double kink = std::clamp(program.through(), quickest, program.level(box.to));
  if (std::max({fluid(quickest), fluid(kink), fluid(program.level(box.to))}) * slack <= needed) return;
  const double max_sequences = sequences(micro_batches(min_through, min_taken), min_taken);
  if (max_sequences <= each || max_sequences - each <= needed * program.fluid_price(program.level(box.to))) return;
  const bool exact = is_narrow(program, box, deadline, 4.0);
  const auto& candidates = program.candidates();
  // Uses the min prices known so far.
  const auto evaluate = [&](const MinPrices& cheapest, bool with_weights, std::size_t limits) {
    std::array<std::shared_ptr<const MinPrices>, StageProgram::weights> by_weight;  // solved on first use
    Box best = box;
    best.worth = 0.0;
    work_ += candidates.size();
    for (std::size_t o = 0; o < candidates.size(); ++o)
      for (int last = prices_.layers() - 1; last > 0; --last)
        for (std::size_t way = 0; way < cheapest.ways; ++way) {
          const double price = cheapest.at(o, last, way);
          if (price == infinity || max_sequences - each <= std::max(best.worth, needed) * price) continue;
          const double all_taken = reduction(candidates[o].pool, candidates[o].tensor_parallel, 0, last, way, branch);
          if (all_taken > branch.reduction_up_to) continue;
          const double taken = taken_after(candidates[o], last, all_taken);
          for (double count = micro_batches(min_through, taken); count >= box.min_micro_batches; count -= 1.0) {
            const double value = sequences(count, taken) - each;
            if (value <= std::max(best.worth, needed) * price) break;
            const double through = longest_through(count, taken);
            double min_price = price;
            for (std::size_t w = 1; w < (with_weights ? StageProgram::weights : 1); ++w) {
              auto& weighted = by_weight[w];
              if (!weighted) weighted = program.solve(box.to, w, box.min_micro_batches, limits);
              min_price = std::max(min_price, weighted->at(o, last, way) - weighted->weight * through);
              if (value <= std::max(best.worth, needed) * min_price) break;
            }
            ++work_;
            if (value <= std::max(best.worth, needed) * min_price) continue;
            best.worth = min_price > 0.0 ? value / min_price : infinity;
            best.candidate = o;
            best.last = last;
            best.count = static_cast<int>(count);
            best.sequences = value + each;
          }
        }
    return best;
  };
  // Without limits first: the same prices serve for every branch.
  if (program.inside()) {
    const auto unlimited = program.solve(box.to, 0, box.min_micro_batches, StageProgram::unlimited);
    if (unlimited->min == infinity || max_sequences - each <= needed * unlimited->min) return;
    const Box best = evaluate(*unlimited, exact, StageProgram::unlimited);
    if (best.worth <= needed) return;
  }
  std::shared_ptr<const MinPrices> solution;
  const MinPrices* quick = nullptr;
  double min_price = 0.0;
  for (bool is_sure = !exact;;) {
    const StageLimits& furthest =
        limits(program, deadline - quickest * (box.min_micro_batches - 1), box.min_micro_batches, deadline, branch);
    if (is_sure && exact) {
      box.limits = program.remember(furthest);
      solution = program.solve(box.to, 0, box.min_micro_batches, box.limits);
      min_price = solution->min;
    } else {
      quick = &program.estimate(box.to, furthest);
      min_price = quick->min;
    }
    if (min_price == infinity || max_sequences - each <= needed * min_price) return;
    // Pipelines with fewer micro-batches are not worth as much.
    const double most_often = sequences(box.min_micro_batches, min_taken) / box.min_micro_batches;
    const double min_count = std::floor((needed * min_price + each) / most_often * (1.0 - 1e-12));
    if (min_count > box.min_micro_batches && box.min_micro_batches < box.max_micro_batches) {
      box.min_micro_batches = static_cast<int>(std::min<double>(min_count, box.max_micro_batches));
      continue;
    }
    if (is_sure) break;
    is_sure = true;
  }
  box = evaluate(exact ? *solution : *quick, exact, box.limits);
  if (label_work_left_ > 0 && exact) box.quickest_of_one = std::max(min_through + min_taken, delay(min_through));
}

void PricingProblem::enter(const Branch& branch, const TimeRange& times) {
  const double deadline = times.longest;
  shortest_ = times.shortest;
  if (branch == branch_ && deadline == deadline_ && reductions_here_ != nullptr) return;
  if (reductions_here_ == nullptr || branch.min_pipelines != branch_.min_pipelines || branch.pure != branch_.pure ||
      branch.one_pool != branch_.one_pool)
    reductions_here_ = reductions_->of(branch);
  branch_ = branch;
  deadline_ = deadline;
  limits_.clear();
  ready_.clear();
  const int layers = prices_.layers();
  several_before_.clear();
  if (std::find(branch.holders.begin(), branch.holders.end(), Branch::several) != branch.holders.end()) {
    several_before_.push_back(0.0);
    for (int layer = 0; layer < layers; ++layer)
      several_before_.push_back(several_before_.back() +
                                (branch.holders[at(layer)] == Branch::several
                                     ? amounts_before_[at(layer) + 1] - amounts_before_[at(layer)]
                                     : 0.0));
  }
  alone_until_.assign(zones_ * at(layers), layers);
  for (std::size_t zone = 0; zone < zones_ && !branch.holders.empty(); ++zone)
    for (int layer = layers; layer-- > 0;) {
      const int holder = branch.holders[at(layer)];
      int& until = alone_until_[zone * at(layers) + at(layer)];
      if (holder >= 0 && at(holder) != zone)
        until = layer;
      else if (layer + 1 < layers)
        until = alone_until_[zone * at(layers) + at(layer) + 1];
    }
}

}  // namespace sailor::planner
