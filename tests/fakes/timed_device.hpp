// A device that times every operation of its main stream by events, for a table of where an iteration spends its time.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device.hpp"
#include "tests/fakes/wrapped_stream.hpp"

namespace sailor::runtime::test {

class TimedStream final : public WrappedStream<Stream> {
 public:
  explicit TimedStream(Device& inner) : device_(inner), stream_(inner.main()) {}

  void record(Event& event) override { stream_.record(event); }
  void wait(const Event& event) override { stream_.wait(event); }

  struct Call {
    Operation operation;
    std::unique_ptr<Event> begin;
    std::unique_ptr<Event> end;
  };
  bool records = false;
  std::vector<Call> calls;

 private:
  void operate(const Operation& operation, std::function<void(Stream&)> call) override {
    if (!records) return call(stream_);
    Call& made = calls.emplace_back(operation, device_.make_event(), device_.make_event());
    stream_.record(*made.begin);
    call(stream_);
    stream_.record(*made.end);
  }

  Device& device_;
  Stream& stream_;
};

/// Decorates a device. Not for what communicates: transports know the streams of their own devices only.
class TimedDevice final : public Device {
 public:
  /// All calls of one operation.
  struct Total {
    Operation operation;
    int calls = 0;
    Seconds time{};
  };

  explicit TimedDevice(Device& inner) : inner_(inner), main_(inner) {}

  void start_recording() {
    main_.calls.clear();
    main_.records = true;
  }
  /// What was asked for since start_recording(), the longest first. The host waits.
  [[nodiscard]] std::vector<Total> stop_recording() {
    main_.records = false;
    inner_.synchronize();
    std::map<Operation, Total> totals;
    for (const TimedStream::Call& call : main_.calls) {
      Total& total = totals.try_emplace(call.operation, Total{call.operation}).first->second;
      ++total.calls;
      total.time += inner_.elapsed(*call.begin, *call.end);
    }
    main_.calls.clear();
    std::vector<Total> sorted;
    for (auto& [operation, total] : totals) sorted.push_back(total);
    std::sort(sorted.begin(), sorted.end(), [](const Total& a, const Total& b) { return a.time > b.time; });
    return sorted;
  }

  std::string name() const override { return inner_.name(); }
  std::string versions() const override { return inner_.versions(); }
  void* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) override { inner_.release(memory); }
  MemoryUse memory_use() const override { return inner_.memory_use(); }
  void reset_peak_memory() override { inner_.reset_peak_memory(); }
  void set_memory_limit(Bytes limit) override { inner_.set_memory_limit(limit); }
  void release_unused_memory() override { inner_.release_unused_memory(); }
  Bytes available_memory(int ranks_of_host) const override { return inner_.available_memory(ranks_of_host); }
  Bytes memory_of_process() const override { return inner_.memory_of_process(); }
  void* allocate_host(std::size_t bytes) override { return inner_.allocate_host(bytes); }
  void release_host(void* memory) override { inner_.release_host(memory); }
  std::int64_t row_stride(std::int64_t width) const override { return inner_.row_stride(width); }
  Stream& main() override { return main_; }
  std::unique_ptr<Stream> make_stream() override { return inner_.make_stream(); }
  std::unique_ptr<Event> make_event() override { return inner_.make_event(); }
  bool is_done(const Event& event) override { return inner_.is_done(event); }
  Seconds elapsed(const Event& from, const Event& to) override { return inner_.elapsed(from, to); }
  void flush_caches() override { inner_.flush_caches(); }
  double clock_hz() const override { return inner_.clock_hz(); }

 private:
  void wait_for(const Event& event) override { inner_.wait(event); }

  Device& inner_;
  TimedStream main_;
};

/// A line for each operation: calls, time, share of `iteration`, rate, and that as a share of the ceiling: flop/s of
/// matrix products, or bytes/s of memory.
inline std::string operation_table(const std::vector<TimedDevice::Total>& totals, Seconds iteration, double peak_flops,
                                   double peak_bandwidth) {
  std::string text = fmt::format("{:<62} {:>6} {:>10} {:>7} {:>15} {:>10}\n", "operation", "calls", "ms", "share",
                                 "rate", "of ceiling");
  Seconds sum{};
  for (const auto& [operation, calls, time] : totals) {
    std::string label = operation.name;
    for (std::size_t i = 0; i < operation.shape.size() && operation.shape[i] != 0; ++i)
      label += fmt::format("{}{}", i == 0 ? " " : " x ", operation.shape[i]);
    const double work = (operation.flop > 0.0 ? operation.flop : operation.bytes) * calls / time.value();
    const double ceiling = operation.flop > 0.0 ? peak_flops : peak_bandwidth;
    text += fmt::format("{:<62} {:>6} {:>10.3f} {:>6.1f}%", label, calls, time.value() * 1e3,
                        100.0 * time.value() / iteration.value());
    if (work > 0.0)
      text += fmt::format(" {:>7.2f} {:<7} {:>9.1f}%", work * 1e-12, operation.flop > 0.0 ? "TFLOP/s" : "TB/s",
                          100.0 * work / ceiling);
    text += '\n';
    sum += time;
  }
  return text + fmt::format("{:<62} {:>6} {:>10.3f} {:>6.1f}%\n", "between operations", "",
                            (iteration - sum).value() * 1e3, 100.0 * (1.0 - sum.value() / iteration.value()));
}

}  // namespace sailor::runtime::test
