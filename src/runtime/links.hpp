// How activations and gradients cross from stage to stage: every value once. Of a sender of tensor-parallel degree a
// and a receiver of degree b each rank of the receiver gets its slice, in parts from the ranks of the sender whose
// slices overlap it; then the receiver's ranks gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/tensor.hpp"
#include "runtime/transport.hpp"
#include "runtime/waits.hpp"

namespace sailor::runtime {

/// Where a stage's tensor-parallel group is.
struct StageRanks {
  int first_rank = -1;  ///< -1: there is no such stage
  int degree = 1;
  int stage = -1;
};

/// One way between two stages.
struct LinkShape {
  StageRanks from;
  StageRanks to;
  ChannelName name;
  std::int64_t values = 0;  ///< of a message
  DataType type = DataType::float32;
};

/// Buffers of one size that other streams than the main one write and the main stream reads, for all links of a rank:
/// what one link has released another may take. What is released is written again after what the main stream was asked
/// before its release, the longest free first.
class ReceiveBuffers final : public MemorySource {
 public:
  ReceiveBuffers(Device& device, Shape shape, DataType type);
  /// A tensor that `stream` may write. Releasing it gives it back.
  [[nodiscard]] Tensor take(Stream& stream);

  [[nodiscard]] void* allocate(std::size_t bytes) override;
  void release(void* memory) override;

 private:
  struct Buffer {
    Tensor memory;
    std::unique_ptr<Event> free;  // on the main stream
  };
  Device& device_;
  Shape shape_;
  DataType type_;
  std::vector<Buffer> all_;
  std::deque<std::size_t> free_;
};

/// What arrives at this rank from one neighbouring stage. One message is expected ahead.
class IncomingLink {
 public:
  /// `shard` is this rank's part of its group, `group` that group where it has several ranks. Messages come into
  /// `buffers`, whose type is that of the link.
  IncomingLink(const LinkShape& shape, ReceiveBuffers& buffers, const Shard& shard, Group* group, Device& device,
               Transport& transport);
  /// The next message may come.
  void expect();
  /// The message expected: the main stream waits for it.
  [[nodiscard]] Tensor take();
  [[nodiscard]] int stage() const { return shape_.from.stage; }

 private:
  struct Part {
    Range values;
    std::unique_ptr<Channel> channel;
  };
  LinkShape shape_;
  Group* group_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> arrived_;
  ReceiveBuffers& buffers_;
  std::vector<Part> parts_;
  Tensor expected_;
};

/// What this rank sends to one neighbouring stage. Tensors are kept until they are sent: `most` of them, after which
/// the main stream waits for the first.
class OutgoingLink {
 public:
  static constexpr std::size_t most = 2;

  OutgoingLink(const LinkShape& shape, const Shard& shard, Device& device, Transport& transport);
  /// Sends what the main stream has made. `around` is called on the link's stream before and after the transfer.
  template <class Begin, class End>
  void send(Tensor data, const Begin& begin, const End& end) {
    device_.main().record(*ready_);
    if (waits(Wait::send_for_its_data)) stream_->wait(*ready_);
    begin(*stream_);
    put(std::move(data));
    end(*stream_);
  }
  /// Gives up tensors that are sent already, without waiting.
  void release_sent();
  /// The main stream waits for all that was sent.
  void finish();
  [[nodiscard]] int stage() const { return shape_.to.stage; }

 private:
  struct Part {
    Range values;
    std::unique_ptr<Channel> channel;
  };
  struct Sent {
    Tensor data;
    std::unique_ptr<Event> done;
  };
  void put(Tensor data);
  void drop_first();

  LinkShape shape_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> ready_;
  std::vector<Part> parts_;
  std::deque<Sent> under_way_;
  std::vector<std::unique_ptr<Event>> events_;  // not in use
};

}  // namespace sailor::runtime
