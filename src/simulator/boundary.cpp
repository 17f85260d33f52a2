// Time of a message between two stages of any tensor-parallel degrees: the one place that knows how the parts of a
// value are sent.
#include <algorithm>
#include <bit>

#include "simulator/price_list.hpp"

namespace sailor::simulator {

const Result<BoundaryPrice>& PriceList::boundary(std::uint32_t from, int from_degree, std::uint32_t to, int to_degree,
                                                 Reach reach, Bytes message) {
  const auto u = [](auto value) { return static_cast<std::uint64_t>(value); };
  const PriceKey key{u(from) << 32 | u(to), u(from_degree) << 32 | u(to_degree) << 2 | u(reach),
                     std::bit_cast<std::uint64_t>(message.value())};
  const auto known = boundaries_.find(key);
  if (known != boundaries_.end()) return known->second;
  return boundaries_.emplace(key, price_boundary(from, from_degree, to, to_degree, reach, message)).first->second;
}

Result<BoundaryPrice> PriceList::price_boundary(std::uint32_t from, int from_degree, std::uint32_t to, int to_degree,
                                                Reach reach, Bytes message) {
  BoundaryPrice price;
  const auto out = message_time(from, from_degree, to, to_degree, reach, message, price);
  if (!out) return fail(out.error());
  const auto back = message_time(to, to_degree, from, from_degree, reach, message, price);
  if (!back) return fail(back.error());
  price.times = {.forward = *out, .backward = *back};
  return price;
}

// As many pairs exchange parts at a time as the smaller group has ranks, until each rank of the larger one has had its
// turn. Then the receivers gather, which is half of an all-reduce inside their node.
Result<Seconds> PriceList::message_time(std::uint32_t from, int senders, std::uint32_t to, int receivers, Reach reach,
                                        Bytes message, BoundaryPrice& price) {
  const StageMessages how = env.framework.stage_messages;
  const auto send = [&](int from_ranks, int to_ranks, Bytes part) -> Result<Seconds> {
    const auto time = send_time(from, to, from_ranks, to_ranks, reach, part);
    if (!time) return fail(time.error());
    price.links.add(*time, {.from = from, .to = to, .one_node = reach == Reach::node});
    return time->time;
  };
  if (how == StageMessages::whole) {
    const auto time = send(senders, receivers, message);
    if (!time) return fail(time.error());
    return *time * std::max(1, (receivers + senders - 1) / senders) + env.framework.transfer_overhead;
  }
  const int larger = std::max(senders, receivers);
  const int pairs = std::min(senders, receivers);
  const double turns = static_cast<double>(larger) / pairs;
  const Bytes part = message / (how == StageMessages::pieces ? senders : larger);
  Seconds time;
  if (const ZoneLink* link = usable_link(from, to, reach)) {  // all pairs share it
    const Bytes all = message * crossing_copies(how, senders, receivers);
    time = link->latency * turns + all / *link->bandwidth;
    if (const SwitchLink* across = switch_link(from, to, reach))  // each pair has one of its own
      time = std::max(time, across->latency * turns + all / pairs / across->bandwidth);
  } else {
    const auto each = send(pairs, pairs, part);
    if (!each) return fail(each.error());
    time = *each * turns;
  }
  time += env.framework.transfer_overhead * turns;
  // Under sequence parallelism a rank works with its part of the sequence between blocks, so nothing is gathered.
  if (receivers == 1 || env.framework.kernels.sequence_parallel) return time;
  const auto gather = all_reduce_time(to, to, receivers, 1, receivers, Reach::node, message);
  if (!gather) return fail(gather.error());
  price.links.add(*gather, {.from = to, .to = to, .one_node = true});
  return time + gather->time * 0.5;
}

}  // namespace sailor::simulator
