// Times of the messages among ranks that divide sequences (context parallelism) or experts (expert parallelism).
#include <fmt/format.h>

#include <algorithm>

#include "simulator/price_list.hpp"

namespace sailor::simulator {

Result<Exchanges> PriceList::make_exchanges(const LayerTable& table, const ExchangePlace& at) {
  Exchanges made;
  made.times.emplace_back();
  LayerKey layer = table.key;
  for (int i = 0; i < env.model.layers(); ++i) {
    layer.kind = env.model.layer_kind(i);
    layer.first_layer = i;
    PassTimes attention;
    if (!table.attention.empty()) {
      const PassTimes& before = table.attention[static_cast<std::size_t>(i)];
      const PassTimes& after = table.attention[static_cast<std::size_t>(i) + 1];
      attention = {after.forward - before.forward, after.backward - before.backward};
    }
    const auto times = exchange(layer, attention, at, made.links);
    if (!times) return fail(times.error());
    made.times.push_back({made.times.back().forward + times->forward, made.times.back().backward + times->backward});
  }
  return made;
}

Result<const Exchanges*> PriceList::exchanges_of(const LayerTable& table, const ExchangePlace& at) {
  const auto u = [](auto value) { return static_cast<std::uint64_t>(value); };
  const PriceKey key{reinterpret_cast<std::uintptr_t>(&table), u(at.place) << 32 | u(at.groups),
                     u(at.busy_ranks) << 2 | u(at.beyond)};
  auto& entry = exchanges_[key];
  if (!entry) entry = std::make_unique<Result<Exchanges>>(make_exchanges(table, at));
  if (!*entry) return fail(entry->error());
  return &**entry;
}

Result<PassTimes> PriceList::exchange(const LayerKey& key, const PassTimes& attention, const ExchangePlace& at,
                                      LinkNotes& links) {
  const ExchangeWork work = exchange_work(env.model, key, env.framework.kernels);
  const auto send = [&](int ranks, Reach reach, Bytes message) -> Result<Seconds> {
    if (message <= Bytes(0)) return Seconds(0);
    const auto time = send_time(at.place, at.place, ranks, ranks, reach, message);
    if (!time) return fail(time.error());
    links.add(*time, {.from = at.place, .to = at.place, .one_node = reach == Reach::node});
    return time->time;
  };
  PassTimes times;
  if (work.ring_step > Bytes(0)) {
    // A ring that leaves the node does so from one of the groups there; its steps take as long as the slowest.
    const bool one_node = at.groups >= key.context_parallel;
    const int senders = one_node ? at.busy_ranks : std::max(1, at.busy_ranks / at.groups);
    const auto step = send(senders, one_node ? Reach::node : at.beyond, work.ring_step);
    if (!step) return fail(step.error());
    const Seconds ring = *step * (key.context_parallel - 1.0);
    times.forward += std::max(Seconds(0), ring * work.forward_rings - attention.forward);
    times.backward += std::max(Seconds(0), ring * work.backward_rings - attention.backward);
  }
  // Every rank hands an equal part of `amount` to each of `ranks`; those to the same node and to others are under way
  // together.
  const auto all_to_all = [&](int ranks, Bytes amount) -> Result<Seconds> {
    const int members = std::min(ranks, at.groups);
    const Bytes part = amount / ranks;
    const auto inside = send(at.busy_ranks, Reach::node, part * (members - 1.0));
    if (!inside) return fail(inside.error());
    const auto outside = send(at.busy_ranks, at.beyond, part * (static_cast<double>(ranks) - members));
    if (!outside) return fail(outside.error());
    return std::max(*inside, *outside);
  };
  if (work.forward_heads > Bytes(0)) {
    const auto forward = all_to_all(key.context_parallel, work.forward_heads);
    if (!forward) return fail(forward.error());
    const auto backward = all_to_all(key.context_parallel, work.backward_heads);
    if (!backward) return fail(backward.error());
    times.forward += *forward;
    times.backward += *backward;
  }
  if (work.all_to_all > Bytes(0)) {
    const auto once = all_to_all(key.expert_parallel, work.all_to_all);
    if (!once) return fail(once.error());
    times.forward += *once * work.forward_all_to_alls;
    times.backward += *once * work.backward_all_to_alls;
  }
  return times;
}

}  // namespace sailor::simulator
