// The data plane: exchange of tensors between ranks, point to point along a pipeline and in collectives, as operations
// of streams. No call waits: a transfer is done when the stream that it was enqueued on has completed it.
//
// A group, like a channel, runs one operation at a time, in the order in which they were enqueued; all of them must be
// enqueued on one stream. All ranks of a group must enqueue the same operations in the same order, with the same counts
// and types. To avoid deadlocks, groups that share a stream must be used in the same order on all ranks.
//
// A transfer that fails (a rank that died, a wait that lasts longer than the timeout, abort()) makes the host's next
// call on the stream, or its wait for it, throw TransportError. The transport's groups and channels must then be
// dropped on every rank, which needs nothing from the other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/stream.hpp"

namespace sailor::runtime {

/// Failure of a transfer. The message names the operation and its peer ranks.
class TransportError : public std::runtime_error {
 public:
  enum class Cause {
    lost,     ///< a rank has gone away
    timeout,  ///< no answer for longer than the timeout
    aborted,  ///< Transport::abort() of this process
    broken,   ///< any other error of the transport
  };
  TransportError(Cause cause, const std::string& message) : std::runtime_error(message), cause_(cause) {}
  [[nodiscard]] Cause cause() const { return cause_; }

 private:
  Cause cause_;
};

/// Numbers of values that a rank of a group hands out and gets in an all-to-all, by the ranks of the group.
struct SliceSizes {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

/// Ranks that run collectives together. Sums of bfloat16 and float16 are made two at a time, each rounded to the
/// nearest. All ranks get the same bits.
class Group {
 public:
  Group() = default;
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Rank of this process in the group.
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// data = sum over ranks, in place. float32, bfloat16, float16 or float64.
  virtual void all_reduce_sum(Stream& stream, Values data, std::int64_t count) = 0;
  /// data = max over ranks, in place.
  virtual void all_reduce_max(Stream& stream, float* data, std::int64_t count) = 0;
  // The next two divide an array of `count` values into size() slices: that of rank i is cut(count, {i, size()})
  // (sharding.hpp).
  /// On entry, every rank has its own slice of data in place; afterwards all slices.
  virtual void all_gather(Stream& stream, Values data, std::int64_t count) = 0;
  /// Slice rank() of data = sum over ranks; the other slices are undefined afterwards.
  virtual void reduce_scatter_sum(Stream& stream, Values data, std::int64_t count) = 0;
  /// Slice j of `from` goes to rank j, where it becomes slice rank() of `to`. `count`: values of either array, a
  /// multiple of size(). The arrays must not overlap.
  virtual void all_to_all(Stream& stream, ConstValues from, Values to, std::int64_t count);
  /// The same with slices of any sizes, one after the other in either array. What a rank sends to another must be as
  /// much as that one receives from it, and may be nothing. The arrays must not overlap.
  virtual void all_to_all(Stream& stream, ConstValues from, Values to, const SliceSizes& sizes) = 0;
};

/// Messages from one rank to another, which arrive in the order in which they are sent. `bytes` must be the same on
/// both sides.
class Channel {
 public:
  Channel() = default;
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// To be called on the sender.
  virtual void send(Stream& stream, const void* data, std::size_t bytes) = 0;
  /// To be called on the receiver.
  virtual void receive(Stream& stream, void* data, std::size_t bytes) = 0;
};

enum class MessageKind { activation, gradient, other };
/// "an activation".
std::string_view describe(MessageKind kind);

struct ChannelName {
  int id = 0;  ///< at least 0; unique among live channels with the same two ends and direction
  MessageKind kind = MessageKind::other;
};

class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// "Open MPI v4.1.4".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Creates a group of `ranks` (ascending), which must all call this with the same list, in an order of calls that no
  /// two ranks reverse; other ranks do not call it. Rank i of the group is ranks[i].
  [[nodiscard]] virtual std::unique_ptr<Group> make_group(const std::vector<int>& ranks) = 0;
  /// A channel between two ranks, of which this is one; both call this with the same name.
  [[nodiscard]] virtual std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) = 0;
  /// Collective over all ranks, after their groups and channels are made and before a channel is used.
  virtual void connect() {}
  /// Breaks off all transfers, those in flight and later ones. May be called by any thread, and from a signal handler.
  virtual void abort() noexcept = 0;
};

}  // namespace sailor::runtime
