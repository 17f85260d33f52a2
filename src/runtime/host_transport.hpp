// Common base of transports between host memories: their transfers are operations of host streams, and can be run
// without a stream, too. Those of a group or channel must be advanced for the first time in the order in which they
// were made, and take place in that order.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/host_stream.hpp"
#include "runtime/transport.hpp"

namespace sailor::runtime {

/// A group whose collectives are operations of the host.
class HostGroup : public Group {
 public:
  void all_reduce_sum(Stream& stream, Values data, std::int64_t count) final {
    put(stream, make_all_reduce_sum(data, count));
  }
  void all_reduce_max(Stream& stream, float* data, std::int64_t count) final {
    put(stream, make_all_reduce_max(data, count));
  }
  void all_gather(Stream& stream, Values data, std::int64_t count) final { put(stream, make_all_gather(data, count)); }
  void reduce_scatter_sum(Stream& stream, Values data, std::int64_t count) final {
    put(stream, make_reduce_scatter_sum(data, count));
  }
  using Group::all_to_all;
  void all_to_all(Stream& stream, ConstValues from, Values to, const SliceSizes& sizes) final {
    put(stream, make_all_to_all(from, to, sizes));
  }

  [[nodiscard]] virtual std::unique_ptr<HostOperation> make_all_reduce_sum(Values data, std::int64_t count) = 0;
  [[nodiscard]] virtual std::unique_ptr<HostOperation> make_all_reduce_max(float* data, std::int64_t count) = 0;
  [[nodiscard]] virtual std::unique_ptr<HostOperation> make_all_gather(Values data, std::int64_t count) = 0;
  [[nodiscard]] virtual std::unique_ptr<HostOperation> make_reduce_scatter_sum(Values data, std::int64_t count) = 0;
  [[nodiscard]] virtual std::unique_ptr<HostOperation> make_all_to_all(ConstValues from, Values to,
                                                                       const SliceSizes& sizes) = 0;

 private:
  static void put(Stream& stream, std::unique_ptr<HostOperation> operation) {
    dynamic_cast<HostStream&>(stream).put(std::move(operation));
  }
};

class HostChannel : public Channel {
 public:
  void send(Stream& stream, const void* data, std::size_t bytes) final {
    dynamic_cast<HostStream&>(stream).put(make_send(data, bytes));
  }
  void receive(Stream& stream, void* data, std::size_t bytes) final {
    dynamic_cast<HostStream&>(stream).put(make_receive(data, bytes));
  }

  [[nodiscard]] virtual std::unique_ptr<HostOperation> make_send(const void* data, std::size_t bytes) = 0;
  [[nodiscard]] virtual std::unique_ptr<HostOperation> make_receive(void* data, std::size_t bytes) = 0;
};

}  // namespace sailor::runtime
