// Start times of the operations of a host's streams.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "runtime/host_stream.hpp"

namespace sailor::runtime::test::host_stream_test {
namespace {

/// What a test sees and decides of one operation.
struct Transfer {
  int looks = 0;  ///< so far
  bool done = false;
};

class FakeOperation final : public HostOperation {
 public:
  explicit FakeOperation(std::shared_ptr<Transfer> transfer) : transfer_(std::move(transfer)) {}
  bool advance() override {
    ++transfer_->looks;
    return transfer_->done;
  }
  std::string what() const override { return "a fake"; }
  Patience patience() const override { return {.timeout = Seconds(60.0)}; }

 private:
  std::shared_ptr<Transfer> transfer_;
};

struct HostStreams : ::testing::Test {
  HostQueues queues;
  HostQueue queue{queues};
  std::shared_ptr<Transfer> put() {
    auto transfer = std::make_shared<Transfer>();
    queue.put(std::make_unique<FakeOperation>(transfer));
    return transfer;
  }
};

TEST_F(HostStreams, AnOperationBeginsWhenItIsAskedForIfAllBeforeItAreDone) {
  const auto first = put();
  EXPECT_EQ(first->looks, 1);
  first->done = true;  // but nobody has looked
  const auto second = put();
  EXPECT_EQ(second->looks, 1);
}

TEST_F(HostStreams, AnOperationDoesNotBeginBeforeThoseBeforeItAreDone) {
  const auto first = put();
  const auto second = put();
  EXPECT_EQ(second->looks, 0);
  first->done = true;
  EXPECT_TRUE(queues.advance());
  EXPECT_EQ(second->looks, 1);
}

TEST_F(HostStreams, AnOperationWaitsForTheEventOfAnotherStream) {
  HostQueue other(queues);
  const auto first = put();
  HostEvent event;
  queue.record(event);
  other.wait(event);
  auto transfer = std::make_shared<Transfer>();
  other.put(std::make_unique<FakeOperation>(transfer));
  EXPECT_EQ(transfer->looks, 0);
  first->done = true;
  transfer->done = true;
  other.settle();
  EXPECT_EQ(transfer->looks, 1);
  EXPECT_TRUE(event.reached());
}

}  // namespace
}  // namespace sailor::runtime::test::host_stream_test
