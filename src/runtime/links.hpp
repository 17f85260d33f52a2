// Transfer of activations and gradients from stage to stage: every value crosses once. Each rank of the receiving stage
// gets its slice, in parts from the ranks of the sending stage whose slices overlap it (the tensor-parallel degrees may
// differ); then the receiving ranks all-gather.
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

/// Ranks of a stage's tensor-parallel group.
struct StageRanks {
  int first_rank = -1;  ///< -1: there is no such stage
  int degree = 1;
  int stage = -1;
};

/// One direction between two stages.
struct LinkShape {
  StageRanks from;
  StageRanks to;
  ChannelName name;
  std::int64_t values = 0;  ///< per message
  DataType type = DataType::float32;
};

/// Buffers of one size, written by other streams than the main one and read by the main stream. All links of a rank
/// share them: a buffer that one link has released may be taken by another. A released buffer is written again only
/// after what was enqueued on the main stream before its release; the buffer that has been free longest is taken first.
class ReceiveBuffers final : public MemorySource {
 public:
  ReceiveBuffers(Device& device, Shape shape, DataType type);
  /// A tensor that `stream` may write. Releasing it returns the buffer.
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

/// Messages to this rank from one neighbouring stage. One receive is posted ahead.
class IncomingLink {
 public:
  /// `shard` is this rank's part of its tensor-parallel group; `group` is that group if it has several ranks. Messages
  /// are received into `buffers`, whose type must be that of the link.
  IncomingLink(const LinkShape& shape, ReceiveBuffers& buffers, const Shard& shard, Group* group, Device& device,
               Transport& transport);
  /// Posts the receive of the next message.
  void expect();
  /// The expected message; the main stream waits for it.
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

/// Messages from this rank to one neighbouring stage. Tensors are kept until they are sent, at most `most` of them;
/// then the main stream waits for the first.
class OutgoingLink {
 public:
  static constexpr std::size_t most = 2;

  OutgoingLink(const LinkShape& shape, const Shard& shard, Device& device, Transport& transport);
  /// Sends `data` after what is enqueued on the main stream. `begin` and `end` are called with the link's stream before
  /// and after the transfer.
  template <class Begin, class End>
  void send(Tensor data, const Begin& begin, const End& end) {
    device_.main().record(*ready_);
    if (waits(Wait::send_for_its_data)) stream_->wait(*ready_);
    begin(*stream_);
    put(std::move(data));
    end(*stream_);
  }
  /// Releases tensors that are already sent, without waiting.
  void release_sent();
  /// The main stream waits for all sends.
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
