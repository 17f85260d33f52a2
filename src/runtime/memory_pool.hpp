// Caches device memory: freed memory is kept and handed out again, so that after the first iteration none is requested
// from the system and resident memory does not grow.
//
// Best fit with splitting; adjacent free blocks are merged. Not thread-safe: one pool belongs to one rank's main
// thread.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "runtime/device.hpp"

namespace sailor::runtime {

class MemoryPool {
 public:
  /// `reserve` takes a segment from the system and returns null if there is none; `give_back` returns a segment.
  /// `owner` is named in messages.
  MemoryPool(std::string owner, std::function<void*(std::size_t)> reserve, std::function<void(void*)> give_back);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Memory aligned to 64 bytes relative to the segments. Throws OutOfMemoryError if the system has no more or the
  /// limit does not allow it.
  void* allocate(std::size_t bytes);
  void release(void* memory);
  [[nodiscard]] MemoryUse use() const;
  void reset_peak() { peak_ = alive_; }
  /// Maximum number of reserved bytes; 0: no limit.
  void set_limit(std::size_t bytes) { limit_ = bytes; }
  void give_back_free_segments();
  /// Calls `use(address, bytes)` for all memory that the pool has from the system, in parts.
  template <class Use>
  void for_each_part(const Use& use) const {
    for (const auto& [address, block] : blocks_) use(static_cast<const char*>(address), block.size);
  }

 private:
  struct Block {
    std::size_t size = 0;
    std::size_t asked = 0;  // requested by the owner; counted as alive
    bool free = false;
    bool segment_start = false;  // never merged with the block before it
  };
  using Blocks = std::map<char*, Block>;

  Blocks::iterator reserve_segment(std::size_t size);
  void* reserve(std::size_t size);  // null if the limit or the system refuses

  std::string owner_;
  std::function<void*(std::size_t)> reserve_;
  std::function<void(void*)> give_back_;
  Blocks blocks_;                                 // by address
  std::set<std::pair<std::size_t, char*>> free_;  // by size
  std::size_t alive_ = 0;
  std::size_t peak_ = 0;
  std::size_t reserved_ = 0;
  std::size_t limit_ = 0;
};

}  // namespace sailor::runtime
