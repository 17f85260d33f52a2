#include "planner/paper/templates.hpp"

#include <algorithm>
#include <numeric>

#include "planner/index.hpp"

namespace sailor::planner {

double paper_score(Objective objective, double time, double price) {
  if (objective == Objective::throughput) return time;
  return objective == Objective::cost ? time * price : time * time * price;
}

/// The front of a template: its first stages.
struct PaperStages::Label {
  double through = 0.0;
  double closed = 0.0;   // max round of the stages whose messages are all known
  double pending = 0.0;  // round of the last stage, without messages to the next one
  double price = 0.0;
  double bound = 0.0;  // lower bound of the score
  double tail = 0.0;
  int before = -1;
};

PaperStages::PaperStages(StagePrices& prices, PaperReductions& sums, const PaperKind& kind)
    : prices_(prices),
      reductions_of_(sums),
      space_(prices.space()),
      kind_(kind),
      blocks_(!prices.env().framework.overlaps_transfers) {
  add_candidates();
  if (candidates_.empty()) return;
  add_boundaries();
  add_rests();
  add_gradients();
}

/// The model's gradients, over all ranks of a stage.
void PaperStages::add_gradients() {
  const simulator::Environment& env = prices_.env();
  const auto state = env.framework.state_of(prices_.request().job.precision);
  gradients_.assign(at(kind_.stages), 0.0);
  if (env.framework.overlaps_reduction || !state) return;
  for (int s = 0; s < kind_.stages; ++s) {
    const auto [first, last] = layers_of(s);
    for (int layer = first; layer < last; ++layer)
      gradients_[at(s)] += state->gradient.value() * static_cast<double>(env.model.layer_parameters(layer));
  }
  if (kind_.stages == 1) return;
  tied_ = state->gradient.value() * static_cast<double>(env.model.tied_parameters());
  gradients_[0] -= tied_;  // handled on its own
}

std::pair<int, int> PaperStages::layers_of(int stage) const {
  const int even = prices_.layers() / kind_.stages;
  const int longer_from = kind_.stages - prices_.layers() % kind_.stages;
  const int first = stage * even + std::max(0, stage - longer_from);
  return {first, first + even + (stage >= longer_from ? 1 : 0)};
}

void PaperStages::add_candidates() {
  const auto stages = at(kind_.stages);
  std::vector<std::vector<double>> times;  // by candidate
  std::vector<std::vector<double>> updates;
  std::vector<double> slowest(stages, 0.0);  // backward passes
  for (std::size_t p = 0; p < space_.pools.size(); ++p) {
    const DevicePool& pool = space_.pools[p];
    for (const int degree : pool.tensor_parallel) {
      if (!space_.allows(pool.type, degree, kind_.micro_batch)) continue;
      const StageTable* table = prices_.table(pool.type, degree, kind_.micro_batch, StageChoice{});
      if (table == nullptr) continue;
      std::vector<const StageTable*> tables{table};  // with different numbers of busy neighbours
      for (int busy = degree; busy <= reductions_of_.largest_node(p); ++busy)
        if (const StageTable* other = prices_.table(pool.type, degree, kind_.micro_batch, StageChoice{}, busy);
            other != nullptr && (other->pass != table->pass || other->update != table->update))
          tables.push_back(other);
      std::vector<double> row(stages, infinity);
      std::vector<double> update(stages, infinity);
      bool any = false;
      for (int s = 0; s < kind_.stages; ++s) {
        const auto [first, last] = layers_of(s);
        const int neighbours = (s > 0 ? 1 : 0) + (s + 1 < kind_.stages ? 1 : 0);
        const int wanted = std::min(kind_.in_flight, kind_.stages - s);
        if (prices_.max_in_flight(*table, pool, first, last, kind_.micro_batch, neighbours, {}, false, wanted) < wanted)
          continue;
        any = true;
        for (const StageTable* t : tables) {
          row[at(s)] = std::min(row[at(s)], t->time(first, last));
          update[at(s)] = std::min(update[at(s)], prices_.update(*t, first, last));
          slowest[at(s)] = std::max(slowest[at(s)], t->backward[at(last)] - t->backward[at(first)]);
        }
      }
      if (!any) continue;
      candidates_.push_back({p, degree, pool.price.value() / 3600.0 * degree});
      times.push_back(std::move(row));
      updates.push_back(std::move(update));
    }
  }
  early_.assign(stages, 0.0);
  for (std::size_t s = 1; s < stages; ++s) early_[s] = early_[s - 1] + slowest[s - 1];
  time_.resize(stages * candidates_.size());
  update_.resize(stages * candidates_.size());
  for (std::size_t s = 0; s < stages; ++s)
    for (std::size_t o = 0; o < candidates_.size(); ++o) {
      time_[cell(s, o)] = times[o][s];
      update_[cell(s, o)] = updates[o][s];
    }
}

void PaperStages::add_boundaries() {
  const std::size_t count = candidates_.size();
  boundaries_.assign(count * count, {infinity, infinity});
  if (kind_.stages == 1) return;
  double slowest = 0.0;  // gradient over a boundary
  for (std::size_t a = 0; a < count; ++a)
    for (std::size_t b = 0; b < count; ++b) {
      const PaperCandidate& from = candidates_[a];
      const PaperCandidate& to = candidates_[b];
      BoundaryCost& least = boundaries_[a * count + b];
      for (const bool one_node : {false, true}) {
        if (one_node && (from.pool != to.pool ||
                         from.tensor_parallel + to.tensor_parallel > reductions_of_.largest_node(from.pool)))
          continue;
        const BoundaryCost cost =
            prices_.boundary(from.pool, from.tensor_parallel, to.pool, to.tensor_parallel, kind_.micro_batch, one_node);
        least.forward = std::min(least.forward, cost.forward);
        least.backward = std::min(least.backward, cost.backward);
        if (cost.backward < infinity) slowest = std::max(slowest, cost.backward);
      }
    }
  for (std::size_t s = 1; s < early_.size(); ++s) early_[s] += slowest * static_cast<double>(s);
}

void PaperStages::add_rests() {
  const auto stages = at(kind_.stages);
  const std::size_t count = candidates_.size();
  links_.assign(stages * count, 0.0);
  rest_.assign(stages * count, infinity);
  rest_round_.assign(stages + 1, 0.0);
  rest_price_.assign(stages + 1, 0.0);
  for (std::size_t s = stages; s-- > 0;) {
    double round = infinity;
    double price = infinity;
    int devices = 1 << 30;
    for (std::size_t o = 0; o < count; ++o) {
      if (time_[cell(s, o)] == infinity) continue;
      double before = s > 0 ? infinity : 0.0;
      for (std::size_t a = 0; s > 0 && a < count; ++a)
        if (time_[cell(s - 1, a)] < infinity) before = std::min(before, boundaries_[a * count + o].both());
      double behind = s + 1 < stages ? infinity : 0.0;
      double rest = behind;
      for (std::size_t b = 0; s + 1 < stages && b < count; ++b) {
        const double link = boundaries_[o * count + b].both();
        const double later = time_[cell(s + 1, b)] + rest_[cell(s + 1, b)];
        if (later == infinity || link == infinity) continue;
        behind = std::min(behind, link);
        rest = std::min(rest, link + later);
      }
      rest_[cell(s, o)] = rest;
      links_[cell(s, o)] = blocks_ ? before + behind : 0.0;
      if (rest == infinity || before == infinity) continue;
      round = std::min(round, time_[cell(s, o)] + links_[cell(s, o)]);
      price = std::min(price, candidates_[o].price);
      devices = std::min(devices, candidates_[o].tensor_parallel);
      if (s == 0) min_through_ = std::min(min_through_, time_[o] + rest);
    }
    rest_round_[s] = std::max(rest_round_[s + 1], round);
    rest_price_[s] = rest_price_[s + 1] + price;
    min_devices_ += devices;
    if (round == infinity) {
      min_through_ = infinity;
      return;
    }
  }
  min_round_ = rest_round_[0];
  min_price_ = rest_price_[0];
}

std::vector<double> PaperStages::cheapest(std::span<const double> prices, double max_round) const {
  std::vector<double> devices(space_.pools.size() + 1, 0.0);
  const std::size_t last = devices.size() - 1;
  for (std::size_t s = 0; s < at(kind_.stages); ++s) {
    double least = infinity;
    const PaperCandidate* best = nullptr;
    for (std::size_t o = 0; o < candidates_.size(); ++o) {
      if (rest_[cell(s, o)] == infinity || time_[cell(s, o)] + links_[cell(s, o)] > max_round) continue;
      const double price = (prices[candidates_[o].pool] + prices[last]) * candidates_[o].tensor_parallel;
      if (price >= least) continue;
      least = price;
      best = &candidates_[o];
    }
    if (best == nullptr) return {};
    devices[best->pool] += best->tensor_parallel;
    devices[last] += best->tensor_parallel;
  }
  return devices;
}

double PaperStages::sum_with(std::size_t stage, std::size_t candidate, int pipelines) {
  const auto [pool, degree, price] = candidates_[candidate];
  return reductions_of_.with(pool, degree, pipelines, gradients(stage, degree),
                             space_.pools[pool].groups(degree) >= pipelines, kind_.stages == 1);
}

double PaperStages::tail(std::size_t stage, std::size_t candidate, int pipelines) {
  double tail = update(stage, candidate) - early_[stage] + sum_with(stage, candidate, pipelines);
  const auto [pool, degree, price] = candidates_[candidate];
  if (stage == 0 || stage + 1 == at(kind_.stages))
    tail += reductions_of_.with(pool, degree, 2 * pipelines, tied_ / degree, true, false);
  return tail;
}

double PaperStages::alike_tail(std::size_t stage, std::size_t candidate, int pipelines) {
  const auto [pool, degree, price] = candidates_[candidate];
  return update(stage, candidate) - early_[stage] +
         reductions_of_.alike(pool, degree, pipelines, gradients(stage, degree), kind_.stages == 1);
}

double PaperStages::mixed_tail(std::size_t stage, std::size_t one, std::size_t other, int pipelines) {
  const int degree = std::min(candidates_[one].tensor_parallel, candidates_[other].tensor_parallel);
  return std::max(update(stage, one), update(stage, other)) - early_[stage] +
         reductions_of_.mixed(candidates_[one].pool, candidates_[other].pool, degree, pipelines,
                              gradients(stage, degree));
}

double PaperStages::tied_tail(std::size_t first, std::size_t last, int pipelines) {
  const PaperCandidate& a = candidates_[first];
  const PaperCandidate& b = candidates_[last];
  const int degree = std::min(a.tensor_parallel, b.tensor_parallel);
  const double tied = a.pool == b.pool ? reductions_of_.with(a.pool, degree, 2 * pipelines, tied_ / degree, true, false)
                                       : reductions_of_.mixed(a.pool, b.pool, degree, 2 * pipelines, tied_ / degree);
  const std::size_t end = at(kind_.stages) - 1;
  return tied + std::max(update(0, first) - early_[0] + sum_with(0, first, pipelines),
                         update(end, last) - early_[end] + sum_with(end, last, pipelines));
}

double PaperStages::min_tail(int pipelines) {
  double most = 0.0;
  for (std::size_t s = 0; s < at(kind_.stages); ++s) {
    double least = infinity;
    for (std::size_t o = 0; o < candidates_.size(); ++o)
      if (rest_[cell(s, o)] < infinity && time_[cell(s, o)] < infinity) least = std::min(least, tail(s, o, pipelines));
    most = std::max(most, least);
  }
  return most;
}

std::vector<PaperTemplate> PaperStages::columns(const PaperLimits& limits, bool dominance, std::size_t most,
                                                std::uint64_t& work, bool& complete) {
  const auto stages = at(kind_.stages);
  const std::size_t count = candidates_.size();
  const std::size_t width = space_.pools.size() + 1;
  const Objective objective = prices_.request().objective;
  std::vector<int> room;  // devices of a pipeline
  for (const DevicePool& pool : space_.pools) room.push_back(pool.devices());
  room.push_back(std::min(space_.max_gpus.value_or(space_.devices()), space_.devices()) -
                 (limits.pipelines - 1) * min_devices_);
  complete = true;
  std::vector<std::vector<double>> stage_tails(stages, std::vector<double>(count, 0.0));
  for (std::size_t s = 0; s < stages; ++s)
    for (std::size_t o = 0; o < count; ++o)
      if (time_[cell(s, o)] < infinity) stage_tails[s][o] = std::max(0.0, tail(s, o, limits.pipelines));

  std::vector<std::vector<Label>> labels(stages);
  std::vector<std::vector<int>> devices(stages);  // of the labels, `width` each
  std::vector<std::vector<std::size_t>> ends(stages, std::vector<std::size_t>(count + 1, 0));  // of candidates' labels
  std::vector<int> used(width);
  for (std::size_t s = 0; s < stages; ++s) {
    std::vector<Label>& row = labels[s];
    std::vector<int>& row_devices = devices[s];
    for (std::size_t o = 0; o < count; ++o) {
      const std::size_t begin = row.size();
      ends[s][o] = begin;
      ends[s][o + 1] = begin;
      const double time = time_[cell(s, o)];
      if (time == infinity || rest_[cell(s, o)] == infinity) continue;
      std::vector<Label> found;
      std::vector<int> found_devices;
      const auto extend = [&](const Label* before, const int* devices_before, int index, const BoundaryCost& link) {
        Label label{.through = time,
                    .closed = 0.0,
                    .pending = time,
                    .price = candidates_[o].price,
                    .tail = stage_tails[s][o],
                    .before = index};
        if (devices_before != nullptr)
          std::copy_n(devices_before, width, used.begin());
        else
          std::fill(used.begin(), used.end(), 0);
        if (before != nullptr) {
          const double both = link.both();
          label.through += before->through + both;
          label.price += before->price;
          label.tail = std::max(label.tail, before->tail);
          label.closed = std::max(before->closed, before->pending + (blocks_ ? both : 0.0));
          if (blocks_)
            label.pending += both;
          else
            label.closed = std::max({label.closed, link.forward, link.backward});
        }
        used[candidates_[o].pool] += candidates_[o].tensor_parallel;
        used[width - 1] += candidates_[o].tensor_parallel;
        if (work == 0) {
          complete = false;
          return;
        }
        --work;
        for (std::size_t p = 0; p < width; ++p)
          if (used[p] > room[p]) return;
        const double round = std::max({label.closed, label.pending, rest_round_[s + 1]});
        const double end = (label.through + rest_[cell(s, o)] + round * (limits.micro_batches - 1) +
                            std::max(limits.tail, label.tail));
        const double price = label.price + rest_price_[s + 1] + limits.price_rest;
        label.bound = paper_score(objective, end, price);
        if (end > limits.time * (1.0 + 1e-9) || end * price > limits.money * (1.0 + 1e-9) ||
            label.bound * (1.0 - 1e-12) >= limits.score)
          return;
        found.push_back(label);
        found_devices.insert(found_devices.end(), used.begin(), used.end());
      };
      if (s == 0) {
        extend(nullptr, nullptr, -1, {});
      } else {
        for (std::size_t a = 0; a < count; ++a) {
          const BoundaryCost& link = boundaries_[a * count + o];
          if (link.both() == infinity) continue;
          for (std::size_t i = ends[s - 1][a]; i < ends[s - 1][a + 1]; ++i)
            extend(&labels[s - 1][i], &devices[s - 1][i * width], static_cast<int>(i), link);
        }
      }
      std::vector<std::size_t> order(found.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return found[a].bound != found[b].bound       ? found[a].bound < found[b].bound
               : found[a].through != found[b].through ? found[a].through < found[b].through
                                                      : a < b;
      });
      for (const std::size_t i : order) {
        const int* mine = &found_devices[i * width];
        bool beaten = false;
        for (std::size_t k = begin; dominance && k < row.size() && !beaten; ++k) {
          const Label& other = row[k];
          const int* theirs = &row_devices[k * width];
          beaten = other.tail <= found[i].tail && other.through <= found[i].through &&
                   other.closed <= found[i].closed && other.pending <= found[i].pending &&
                   std::equal(theirs, theirs + width, mine, std::less_equal<>());
        }
        if (beaten) continue;
        if (row.size() - begin >= most) {
          complete = false;
          break;
        }
        row.push_back(found[i]);
        row_devices.insert(row_devices.end(), mine, mine + width);
      }
      ends[s][o + 1] = row.size();
    }
  }

  std::vector<PaperTemplate> columns;
  for (std::size_t o = 0; o < count; ++o)
    for (std::size_t i = ends[stages - 1][o]; i < ends[stages - 1][o + 1]; ++i) {
      const Label& label = labels[stages - 1][i];
      PaperTemplate column{.through = label.through,
                           .round = std::max(label.closed, label.pending),
                           .tail = label.tail,
                           .price = label.price};
      const int* taken = &devices[stages - 1][i * width];
      column.devices.assign(taken, taken + width);
      column.candidates.resize(stages);
      std::size_t index = i;
      for (std::size_t s = stages; s-- > 0;) {
        std::size_t candidate = 0;
        while (ends[s][candidate + 1] <= index) ++candidate;
        column.candidates[s] = static_cast<std::uint16_t>(candidate);
        index = static_cast<std::size_t>(std::max(labels[s][index].before, 0));
      }
      columns.push_back(std::move(column));
    }
  std::stable_sort(columns.begin(), columns.end(), [&](const PaperTemplate& a, const PaperTemplate& b) {
    return a.through + a.round * (limits.micro_batches - 1) < b.through + b.round * (limits.micro_batches - 1);
  });
  return columns;
}

}  // namespace sailor::planner
