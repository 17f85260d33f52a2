// The data plane: ranks that exchange tensors, point to point along a pipeline and in collectives, as operations of
// streams. Nothing here waits: a transfer is done when the stream that it was put on has got past it.
//
// A group, like a channel, runs one operation at a time, in the order in which they were asked for; they are all to be
// put on one stream. All ranks of a group must ask for the same ones in the same order, with the same counts and types.
// So that no two ranks wait for each other, groups that share a stream must be used in an order that all ranks share.
//
// A transfer that fails (a rank that died, a wait that lasts longer than the timeout, abort()) makes the host's next
// call on the stream, or its wait for it, throw TransportError. The transport's groups and channels must then be given
// up, on every rank; that needs nothing of the other ranks.
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

/// What ended a transfer. The message names the operation and the ranks it was with.
class TransportError : public std::runtime_error {
 public:
  enum class Cause {
    lost,     ///< a rank has gone away
    timeout,  ///< no answer for longer than the timeout
    aborted,  ///< Transport::abort() of this process
    broken,   ///< anything else that the transport says
  };
  TransportError(Cause cause, const std::string& message) : std::runtime_error(message), cause_(cause) {}
  [[nodiscard]] Cause cause() const { return cause_; }

 private:
  Cause cause_;
};

/// Ranks that make collectives together. Sums of bfloat16 and float16 are made two at a time, each rounded to the
/// nearest. All ranks get the same bits.
class Group {
 public:
  Group() = default;
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// This process among the group's ranks.
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  /// data = sum over ranks, in place. float32, bfloat16, float16 or float64.
  virtual void all_reduce_sum(Stream& stream, Values data, std::int64_t count) = 0;
  /// data = largest over ranks, in place.
  virtual void all_reduce_max(Stream& stream, float* data, std::int64_t count) = 0;
  // An array of `count` values in size() slices: that of rank i is cut(count, {i, size()}) (sharding.hpp).
  /// Every rank has its slice of data in place; afterwards all slices.
  virtual void all_gather(Stream& stream, Values data, std::int64_t count) = 0;
  /// Slice rank() of data = sum over ranks; the other slices are undefined afterwards.
  virtual void reduce_scatter_sum(Stream& stream, Values data, std::int64_t count) = 0;
};

/// Messages from one rank to another, which arrive in the order in which they are sent. `bytes` are the same on both
/// sides.
class Channel {
 public:
  Channel() = default;
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// On the sender.
  virtual void send(Stream& stream, const void* data, std::size_t bytes) = 0;
  /// On the receiver.
  virtual void receive(Stream& stream, void* data, std::size_t bytes) = 0;
};

enum class MessageKind { activation, gradient, other };
/// "an activation".
std::string_view describe(MessageKind kind);

struct ChannelName {
  int id = 0;  ///< from 0 on; live channels with the same two ends and direction differ in it
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
  /// A group of `ranks` (ascending), which must all call this with the same list, in an order of calls that no two
  /// ranks reverse; others do not. Rank i of it is ranks[i].
  [[nodiscard]] virtual std::unique_ptr<Group> make_group(const std::vector<int>& ranks) = 0;
  /// A channel between two ranks, of which this is one; both call this with the same name.
  [[nodiscard]] virtual std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) = 0;
  /// Collective: of all ranks, when their groups and channels are made and before a channel is used.
  virtual void connect() {}
  /// Breaks off what is under way, and all that is asked for afterwards. May be called by any thread, and from a signal
  /// handler.
  virtual void abort() noexcept = 0;
};

}  // namespace sailor::runtime
