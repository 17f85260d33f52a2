#include "runtime/kept_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "core/terminal.hpp"

namespace sailor::runtime {

KeptState::KeptState(Device& device, int owner, std::vector<StatePart> parts)
    : device_(device), owner_(owner), parts_(std::move(parts)) {
  for (const StatePart& part : parts_) {
    firsts_.push_back(elements_);
    Run left{elements_, part.value, part.moment, part.whole.size()};
    elements_ += left.count;
    while (left.count > 0) {
      const bool continues = !runs_.empty() && runs_.back().value + runs_.back().count == left.value &&
                             runs_.back().moment + runs_.back().count == left.moment &&
                             runs_.back().count < largest_piece;
      if (!continues) runs_.push_back({left.first, left.value, left.moment, 0});
      const std::int64_t count = std::min(left.count, largest_piece - runs_.back().count);
      runs_.back().count += count;
      left = {left.first + count, left.value + count, left.moment + count, left.count - count};
    }
  }
}

KeptState::~KeptState() {
  for (const Buffer& buffer : buffers_)
    if (buffer.memory_ != nullptr) device_.release_host(buffer.memory_);
}

void KeptState::take_memory(Buffer& buffer) const {
  if (buffer.memory_ != nullptr) return;
  try {
    buffer.memory_ = static_cast<float*>(device_.allocate_host(buffer_bytes(elements_)));
  } catch (const std::bad_alloc&) {
    throw std::runtime_error(
        fmt::format("the host does not have {} for a copy of the training state of rank {}; train without copies in "
                    "peers' memory, or with fewer ranks on this host",
                    format_bytes(Bytes(static_cast<double>(buffer_bytes(elements_)))), owner_));
  }
  buffer.elements_ = elements_;
  *buffer.mark() = 0;
}

void KeptState::reserve() {
  for (Buffer& buffer : buffers_) take_memory(buffer);
}

const KeptState::Buffer& KeptState::begin(const StateVersion& version, const LossScale& scale) {
  Buffer& older = *std::min_element(buffers_.begin(), buffers_.end(), [](const Buffer& a, const Buffer& b) {
    return std::tuple(a.is_complete(), a.version_) < std::tuple(b.is_complete(), b.version_);
  });
  take_memory(older);
  *older.mark() = 0;
  older.version_ = version;
  older.loss_scale_ = scale;
  return older;
}

float* KeptState::find(const Buffer& buffer, StoredArray array, const ParameterKey& key, const Range& whole) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const StatePart& part = parts_[i];
    if (part.key == key && part.whole.first <= whole.first && whole.last <= part.whole.last)
      return buffer.memory(array, firsts_[i] + whole.first - part.whole.first);
  }
  return nullptr;
}

}  // namespace sailor::runtime
