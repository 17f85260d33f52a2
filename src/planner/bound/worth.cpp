#include "planner/bound/worth.hpp"

#include <algorithm>
#include <cmath>

namespace sailor::planner {

namespace {

constexpr int coarse = 128;            // levels that are tried together first
constexpr int fine = 8;                // and from here on with weights on the time from end to end
constexpr double slack = 1.0 + 1e-12;  // against rounding

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

PipelineWorth::PipelineWorth(StagePrices& prices)
    : prices_(prices), space_(prices.space()), request_(prices.request()) {
  zero1_ = std::find(space_.sharding.begin(), space_.sharding.end(), OptimizerSharding::zero1) != space_.sharding.end();
  interleaves_ =
      std::find(space_.schedules.begin(), space_.schedules.end(), Schedule::interleaved_1f1b) != space_.schedules.end();
  const auto& env = prices_.env();
  const auto state = env.framework.state_of(request_.job.precision);
  amounts_.push_back(0.0);
  for (int layer = 0; layer < prices_.layers(); ++layer)
    amounts_.push_back(amounts_.back() + (state ? state->gradient.value() : 0.0) *
                                             static_cast<double>(env.model.parameters(env.model.layer_kind(layer))));
  for (const Place& place : space_.places)
    degrees_.insert(degrees_.end(), place.tensor_parallel.begin(), place.tensor_parallel.end());
  std::sort(degrees_.begin(), degrees_.end());
  degrees_.erase(std::unique(degrees_.begin(), degrees_.end()), degrees_.end());

  const auto wanted = request_.pins.pipeline_parallel;
  const std::size_t places = space_.places.size();
  singles_.resize(places);
  inside_.resize(places);
  fluid_rate_.assign(places, 0.0);
  const int layers = prices_.layers();
  for (const int micro_batch : space_.micro_batches) {
    std::vector<StageOption> all;
    std::vector<double> quickest(at(layers), never);  // by layer, times devices
    for (std::size_t p = 0; p < places; ++p) {
      std::vector<StageOption> options = stage_options(prices_, p, micro_batch);
      double work = 0.0;
      for (int layer = 0; layer < layers; ++layer) {
        double least = never;
        for (const StageOption& option : options)
          least = std::min(least, option.tensor_parallel * option.time[0][at(layer) * at(layers + 1) + at(layer) + 1]);
        work += least;
        quickest[at(layer)] = std::min(quickest[at(layer)], least);
      }
      if (work > 0.0 && work < never) fluid_rate_[p] = std::max(fluid_rate_[p], micro_batch / work);
      for (const StageOption& option : options) {
        const double time = option.time[0][at(layers)];
        if (time == never || wanted.value_or(1) != 1) continue;
        double update = never;
        for (const Recompute recompute : space_.recompute)
          if (const StageTable* table =
                  prices_.table(space_.places[p].type, option.tensor_parallel, micro_batch, recompute))
            update = std::min(update, prices_.update(*table, 0, layers));
        singles_[p].push_back({.micro_batch = micro_batch,
                               .devices = option.tensor_parallel,
                               .time = time,
                               .update = zero1_ || update == never ? 0.0 : update});
      }
      all.insert(all.end(), options.begin(), options.end());
    }
    double mixed = 0.0;
    for (const double least : quickest) mixed += least;
    if (mixed > 0.0 && mixed < never) mixed_rate_ = std::max(mixed_rate_, micro_batch / mixed);
    if (wanted.value_or(2) == 1 || interleaves_) continue;
    find_boundaries(prices_, all, micro_batch);
    for (std::size_t p = 0; p < places; ++p) {
      std::vector<StageOption> here;
      for (const StageOption& option : all)
        if (option.place == p) here.push_back(option);
      StageProgram program(prices_, std::move(here), micro_batch, true);
      if (program.possible()) inside_[p].push_back(std::move(program));
    }
    if (places > 1) {
      StageProgram program(prices_, std::move(all), micro_batch, false);
      if (program.possible()) across_.push_back(std::move(program));
    }
  }
}

std::uint64_t PipelineWorth::work() const {
  std::uint64_t sum = work_;
  for (const auto& row : inside_)
    for (const StageProgram& program : row) sum += program.work();
  for (const StageProgram& program : across_) sum += program.work();
  return sum;
}

// All of a stage's gradients are reduced after its passes, one sum after the other. With the longest such time of a
// first stage in the plan, w, every pipeline q is done at w before the end at least: the first of that stage's sums
// waits for the stage of q that holds its last layer, which is done before q by backward passes and messages only.
double PipelineWorth::single(std::size_t place, double deadline, const PlanPart& part, double each) {
  double worth = 0.0;
  ++work_;
  for (const Single& single : singles_[place]) {
    const StageOption option{.place = place, .tensor_parallel = single.devices};
    const double taken = reduction(option, prices_.layers(), 0, part);
    if (taken > part.reduction_up_to) continue;
    const double left = deadline - std::max(taken + single.update, part.reduction_over);
    const double count = std::floor(left / single.time * slack);
    if (count >= 1.0) worth = std::max(worth, (count * single.micro_batch - each) / single.devices);
  }
  return worth;
}

double PipelineWorth::inside(std::size_t place, double deadline, const PlanPart& part, double each, double needed) {
  for (StageProgram& program : inside_[place]) needed = longer(program, deadline, part, each, needed, nullptr);
  return needed;
}

double PipelineWorth::across(const std::vector<double>& device_price, double deadline, const PlanPart& part,
                             double each, double needed, std::vector<double>& uses) {
  for (StageProgram& program : across_) {
    program.set_prices(device_price);
    needed = longer(program, deadline, part, each, needed, &uses);
  }
  return needed;
}

/// The most promising boxes are split until they are narrow.
double PipelineWorth::longer(StageProgram& program, double deadline, const PlanPart& part, double each, double needed,
                             std::vector<double>* uses) {
  std::vector<Box> heap;
  const auto push = [&](Box box) {
    find_worth(program, box, deadline, part, each, needed);
    if (box.worth <= needed) return;
    heap.push_back(box);
    std::push_heap(heap.begin(), heap.end());
  };
  // A pipeline with fewer micro-batches than stages keeps fewer in flight.
  for (int fewest = 1; fewest <= program.most_in_flight(); fewest *= 2) {
    const int most = 2 * fewest > program.most_in_flight() ? INT_MAX : 2 * fewest - 1;
    for (int from = 0; from < program.levels(); from += coarse)
      push({.from = from, .to = std::min(from + coarse, program.levels()), .fewest = fewest, .most = most});
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Box top = heap.back();
    heap.pop_back();
    if (top.to - top.from <= (program.inside() ? 1 : 4)) {
      if (hints_ != nullptr || uses != nullptr) {
        auto stages = program.stages_of(top.to, program.weights / 2, top.fewest, top.option, top.last);
        if (uses != nullptr) {
          uses->assign(space_.places.size(), 0.0);
          for (const ChainStage& stage : stages) (*uses)[stage.place] += stage.tensor_parallel;
        }
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

// By the closed form a pipeline of n micro-batches is done after S + (n - 1) t: S from end to end and back for one, t
// the slowest stage. For any weight w >= 0 its price is at least min(price + w S) - w S.
void PipelineWorth::find_worth(StageProgram& program, Box& box, double deadline, const PlanPart& part, double each,
                               double needed) {
  box.worth = 0.0;
  const double quickest = program.level(box.from);
  const double least_through = std::max(program.through(), quickest);
  const double behind = 1.0 - program.backward();  // of S, that no stage is ahead of its pipeline
  const double over = part.reduction_over - program.backward_more();
  const auto micro_batches = [&](double through, double taken) {
    const double left = deadline - std::max(through + taken, through * behind + over);
    const double count = left < 0.0 ? 0.0 : std::floor(left / quickest * slack) + 1.0;
    return count < box.fewest ? 0.0 : std::min<double>(count, box.most);
  };
  const auto longest_through = [&](double count, double taken) {
    const double left = deadline - quickest * (count - 1.0) * (1.0 - 1e-12);
    return std::min(left - taken, behind > 0.0 ? (left - over) / behind : never);
  };
  const int micro_batch = program.micro_batch();
  double least_taken = never;
  for (const StageOption& option : program.options())
    least_taken = std::min(least_taken, reduction(option, 1, 0, part));
  // For a slowest stage of t seconds n t is at most this, and all devices together take the work / t.
  const auto fluid = [&](double slowest) {
    const double through = std::max(program.through(), slowest);
    const double taken = std::max(through + least_taken, through * behind + over);
    return (micro_batch * std::max(0.0, deadline - taken + slowest) - each * slowest) / program.fluid_price(1.0);
  };
  const double kink = std::clamp(program.through(), quickest, program.level(box.to));
  if (std::max({fluid(quickest), fluid(kink), fluid(program.level(box.to))}) * slack <= needed) return;
  const double most = micro_batches(least_through, least_taken) * micro_batch;
  if (most <= each || most - each <= needed * program.fluid_price(program.level(box.to))) return;
  const LeastPrices& cheapest = program.solve(box.to, 0, box.fewest);
  if (cheapest.least == never || most - each <= needed * cheapest.least) return;
  const auto& options = program.options();
  work_ += options.size();
  for (std::size_t o = 0; o < options.size(); ++o)
    for (int last = prices_.layers() - 1; last > 0; --last)
      for (std::size_t way = 0; way < cheapest.ways; ++way) {
        const double price = cheapest.at(o, last, way);
        if (price == never || most - each <= std::max(box.worth, needed) * price) continue;
        const double taken = reduction(options[o], last, way, part);
        if (taken > part.reduction_up_to) continue;
        for (double count = micro_batches(least_through, taken); count >= box.fewest; count -= 1.0) {
          const double value = count * micro_batch - each;
          if (value <= std::max(box.worth, needed) * price) break;
          const double through = longest_through(count, taken);
          double least = price;
          for (std::size_t w = 1; w < (box.to - box.from <= fine ? StageProgram::weights : 1); ++w) {
            const LeastPrices& weighted = program.solve(box.to, w, box.fewest);
            least = std::max(least, weighted.at(o, last, way) - weighted.weight * through);
            if (value <= std::max(box.worth, needed) * least) break;
          }
          ++work_;
          if (value <= std::max(box.worth, needed) * least) continue;
          box.worth = least > 0.0 ? value / least : never;
          box.option = o;
          box.last = last;
        }
      }
}

double PipelineWorth::longest_reduction(const PlanPart& part) {
  double longest = 0.0;
  for (const std::size_t p : part.pure)
    for (const int degree : space_.places[p].tensor_parallel) {
      const StageOption option{.place = p, .tensor_parallel = degree};
      if (const double time = reduction(option, prices_.layers(), 0, part); time < never)
        longest = std::max(longest, time);
    }
  return longest;
}

/// The least that the reductions of a first stage can take. `way`: LeastPrices.
double PipelineWorth::reduction(const StageOption& option, int layers, std::size_t way, const PlanPart& part) {
  if (part.least_pipelines < 2 || prices_.env().framework.overlaps_reduction || interleaves_) return 0.0;
  if (reductions_here_ == nullptr || std::get<0>(reductions_of_) != part.least_pipelines ||
      std::get<1>(reductions_of_) != part.pure) {
    reductions_of_ = {part.least_pipelines, part.pure};
    reductions_here_ = &reductions_[reductions_of_];
  }
  // On the stage's node so many of its ranks take part in a sum of its layers at most; every other rank makes one more
  // sum that goes through the network beside it.
  const int node = space_.places[option.place].largest_node();
  const int least = degrees_.front();
  int rings = 1;
  if (const int taken = static_cast<int>(way); taken > option.tensor_parallel) {
    rings = node;
    for (int busy = taken; busy <= node; ++busy) {
      const int here = 1 + (busy - taken) / least;
      rings = std::min(rings, (busy + here - 1) / here);
    }
  }
  const auto [entry, is_new] =
      reductions_here_->try_emplace({option.place, option.tensor_parallel, layers, rings}, 0.0);
  if (is_new) entry->second = reduction_of(option.place, option.tensor_parallel, rings, amounts_[at(layers)], part);
  return entry->second;
}

// The ranks of a tensor-parallel group of degree m share the gradients; of a sum over several degrees the least counts.
// A node with h groups that hold a layer has at least h m busy ranks, so m sums go through its network at once.
double PipelineWorth::reduction_of(std::size_t place, int tensor_parallel, int rings, double amount,
                                   const PlanPart& part) {
  const int node = space_.places[place].largest_node();
  const int replicas = part.least_pipelines;
  double least = never;
  for (const int degree : degrees_) {
    if (degree > tensor_parallel) break;
    const double share = amount / degree;
    const int together = std::max(rings, degree);
    double time = 0.0;
    if (part.pure.size() > 1) {  // they hold every layer, and a sum is as slow as between the slowest pair
      for (const std::size_t a : part.pure)
        for (const std::size_t b : part.pure)
          if (a != b) time = std::max(time, over_link(a, b, node, degree, together, replicas, share));
    } else {
      time = never;
      for (std::size_t other = 0; other < space_.places.size(); ++other)
        time = std::min({time, over_link(place, other, node, degree, together, replicas, share),
                         over_link(other, place, node, degree, together, replicas, share)});
    }
    least = std::min(least, time);
  }
  return least;
}

double PipelineWorth::over_link(std::size_t a, std::size_t b, int node, int degree, int rings, int replicas,
                                double amount) {
  double least = never;
  for (const double part : {1.0, 0.05}) {  // several smaller sums take no less
    const int most = std::max(1, node / degree);
    for (int ranks = 1; ranks <= most; ranks = ranks < most ? std::min(2 * ranks, most) : most + 1)
      least = std::min(least, prices_.reduction(a, b, ranks, rings, replicas, false, amount * part) / part);
    if (a == b && replicas <= node / degree)
      least = std::min(least, prices_.reduction(a, a, replicas, 1, replicas, true, amount * part) / part);
  }
  work_ += 8;
  return least;
}

}  // namespace sailor::planner
