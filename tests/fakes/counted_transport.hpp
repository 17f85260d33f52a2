// A transport that counts the operations it is asked for.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport.hpp"

namespace sailor::runtime::test {

/// Messages and bytes of each channel and group since the start, by what is said of it.
struct Traffic {
  std::mutex mutex;
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> of;
  void add(const std::string& what, std::int64_t bytes) {
    const std::scoped_lock lock(mutex);
    auto& [messages, sum] = of[what];
    ++messages;
    sum += bytes;
  }
};

class CountedGroup final : public Group {
 public:
  CountedGroup(std::unique_ptr<Group> inner, Traffic& traffic, std::string name)
      : inner_(std::move(inner)), traffic_(traffic), name_(std::move(name)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_reduce_sum(Stream& stream, Values data, std::int64_t count) override {
    traffic_.add(name_, static_cast<std::int64_t>(bytes_of(data.type, count)));
    inner_->all_reduce_sum(stream, data, count);
  }
  void all_reduce_max(Stream& stream, float* data, std::int64_t count) override {
    traffic_.add(name_, 4 * count);
    inner_->all_reduce_max(stream, data, count);
  }
  void all_gather(Stream& stream, Values data, std::int64_t count) override {
    traffic_.add(name_, static_cast<std::int64_t>(bytes_of(data.type, count)));
    inner_->all_gather(stream, data, count);
  }
  void reduce_scatter_sum(Stream& stream, Values data, std::int64_t count) override {
    traffic_.add(name_, static_cast<std::int64_t>(bytes_of(data.type, count)));
    inner_->reduce_scatter_sum(stream, data, count);
  }
  using Group::all_to_all;
  void all_to_all(Stream& stream, ConstValues from, Values to, const SliceSizes& sizes) override {
    const std::int64_t count = std::accumulate(sizes.sent.begin(), sizes.sent.end(), std::int64_t{0});
    traffic_.add(name_, static_cast<std::int64_t>(bytes_of(to.type, count)));
    inner_->all_to_all(stream, from, to, sizes);
  }

 private:
  std::unique_ptr<Group> inner_;
  Traffic& traffic_;
  std::string name_;
};

class CountedChannel final : public Channel {
 public:
  CountedChannel(std::unique_ptr<Channel> inner, Traffic& traffic, std::string name)
      : inner_(std::move(inner)), traffic_(traffic), name_(std::move(name)) {}
  void send(Stream& stream, const void* data, std::size_t bytes) override {
    traffic_.add(name_, static_cast<std::int64_t>(bytes));
    inner_->send(stream, data, bytes);
  }
  void receive(Stream& stream, void* data, std::size_t bytes) override { inner_->receive(stream, data, bytes); }

 private:
  std::unique_ptr<Channel> inner_;
  Traffic& traffic_;
  std::string name_;
};

class CountedTransport final : public Transport {
 public:
  CountedTransport(Transport& inner, Traffic& traffic) : inner_(inner), traffic_(traffic) {}
  std::string name() const override { return inner_.name(); }
  std::unique_ptr<Group> make_group(const std::vector<int>& ranks) override {
    return std::make_unique<CountedGroup>(inner_.make_group(ranks), traffic_,
                                          fmt::format("group of {}, {} of all", fmt::join(ranks, " "), made_[ranks]++));
  }
  std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) override {
    return std::make_unique<CountedChannel>(inner_.make_channel(from, to, name), traffic_,
                                            fmt::format("from {} to {}, {}", from, to, name.id));
  }
  void connect() override { inner_.connect(); }
  void abort() noexcept override { inner_.abort(); }

 private:
  Transport& inner_;
  Traffic& traffic_;
  std::map<std::vector<int>, int> made_;
};

}  // namespace sailor::runtime::test
