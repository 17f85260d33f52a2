#include "apps/check/measure.hpp"

#include <time.h>  // NOLINT(modernize-deprecated-headers): clock_gettime is POSIX

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <thread>

#include "core/statistics.hpp"
#include "core/stopwatch.hpp"
#include "preflight/gather_facts.hpp"
#include "preflight/write_test.hpp"
#include "profiler/link_profiler.hpp"
#include "runtime/tensor.hpp"

namespace sailor::apps {

namespace {

using Clock = std::chrono::steady_clock;
using preflight::JobSpeed;
using preflight::LinkKind;
using preflight::LinkSpeed;
using preflight::RankSpeed;

/// CPU time of all threads of this process together.
double processor_seconds() {
  timespec time{};
  return ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0
             ? static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)
             : 0.0;
}

struct Repeated {
  double seconds = 0.0;      ///< median per repetition
  double cpu_seconds = 0.0;  ///< mean per repetition and thread
  double core_share = 1.0;
};

/// Repeats `once` for `time`, at least three times, after a warm-up that does not count. `threads` of the CPU, whose
/// CPU time is measured; 0: it computes elsewhere.
Repeated repeat(runtime::Control& control, int threads, Seconds time, const std::function<void()>& once) {
  constexpr std::size_t fewest = 3;
  once();
  control.idle_barrier();
  const auto start = Clock::now();
  const double cpu_start = processor_seconds();
  std::vector<double> seconds;
  while (seconds.size() < fewest || seconds_since(start) < time.value()) {
    const auto begin = Clock::now();
    once();
    seconds.push_back(seconds_since(begin));
  }
  const double wall = seconds_since(start);
  const double cpu_end = processor_seconds();
  control.idle_barrier();
  if (threads == 0) return {.seconds = quantile(seconds, 0.5)};
  const double cpu = (cpu_end - cpu_start) / threads;
  return {.seconds = quantile(seconds, 0.5),
          .cpu_seconds = cpu / static_cast<double>(seconds.size()),
          .core_share = std::min(1.0, cpu / wall)};
}

/// One group for every link, labelled with the nodes as if each were a zone: that makes their curves distinct.
struct Links {
  profiler::LinkPlan plan;
  std::map<LinkKey, LinkSpeed> speeds;

  void add(const std::string& from, const std::string& to, const LinkSpeed& speed, std::vector<int> ranks) {
    const bool is_send = speed.kind == LinkKind::send;
    const LinkKey key{
        .from = {.gpu = {}, .zone = from, .ranks = 1},
        .to = {.gpu = {}, .zone = to, .ranks = 1},
        .scope = speed.kind == LinkKind::all_reduce_within_node ? LinkScope::intra_node : LinkScope::inter_node,
        .operation = is_send ? LinkOperation::send_receive : LinkOperation::all_reduce,
        .ranks = speed.ranks};
    profiler::LinkSeries series{.key = key, .pairs = {}};
    if (is_send) series.pairs = {speed.from < speed.to ? std::pair(0, 1) : std::pair(1, 0)};
    std::sort(ranks.begin(), ranks.end());
    plan.groups.push_back({.ranks = std::move(ranks), .series = {std::move(series)}});
    speeds.emplace(key, speed);
  }
};

Links links_of(const std::vector<std::string>& nodes, Bytes message) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    if (!ranks_of.contains(nodes[rank])) names.push_back(nodes[rank]);
    ranks_of[nodes[rank]].push_back(static_cast<int>(rank));
  }
  Links links;
  links.plan.sizes = {static_cast<std::size_t>(message.value())};
  const auto collective = [&](LinkKind kind, const std::string& label, const std::vector<int>& ranks) {
    links.add(label, label,
              {.kind = kind, .from = ranks.front(), .to = ranks.back(), .ranks = static_cast<int>(ranks.size())},
              ranks);
  };
  const std::size_t count = names.size();
  const auto send = [&](std::size_t from) {
    const std::string& a = names[from];
    const std::string& b = names[(from + 1) % count];
    links.add(a, b, {.kind = LinkKind::send, .from = ranks_of[a].front(), .to = ranks_of[b].front()},
              {ranks_of[a].front(), ranks_of[b].front()});
  };
  // Pairs without a common node are adjacent, to run at once. With an odd number of nodes the last pair shares a node
  // with the first.
  if (count > 1)
    for (const std::size_t parity : {0U, 1U})
      for (std::size_t from = parity; from < count; from += 2) send(from);
  std::vector<int> first_of_nodes;
  for (const std::string& name : names) {
    if (ranks_of[name].size() > 1) collective(LinkKind::all_reduce_within_node, "within " + name, ranks_of[name]);
    first_of_nodes.push_back(ranks_of[name].front());
  }
  std::sort(first_of_nodes.begin(), first_of_nodes.end());
  if (count > 1) collective(LinkKind::all_reduce_between_nodes, "between nodes", first_of_nodes);
  if (count > 1 && nodes.size() > count) {
    std::vector<int> all(nodes.size());
    for (std::size_t rank = 0; rank < all.size(); ++rank) all[rank] = static_cast<int>(rank);
    collective(LinkKind::all_reduce_all, "all ranks", all);
  }
  return links;
}

/// The product of two square matrices of zeros.
class SquareProduct {
 public:
  SquareProduct(runtime::Device& device, std::int64_t side, runtime::DataType type)
      : device_(device),
        side_(side),
        a_(device, {side, side}, type),
        b_(device, {side, side}, type),
        c_(device, {side, side}, type) {
    device.main().zero(a_.data(), a_.bytes());
    device.main().zero(b_.data(), b_.bytes());
  }
  void run() {
    device_.main().matmul({.m = side_, .n = side_, .k = side_}, a_.values(), b_.values(), c_.values());
    device_.synchronize();
  }
  [[nodiscard]] double flop() const { return 2.0 * std::pow(static_cast<double>(side_), 3.0); }

 private:
  runtime::Device& device_;
  std::int64_t side_;
  runtime::Tensor a_;
  runtime::Tensor b_;
  runtime::Tensor c_;
};

/// Side length of square matrices whose product keeps the slowest GPU busy for a millisecond or more.
std::int64_t side_for_gpu(runtime::Control& control, runtime::Device& device) {
  constexpr std::int64_t smallest = 128;
  constexpr std::int64_t largest = 8192;
  constexpr double long_enough = 1e-3;  // seconds
  std::int64_t side = smallest;
  for (bool enough = false; side < largest && !enough;) {
    SquareProduct product(device, side, runtime::DataType::float16);
    product.run();
    const auto start = Clock::now();
    product.run();
    enough = control.max(seconds_since(start)) >= long_enough;
    if (!enough) side *= 2;
  }
  return side;
}

}  // namespace

std::optional<double> measure_load(runtime::Control& control) {
  constexpr auto settle = std::chrono::milliseconds(50);
  constexpr auto window = std::chrono::milliseconds(250);
  control.idle_barrier();
  std::this_thread::sleep_for(settle);
  std::optional<double> least;  // the min, since a short burst is no load
  for (int i = 0; i < 2; ++i) {
    const auto start = Clock::now();
    const auto before = preflight::processor_time();
    std::this_thread::sleep_for(window);
    const auto after = preflight::processor_time();
    if (!before || !after) break;
    const double busy = (*after - *before).value() / seconds_since(start);
    least = std::min(least.value_or(busy), busy);
  }
  control.idle_barrier();
  return least;
}

RankSpeed measure_rank(runtime::Control& control, runtime::Device& device, int threads, Seconds time) {
  const bool on_gpu = threads == 0;
  const double largest_copy = (on_gpu ? 1024.0 : 64.0) * 1024 * 1024;
  constexpr double smallest_copy = 1024.0 * 1024;
  RankSpeed speed;
  {
    SquareProduct product(device, on_gpu ? side_for_gpu(control, device) : 512,  // 512 takes milliseconds on a core
                          on_gpu ? runtime::DataType::float16 : runtime::DataType::float32);
    const Repeated products = repeat(control, threads, time * 0.5, [&] { product.run(); });
    speed.flop_per_s = product.flop() / products.seconds;
    speed.flop_per_cpu_s = on_gpu ? 0.0 : product.flop() / products.cpu_seconds;
    speed.core_share = products.core_share;
  }
  const Bytes available = device.available_memory(on_gpu ? 1 : control.size());
  constexpr double share = 1.0 / 64;
  const double bytes =
      available.value() > 0.0 ? std::clamp(available.value() * share, smallest_copy, largest_copy) : smallest_copy;
  const auto floats = static_cast<std::int64_t>(control.min(bytes)) / 4;
  runtime::Tensor from(device, {floats});
  runtime::Tensor to(device, {floats});
  device.main().zero(from.data(), from.bytes());
  const Repeated copies = repeat(control, threads, time * 0.5, [&] {
    device.main().copy(to.data(), from.data(), from.bytes());
    device.synchronize();
  });
  const double moved = 2.0 * static_cast<double>(from.bytes());  // read and written
  speed.bytes_per_s = moved / copies.seconds;
  if (!on_gpu) speed.bytes_per_cpu_s = moved / (copies.cpu_seconds * threads);  // one thread copies
  return speed;
}

JobSpeed measure_links(const runtime::World& world, runtime::Device& device, bool on_gpus,
                       const std::vector<std::string>& nodes, Bytes message, Seconds time) {
  JobSpeed speed{.on_gpu = on_gpus};
  if (world.size() < 2) {
    speed.unknown.push_back({"links", "there is one rank only"});
    return speed;
  }
  const Links links = links_of(nodes, message);
  const profiler::LinkSettings settings{
      .rank = {}, .samples = 10, .warm_up = 1, .time_budget = time, .narrow_enough = 0.05, .groups_at_once = true};
  const profiler::MeasuredLinks measured =
      profiler::measure_links(links.plan, settings, device, world, [](std::size_t, std::size_t) {});
  for (const LinkMeasurement& row : measured.links) {
    LinkSpeed link = links.speeds.at(row.key);
    link.message = row.message;
    // Share of the array that each rank of a ring sends and receives (nccl-tests: bus bandwidth).
    const double factor = link.kind == LinkKind::send ? 1.0 : 2.0 * (link.ranks - 1) / link.ranks;
    link.bandwidth = factor * (row.message / row.time.median);
    speed.links.push_back(link);
  }
  return speed;
}

std::optional<preflight::WriteSpeed> measure_writing(runtime::Control& control, const std::vector<std::string>& nodes,
                                                     const std::string& folder, Bytes amount) {
  const auto rank = static_cast<std::size_t>(control.rank());
  const bool writes =
      static_cast<std::size_t>(std::find(nodes.begin(), nodes.end(), nodes[rank]) - nodes.begin()) == rank;
  std::optional<preflight::WriteSpeed> speed;
  control.idle_barrier();
  if (writes) {
    speed = {.folder = folder, .amount = amount};
    if (const auto time = preflight::write_and_sync(folder, amount))
      speed->bytes_per_s = (amount / *time).value();
    else
      speed->problem = time.error().what;
  }
  control.idle_barrier();
  return speed;
}

preflight::WriteSpeed better(const preflight::WriteSpeed& one, const preflight::WriteSpeed& other) {
  return one.problem.empty() && one.bytes_per_s >= other.bytes_per_s ? one : other;
}

RankSpeed better(const RankSpeed& one, const RankSpeed& other) {
  return {.flop_per_s = std::max(one.flop_per_s, other.flop_per_s),
          .flop_per_cpu_s = std::max(one.flop_per_cpu_s, other.flop_per_cpu_s),
          .bytes_per_s = std::max(one.bytes_per_s, other.bytes_per_s),
          .bytes_per_cpu_s = std::max(one.bytes_per_cpu_s, other.bytes_per_cpu_s),
          .core_share = std::max(one.core_share, other.core_share)};
}

JobSpeed better(JobSpeed one, const JobSpeed& other) {
  for (std::size_t i = 0; i < std::min(one.links.size(), other.links.size()); ++i)
    one.links[i].bandwidth = std::max(one.links[i].bandwidth, other.links[i].bandwidth);
  return one;
}

}  // namespace sailor::apps
