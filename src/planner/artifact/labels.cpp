// The labels of StageSearch: their bounds, dominance and extension.
#include <algorithm>
#include <cmath>

#include "planner/artifact/search.hpp"

namespace sailor::planner::artifact {

namespace {

constexpr int interrupt_interval = 8;
// A relaxation is made again when plans must be faster than this times what it was made for.
constexpr double enough_to_relax = 0.98;
// A mixed stage that is not needed to use up a type can be of one type, so there are as many mixed stages as types that
// are used up. With three types this is a restriction.
constexpr int max_mixed = 2;

/// First layer of each stage, as partition_sailor() of the artifact.
int uniform_first(int layers, int stages, int stage) {
  const int larger = layers % stages;
  return stage * (layers / stages) + std::max(0, stage - (stages - larger));
}

}  // namespace

void StageSearch::prepare_bounds() {
  const int middle = layers_ / 2;
  const auto compute = [&](const StageCandidate& candidate, int layer) {
    return candidate.times->compute[layer + 1] - candidate.times->compute[layer];
  };
  const auto work = [&](const StageCandidate& candidate, int layer) {
    return compute(candidate, layer) * candidate.room * replicas_;
  };
  std::map<int, double> unit;  // by GPU type: device-seconds of the middle layer
  min_update_ = min_price_ = unlimited;
  for (const StageCandidate& candidate : candidates_) {
    const auto [place, is_new] = unit.try_emplace(candidate.gpu, work(candidate, middle));
    place->second = std::max(std::min(place->second, work(candidate, middle)), 1e-300);
    min_update_ =
        std::min(min_update_, *std::min_element(candidate.times->update.begin(), candidate.times->update.end()));
    min_price_ = std::min(min_price_, candidate.price * replicas_);
  }
  min_compute_ = min_work_ = min_money_ = {0.0};
  for (int layer = 0; layer < layers_; ++layer) {
    double min_compute = unlimited;
    double min_work = unlimited;
    double min_money = unlimited;
    for (const StageCandidate& candidate : candidates_) {
      min_compute = std::min(min_compute, compute(candidate, layer));
      min_work = std::min(min_work, work(candidate, layer) / unit.at(candidate.gpu));
      min_money = std::min(min_money, compute(candidate, layer) * candidate.price * replicas_);
    }
    min_compute_.push_back(min_compute_.back() + min_compute);
    min_work_.push_back(min_work_.back() + min_work);
    min_money_.push_back(min_money_.back() + min_money);
  }
  gpu_speed_.assign(tables_.gpus().size(), 0.0);
  for (const auto& [gpu, one] : unit) gpu_speed_[gpu] = 1.0 / one;
  min_send_ = *std::min_element(kinds_->fastest_send().begin(), kinds_->fastest_send().end());
  int max_degree = 1;
  for (const Pool& pool : inputs_.pools) speed_.push_back(unit.contains(pool.gpu) ? 1.0 / unit.at(pool.gpu) : 0.0);
  std::int64_t max_groups = 0;
  double speed = 0.0;
  double largest_speed = 0.0;
  std::int64_t devices = 0;
  for (std::size_t p = 0; p < whole_.size(); ++p) {
    if (speed_[p] == 0.0) continue;
    speed += speed_[p] * static_cast<double>(whole_[p]);
    largest_speed = std::max(largest_speed, speed_[p]);
    devices += whole_[p];
  }
  speed = std::min(speed, largest_speed * static_cast<double>(std::min(devices, inputs_.goal.max_devices)));
  for (const StageCandidate& candidate : candidates_) max_degree = std::max(max_degree, std::min(4, candidate.degree));
  int min_degree = 1 << 20;
  for (const StageCandidate& candidate : candidates_) min_degree = std::min(min_degree, candidate.room);
  max_groups = std::min(devices, inputs_.goal.max_devices) / min_degree;
  // The best over all numbers of stages.
  for (int stages = 1; stages <= layers_; ++stages) {
    if (inputs_.stages && stages != *inputs_.stages) continue;
    if (static_cast<std::int64_t>(stages) * replicas_ > max_groups) break;
    if (stages > 1 && min_send_ == unlimited) break;
    const double sends = stages == 1 ? 0.0 : (2.0 * stages - 1.0) * min_send_;
    const double straggler =
        std::max(min_work_[layers_] / speed + (stages == 1 ? 0.0 : min_send_), min_compute_[layers_] / stages);
    double reduction = unlimited;
    if (replicas_ == 1) reduction = 0.0;
    for (const Curve* ring : kinds_->rings())
      reduction = std::min(reduction,
                           std::max(0.0, bucketed_all_reduce(tables_.gradient_bytes({0, layers_}) / stages / max_degree,
                                                             replicas_, *ring)));
    if (reduction == unlimited) continue;
    min_reduction_ = std::min(min_reduction_, reduction);
    const double time =
        (batches_ - 1) * straggler + std::max(min_compute_[layers_] + sends, straggler) + min_update_ + reduction;
    const double cost = std::max(stages * min_price_ * time, batches_ * min_money_[layers_]);
    const Goal& goal = inputs_.goal;
    if (time > goal.max_time || cost > goal.max_cost) continue;
    root_bound_ = std::min(root_bound_, goal.value(time, cost));
  }
}

std::vector<double> StageSearch::by_gpu(const std::int64_t* left) const {
  std::vector<double> devices(gpu_speed_.size(), 0.0);
  for (std::size_t p = 0; p < whole_.size(); ++p) devices[inputs_.pools[p].gpu] += static_cast<double>(left[p]);
  return devices;
}

void StageSearch::relax() {
  relaxed_for_ = to_beat_;
  const Goal& goal = inputs_.goal;
  const double max_time = std::min(goal.max_time, goal.objective == Objective::throughput ? to_beat_ : unlimited) -
                          min_update_ - min_reduction_;
  double max_straggler = max_time / batches_;
  if (batches_ > 1) max_straggler = std::min(max_straggler, (max_time - min_compute_[layers_]) / (batches_ - 1));
  std::vector<RelaxedCandidate> relaxed;
  for (std::size_t o = 0; o < candidates_.size(); ++o) {
    const StageCandidate& candidate = candidates_[o];
    RelaxedCandidate entry{candidate.gpu, static_cast<double>(candidate.room) * replicas_, kinds_->fastest_send()[o],
                           &candidate.times->compute, std::vector<int>(layers_ + 1, 0)};
    for (int last = 1; last <= layers_; ++last) {
      int& first = entry.lowest[last];
      while (first < last && tables_.memory_needed(*candidate.sizes, candidate.degree, {first, last},
                                                   last < layers_ ? 2 : 1, micro_batch_) > candidate.memory)
        ++first;
    }
    relaxed.push_back(std::move(entry));
  }
  const std::vector<double> devices = by_gpu(whole_.data());
  std::vector<double> prices;
  for (int gpu = 0; gpu < static_cast<int>(gpu_speed_.size()); ++gpu) prices.push_back(tables_.price(gpu));
  relaxation_.emplace(std::move(relaxed), devices, gpu_speed_, prices, layers_, max_straggler);
  const double straggler = relaxation_->straggler(layers_, devices);
  const double others = relaxation_->sum(layers_, devices) + min_update_ + min_reduction_;
  const double time = (batches_ - 1) * straggler + std::max(straggler, relaxation_->sum(layers_, devices)) +
                      min_update_ + min_reduction_;
  if (straggler == unlimited)
    root_bound_ = std::max(root_bound_, to_beat_);
  else if (goal.counts_money() && relaxation_->cost(layers_, 0.0, straggler, batches_ - 1, others) > goal.max_cost)
    root_bound_ = unlimited;
  else if (goal.objective == Objective::throughput)
    root_bound_ = std::max(root_bound_, std::min(time, to_beat_));
  else
    root_bound_ =
        std::max(root_bound_, goal.value(time, relaxation_->cost(layers_, 0.0, straggler, batches_ - 1, others)));
}

double StageSearch::bound_of(const Label& label, const std::int64_t* left) {
  const Goal& goal = inputs_.goal;
  const int layers = label.first;
  double straggler = label.slowest;
  double sum = label.sum + label.open;
  double price = label.price;
  if (layers == 0) {
    straggler = std::max(straggler, label.open);
  } else {
    double speed = 0.0;
    double largest_speed = 0.0;
    std::int64_t devices = 0;
    for (std::size_t p = 0; p < whole_.size(); ++p) {
      speed += speed_[p] * static_cast<double>(left[p]);
      largest_speed = std::max(largest_speed, speed_[p]);
      devices += left[p];
    }
    if (goal.max_devices < std::numeric_limits<std::int64_t>::max()) {
      std::int64_t whole = 0;
      for (const std::int64_t pool : whole_) whole += pool;
      const std::int64_t may = goal.max_devices - (whole - devices);
      speed = std::min(speed, largest_speed * static_cast<double>(may));
    }
    if (speed <= 0.0) return unlimited;
    if (inputs_.uniform && speed * (1.0 + 1e-9) < uniform_devices_[layers]) return unlimited;
    const double back = label.stages == 1 ? 2.0 * min_send_ : min_send_;
    straggler = std::max({straggler, label.open + back, min_send_ + min_work_[layers] / speed});
    const double quick = (batches_ - 1) * straggler + sum + back + min_compute_[layers] + min_send_ + label.reduction;
    if (quick > goal.max_time || (goal.objective == Objective::throughput && quick >= to_beat_)) return unlimited;
    work_->left_by_gpu.assign(gpu_speed_.size(), 0.0);
    for (std::size_t p = 0; p < whole_.size(); ++p)
      work_->left_by_gpu[inputs_.pools[p].gpu] += static_cast<double>(left[p]);
    straggler = std::max(straggler, relaxation_->straggler(layers, work_->left_by_gpu));
    if (straggler == unlimited) return unlimited;
    sum += back + std::max(min_compute_[layers] + min_send_, relaxation_->sum(layers, work_->left_by_gpu));
    if (inputs_.uniform) sum = std::max(sum, label.sum + label.open + back + uniform_time_[layers]);
    price += min_price_;
  }
  const double time = (batches_ - 1) * straggler + sum + std::max(label.update, min_update_) + label.reduction;
  if (time > goal.max_time) return unlimited;
  if (goal.counts_nodes()) {
    const std::int64_t nodes = nodes_used(left) + (layers > 0 ? 1 : 0);
    if (nodes - (layers > 0 ? 1 : 0) > goal.most_nodes ||
        static_cast<double>(nodes_used(left)) * time > goal.max_node_time)
      return unlimited;
  }
  if (!goal.counts_money()) return goal.value(time, 0.0);
  double cost = label.egress + std::max(price * time, label.price * time + batches_ * min_money_[layers]);
  if (layers > 0) {
    const double others = time - (batches_ - 1) * straggler;
    cost = std::max(cost, label.egress + relaxation_->cost(layers, label.price, straggler, batches_ - 1, others));
  }
  if (cost > goal.max_cost) return unlimited;
  return goal.value(time, cost);
}

bool StageSearch::dominates(const Label& a, const std::int64_t* left_a, const Label& b,
                            const std::int64_t* left_b) const {
  if ((a.stages == 1) != (b.stages == 1)) return false;
  if (a.mixed > b.mixed) return false;
  if (inputs_.stages || inputs_.uniform ? a.stages != b.stages : a.stages > b.stages) return false;
  const double straggler = std::max({0.0, a.slowest - b.slowest, a.open - b.open});
  const double later = (batches_ - 1) * straggler + (a.sum + a.open - b.sum - b.open) +
                       std::max(0.0, a.update - b.update) + std::max(0.0, a.reduction - b.reduction);
  if (later > 0.0) return false;
  const Goal& goal = inputs_.goal;
  if (goal.counts_money() && (a.price > b.price || a.egress > b.egress)) return false;
  const bool limited = goal.max_devices < std::numeric_limits<std::int64_t>::max();
  std::int64_t total_a = 0;
  std::int64_t total_b = 0;
  for (std::size_t p = 0; p < whole_.size(); ++p) {
    // Devices beyond what all layers could use make no difference.
    const std::int64_t need = goal.counts_nodes() ? std::numeric_limits<std::int64_t>::max()
                                                  : static_cast<std::int64_t>(a.first) * replicas_ * max_room_[p];
    if (std::min(left_a[p], need) < std::min(left_b[p], need)) return false;
    total_a += left_a[p];
    total_b += left_b[p];
  }
  return !limited || total_a >= total_b;
}

void StageSearch::insert(const Label& label, const std::int64_t* left) {
  const std::size_t pools = whole_.size();
  auto& bucket = work_->by_team[label.first][teams_[label.team].bucket];
  for (const int other : bucket)
    if (dominates(work_->labels[other], &work_->left[other * pools], label, left)) return;
  std::erase_if(bucket, [&](int other) {
    return work_->labels[other].dead = dominates(label, left, work_->labels[other], &work_->left[other * pools]);
  });
  bucket.push_back(static_cast<int>(work_->labels.size()));
  work_->labels.push_back(label);
  work_->left.insert(work_->left.end(), left, left + pools);
}

void StageSearch::extend(int parent, int fixed_stages, const Solution& found, Counters& counters) {
  const std::size_t pools = whole_.size();
  const Label from = work_->labels[parent];
  std::vector<std::int64_t>& left = work_->parent_left;
  left.assign(work_->left.begin() + static_cast<std::ptrdiff_t>(parent * pools),
              work_->left.begin() + static_cast<std::ptrdiff_t>((parent + 1) * pools));
  const int stages = from.stages + 1;
  const int last = from.first;
  const Goal& goal = inputs_.goal;
  int highest = last - 1;
  int lowest = 0;
  if (fixed_stages > 0) {
    if (stages > fixed_stages) return;
    highest = std::min(highest, stages == fixed_stages ? 0 : last - 1);
    lowest = stages == fixed_stages ? 0 : fixed_stages - stages;
    if (inputs_.uniform) highest = lowest = uniform_first(layers_, fixed_stages, fixed_stages - stages);
  }
  find_draws(left.data(), last);
  counters.effort += 1 + candidates_.size() * candidates_.size() * pools / 4;
  for (const Draw& draw : work_->draws) {
    Team& team = teams_[draw.team];
    Label next;
    next.parent = parent;
    next.team = draw.team;
    next.last = last;
    next.stages = stages;
    next.mixed = from.mixed + (team.mixed ? 1 : 0);
    if (next.mixed > max_mixed) continue;
    next.slowest = from.slowest;
    next.sum = from.sum;
    next.price = from.price + team.price;
    double send = 0.0;
    double egress = from.egress;
    if (from.team >= 0) {
      const Link& join = link(draw.team, from.team);
      if (!join.there) continue;
      send = link_times_[join.times + kinds_->size_class(last - 1)];
      const double back = link_times_[join.times + kinds_->classes() + kinds_->size_class(last)];
      const double closed = from.open + (from.stages == 1 ? 2.0 * back : back);
      next.slowest = std::max(next.slowest, closed);
      next.sum += closed;
      egress += join.egress * tables_.output_bytes(last - 1) * micro_batch_;
    }
    work_->rest = left;
    std::int64_t used = 0;
    for (std::size_t at = draw.first; at < draw.last; ++at)
      work_->rest[work_->devices[at].first] -= work_->devices[at].second;
    if (goal.max_devices < std::numeric_limits<std::int64_t>::max()) {
      for (std::size_t p = 0; p < pools; ++p) used += whole_[p] - work_->rest[p];
      if (used > goal.max_devices) continue;
    }
    for (int first = highest; first >= lowest; --first) {
      if (first == 0 && fixed_stages > 0 && stages != fixed_stages) break;
      ++counters.considered;
      ++counters.effort;
      double compute = 0.0;
      bool fits = true;
      next.update = from.update;
      for (const int index : team.candidates) {
        const StageCandidate& candidate = candidates_[index];
        compute = std::max(compute, candidate.times->compute[last] - candidate.times->compute[first]);
        next.update = std::max(next.update, candidate.times->update[first]);
        fits = fits && tables_.memory_needed(*candidate.sizes, candidate.degree, {first, last}, stages, micro_batch_) <=
                           candidate.memory;
      }
      if (!fits) {
        ++counters.did_not_fit;
        break;
      }
      next.first = first;
      next.open = compute + send;
      if (first == 0 && stages > 3) next.open += send;
      next.reduction = std::max(from.reduction, reduction(rings_[team.ring], {first, last}));
      next.egress = egress + team.ring_egress * tables_.gradient_bytes({first, last});
      // The part that no smaller `first` makes better.
      const double least = (batches_ - 1) * std::max(next.slowest, compute + send) + next.sum + compute + send +
                           min_compute_[first] + from.reduction;
      if (least > goal.max_time || (goal.objective == Objective::throughput && least >= to_beat_)) break;
      next.bound = bound_of(next, work_->rest.data());
      if (next.bound >= to_beat_) continue;
      if (first > 0) {
        insert(next, work_->rest.data());
      } else {
        to_beat_ = std::min(to_beat_, found(pipelines(next)));
      }
    }
  }
}

bool StageSearch::prepare_uniform(int stages) {
  uniform_time_.assign(layers_ + 1, 0.0);
  uniform_devices_.assign(layers_ + 1, 0.0);
  const Goal& goal = inputs_.goal;
  const double max_time = std::min(goal.max_time, goal.objective == Objective::throughput ? to_beat_ : unlimited);
  const auto stage_time = [&](int stage, std::size_t o) {
    const int first = uniform_first(layers_, stages, stage);
    const int last = stage + 1 == stages ? layers_ : uniform_first(layers_, stages, stage + 1);
    const double sends = stages == 1 ? 0.0 : stage == 0 && stages <= 3 ? 1.0 : 2.0;
    const bool fits = tables_.memory_needed(*candidates_[o].sizes, candidates_[o].degree, {first, last}, stages - stage,
                                            micro_batch_) <= candidates_[o].memory;
    if (!fits) return unlimited;
    return candidates_[o].times->compute[last] - candidates_[o].times->compute[first] +
           (sends > 0.0 ? sends * kinds_->fastest_send()[o] : 0.0);
  };
  double sum = 0.0;
  double slowest = 0.0;
  for (int stage = 0; stage < stages; ++stage) {
    double least = unlimited;
    for (std::size_t o = 0; o < candidates_.size(); ++o) least = std::min(least, stage_time(stage, o));
    sum += least;
    slowest = std::max(slowest, least);
    uniform_time_[stage + 1 == stages ? layers_ : uniform_first(layers_, stages, stage + 1)] = sum;
  }
  if ((batches_ - 1) * slowest + sum + min_update_ >= max_time) return false;
  const double max_straggler = max_time == unlimited ? unlimited : (max_time - sum) / std::max(1, batches_ - 1);
  double devices = 0.0;
  for (int stage = 0; stage < stages; ++stage) {
    double least = unlimited;
    for (std::size_t o = 0; o < candidates_.size(); ++o)
      if (stage_time(stage, o) < unlimited && (batches_ == 1 || stage_time(stage, o) <= max_straggler))
        least = std::min(least, gpu_speed_[candidates_[o].gpu] * candidates_[o].room * replicas_);
    devices += least;
    uniform_devices_[stage + 1 == stages ? layers_ : uniform_first(layers_, stages, stage + 1)] = devices;
  }
  double all = 0.0;
  for (std::size_t p = 0; p < whole_.size(); ++p) all += speed_[p] * static_cast<double>(whole_[p]);
  return devices <= all * (1.0 + 1e-9);
}

bool StageSearch::search(int fixed_stages, std::size_t width, const Solution& found, const Interrupt& interrupt,
                         Counters& counters) {
  work_->labels.clear();
  work_->left.clear();
  work_->by_team.assign(layers_ + 1, {});
  Label root;
  root.first = root.last = layers_;
  work_->labels.push_back(root);
  work_->left.insert(work_->left.end(), whole_.begin(), whole_.end());
  extend(0, fixed_stages, found, counters);
  bool complete = true;
  std::vector<int> level;
  for (int first = layers_ - 1; first > 0; --first) {
    level.clear();
    for (const auto& [team, bucket] : work_->by_team[first])
      for (const int label : bucket)
        if (work_->labels[label].bound < to_beat_) level.push_back(label);
    if (level.size() > width) {
      complete = false;
      std::nth_element(
          level.begin(), level.begin() + static_cast<std::ptrdiff_t>(width), level.end(), [&](int a, int b) {
            return work_->labels[a].bound != work_->labels[b].bound ? work_->labels[a].bound < work_->labels[b].bound
                                                                    : a < b;
          });
      level.resize(width);
    }
    int since = 0;
    for (const int label : level) {
      if (work_->labels[label].bound >= to_beat_) continue;
      if (++since % interrupt_interval == 0 && interrupt()) return false;
      extend(label, fixed_stages, found, counters);
    }
    work_->by_team[first].clear();
  }
  return complete;
}

bool StageSearch::run(double to_beat, std::size_t width, const std::vector<int>& order, const Solution& found,
                      const Interrupt& interrupt, Counters& counters, Workspace& workspace) {
  work_ = &workspace;
  to_beat_ = to_beat;
  order_ = order;
  if (root_bound_ >= to_beat) return true;
  if (!relaxation_ || to_beat < relaxed_for_ * enough_to_relax) relax();
  if (root_bound_ >= to_beat) return true;
  bool complete = true;
  if (!inputs_.uniform) return search(inputs_.stages.value_or(0), width, found, interrupt, counters);
  for (int stages = inputs_.stages.value_or(1); stages <= inputs_.stages.value_or(layers_); ++stages) {
    if (interrupt()) return false;
    if (!prepare_uniform(stages)) continue;
    complete = search(stages, width, found, interrupt, counters) && complete;
  }
  return complete;
}

}  // namespace sailor::planner::artifact
