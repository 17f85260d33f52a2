#include "profiler/link_profiler.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>

#include "profiler/layer_profiler.hpp"
#include "profiler/pooling.hpp"
#include "runtime/tensor.hpp"

namespace sailor::profiler {

namespace {

using Clock = std::chrono::steady_clock;
using runtime::Communicator;
using runtime::MessageKind;

constexpr std::size_t smallest_message = 1024;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Short messages are repeated within a sample: one of them takes little longer than reading the clock.
int repetitions(std::size_t bytes) { return bytes <= std::size_t{64} * 1024 ? 10 : 1; }

/// Seconds of one message from the first to the last rank of `pair`: half a round trip.
double ping(Communicator& pair, void* data, std::size_t bytes) {
  const int peer = 1 - pair.rank();
  pair.barrier();
  const auto start = Clock::now();
  const int times = repetitions(bytes);
  for (int i = 0; i < times; ++i) {
    if (pair.rank() == 0) pair.send(data, bytes, peer, MessageKind::link_test);
    pair.receive(data, bytes, peer, MessageKind::link_test);
    if (pair.rank() == 1) pair.send(data, bytes, peer, MessageKind::link_test);
  }
  return seconds_since(start) / (2.0 * times);
}

double sum_over(Communicator& group, float* data, std::size_t bytes) {
  group.barrier();
  const auto start = Clock::now();
  const int times = repetitions(bytes);
  for (int i = 0; i < times; ++i) group.all_reduce_sum(data, static_cast<std::int64_t>(bytes / sizeof(float)));
  return seconds_since(start) / times;
}

/// Samples of one group, operation and size on this rank.
struct Series {
  std::size_t group = 0;
  LinkOperation operation = LinkOperation::send_receive;
  std::size_t bytes = 0;
  std::vector<double> seconds;
};

/// What took part in a sample is as slow as its slowest rank; a message is timed by its sender.
std::vector<double> combine(const std::vector<std::vector<double>>& by_rank, LinkOperation operation) {
  if (operation == LinkOperation::send_receive) return by_rank.front();
  std::vector<double> slowest = by_rank.front();
  for (const std::vector<double>& rank : by_rank)
    for (std::size_t i = 0; i < rank.size(); ++i) slowest[i] = std::max(slowest[i], rank[i]);
  return slowest;
}

}  // namespace

std::vector<LinkGroup> link_groups(const std::vector<std::string>& nodes, std::optional<LinkScope> scope) {
  std::vector<LinkGroup> groups;
  auto add = [&](LinkScope group_scope, std::vector<int> ranks) {
    LinkGroup group{group_scope, std::move(ranks)};
    if (group.ranks.size() >= 2 && std::find(groups.begin(), groups.end(), group) == groups.end())
      groups.push_back(std::move(group));
  };
  std::vector<int> all(nodes.size());
  std::iota(all.begin(), all.end(), 0);
  if (scope) {
    if (nodes.size() >= 2) add(*scope, {0, 1});
    add(*scope, all);
    return groups;
  }
  std::vector<int> here;
  std::vector<int> first_of_each_node;
  for (const int rank : all) {
    const std::string& node = nodes[static_cast<std::size_t>(rank)];
    if (node == nodes.front()) here.push_back(rank);
    if (std::find(nodes.begin(), nodes.begin() + rank, node) == nodes.begin() + rank)
      first_of_each_node.push_back(rank);
  }
  if (here.size() >= 2) add(LinkScope::intra_node, {here[0], here[1]});
  add(LinkScope::intra_node, here);
  if (first_of_each_node.size() >= 2) {
    add(LinkScope::inter_node, {first_of_each_node[0], first_of_each_node[1]});
    add(LinkScope::inter_node, first_of_each_node);
    add(LinkScope::inter_node, all);
  }
  return groups;
}

std::vector<std::size_t> message_sizes(Bytes largest) {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = smallest_message; static_cast<double>(bytes) <= largest.value(); bytes *= 4)
    sizes.push_back(bytes);
  return sizes;
}

Result<std::vector<LinkMeasurement>> measure_links(
    const LinkSettings& settings, runtime::Device& device, Communicator& world,
    const std::function<void(std::size_t done, std::size_t of)>& round_done) {
  if (world.size() < 2)
    return fail(ErrorCode::usage, "links need at least 2 ranks but there is 1",
                "start it with srun -n 2 (one task per node for the network), or mpirun -n 2");
  const std::vector<std::string> nodes = all_texts(world, settings.node);
  const std::vector<std::string> gpus = all_texts(world, settings.gpu);
  const std::vector<LinkGroup> groups = link_groups(nodes, settings.scope);
  const std::vector<std::size_t> sizes = message_sizes(settings.largest_message);

  std::vector<std::unique_ptr<Communicator>> communicators;  // null where this rank takes no part
  std::vector<Series> series;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::vector<int>& ranks = groups[i].ranks;
    const bool member = std::find(ranks.begin(), ranks.end(), world.rank()) != ranks.end();
    world.barrier();
    communicators.push_back(member ? world.subgroup(ranks) : nullptr);
    for (const std::size_t bytes : sizes) {
      if (ranks.size() == 2) series.push_back({i, LinkOperation::send_receive, bytes, {}});
      series.push_back({i, LinkOperation::all_reduce, bytes, {}});
    }
  }
  runtime::Tensor buffer(device, {static_cast<std::int64_t>(sizes.back() / sizeof(float))});
  device.zero(buffer.data(), buffer.bytes());  // sums of zeros stay zero, however often
  device.synchronize();

  const auto start = Clock::now();
  const std::size_t rounds = static_cast<std::size_t>(settings.warm_up) + static_cast<std::size_t>(settings.samples);
  for (std::size_t round = 0; round < rounds; ++round) {
    for (Series& one : series) {
      world.barrier();  // ranks outside the group are idle, not in another group's sample
      Communicator* const group = communicators[one.group].get();
      if (group == nullptr) continue;
      const double seconds = one.operation == LinkOperation::send_receive
                                 ? ping(*group, buffer.data(), one.bytes)
                                 : sum_over(*group, buffer.floats(), one.bytes);
      if (static_cast<int>(round) >= settings.warm_up) one.seconds.push_back(seconds);
    }
    if (world.rank() == 0) round_done(round + 1, rounds);
    if (world.max(seconds_since(start)) > settings.time_budget.value() &&
        static_cast<int>(round) + 1 >= settings.warm_up + fewest_samples)
      break;
  }

  std::vector<LinkMeasurement> rows;
  for (const Series& one : series) {
    const std::vector<std::vector<double>> by_rank = gather_numbers(world, one.seconds);
    if (world.rank() != 0) continue;  // every group has rank 0 as its first
    const std::vector<int>& ranks = groups[one.group].ranks;
    rows.push_back({.from_gpu = gpus[static_cast<std::size_t>(ranks.front())],
                    .to_gpu = gpus[static_cast<std::size_t>(ranks.back())],
                    .scope = groups[one.group].scope,
                    .operation = one.operation,
                    .ranks = static_cast<int>(ranks.size()),
                    .message = Bytes(static_cast<double>(one.bytes)),
                    .time = summarize(combine(by_rank, one.operation))});
  }
  return rows;
}

}  // namespace sailor::profiler
