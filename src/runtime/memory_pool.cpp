#include "runtime/memory_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "core/terminal.hpp"

namespace sailor::runtime {

namespace {

constexpr std::size_t alignment = 64;                           // a cache line, and the widest vector
constexpr std::size_t smallest_segment = std::size_t{1} << 20;  // small tensors share segments

std::size_t round_up(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
}

}  // namespace

MemoryPool::MemoryPool(std::string owner, std::function<void*(std::size_t)> reserve,
                       std::function<void(void*)> give_back)
    : owner_(std::move(owner)), reserve_(std::move(reserve)), give_back_(std::move(give_back)) {}

MemoryPool::~MemoryPool() {
  for (auto& [start, block] : blocks_)
    if (block.segment_start) give_back_(start);
}

void* MemoryPool::reserve(std::size_t size) {
  if (limit_ > 0 && (size > limit_ || reserved_ > limit_ - size)) return nullptr;
  return reserve_(size);
}

MemoryPool::Blocks::iterator MemoryPool::reserve_segment(std::size_t size) {
  size = std::max(size, smallest_segment);
  void* segment = reserve(size);
  if (segment == nullptr) {
    give_back_free_segments();
    segment = reserve(size);
  }
  if (segment == nullptr) {
    const MemoryUse now = use();
    const Bytes requested(static_cast<double>(size));
    const Bytes limit(static_cast<double>(limit_));
    throw OutOfMemoryError(
        fmt::format("{} has no memory for {} more: {} in tensors, {} reserved{}; use more stages or a smaller "
                    "micro-batch",
                    owner_, format_bytes(requested), format_bytes(now.alive), format_bytes(now.reserved),
                    limit_ > 0 ? fmt::format(" of {} allowed", format_bytes(limit)) : ""),
        requested, now.reserved, limit_ > 0 ? limit : now.reserved);
  }
  reserved_ += size;
  return blocks_.emplace(static_cast<char*>(segment), Block{.size = size, .free = true, .segment_start = true}).first;
}

void MemoryPool::give_back_free_segments() {
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    const auto next = std::next(block);
    const bool whole_segment = block->second.segment_start && (next == blocks_.end() || next->second.segment_start);
    if (whole_segment && block->second.free) {
      free_.erase({block->second.size, block->first});
      reserved_ -= block->second.size;
      give_back_(block->first);
      blocks_.erase(block);
    }
    block = next;
  }
}

void* MemoryPool::allocate(std::size_t bytes) {
  const std::size_t size = round_up(bytes);
  Blocks::iterator block;
  if (const auto fit = free_.lower_bound({size, nullptr}); fit != free_.end()) {
    block = blocks_.find(fit->second);
    free_.erase(fit);
  } else {
    block = reserve_segment(size);
  }
  if (block->second.size > size) {
    char* rest = block->first + size;
    const std::size_t rest_size = block->second.size - size;
    blocks_.emplace(rest, Block{.size = rest_size, .free = true});
    free_.emplace(rest_size, rest);
    block->second.size = size;
  }
  block->second.free = false;
  block->second.asked = bytes;
  alive_ += bytes;
  peak_ = std::max(peak_, alive_);
  return block->first;
}

void MemoryPool::release(void* memory) {
  auto block = blocks_.find(static_cast<char*>(memory));
  if (block == blocks_.end() || block->second.free) {
    fmt::print(stderr, "{}: memory freed that is not allocated\n", owner_);  // a bug in this program
    std::abort();
  }
  alive_ -= block->second.asked;
  block->second.free = true;
  const auto absorb_next = [&](Blocks::iterator first) {
    const auto next = std::next(first);
    if (next == blocks_.end() || next->second.segment_start || !next->second.free) return;
    free_.erase({next->second.size, next->first});
    first->second.size += next->second.size;
    blocks_.erase(next);
  };
  absorb_next(block);
  if (!block->second.segment_start && std::prev(block)->second.free) {
    block = std::prev(block);
    free_.erase({block->second.size, block->first});
    absorb_next(block);
  }
  free_.emplace(block->second.size, block->first);
}

MemoryUse MemoryPool::use() const {
  return {Bytes(static_cast<double>(alive_)), Bytes(static_cast<double>(peak_)), Bytes(static_cast<double>(reserved_))};
}

}  // namespace sailor::runtime
