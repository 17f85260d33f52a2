#include "runtime/token_feed.hpp"

#include <cstring>
#include <stdexcept>

namespace sailor::runtime {

TokenFeed::TokenFeed(Device& device, const Samples* samples, const FeedShape& shape)
    : device_(device), samples_(samples), shape_(shape), buffers_(2) {
  const auto values = static_cast<std::size_t>(2 * shape.samples * shape.sequence_length);
  for (Buffer& buffer : buffers_)
    buffer.tokens = static_cast<std::int32_t*>(device.allocate_host(values * sizeof(std::int32_t)));
}

TokenFeed::~TokenFeed() {
  for (Buffer& buffer : buffers_) {
    if (buffer.reading.valid()) buffer.reading.wait();
    device_.release_host(buffer.tokens);
  }
}

Result<void> TokenFeed::read(std::int64_t iteration, std::int32_t* tokens) const {
  const auto length = static_cast<std::size_t>(shape_.sequence_length);
  const std::size_t all = static_cast<std::size_t>(shape_.samples) * length;
  if (samples_ == nullptr) {
    std::memset(tokens, 0, 2 * all * sizeof(std::int32_t));
    return {};
  }
  for (std::int64_t sample = 0; sample < shape_.samples; ++sample) {
    std::int32_t* const from = tokens + static_cast<std::size_t>(sample) * length;
    const std::int64_t position = iteration * shape_.global_batch + shape_.first_sample + sample;
    if (auto done = samples_->read(position, {from, length}, {from + all, length}); !done) return done;
  }
  return {};
}

void TokenFeed::read_ahead(std::int64_t iteration) {
  Buffer& buffer = buffer_of(iteration);
  if (buffer.iteration == iteration) return;
  if (buffer.reading.valid()) buffer.reading.wait();  // the samples of an iteration that was never asked for
  buffer.iteration = iteration;
  buffer.reading =
      std::async(std::launch::async, [this, iteration, tokens = buffer.tokens] { return read(iteration, tokens); });
}

TokenFeed::View TokenFeed::at(std::int64_t iteration, std::int64_t first, std::int64_t count) {
  read_ahead(iteration);
  Buffer& buffer = buffer_of(iteration);
  if (buffer.reading.valid()) {
    if (const auto done = buffer.reading.get(); !done) {
      buffer.iteration = -1;
      throw std::runtime_error(done.error().message());
    }
  }
  const auto length = static_cast<std::size_t>(shape_.sequence_length);
  const std::size_t offset = static_cast<std::size_t>(first) * length;
  const std::size_t all = static_cast<std::size_t>(shape_.samples) * length;
  const std::size_t values = static_cast<std::size_t>(count) * length;
  return {.tokens = {buffer.tokens + offset, values}, .targets = {buffer.tokens + all + offset, values}};
}

}  // namespace sailor::runtime
