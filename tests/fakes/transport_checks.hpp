// Requirements on every transport between hosts' memories, for the tests of transports.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/bfloat16.hpp"
#include "runtime/cpu/cpu_device.hpp"
#include "runtime/host_transport.hpp"
#include "runtime/world.hpp"

namespace sailor::runtime::test {

inline std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Value i of rank r before an operation. Sums of four are below 256: exact in bfloat16 too.
inline float before(int rank, std::int64_t i) { return static_cast<float>(8 * (rank + 1)) + static_cast<float>(i % 8); }
inline float number(float value) { return value; }
inline float number(std::uint16_t value) { return from_bfloat16(value); }
inline void store(float value, float& to) { to = value; }
inline void store(float value, std::uint16_t& to) { to = to_bfloat16(value); }

/// All collectives of a group: what is wrong on this rank, empty when all is right. `Value` is float, or the bits of a
/// bfloat16.
template <class Value>
std::string check_collectives(Group& group, std::int64_t slice) {
  constexpr DataType type = std::is_same_v<Value, float> ? DataType::float32 : DataType::bfloat16;
  const auto device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  const std::unique_ptr<Event> done = device->make_event();
  const int n = group.size();
  const int me = group.rank();
  const std::int64_t count = slice * n;
  std::vector<Value> data(static_cast<std::size_t>(count));
  const Values values(data.data(), type);
  const auto fill = [&] {
    for (std::int64_t i = 0; i < count; ++i) store(before(me, i), data[static_cast<std::size_t>(i)]);
  };
  // 8 (1 + ... + n) + n (i mod 8)
  const auto sum = [&](std::int64_t i) {
    return static_cast<float>(4 * n * (n + 1)) + static_cast<float>(n * (i % 8));
  };
  std::string wrong;
  const auto expect = [&](const char* what, std::int64_t i, float value) {
    const float found = number(data[static_cast<std::size_t>(i)]);
    if (found != value && wrong.empty())
      wrong = fmt::format("{} of {} values of {} bytes over {} ranks: value {} is {}, not {}", what, count,
                          sizeof(Value), n, i, found, value);
  };
  const auto wait = [&] {
    stream->record(*done);
    device->wait(*done);
  };
  fill();
  group.all_reduce_sum(*stream, values, count);
  wait();
  for (std::int64_t i = 0; i < count; ++i) expect("all_reduce_sum", i, sum(i));
  fill();
  group.all_gather(*stream, values, count);
  wait();
  for (std::int64_t i = 0; i < count; ++i) expect("all_gather", i, before(static_cast<int>(i / slice), i));
  fill();
  group.reduce_scatter_sum(*stream, values, count);
  wait();
  for (std::int64_t i = me * slice; i < (me + 1) * slice; ++i) expect("reduce_scatter_sum", i, sum(i));
  if constexpr (type == DataType::float32) {
    fill();
    group.all_reduce_max(*stream, data.data(), count);
    wait();
    for (std::int64_t i = 0; i < count; ++i) expect("all_reduce_max", i, before(n - 1, i));
  }
  fill();
  std::vector<Value> exchanged(data.size());
  group.all_to_all(*stream, values, {exchanged.data(), type}, count);
  wait();
  std::swap(data, exchanged);
  for (std::int64_t i = 0; i < count; ++i)
    expect("all_to_all", i, before(static_cast<int>(i / slice), me * slice + i % slice));
  std::swap(data, exchanged);  // `values` are these
  // Every other rank sends a slice to this one, and gets one.
  fill();
  SliceSizes sizes;
  for (int rank = 0; rank < n; ++rank) sizes.sent.push_back((me + rank) % 2 * slice);
  sizes.received = sizes.sent;
  group.all_to_all(*stream, values, {exchanged.data(), type}, sizes);
  wait();
  std::swap(data, exchanged);
  std::int64_t received = 0;
  for (int rank = 0; rank < n; ++rank) {
    const std::int64_t first = (me + rank % 2) / 2 * slice;  // in what that rank sends: slices for every other rank
    for (std::int64_t i = 0; i < sizes.received[static_cast<std::size_t>(rank)]; ++i)
      expect("all_to_all of unequal slices", received++, before(rank, first + i));
  }
  std::swap(data, exchanged);
  // Asked for at once, they follow one another.
  fill();
  group.reduce_scatter_sum(*stream, values, count);
  group.all_gather(*stream, values, count);
  wait();
  for (std::int64_t i = 0; i < count; ++i) expect("reduce_scatter_sum and all_gather", i, sum(i));
  std::vector<double> numbers{0.5, static_cast<double>(me)};
  group.all_reduce_sum(*stream, {numbers.data(), DataType::float64}, 2);
  wait();
  if ((numbers[0] != 0.5 * n || numbers[1] != 0.5 * n * (n - 1)) && wrong.empty())
    wrong = fmt::format("all_reduce_sum of float64: {} and {}", numbers[0], numbers[1]);
  return wrong;
}

/// Channels to the next and from the previous rank of the ring of all ranks. Both ends make them in the order of the
/// ring, so that nobody waits for ever.
struct RingChannels {
  RingChannels(const World& world, int id) {
    const int n = world.size();
    const int me = world.rank();
    const auto make_out = [&] { out = world.transport.make_channel(me, (me + 1) % n, {.id = id}); };
    if (me % 2 == 0) make_out();
    in = world.transport.make_channel((me + n - 1) % n, me, {.id = id});
    if (out == nullptr) make_out();
  }
  std::unique_ptr<Channel> out;
  std::unique_ptr<Channel> in;
};

/// Messages round a ring of all ranks. Sends are advanced last ones first, receives in their order: they must go one
/// after the other all the same.
inline std::string check_order(const World& world, std::size_t bytes) {
  const RingChannels ring(world, 7);
  constexpr int messages = 4;
  std::vector<std::string> sent;
  std::vector<std::string> received(messages, std::string(bytes, '?'));
  for (int number = 0; number < messages; ++number) sent.emplace_back(bytes, static_cast<char>('0' + number));
  std::vector<std::unique_ptr<HostOperation>> operations;  // in the order in which they are advanced
  for (std::string& text : received)
    operations.push_back(dynamic_cast<HostChannel&>(*ring.in).make_receive(text.data(), bytes));
  for (const std::string& text : sent)
    operations.insert(operations.begin() + messages,
                      dynamic_cast<HostChannel&>(*ring.out).make_send(text.data(), bytes));
  for (std::size_t left = operations.size(); left > 0;)
    for (std::unique_ptr<HostOperation>& operation : operations)
      if (operation != nullptr && operation->advance()) {
        operation.reset();
        --left;
      }
  for (std::size_t number = 0; number < messages; ++number)
    if (received[number] != sent[number])
      return fmt::format("message {} of {} bytes is '{}...'", number, bytes, received[number].substr(0, 8));
  return "";
}

/// Messages round a ring of all ranks, on two channels each way, and the control plane.
inline std::string check_messages(const World& world, std::size_t bytes) {
  const auto device = make_cpu_device();
  const int n = world.size();
  const int me = world.rank();
  const int previous = (me + n - 1) % n;
  std::string wrong;
  if (n > 1) {
    const auto fill = [&](int rank, int number) {
      std::string text(bytes, static_cast<char>('a' + rank));
      if (!text.empty()) text.front() = static_cast<char>('0' + number);
      return text;
    };
    struct Way {
      RingChannels ring;
      std::unique_ptr<Stream> sends;
      std::unique_ptr<Stream> receives;
      std::vector<std::string> sent{};
      std::vector<std::string> received{};
    };
    std::vector<Way> ways;
    for (int id = 0; id < 2; ++id) {
      ways.push_back(
          {.ring = RingChannels(world, id), .sends = device->make_stream(), .receives = device->make_stream()});
    }
    constexpr int messages = 3;
    // The second channel's are asked for first: channels do not wait for each other.
    for (int id : {1, 0})
      for (int number = 0; number < messages; ++number)
        ways[static_cast<std::size_t>(id)].received.emplace_back(bytes, '?');
    for (int id : {1, 0})
      for (int number = 0; number < messages; ++number) {
        Way& way = ways[static_cast<std::size_t>(id)];
        way.ring.in->receive(*way.receives, way.received[static_cast<std::size_t>(number)].data(), bytes);
      }
    for (int id : {0, 1})
      for (int number = 0; number < messages; ++number)
        ways[static_cast<std::size_t>(id)].sent.push_back(fill(me, messages * id + number));
    const auto done = device->make_event();
    for (Way& way : ways)
      for (const std::string& text : way.sent) way.ring.out->send(*way.sends, text.data(), bytes);
    for (Way& way : ways)
      for (Stream* stream : {way.receives.get(), way.sends.get()}) {
        stream->record(*done);
        device->wait(*done);
      }
    for (int id : {0, 1})
      for (int number = 0; number < messages; ++number) {
        const std::string& got = ways[static_cast<std::size_t>(id)].received[static_cast<std::size_t>(number)];
        if (got != fill(previous, messages * id + number) && wrong.empty())
          wrong = fmt::format("message {} of channel {} of {} bytes is '{}...'", number, id, bytes, got.substr(0, 8));
      }
  }
  Control& control = world.control;
  const std::string expected = fmt::format("{} {} {}", 0.5 * n * n, n - 1.0, 0.0);
  if (const std::string got = fmt::format("{} {} {}", control.sum(0.5 * n), control.max(me), control.min(me));
      got != expected && wrong.empty())
    wrong = fmt::format("sum, max and min are {}, not {}", got, expected);
  const std::vector<std::string> texts = control.gather(std::string(static_cast<std::size_t>(me), 'x'));
  if (texts.size() != (me == 0 ? static_cast<std::size_t>(n) : 0U) && wrong.empty())
    wrong = fmt::format("{} texts were gathered", texts.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    if (texts[rank] != std::string(rank, 'x') && wrong.empty()) wrong = fmt::format("text {} is wrong", rank);
  if (control.broadcast(me == 0 ? "told" : "nothing") != "told" && wrong.empty()) wrong = "the broadcast is wrong";
  control.barrier();
  control.idle_barrier();
  return wrong;
}

}  // namespace sailor::runtime::test
