// A transport between hosts' memories that delivers messages of some channels late, so that code that does not wait for
// them is noticed.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/host_transport.hpp"

namespace sailor::runtime::test {

class LateOperation final : public HostOperation {
 public:
  LateOperation(std::unique_ptr<HostOperation> inner, std::chrono::microseconds delay)
      : inner_(std::move(inner)), delay_(delay) {}
  bool advance() override {
    const auto now = std::chrono::steady_clock::now();
    if (first_look_ == std::chrono::steady_clock::time_point{}) first_look_ = now;
    return now - first_look_ >= delay_ && inner_->advance();
  }
  std::string what() const override { return inner_->what(); }
  Patience patience() const override { return inner_->patience(); }

 private:
  std::unique_ptr<HostOperation> inner_;
  std::chrono::microseconds delay_;
  std::chrono::steady_clock::time_point first_look_{};
};

class LateChannel final : public HostChannel {
 public:
  LateChannel(std::unique_ptr<Channel> inner, std::chrono::microseconds delay)
      : inner_(std::move(inner)), host_(dynamic_cast<HostChannel&>(*inner_)), delay_(delay) {}
  std::unique_ptr<HostOperation> make_send(const void* data, std::size_t bytes) override {
    return std::make_unique<LateOperation>(host_.make_send(data, bytes), delay_);
  }
  std::unique_ptr<HostOperation> make_receive(void* data, std::size_t bytes) override {
    return std::make_unique<LateOperation>(host_.make_receive(data, bytes), delay_);
  }

 private:
  std::unique_ptr<Channel> inner_;
  HostChannel& host_;
  std::chrono::microseconds delay_;
};

class LateTransport final : public Transport {
 public:
  /// Each message of channels from `first_late` on begins so much later than it could.
  LateTransport(Transport& inner, int first_late, std::chrono::microseconds delay)
      : inner_(inner), first_late_(first_late), delay_(delay) {}
  std::string name() const override { return inner_.name(); }
  std::unique_ptr<Group> make_group(const std::vector<int>& ranks) override { return inner_.make_group(ranks); }
  std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) override {
    auto channel = inner_.make_channel(from, to, name);
    if (name.id < first_late_) return channel;
    return std::make_unique<LateChannel>(std::move(channel), delay_);
  }
  void connect() override { inner_.connect(); }
  void abort() noexcept override { inner_.abort(); }

 private:
  Transport& inner_;
  int first_late_;
  std::chrono::microseconds delay_;
};

}  // namespace sailor::runtime::test
