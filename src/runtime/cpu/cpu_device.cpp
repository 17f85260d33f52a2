#include "runtime/cpu/cpu_device.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "runtime/cpu/cpu_stream.hpp"
#include "runtime/cpu/host_cpu.hpp"

// Not every BLAS has these two functions; any BLAS that is linked may be OpenBLAS behind libblas.so.
extern "C" {
void openblas_set_num_threads(int threads) __attribute__((weak));
char* openblas_get_config() __attribute__((weak));
}

namespace sailor::runtime {

namespace {

constexpr std::size_t cache_line = 64;

// Instructions that write lines back to memory and drop them from all caches.
#if defined(__x86_64__)
#define SAILOR_FLUSHES_LINES
void flush_lines(const char* memory, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += cache_line) _mm_clflush(memory + at);
}
void end_flush() { _mm_mfence(); }
#elif defined(__aarch64__)
#define SAILOR_FLUSHES_LINES
void flush_lines(const char* memory, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += cache_line) asm volatile("dc civac, %0" : : "r"(memory + at) : "memory");
}
void end_flush() { asm volatile("dsb sy" : : : "memory"); }
#endif

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads)
      : threads_(threads),
        pool_("the CPU", allocate_aligned, [](void* memory) { std::free(memory); }),
        main_(make_cpu_stream(threads_, pool_, queues_)) {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
  }

  std::string name() const override { return cpu::processor_name(); }

  std::string versions() const override {
    if (openblas_get_config == nullptr) return "BLAS";
    // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ...": the first two words
    const std::string text = openblas_get_config();
    return text.substr(0, text.find(' ', text.find(' ') + 1));
  }

  void* allocate(std::size_t bytes) override { return pool_.allocate(bytes); }
  void release(void* memory) override { pool_.release(memory); }
  MemoryUse memory_use() const override { return pool_.use(); }
  void reset_peak_memory() override { pool_.reset_peak(); }
  void set_memory_limit(Bytes limit) override { pool_.set_limit(static_cast<std::size_t>(limit.value())); }
  void release_unused_memory() override {
    pool_.give_back_free_segments();
#ifdef __GLIBC__
    ::malloc_trim(0);  // free() may retain memory
#endif
  }
  void* allocate_host(std::size_t bytes) override {
    void* const memory = allocate_aligned(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  void release_host(void* memory) override { std::free(memory); }
  bool computes_on_host() const override { return true; }

  Stream& main() override { return *main_; }
  std::unique_ptr<Stream> make_stream() override { return make_cpu_stream(threads_, pool_, queues_); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<HostEvent>(); }
  bool is_done(const Event& event) override { return static_cast<const HostEvent&>(event).reached(); }
  void give_up_transfers() override { main_->give_up(); }
  void progress() override { queues_.advance(); }

  Seconds elapsed(const Event& from, const Event& to) override {
    const std::chrono::duration<double> time =
        static_cast<const HostEvent&>(to).mark->time - static_cast<const HostEvent&>(from).mark->time;
    return Seconds(time.count());
  }
  void flush_caches() override {
#ifdef SAILOR_FLUSHES_LINES
    // Line by line, where tensors are few beside the caches (which may be hundreds of MiB).
    if (pool_.use().reserved < Bytes(static_cast<double>(cpu::last_level_cache()) / 8)) {
      pool_.for_each_part(flush_lines);
      end_flush();
      return;
    }
#endif
    // Twice the cache, as its replacement policy may keep some old lines. Not from the pool: it is not a tensor.
    if (flush_buffer_.empty()) flush_buffer_.resize(2 * cpu::last_level_cache() / sizeof(std::uint64_t));
    for (std::size_t i = 0; i < flush_buffer_.size(); i += cache_line / sizeof(std::uint64_t)) ++flush_buffer_[i];
  }
  double clock_hz() const override { return cpu::clock_hz(); }

 private:
  static void* allocate_aligned(std::size_t bytes) { return std::aligned_alloc(64, (bytes + 63) / 64 * 64); }

  void wait_for(const Event& event) override {
    const auto& waited_for = static_cast<const HostEvent&>(event);
    queues_.advance_until([&] { return waited_for.reached(); });
  }

  cpu::Threads threads_;
  MemoryPool pool_;
  HostQueues queues_;
  std::unique_ptr<CpuStream> main_;
  std::vector<std::uint64_t> flush_buffer_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace sailor::runtime
