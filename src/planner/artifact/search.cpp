#include "planner/artifact/search.hpp"

#include <algorithm>
#include <cmath>

namespace sailor::planner::artifact {

namespace {

// Stages of up to this many replicas are divided between two GPU types in all ways.
constexpr int try_all = 8;

int power_of_two_above(int value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

}  // namespace

Kinds::Kinds(const Inputs& inputs, int micro_batch) {
  const Tables& tables = inputs.tables;
  zones_ = static_cast<int>(tables.zones().size());
  for (int gpu = 0; gpu < static_cast<int>(tables.gpus().size()); ++gpu)
    for (const int degree : tables.degrees(gpu, micro_batch)) {
      if (inputs.tensor_parallel && degree != *inputs.tensor_parallel) continue;
      if (inputs.max_tensor_parallel && degree > *inputs.max_tensor_parallel) continue;
      const int room = power_of_two_above(degree);
      const bool has_pool = std::any_of(inputs.pools.begin(), inputs.pools.end(),
                                        [&](const Pool& pool) { return pool.gpu == gpu && pool.chunk >= room; });
      if (has_pool)
        candidates_.push_back({gpu, degree, room, tables.times(gpu, micro_batch, degree), tables.sizes(gpu, degree),
                               tables.memory(gpu) * inputs.memory_share, tables.price(gpu) * degree});
    }
  std::vector<double> sizes;
  for (int layer = 0; layer < tables.layers(); ++layer) {
    const double bytes = tables.output_bytes(layer) * micro_batch;
    const auto known = std::find(sizes.begin(), sizes.end(), bytes);
    size_class_.push_back(static_cast<int>(known - sizes.begin()));
    if (known == sizes.end()) sizes.push_back(bytes);
  }
  classes_ = static_cast<int>(sizes.size());
  place_.assign(candidates_.size() * zones_, -1);
  std::vector<std::pair<int, int>> places;  // candidate, zone
  std::set<std::pair<int, int>> used;       // type, zone
  for (const Pool& pool : inputs.pools)
    for (std::size_t o = 0; o < candidates_.size(); ++o) {
      if (candidates_[o].gpu != pool.gpu) continue;
      used.insert({pool.gpu, pool.zone});
      int& place = place_[o * zones_ + pool.zone];
      if (place >= 0) continue;
      place = static_cast<int>(places.size());
      places.emplace_back(static_cast<int>(o), pool.zone);
    }
  places_ = static_cast<int>(places.size());
  linked_.assign(places.size() * places.size(), 0);
  messages_.assign(places.size() * places.size() * classes_, 0.0);
  fastest_send_.assign(candidates_.size(), unlimited);
  std::size_t at = 0;
  for (const auto& [from, from_zone] : places)
    for (const auto& [to, to_zone] : places) {
      const StageCandidate& a = candidates_[from];
      const StageCandidate& b = candidates_[to];
      const Curve* curve = tables.link(a.gpu, from_zone, a.degree, b.gpu, to_zone, b.degree);
      linked_[at] = curve != nullptr ? 1 : 0;
      double fastest = unlimited;
      for (int size = 0; size < classes_ && curve != nullptr; ++size) {
        double& time = messages_[at * classes_ + size];
        time = sizes[size] > 0.0 ? std::max(0.0, message_time(sizes[size], *curve)) : 0.0;
        fastest = std::min(fastest, time);
      }
      fastest_send_[from] = std::min(fastest_send_[from], fastest);
      ++at;
    }
  for (const auto& [gpu, zone] : used)
    for (const auto& [to_gpu, to_zone] : used)
      if (const Curve* ring = tables.link(gpu, zone, 1, to_gpu, to_zone, 1)) {
        const auto same = [&](const Curve* other) { return *other == *ring; };
        if (std::none_of(rings_.begin(), rings_.end(), same)) rings_.push_back(ring);
      }
}

StageSearch::StageSearch(const Inputs& inputs, std::shared_ptr<const Kinds> kinds, int micro_batch, int replicas)
    : inputs_(inputs),
      tables_(inputs.tables),
      kinds_(std::move(kinds)),
      candidates_(kinds_->candidates()),
      micro_batch_(micro_batch),
      replicas_(replicas),
      batches_((inputs.tables.global_batch() + micro_batch * replicas - 1) / (micro_batch * replicas)),
      layers_(inputs.tables.layers()) {
  for (const Pool& pool : inputs.pools) {
    whole_.push_back(pool.devices);
    max_room_.push_back(1);
    for (const StageCandidate& candidate : candidates_)
      if (candidate.gpu == pool.gpu) max_room_.back() = std::max<std::int64_t>(max_room_.back(), candidate.room);
  }
  if (!candidates_.empty()) prepare_bounds();
}

std::size_t StageSearch::HashRuns::operator()(const std::vector<Run>& runs) const {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (const Run& run : runs)
    for (const int part : {run.gpu, run.zone, run.tensor_parallel, run.count})
      hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x100000001b3 + (hash >> 29);
  return hash;
}

std::int64_t StageSearch::groups(const std::int64_t* left, int candidate) const {
  const StageCandidate& kind = candidates_[candidate];
  const int room = kind.room;
  std::int64_t count = 0;
  for (std::size_t p = 0; p < whole_.size(); ++p)
    if (inputs_.pools[p].gpu == kind.gpu && inputs_.pools[p].chunk >= room) count += left[p] / room;
  return count;
}

std::int64_t StageSearch::nodes_used(const std::int64_t* left) const {
  std::int64_t nodes = 0;
  for (std::size_t p = 0; p < whole_.size(); ++p) {
    const std::int64_t chunk = inputs_.pools[p].chunk;
    nodes += (whole_[p] - left[p] + chunk - 1) / chunk;
  }
  return nodes;
}

void StageSearch::start_draw() {
  work_->runs.clear();
  work_->devices.resize(work_->draws.empty() ? 0 : work_->draws.back().last);
}

void StageSearch::take(int pool, std::int64_t devices, const Run& run) {
  work_->devices.emplace_back(pool, devices);
  auto& runs = work_->runs;
  if (!runs.empty() && Run{run.gpu, run.zone, run.tensor_parallel, runs.back().count} == runs.back())
    runs.back().count += run.count;
  else
    runs.push_back(run);
}

bool StageSearch::fill(std::vector<std::int64_t>& left, int candidate, int count, std::size_t start) {
  const StageCandidate& kind = candidates_[candidate];
  const int room = kind.room;
  for (std::size_t at = start; at < order_.size() && count > 0; ++at) {
    const int p = order_[at];
    const Pool& pool = inputs_.pools[p];
    if (pool.gpu != kind.gpu || pool.chunk < room) continue;
    const std::int64_t taken = std::min<std::int64_t>(count, left[p] / room);
    if (taken == 0) continue;
    left[p] -= taken * room;
    count -= static_cast<int>(taken);
    take(p, taken * room, {pool.gpu, pool.zone, kind.degree, static_cast<int>(taken)});
  }
  return count == 0;
}

int StageSearch::team_of(const std::vector<Run>& runs) {
  const auto [place, is_new] = team_index_.try_emplace(runs, static_cast<int>(teams_.size()));
  if (!is_new) return place->second;
  Team team;
  team.runs = runs;
  std::pair<std::vector<const Curve*>, int> ring{{}, 4};
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const Run& run = runs[r];
    const int candidate =
        static_cast<int>(std::find_if(candidates_.begin(), candidates_.end(),
                                      [&](const StageCandidate& kind) {
                                        return kind.gpu == run.gpu && kind.degree == run.tensor_parallel;
                                      }) -
                         candidates_.begin());
    if (std::find(team.candidates.begin(), team.candidates.end(), candidate) == team.candidates.end())
      team.candidates.push_back(candidate);
    team.places.push_back(kinds_->place(candidate, run.zone));
    team.mixed = team.mixed || run.gpu != runs.front().gpu;
    team.price += candidates_[candidate].price * run.count;
    ring.second = std::min(ring.second, run.tensor_parallel);
    const Run& next = runs[(r + 1) % runs.size()];
    team.ring_egress += tables_.egress_price(run.zone, next.zone) / replicas_ * 2.0 * (replicas_ - 1);
    const auto join = [&](const Run& to) {
      const Curve* curve = tables_.link(run.gpu, run.zone, 1, to.gpu, to.zone, 1);
      team.linked = team.linked && curve != nullptr;
      if (curve != nullptr && std::find(ring.first.begin(), ring.first.end(), curve) == ring.first.end())
        ring.first.push_back(curve);
    };
    if (run.count > 1) join(run);
    if (r + 1 < runs.size()) join(next);
  }
  std::sort(ring.first.begin(), ring.first.end(), std::less<>());
  const auto [known, is_new_ring] = ring_index_.try_emplace(ring, static_cast<int>(rings_.size()));
  if (is_new_ring)
    rings_.push_back(
        {ring.first, ring.second, std::vector<double>(static_cast<std::size_t>(layers_ + 1) * (layers_ + 1), -1.0)});
  team.ring = known->second;
  // In large teams the numbers of the runs hardly matter to the neighbours.
  std::vector<Run> bucket = runs;
  if (replicas_ > try_all)
    for (Run& run : bucket) run.count = 0;
  team.bucket = bucket_index_.try_emplace(std::move(bucket), static_cast<int>(bucket_index_.size())).first->second;
  teams_.push_back(std::move(team));
  return place->second;
}

void StageSearch::add_draw() {
  Draw draw;
  draw.first = work_->draws.empty() ? 0 : work_->draws.back().last;
  draw.last = work_->devices.size();
  draw.team = team_of(work_->runs);
  if (!teams_[draw.team].linked) return;
  const auto at = [&](std::size_t i) { return work_->devices.begin() + static_cast<std::ptrdiff_t>(i); };
  for (const Draw& other : work_->draws)
    if (other.team == draw.team && std::equal(at(other.first), at(other.last), at(draw.first), at(draw.last))) return;
  work_->draws.push_back(draw);
}

void StageSearch::draw_type(const std::int64_t* left, int candidate) {
  const StageCandidate& kind = candidates_[candidate];
  if (groups(left, candidate) < replicas_) return;
  const int room = kind.room;
  const auto usable = [&](int p) {
    return inputs_.pools[p].gpu == kind.gpu && inputs_.pools[p].chunk >= room && left[p] >= room;
  };
  bool spread = false;
  std::int64_t all = 0;
  int pools = 0;
  for (const int p : order_) {
    if (!usable(p)) continue;
    ++pools;
    all += left[p] / room;
    if (left[p] / room < replicas_) continue;
    start_draw();
    take(p, static_cast<std::int64_t>(room) * replicas_, {kind.gpu, inputs_.pools[p].zone, kind.degree, replicas_});
    add_draw();
    spread = true;
  }
  if (pools < 2) return;
  const auto several = [&] {
    return work_->devices.size() > (work_->draws.empty() ? 0 : work_->draws.back().last) + 1;
  };
  // Fills the pools in order, starting from any of them.
  for (std::size_t start = 0; start < order_.size(); ++start) {
    if (!usable(order_[start])) continue;
    work_->filled.assign(left, left + whole_.size());
    start_draw();
    if (!fill(work_->filled, candidate, replicas_, start)) break;
    if (several()) add_draw();
    if (spread) break;
  }
  // Takes the same share of every pool: each replica keeps to its zone.
  start_draw();
  std::int64_t before = 0;
  int taken = 0;
  for (const int p : order_) {
    if (!usable(p)) continue;
    before += left[p] / room;
    const int count = static_cast<int>(before * replicas_ / all) - taken;
    if (count == 0) continue;
    if (count > left[p] / room) return;
    taken += count;
    take(p, static_cast<std::int64_t>(room) * count, {kind.gpu, inputs_.pools[p].zone, kind.degree, count});
  }
  if (several()) add_draw();
}

void StageSearch::draw_mixed(const std::int64_t* left, int a, int b) {
  const std::int64_t max_a = groups(left, a);
  const std::int64_t max_b = groups(left, b);
  const int least = static_cast<int>(std::max<std::int64_t>(1, replicas_ - max_b));
  const int most = static_cast<int>(std::min<std::int64_t>(replicas_ - 1, max_a));
  if (least > most) return;
  // One type is used up in the end, or the stage need not be mixed: it takes what stages of that type alone leave over.
  std::vector<int>& counts = work_->counts;
  counts.clear();
  if (replicas_ <= try_all) {
    for (int count = least; count <= most; ++count) counts.push_back(count);
  } else {
    const auto add = [&](int candidate, std::int64_t groups_left, bool other) {
      const int room = candidates_[candidate].room;
      const std::int64_t devices = groups_left * room;
      for (std::int64_t whole = devices / replicas_; whole >= 0 && whole + room >= devices / replicas_; --whole) {
        const std::int64_t count = (devices - whole * replicas_) / room;
        const std::int64_t count_a = other ? replicas_ - count : count;
        if (count_a >= least && count_a <= most) counts.push_back(static_cast<int>(count_a));
      }
    };
    add(a, max_a, false);
    add(b, max_b, true);
    counts.push_back(least);
    counts.push_back(most);
    std::sort(counts.begin(), counts.end());
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  }
  for (const int count : counts)
    for (const bool a_first : {true, false}) {
      if (!a_first && replicas_ > try_all) continue;
      work_->filled.assign(left, left + whole_.size());
      start_draw();
      auto& rest = work_->filled;
      const int others = replicas_ - count;
      if (a_first ? fill(rest, a, count, 0) && fill(rest, b, others, 0)
                  : fill(rest, b, others, 0) && fill(rest, a, count, 0))
        add_draw();
    }
}

void StageSearch::draw_triple(const std::int64_t* left, int a, int b, int c) {
  const int max_a = static_cast<int>(std::min<std::int64_t>(replicas_ - 2, groups(left, a)));
  const int max_b = static_cast<int>(std::min<std::int64_t>(replicas_ - 2, groups(left, b)));
  const int max_c = static_cast<int>(std::min<std::int64_t>(replicas_ - 2, groups(left, c)));
  const auto draw = [&](int count_a, int count_b) {
    const int count_c = replicas_ - count_a - count_b;
    if (std::min({count_a, count_b, count_c}) < 1 || count_a > max_a || count_b > max_b || count_c > max_c) return;
    work_->filled.assign(left, left + whole_.size());
    start_draw();
    auto& rest = work_->filled;
    if (fill(rest, a, count_a, 0) && fill(rest, b, count_b, 0) && fill(rest, c, count_c, 0)) add_draw();
  };
  if (std::min({max_a, max_b, max_c}) < 1 || max_a + max_b + max_c < replicas_) return;
  // Where two types are enough, a third does not make the stage faster.
  if (max_a + max_b + max_c - std::min({max_a, max_b, max_c}) >= replicas_) return;
  if (replicas_ <= try_all) {
    for (int count_a = 1; count_a <= max_a; ++count_a)
      for (int count_b = 1; count_b <= max_b; ++count_b) draw(count_a, count_b);
  } else {  // two types are used up
    draw(max_a, max_b);
    if (replicas_ - max_a - max_c != max_b) draw(max_a, replicas_ - max_a - max_c);
    if (replicas_ - max_b - max_c != max_a) draw(replicas_ - max_b - max_c, max_b);
  }
}

void StageSearch::find_draws(const std::int64_t* left, int layers_left) {
  work_->draws.clear();
  work_->devices.clear();
  if (layers_left == 0) return;
  for (int candidate = 0; candidate < static_cast<int>(candidates_.size()); ++candidate) draw_type(left, candidate);
  for (int a = 0; a < static_cast<int>(candidates_.size()); ++a)
    for (int b = a + 1; b < static_cast<int>(candidates_.size()); ++b)
      if (candidates_[a].gpu != candidates_[b].gpu) {
        draw_mixed(left, a, b);
        for (int c = b + 1; c < static_cast<int>(candidates_.size()) && replicas_ > 2; ++c)
          if (candidates_[c].gpu != candidates_[b].gpu && candidates_[c].gpu != candidates_[a].gpu)
            draw_triple(left, a, b, c);
      }
}

const StageSearch::Link& StageSearch::link(int from, int to) {
  const auto [known, is_new] =
      links_.try_emplace(static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to));
  Link& link = known->second;
  if (!is_new) return link;
  const std::size_t classes = kinds_->classes();
  link.times = link_times_.size();
  link_times_.resize(link.times + 2 * classes, 0.0);
  double* times = &link_times_[link.times];
  const Team& left = teams_[from];
  const Team& right = teams_[to];
  std::size_t i = 0;
  std::size_t j = 0;
  int left_over = left.runs.front().count;
  int right_over = right.runs.front().count;
  while (i < left.runs.size() && j < right.runs.size()) {
    const int both = std::min(left_over, right_over);
    link.egress += 2.0 * batches_ * both * tables_.egress_price(left.runs[i].zone, right.runs[j].zone);
    const double* there = kinds_->message(left.places[i], right.places[j]);
    const double* back = kinds_->message(right.places[j], left.places[i]);
    if (there == nullptr || back == nullptr) {
      link.there = false;
      return link;
    }
    for (std::size_t size = 0; size < classes; ++size) {
      times[size] = std::max(times[size], there[size]);
      times[classes + size] = std::max(times[classes + size], back[size]);
    }
    left_over -= both;
    right_over -= both;
    if (left_over == 0 && ++i < left.runs.size()) left_over = left.runs[i].count;
    if (right_over == 0 && ++j < right.runs.size()) right_over = right.runs[j].count;
  }
  return link;
}

double StageSearch::reduction(Ring& ring, const LayerRange& layers) {
  double& time = ring.reductions[static_cast<std::size_t>(layers.first) * (layers_ + 1) + layers.last];
  if (time >= 0.0) return time;
  time = 0.0;
  const double bytes = tables_.gradient_bytes(layers) / ring.smallest_degree;
  for (const Curve* curve : ring.curves) time = std::max(time, bucketed_all_reduce(bytes, replicas_, *curve));
  return time;
}

Pipelines StageSearch::pipelines(const Label& last) const {
  Pipelines found;
  found.micro_batch = micro_batch_;
  found.replicas = replicas_;
  for (const Label* label = &last; label->team >= 0; label = &work_->labels[label->parent]) {
    found.stages.push_back({{label->first, label->last}, teams_[label->team].runs});
    if (label->parent < 0) break;
  }
  return found;
}

}  // namespace sailor::planner::artifact
