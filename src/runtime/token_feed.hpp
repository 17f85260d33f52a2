// Reads the tokens of an iteration before they are needed: in a thread of its own, into pinned memory, while the
// iteration before runs.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "runtime/data/samples.hpp"
#include "runtime/device.hpp"

namespace sailor::runtime {

/// The samples of one pipeline.
struct FeedShape {
  std::int64_t global_batch = 0;  ///< samples of an iteration, of all pipelines
  std::int64_t first_sample = 0;  ///< index of this pipeline's first sample in them
  std::int64_t samples = 0;       ///< of this pipeline
  std::int64_t sequence_length = 0;
};

class TokenFeed {
 public:
  /// Device and samples must outlive it. Without samples all tokens are 0.
  TokenFeed(Device& device, const Samples* samples, const FeedShape& shape);
  ~TokenFeed();
  TokenFeed(const TokenFeed&) = delete;
  TokenFeed& operator=(const TokenFeed&) = delete;

  struct View {
    std::span<const std::int32_t> tokens;
    std::span<const std::int32_t> targets;
  };
  /// Begins to read the samples of an iteration in a thread, unless that was done before. Starting a thread takes time:
  /// call it where no other rank waits for this one.
  void read_ahead(std::int64_t iteration);
  /// Host memory of the pipeline's samples [first, first + count) in an iteration. It stays valid until the next but
  /// one iteration is read ahead or requested; the device must be done with this iteration before that. Throws
  /// std::runtime_error if the samples cannot be read.
  [[nodiscard]] View at(std::int64_t iteration, std::int64_t first, std::int64_t count);

 private:
  struct Buffer {
    std::int64_t iteration = -1;
    std::int32_t* tokens = nullptr;  // tokens of all samples, then the targets
    std::future<Result<void>> reading;
  };
  Result<void> read(std::int64_t iteration, std::int32_t* tokens) const;
  Buffer& buffer_of(std::int64_t iteration) { return buffers_[static_cast<std::size_t>(iteration % 2)]; }

  Device& device_;
  const Samples* samples_;
  FeedShape shape_;
  std::vector<Buffer> buffers_;
};

}  // namespace sailor::runtime
