#include "runtime/links.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/waits.hpp"

namespace sailor::runtime {

namespace {

Range overlap(const Range& a, const Range& b) { return {std::max(a.first, b.first), std::min(a.last, b.last)}; }

}  // namespace

ReceiveBuffers::ReceiveBuffers(Device& device, Shape shape, DataType type)
    : device_(device), shape_(std::move(shape)), type_(type) {}

void* ReceiveBuffers::allocate(std::size_t) { throw std::logic_error("receive buffers are taken, not allocated"); }

Tensor ReceiveBuffers::take(Stream& stream) {
  if (free_.empty()) {
    all_.push_back({.memory = Tensor(device_, shape_, type_), .free = device_.make_event()});
    device_.main().record(*all_.back().free);
    free_.push_back(all_.size() - 1);
  }
  Buffer& buffer = all_[free_.front()];
  free_.pop_front();
  if (waits(Wait::receive_for_its_buffer)) stream.wait(*buffer.free);
  return {*this, buffer.memory.data(), shape_, type_};
}

void ReceiveBuffers::release(void* memory) {
  const auto buffer =
      std::find_if(all_.begin(), all_.end(), [&](const Buffer& one) { return one.memory.data() == memory; });
  device_.main().record(*buffer->free);
  free_.push_back(static_cast<std::size_t>(buffer - all_.begin()));
}

IncomingLink::IncomingLink(const LinkShape& shape, ReceiveBuffers& buffers, const Shard& shard, Group* group,
                           Device& device, Transport& transport)
    : shape_(shape),
      group_(shard.count > 1 ? group : nullptr),
      device_(device),
      stream_(device.make_stream()),
      arrived_(device.make_event()),
      buffers_(buffers) {
  const Range mine = cut(shape.values, shard);
  for (int index = 0; index < shape.from.degree; ++index) {
    const Range part = overlap(mine, cut(shape.values, {index, shape.from.degree}));
    if (part.size() > 0)
      parts_.push_back(
          {part, transport.make_channel(shape.from.first_rank + index, shape.to.first_rank + shard.index, shape.name)});
  }
}

void IncomingLink::expect() {
  expected_ = buffers_.take(*stream_);
  for (const Part& part : parts_)
    part.channel->receive(*stream_, (expected_.values() + part.values.first).data,
                          bytes_of(shape_.type, part.values.size()));
  stream_->record(*arrived_);
}

Tensor IncomingLink::take() {
  if (waits(Wait::pass_for_its_input)) device_.main().wait(*arrived_);
  if (group_ != nullptr) group_->all_gather(device_.main(), expected_.values(), shape_.values);
  return std::move(expected_);
}

OutgoingLink::OutgoingLink(const LinkShape& shape, const Shard& shard, Device& device, Transport& transport)
    : shape_(shape), device_(device), stream_(device.make_stream()), ready_(device.make_event()) {
  const Range mine = cut(shape.values, shard);
  for (int index = 0; index < shape.to.degree; ++index) {
    const Range part = overlap(mine, cut(shape.values, {index, shape.to.degree}));
    if (part.size() > 0)
      parts_.push_back(
          {part, transport.make_channel(shape.from.first_rank + shard.index, shape.to.first_rank + index, shape.name)});
  }
}

void OutgoingLink::put(Tensor data) {
  while (under_way_.size() >= most) drop_first();
  for (const Part& part : parts_)
    part.channel->send(*stream_, (data.values() + part.values.first).data, bytes_of(shape_.type, part.values.size()));
  if (events_.empty()) events_.push_back(device_.make_event());
  stream_->record(*events_.back());
  under_way_.push_back({std::move(data), std::move(events_.back())});
  events_.pop_back();
}

void OutgoingLink::drop_first() {
  if (waits(Wait::release_for_the_send)) device_.main().wait(*under_way_.front().done);
  events_.push_back(std::move(under_way_.front().done));
  under_way_.pop_front();
}

void OutgoingLink::release_sent() {
  while (!under_way_.empty() && device_.is_done(*under_way_.front().done)) drop_first();
}

void OutgoingLink::finish() {
  while (!under_way_.empty()) drop_first();
}

}  // namespace sailor::runtime
