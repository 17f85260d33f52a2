#include "planner/baselines/artifact_sailor_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace sailor::planner::baselines::artifact_sailor_detail {

namespace {

constexpr double infinite_time = std::numeric_limits<double>::infinity();
constexpr double seconds_per_hour = 3600.0;
constexpr double bytes_per_gb_of_price = 1e9;
constexpr double state_bytes_per_parameter = 24.0;  // Adam 8, weights 4, gradients 4, communication 4, a copy 4
constexpr double speedup_threshold = 1.5;           // min speed-up of the next tensor-parallel degree
constexpr std::uint64_t gradient_bucket_bytes = 500'000'000;
// The published curves are fitted to messages between these sizes.
constexpr double least_fitted_bytes = 65'536.0;
constexpr double most_fitted_bytes = 1'073'741'824.0;
// Price of any egress of gradients, USD/GB (planner_utils.cpp:174).
constexpr double assumed_egress_price = 0.01;

/// Figures of cpp_src/planner.hpp. The evaluator has other prices; types that are missing here have no memory and no
/// price.
struct OriginalGpu {
  const char* name;
  double memory_gib;
  double usd_per_hour;
};
constexpr OriginalGpu original_gpus[] = {{"A100-40", 40.0, 3.74}, {"GH200-96", 96.0, 11.06}, {"V100-16", 16.0, 2.80}};

const OriginalGpu* original_gpu(const std::string& name) {
  const auto* found = std::find_if(std::begin(original_gpus), std::end(original_gpus),
                                   [&](const OriginalGpu& gpu) { return gpu.name == name; });
  return found == std::end(original_gpus) ? nullptr : found;
}

}  // namespace

Result<Supply> read_supply(const Problem& problem) {
  Supply supply;
  const std::vector<std::string> timed = problem.inputs.gpus();
  std::map<std::string, int> per_node;
  for (const Offer& offer : problem.offers) {
    if (offer.gpus <= 0) continue;
    if (std::find(timed.begin(), timed.end(), offer.gpu) == timed.end()) {
      const std::string why = offer.gpu + " (no times in the profile)";
      if (std::find(supply.left_out.begin(), supply.left_out.end(), why) == supply.left_out.end())
        supply.left_out.push_back(why);
      continue;
    }
    const auto [known, is_new] = per_node.try_emplace(offer.gpu, offer.gpus_per_node);
    known->second = std::gcd(known->second, offer.gpus_per_node);
  }
  for (const auto& [gpu, number] : per_node) {
    supply.gpus.push_back(gpu);
    supply.gpus_per_node.push_back(number);
  }
  const auto type_of = [&](const std::string& gpu) {
    return std::find(supply.gpus.begin(), supply.gpus.end(), gpu) - supply.gpus.begin();
  };
  for (const Offer& offer : problem.offers)
    if (offer.gpus > 0 && per_node.contains(offer.gpu) &&
        std::find(supply.zones.begin(), supply.zones.end(), offer.zone) == supply.zones.end())
      supply.zones.push_back(offer.zone);
  if (supply.zones.empty())
    return fail(ErrorCode::infeasible, "no device is offered of which the profile has times",
                "offer one of the profile's GPU types");
  std::reverse(supply.zones.begin(), supply.zones.end());
  const auto types = static_cast<std::size_t>(supply.types());
  supply.free.assign(supply.zones.size() * types, 0);
  for (const Offer& offer : problem.offers) {
    if (offer.gpus <= 0 || !per_node.contains(offer.gpu)) continue;
    const auto zone = std::find(supply.zones.begin(), supply.zones.end(), offer.zone) - supply.zones.begin();
    supply.free[static_cast<std::size_t>(zone) * types + static_cast<std::size_t>(type_of(offer.gpu))] += offer.gpus;
  }
  const auto devices = [&](int zone) {
    const auto first = supply.free.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(zone) * types);
    return std::accumulate(first, first + static_cast<std::ptrdiff_t>(types), 0);
  };
  std::map<std::string, std::size_t, std::less<>> region_index;
  for (std::size_t zone = 0; zone < supply.zones.size(); ++zone) {
    const auto [found, is_new] =
        region_index.try_emplace(std::string(region_of(supply.zones[zone])), supply.regions.size());
    if (is_new) supply.regions.emplace_back();
    supply.regions[found->second].push_back(static_cast<int>(zone));
  }
  for (std::vector<int>& zones : supply.regions)
    std::stable_sort(zones.begin(), zones.end(), [&](int a, int b) { return devices(a) > devices(b); });
  return supply;
}

Tables::Tables(const Problem& problem, const Supply& supply)
    : inputs_(problem.inputs),
      supply_(supply),
      batch_(problem.job.global_batch),
      keep_(problem.faults == Faults::kept) {
  for (int gpu = 0; gpu < supply.types(); ++gpu) {
    const std::string& name = supply.gpus[static_cast<std::size_t>(gpu)];
    const OriginalGpu* original = original_gpu(name);
    memory_.push_back(!keep_ ? inputs_.memory(name) : original != nullptr ? original->memory_gib * gib.value() : 0.0);
    prices_.push_back((!keep_                ? inputs_.price(name)
                       : original != nullptr ? original->usd_per_hour
                                             : 0.0) /
                      seconds_per_hour);
    // The original reads the degrees from the links of one zone, whichever comes first.
    std::set<int> degrees;
    for (const std::string& zone : supply.zones)
      for (const int degree : inputs_.senders(name, zone))
        if (inputs_.sizes(degree) != nullptr &&
            (keep_ || supply.gpus_per_node[static_cast<std::size_t>(gpu)] % degree == 0))
          degrees.insert(degree);
    degrees_.emplace_back(degrees.begin(), degrees.end());
    for (const int degree : degrees) {
      if (static_cast<int>(kind_.size()) <= degree) kind_.resize(static_cast<std::size_t>(degree) + 1, -1);
      if (int& kind = kind_[static_cast<std::size_t>(degree)]; kind < 0) kind = kinds_++;
    }
  }
  const std::size_t ends =
      supply.zones.size() * static_cast<std::size_t>(supply.types()) * static_cast<std::size_t>(kinds_);
  links_.resize(ends * ends);
}

std::vector<int> Tables::micro_batches() const {
  std::set<int> sizes;
  for (const std::string& gpu : supply_.gpus)
    for (const int size : inputs_.micro_batches(gpu)) sizes.insert(size);
  return {sizes.begin(), sizes.end()};
}

std::vector<int> Tables::data_parallel_degrees(int micro_batch) const {
  const int most = std::accumulate(supply_.free.begin(), supply_.free.end(), 0);
  std::vector<int> degrees{1};
  double known = micro_batch_count(micro_batch, 1);
  for (int replicas = 2; replicas <= most; ++replicas) {
    const double number = micro_batch_count(micro_batch, replicas);
    if (number < known) degrees.push_back(replicas);
    known = number;
  }
  return degrees;
}

double Tables::micro_batch_count(int micro_batch, int replicas) const {
  return std::ceil(static_cast<double>(batch_) / (static_cast<double>(micro_batch) * replicas));
}

double Tables::compute(int gpu, int micro_batch, int degree, LayerRange layers) const {
  const LayerTimes* times = inputs_.times(supply_.gpus[static_cast<std::size_t>(gpu)], micro_batch, degree);
  return times == nullptr ? 0.0 : times->compute(layers.first, layers.last);
}

int Tables::least_degree(int gpu, int micro_batch, LayerRange layers, int stages_left) const {
  for (const int degree : degrees_[static_cast<std::size_t>(gpu)]) {
    if (!keep_ && compute(gpu, micro_batch, degree, layers) <= 0.0) continue;
    const LayerSizes& sizes = *inputs_.sizes(degree);
    const double needed = state_bytes_per_parameter * sizes.parameters_of(layers.first, layers.last) +
                          float_bytes * micro_batch * sizes.activation_of(layers.first, layers.last) * stages_left +
                          (degree == 1 ? 2e9 : 3e9);
    if (needed <= memory_[static_cast<std::size_t>(gpu)]) return degree;
  }
  return -1;
}

int Tables::greatest_degree(int gpu, int micro_batch, LayerRange layers) const {
  int greatest = 0;
  double before = 1000.0;
  for (const int degree : degrees_[static_cast<std::size_t>(gpu)]) {
    // Kept: a degree that was not measured takes no time, so it is a great speed-up, and no later degree is one.
    const double seconds = compute(gpu, micro_batch, degree, layers);
    if (!keep_ && seconds <= 0.0) continue;
    if (seconds <= 0.0 ? before <= 0.0 : before / seconds < speedup_threshold) break;
    greatest = degree;
    before = seconds;
  }
  return greatest;
}

std::vector<std::vector<int>> Tables::tensor_parallel(const std::vector<LayerRange>& stages, int micro_batch) const {
  std::vector<std::vector<int>> degrees(static_cast<std::size_t>(supply_.types()));
  const int count = static_cast<int>(stages.size());
  for (int gpu = 0; gpu < supply_.types(); ++gpu) {
    std::vector<int>& of_gpu = degrees[static_cast<std::size_t>(gpu)];
    for (int stage = 0; stage < count; ++stage) {
      const LayerRange layers = stages[static_cast<std::size_t>(stage)];
      int degree = least_degree(gpu, micro_batch, layers, count - stage);
      // If there are several types, the first by name takes the degree that memory requires.
      if (degree > 0 && (gpu > 0 || supply_.types() == 1))
        degree = std::max(degree, greatest_degree(gpu, micro_batch, layers));
      if (degree <= 0 || compute(gpu, micro_batch, degree, layers) <= 0.0) {
        of_gpu.clear();
        break;
      }
      of_gpu.push_back(degree);
    }
  }
  return degrees;
}

const LinkCoefficients* Tables::link(const Run& from, const Run& to) const {
  const auto end = [&](const Run& run) {
    return (static_cast<std::size_t>(run.zone) * static_cast<std::size_t>(supply_.types()) +
            static_cast<std::size_t>(run.gpu)) *
               static_cast<std::size_t>(kinds_) +
           static_cast<std::size_t>(kind_[static_cast<std::size_t>(run.degree)]);
  };
  const std::size_t ends =
      supply_.zones.size() * static_cast<std::size_t>(supply_.types()) * static_cast<std::size_t>(kinds_);
  auto& known = links_[end(from) * ends + end(to)];
  if (!known)
    known = inputs_.inter(supply_.gpus[static_cast<std::size_t>(from.gpu)],
                          supply_.zones[static_cast<std::size_t>(from.zone)], from.degree,
                          supply_.gpus[static_cast<std::size_t>(to.gpu)],
                          supply_.zones[static_cast<std::size_t>(to.zone)], to.degree);
  return *known;
}

double Tables::transfer(const LinkCoefficients& link, double bytes) const {
  if (keep_ || bytes <= 0.0) return link.send(bytes);
  // Outside the sizes that it was fitted to, a parabola may fall to zero.
  return bytes / bytes_per_gb_of_price / link.bandwidth(std::clamp(bytes, least_fitted_bytes, most_fitted_bytes));
}

double Tables::all_reduce(LayerRange layers, int replicas, const LinkCoefficients& link) const {
  auto left = static_cast<std::uint64_t>(float_bytes * inputs_.sizes(1)->parameters_of(layers.first, layers.last));
  double seconds = 0.0;
  while (left > 0) {
    const std::uint64_t bucket = std::min(left, gradient_bucket_bytes);
    const std::uint64_t piece = bucket / static_cast<std::uint64_t>(replicas);  // whole bytes, as in the original
    seconds += 2.0 * (replicas - 1) * transfer(link, static_cast<double>(piece));
    left -= bucket;
  }
  return seconds;
}

StageTimes Tables::stage_times(LayerRange layers, int micro_batch, int replicas, const std::vector<int>& degrees,
                               const std::vector<int>& first_zone, const std::vector<int>& zones) const {
  StageTimes times;
  double update = 0.0;
  const LinkCoefficients* slowest = nullptr;
  const LinkCoefficients* slowest_inside = nullptr;
  for (int gpu = 0; gpu < supply_.types(); ++gpu) {
    const auto at = static_cast<std::size_t>(gpu);
    if (first_zone[at] < 0) continue;
    times.compute = std::max(times.compute, compute(gpu, micro_batch, degrees[at], layers));
    const LayerTimes& measured = *inputs_.times(supply_.gpus[at], micro_batch, degrees[at]);
    // The update of the whole model, counted once for every layer (planner_utils.cpp:378).
    update = std::max(update, layers.size() * *std::max_element(measured.update.begin(), measured.update.end()));
    const Run here{.gpu = gpu, .zone = first_zone[at], .degree = degrees[at]};
    for (const int zone : zones) {
      Run there = here;
      there.zone = zone;
      const LinkCoefficients* candidate = link(here, there);
      if (candidate == nullptr || (slowest != nullptr && candidate->max_bandwidth >= slowest->max_bandwidth)) continue;
      // The slowest pair of zones is found, but its sender is stored as its receiver too (planner_utils.cpp:231).
      slowest = candidate;
      slowest_inside = link(here, here);
    }
  }
  if (replicas > 1)
    times.all_reduce = slowest_inside == nullptr ? infinite_time : all_reduce(layers, replicas, *slowest_inside);
  times.straggler = times.compute;
  times.first_compute = times.compute;
  times.iteration = micro_batch_count(micro_batch, replicas) * times.compute + times.all_reduce + update;
  return times;
}

double Tables::message_bytes(LayerRange first_stage, int micro_batch) const {
  return float_bytes * micro_batch * inputs_.sizes(1)->output[static_cast<std::size_t>(first_stage.last - 1)];
}

namespace {

/// Calls visit(run, next run, number of replicas) for the replicas of two stages that communicate with each other.
template <class Visit>
void for_pairs(const std::vector<Run>& runs, const std::vector<Run>& next, Visit visit) {
  std::size_t i = 0;
  std::size_t j = 0;
  int used_i = 0;
  int used_j = 0;
  while (i < runs.size() && j < next.size()) {
    const int number = std::min(runs[i].count - used_i, next[j].count - used_j);
    visit(runs[i], next[j], number);
    used_i += number;
    used_j += number;
    if (used_i == runs[i].count) ++i, used_i = 0;
    if (used_j == next[j].count) ++j, used_j = 0;
  }
}

}  // namespace

StageTimes Tables::joined(const StageTimes& first, const std::vector<Run>& runs, const StageTimes& rest,
                          const std::vector<Run>& next, double message, double micro_batches) const {
  double send = 0.0;  // the gradient is assumed to take as long
  for_pairs(runs, next, [&](const Run& from, const Run& to, int) {
    const LinkCoefficients* between = link(from, to);
    send = std::max(send, between == nullptr ? infinite_time : transfer(*between, message));
  });
  StageTimes both;
  both.straggler = std::max({first.straggler + send, rest.first_compute + send, rest.straggler});
  both.first_compute = first.compute + send;
  both.compute = first.compute + rest.compute;
  both.communication = first.communication + rest.communication + 2.0 * send;
  both.all_reduce = std::max(first.all_reduce, rest.all_reduce);
  both.iteration = (micro_batches - 1.0) * both.straggler + both.communication + both.compute + both.all_reduce;
  return both;
}

double Tables::message_cost(const std::vector<Run>& runs, const std::vector<Run>& next, double message,
                            double micro_batches) const {
  double price = 0.0;
  for_pairs(runs, next, [&](const Run& from, const Run& to, int number) {
    if (from.zone == to.zone) return;
    price += number * Inputs::egress_price(supply_.zones[static_cast<std::size_t>(from.zone)],
                                           supply_.zones[static_cast<std::size_t>(to.zone)]);
  });
  return 2.0 * micro_batches * price * message / bytes_per_gb_of_price;
}

double Tables::all_reduce_cost(LayerRange layers, int replicas, const std::vector<Run>& runs,
                               const std::vector<int>& zones) const {
  if (replicas == 1) return 0.0;
  const double bytes = float_bytes * inputs_.sizes(1)->parameters_of(layers.first, layers.last);
  double price = 0.0;  // USD/GB, over the links of the ring
  if (keep_) {
    if (zones.size() > 1) price = static_cast<double>(zones.size()) * assumed_egress_price;
  } else {
    for (std::size_t i = 0; i < runs.size(); ++i)
      price += Inputs::egress_price(supply_.zones[static_cast<std::size_t>(runs[i].zone)],
                                    supply_.zones[static_cast<std::size_t>(runs[(i + 1) % runs.size()].zone)]);
  }
  return 2.0 * (replicas - 1) * price * (bytes / replicas) / bytes_per_gb_of_price;
}

double Tables::widest_link(int zone, int other_zone) const {
  double widest = 0.0;
  for (const std::string& from : supply_.gpus)
    for (const std::string& to : supply_.gpus)
      if (const LinkCoefficients* between = inputs_.inter(from, supply_.zones[static_cast<std::size_t>(zone)], 1, to,
                                                          supply_.zones[static_cast<std::size_t>(other_zone)], 1))
        widest = std::max(widest, between->max_bandwidth);
  return widest;
}

}  // namespace sailor::planner::baselines::artifact_sailor_detail
