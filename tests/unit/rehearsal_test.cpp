// The clocks of rehearsed ranks: when messages and sums end, worked out by hand, and what happens when ranks disagree.
#include <gtest/gtest.h>

#include "../fakes/thread_communicator.hpp"
#include "runtime/rehearsal/rehearsal_communicator.hpp"
#include "runtime/rehearsal/rehearsal_device.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime {
namespace {

using test::run_ranks;

/// An activation takes 2 s, a gradient 3 s, an all-reduce a second for every 100 bytes; nothing between ranks 0 and 1.
class Times final : public CommunicationTimes {
 public:
  explicit Times(bool blocks) : blocks_(blocks) {}
  Seconds message(int, int, MessageKind kind) const override {
    return Seconds(kind == MessageKind::activation ? 2.0 : 3.0);
  }
  Seconds collective(Collective, const std::vector<int>& ranks, Bytes amount) const override {
    return ranks == std::vector<int>{0, 1} ? Seconds(0) : Seconds(amount.value() / 100.0);
  }
  bool messages_block() const override { return blocks_; }

 private:
  bool blocks_;
};

struct Rank {
  Communicator& world;
  RehearsalWorld& rehearsal;
  RehearsalClock& clock;
  [[nodiscard]] bool is(int rank) const { return world.rank() == rank; }
  [[nodiscard]] double now() const { return clock.now().value(); }
  void compute(double seconds) const { rehearsal.compute(Seconds(seconds)); }
};

void rehearse(int ranks, bool blocks, const std::function<void(const Rank&)>& body) {
  run_ranks(ranks, [&](Communicator& inner) {
    const Times times(blocks);
    RehearsalClock clock(0.0);
    RehearsalWorld rehearsal(inner, times, clock);
    rehearsal.restart();
    body({rehearsal.communicator(), rehearsal, clock});
  });
}

constexpr auto activation = MessageKind::activation;
constexpr auto gradient = MessageKind::gradient;

TEST(Rehearsal, AMessageThatBlocksHoldsBothSides) {
  rehearse(2, true, [](const Rank& rank) {
    if (rank.is(0)) {
      rank.compute(1.0);
      const auto sent = rank.world.send_later(nullptr, 100, 1, activation);
      rank.compute(1.0);
      EXPECT_EQ(rank.now(), 7.0);  // waits for rank 1 from 1 to 4, sends until 6, computes
      EXPECT_TRUE(sent->test());
    } else {
      rank.compute(4.0);
      rank.world.receive(nullptr, 100, 0, activation);
      EXPECT_EQ(rank.now(), 6.0);
    }
  });
}

TEST(Rehearsal, MessagesThatCrossAndBlockFollowEachOther) {
  rehearse(2, true, [](const Rank& rank) {
    const int other = 1 - rank.world.rank();
    for (int i = 1; i <= 3; ++i) {
      rank.compute(rank.is(0) ? 5.0 : 10.0);
      const auto sent = rank.world.send_later(nullptr, 100, other, rank.is(0) ? activation : gradient);
      rank.world.receive(nullptr, 100, other, rank.is(0) ? gradient : activation);
      EXPECT_EQ(rank.now(), i * 15.0);  // both are there after 10, then 2 + 3
      sent->wait();
      EXPECT_EQ(rank.now(), i * 15.0);
    }
  });
}

TEST(Rehearsal, PartsOfOneMessageGoAtTheSameTime) {
  rehearse(3, true, [](const Rank& rank) {
    if (rank.is(2)) {
      const auto first = rank.world.receive_later(nullptr, 50, 0, activation);
      const auto second = rank.world.receive_later(nullptr, 50, 1, activation);
      first->wait();
      second->wait();
      EXPECT_EQ(rank.now(), 2.0);
    } else {
      rank.world.send(nullptr, 50, 2, activation);
      EXPECT_EQ(rank.now(), 2.0);
    }
  });
}

TEST(Rehearsal, MessagesThatDoNotBlockQueueForTheLink) {
  rehearse(2, false, [](const Rank& rank) {
    if (rank.is(0)) {
      rank.compute(1.0);
      const auto first = rank.world.send_later(nullptr, 100, 1, activation);   // from 1 to 3
      const auto second = rank.world.send_later(nullptr, 100, 1, activation);  // from 3 to 5
      rank.compute(1.0);
      EXPECT_EQ(rank.now(), 2.0);
      EXPECT_FALSE(first->test());
      second->wait();
      EXPECT_EQ(rank.now(), 5.0);
      EXPECT_TRUE(first->test());
    } else {
      for (const double end : {3.0, 5.0}) {
        rank.world.receive(nullptr, 100, 0, activation);
        EXPECT_EQ(rank.now(), end);
      }
    }
  });
}

TEST(Rehearsal, SumsStartWithTheLastRankAndFollowEachOther) {
  rehearse(3, false, [](const Rank& rank) {
    rank.compute(1.0 + rank.world.rank());
    const auto first = rank.world.all_reduce_sum_later(nullptr, 100);  // 400 bytes: from 3 to 7
    const auto second = rank.world.all_reduce_sum_later(nullptr, 50);  // to 9
    rank.compute(5.0);                                                 // beside them: to 6, 7 and 8
    EXPECT_EQ(rank.now(), 6.0 + rank.world.rank());
    first->wait();
    EXPECT_EQ(rank.now(), std::max(7.0, 6.0 + rank.world.rank()));
    second->wait();
    EXPECT_EQ(rank.now(), 9.0);
    if (!rank.is(2)) {
      const auto group = rank.world.subgroup({0, 1});
      rank.compute(rank.world.rank());
      group->all_gather(nullptr, 1000);  // in the time of a layer: they only meet
      EXPECT_EQ(rank.now(), 10.0);
    }
    EXPECT_EQ(rank.world.max(rank.world.rank()), 2.0);  // real values, and all clocks at the last one's
    EXPECT_EQ(rank.now(), 10.0);
  });
}

TEST(Rehearsal, SumsOfBfloat16TakeTwoBytesPerValue) {
  rehearse(3, false, [](const Rank& rank) {
    rank.world.all_reduce_sum({nullptr, DataType::bfloat16}, 100);  // 200 bytes
    EXPECT_EQ(rank.now(), 2.0);
    rank.world.all_reduce_sum(nullptr, 100);
    EXPECT_EQ(rank.now(), 6.0);
  });
}

std::string failure_of(const std::function<void(const Rank&)>& body) {
  try {
    rehearse(2, true, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no failure";
}

TEST(Rehearsal, RanksThatDisagreeAboutAMessageAreNamed) {
  const std::string message = failure_of([](const Rank& rank) {
    if (rank.is(0))
      rank.world.send(nullptr, 1024, 1, activation);
    else
      rank.world.receive(nullptr, 2048, 0, activation);
  });
  EXPECT_EQ(
      message,
      "rank 1 aborts: the ranks disagree about what they exchange: expected is activation 1 of 2.00 KiB from rank "
      "0, message 1 in all; what came is activation 1 of 1.00 KiB, message 1");
}

TEST(Rehearsal, MessagesTakenInAnotherOrderThanSentAreNoticed) {
  const std::string message = failure_of([](const Rank& rank) {
    if (rank.is(0)) {
      const auto first = rank.world.send_later(nullptr, 8, 1, activation);
      const auto second = rank.world.send_later(nullptr, 8, 1, gradient);
      second->wait();
    } else {
      rank.world.receive(nullptr, 8, 0, gradient);
    }
  });
  EXPECT_NE(message.find("expected is gradient 1 of 8 B from rank 0, message 1 in all; what came is gradient 1 of 8 B, "
                         "message 2"),
            std::string::npos)
      << message;
}

TEST(Rehearsal, RanksThatDisagreeAboutASumAreNamed) {
  const std::string message = failure_of([](const Rank& rank) {
    if (rank.is(0))
      rank.world.all_reduce_sum(nullptr, 3'000'000);
    else
      rank.world.all_gather(nullptr, 7);
  });
  EXPECT_NE(message.find("the ranks disagree about what they sum"), std::string::npos) << message;
  EXPECT_NE(message.find("all-reduce of 3000000 values"), std::string::npos) << message;
  EXPECT_NE(message.find("all-gather of 7 values"), std::string::npos) << message;
}

TEST(Rehearsal, TheDeviceHasMoreMemoryInNameThanThisMachine) {
  const auto device = make_rehearsal_device("H200-141");
  {
    const Tensor tensor(*device, {std::int64_t{1} << 34});  // 64 GiB
    EXPECT_EQ(device->memory_use().alive, 64.0 * gib);
  }
  EXPECT_EQ(device->memory_use().alive, Bytes(0));
  EXPECT_EQ(device->memory_use().peak, 64.0 * gib);
}

}  // namespace
}  // namespace sailor::runtime
