#include "runtime/layers/expert_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace sailor::runtime {

namespace {

std::int64_t width_of(const Tensor& rows) { return rows.shape().size() < 2 ? 1 : rows.shape()[1]; }

Tensor make_like(Device& device, const Tensor& rows, std::int64_t count) {
  Shape shape = rows.shape();
  shape.front() = count;
  return {device, std::move(shape), rows.type()};
}

std::size_t place(std::int64_t index) { return static_cast<std::size_t>(index); }

/// The largest over the mean.
double busiest(const std::vector<std::int64_t>& pairs) {
  const std::int64_t all = std::accumulate(pairs.begin(), pairs.end(), std::int64_t{0});
  if (all == 0) return 1.0;
  return static_cast<double>(*std::max_element(pairs.begin(), pairs.end()) * std::ssize(pairs)) /
         static_cast<double>(all);
}

}  // namespace

void share_if_not_routed(std::span<std::int32_t> offsets, std::int64_t pairs) {
  if (offsets.back() != 0) return;
  const std::int64_t experts = std::ssize(offsets) - 1;
  for (std::int64_t expert = 0; expert <= experts; ++expert)
    offsets[place(expert)] = static_cast<std::int32_t>(pairs * expert / experts);
}

void add_loads(const std::vector<std::int64_t>& by_expert, const std::vector<std::int64_t>& by_rank,
               RoutingLoads& loads) {
  ++loads.passes;
  loads.experts += busiest(by_expert);
  loads.ranks += busiest(by_rank);
}

ExpertExchange::ExpertExchange(const LayerContext& context, std::int64_t experts)
    : device_(context.device),
      group_(context.expert_parallel.group),
      ranks_(context.expert_parallel.shard.count),
      experts_(experts),
      held_(experts / ranks_),
      offsets_(static_cast<std::int32_t*>(device_->allocate_host(bytes_of(DataType::int32, ranks_ * (experts_ + 1))))) {
}

ExpertExchange::~ExpertExchange() { device_->release_host(offsets_); }

std::span<const std::int32_t> ExpertExchange::gathered_offsets(const RoutingShape& shape,
                                                               const Routing& routing) const {
  const std::int64_t each = experts_ + 1;
  const std::int64_t rank = group_->rank();
  {
    Tensor all(*device_, {ranks_, each}, DataType::int32);
    device_->main().copy(all.integers() + rank * each, routing.offsets, bytes_of(DataType::int32, each));
    group_->all_gather(device_->main(), all.values(), all.elements());
    device_->read(offsets_, all.data(), all.bytes());
  }
  const std::span offsets(offsets_, place(ranks_ * each));
  const bool routed = offsets[place((rank + 1) * each - 1)] != 0;
  for (std::int64_t other = 0; other < ranks_; ++other) {
    const auto of_rank = offsets.subspan(place(other * each), place(each));
    if (!routed) share_if_not_routed(of_rank, shape.pairs());
    if (of_rank.front() != 0 || of_rank.back() != shape.pairs() || !std::is_sorted(of_rank.begin(), of_rank.end()))
      throw TransportError(
          TransportError::Cause::broken,
          fmt::format("numbers of tokens for experts that cannot be came from rank {} of {}", other, ranks_));
  }
  return offsets;
}

ExpertLoad ExpertExchange::agree(const RoutingShape& shape, const Routing& routing, RoutingLoads* loads) const {
  const std::int64_t rank = group_->rank();
  const std::span<const std::int32_t> offsets = gathered_offsets(shape, routing);
  const auto pairs_of = [&](std::int64_t from, std::int64_t first, std::int64_t experts) {
    const auto of_rank = offsets.subspan(place(from * (experts_ + 1)));
    return of_rank[place(first + experts)] - of_rank[place(first)];
  };
  if (loads != nullptr) {
    std::vector<std::int64_t> by_expert(place(experts_), 0);
    std::vector<std::int64_t> by_rank(place(ranks_), 0);
    for (std::int64_t other = 0; other < ranks_; ++other)
      for (std::int64_t expert = 0; expert < experts_; ++expert) {
        by_expert[place(expert)] += pairs_of(other, expert, 1);
        by_rank[place(expert / held_)] += pairs_of(other, expert, 1);
      }
    add_loads(by_expert, by_rank, *loads);
  }

  ExpertLoad load;
  for (std::int64_t other = 0; other < ranks_; ++other) {
    load.sent.push_back(pairs_of(rank, other * held_, held_));
    for (std::int64_t expert = 0; expert < held_; ++expert)
      load.received.push_back(pairs_of(other, rank * held_ + expert, 1));
  }
  load.offsets.push_back(0);
  for (std::int64_t expert = 0; expert < held_; ++expert) {
    std::int32_t pairs = 0;
    for (std::int64_t other = 0; other < ranks_; ++other) pairs += load.received[place(other * held_ + expert)];
    load.offsets.push_back(load.offsets.back() + pairs);
  }
  return load;
}

template <class Use>
void ExpertExchange::for_blocks(const ExpertLoad& load, const Use& use) const {
  std::vector<std::int64_t> next(load.offsets.begin(), load.offsets.end());  // place by expert
  std::int64_t by_rank = 0;
  for (std::int64_t rank = 0; rank < ranks_; ++rank)
    for (std::int64_t expert = 0; expert < held_; ++expert) {
      const std::int64_t number = load.received[place(rank * held_ + expert)];
      if (number > 0) use(number, by_rank, next[place(expert)]);
      by_rank += number;
      next[place(expert)] += number;
    }
}

std::vector<std::int64_t> ExpertExchange::sent(const ExpertLoad& load, std::int64_t width) const {
  std::vector<std::int64_t> sizes;
  for (const std::int32_t pairs : load.sent) sizes.push_back(pairs * width);
  return sizes;
}

std::vector<std::int64_t> ExpertExchange::received(const ExpertLoad& load, std::int64_t width) const {
  std::vector<std::int64_t> sizes(place(ranks_), 0);
  for (std::size_t i = 0; i < load.received.size(); ++i) sizes[i / place(held_)] += load.received[i] * width;
  return sizes;
}

Tensor ExpertExchange::in_order_of(Order order, const ExpertLoad& load, Tensor rows) const {
  if (held_ == 1) return rows;  // both orders are the same
  const std::int64_t width = width_of(rows);
  Tensor ordered = make_like(*device_, rows, load.pairs());
  for_blocks(load, [&](std::int64_t number, std::int64_t by_rank, std::int64_t by_expert) {
    const auto [from, to] = order == Order::experts ? std::pair(by_rank, by_expert) : std::pair(by_expert, by_rank);
    device_->main().copy((ordered.values() + to * width).data, (rows.values() + from * width).data,
                         bytes_of(rows.type(), number * width));
  });
  return ordered;
}

Tensor ExpertExchange::arrived(const ExpertLoad& load, const Tensor& pairs) const {
  const std::int64_t width = width_of(pairs);
  Tensor rows = make_like(*device_, pairs, load.pairs());
  group_->all_to_all(device_->main(), pairs.values(), rows.values(), {sent(load, width), received(load, width)});
  return rows;
}

Tensor ExpertExchange::to_experts(const ExpertLoad& load, const Tensor& pairs) const {
  return in_order_of(Order::experts, load, arrived(load, pairs));
}

Tensor ExpertExchange::to_experts(const ExpertLoad& load, Tensor&& pairs) const {
  Tensor rows = arrived(load, pairs);
  pairs = Tensor();
  return in_order_of(Order::experts, load, std::move(rows));
}

Tensor ExpertExchange::to_tokens(const ExpertLoad& load, Tensor rows) const {
  const std::int64_t width = width_of(rows);
  rows = in_order_of(Order::ranks, load, std::move(rows));
  Tensor pairs = make_like(*device_, rows, std::accumulate(load.sent.begin(), load.sent.end(), std::int64_t{0}));
  group_->all_to_all(device_->main(), rows.values(), pairs.values(), {received(load, width), sent(load, width)});
  return pairs;
}

}  // namespace sailor::runtime
