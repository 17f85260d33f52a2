// The clocks of rehearsed ranks: end times of messages and all-reduces, worked out by hand, and ranks that disagree.
#include <gtest/gtest.h>

#include "../fakes/thread_transport.hpp"
#include "runtime/rehearsal/rehearsal_device.hpp"
#include "runtime/rehearsal/rehearsal_transport.hpp"
#include "runtime/tensor.hpp"

namespace sailor::runtime::rehearsal_test {
namespace {

using test::run_ranks;

/// An activation takes 2 s, a gradient 3 s, another message or an all-reduce a second for every 100 bytes; an
/// all-reduce between ranks 0 and 1 nothing.
class Times final : public CommunicationTimes {
 public:
  explicit Times(bool blocks) : blocks_(blocks) {}
  Seconds message(int, int, MessageKind kind, Bytes amount) const override {
    if (kind == MessageKind::other) return Seconds(amount.value() / 100.0);
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
  World world;
  RehearsalWorld& rehearsal;
  RehearsalClock& clock;
  Device& device;
  [[nodiscard]] bool is(int rank) const { return world.rank() == rank; }
  [[nodiscard]] double now() const { return clock.now().value(); }
  void compute(double seconds) const { rehearsal.compute(Seconds(seconds)); }
  /// The main stream waits.
  void wait(const std::unique_ptr<Event>& event) const { device.main().wait(*event); }
  [[nodiscard]] bool is_done(const std::unique_ptr<Event>& event) const { return device.is_done(*event); }
};

/// A channel with a stream of its own.
class Way {
 public:
  Way(const Rank& rank, int from, int to, MessageKind kind)
      : device_(rank.device),
        stream_(device_.make_stream()),
        channel_(rank.world.transport.make_channel(from, to, {.id = static_cast<int>(kind), .kind = kind})) {}
  [[nodiscard]] std::unique_ptr<Event> send(std::size_t bytes) {
    channel_->send(*stream_, nullptr, bytes);
    return point();
  }
  [[nodiscard]] std::unique_ptr<Event> receive(std::size_t bytes) {
    channel_->receive(*stream_, nullptr, bytes);
    return point();
  }

 private:
  std::unique_ptr<Event> point() {
    auto event = device_.make_event();
    stream_->record(*event);
    return event;
  }
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Channel> channel_;
};

void rehearse(int ranks, bool blocks, const std::function<void(const Rank&)>& body) {
  run_ranks(ranks, [&](const World& inner) {
    const Times times(blocks);
    RehearsalClock clock(0.0);
    RehearsalWorld rehearsal(inner, times, clock);
    const auto device = make_rehearsal_device("H200-141");
    rehearsal.restart();
    body({rehearsal.world(), rehearsal, clock, *device});
  });
}

constexpr auto activation = MessageKind::activation;
constexpr auto gradient = MessageKind::gradient;

TEST(Rehearsal, AMessageThatBlocksHoldsBothSides) {
  rehearse(2, true, [](const Rank& rank) {
    Way way(rank, 0, 1, activation);
    if (rank.is(0)) {
      rank.compute(1.0);
      const auto sent = way.send(100);
      rank.compute(1.0);
      EXPECT_EQ(rank.now(), 7.0);  // waits for rank 1 from 1 to 4, sends until 6, computes
      EXPECT_TRUE(rank.is_done(sent));
    } else {
      rank.compute(4.0);
      rank.wait(way.receive(100));
      EXPECT_EQ(rank.now(), 6.0);
    }
  });
}

TEST(Rehearsal, MessagesThatCrossAndBlockFollowEachOther) {
  rehearse(2, true, [](const Rank& rank) {
    Way out(rank, rank.is(0) ? 0 : 1, rank.is(0) ? 1 : 0, rank.is(0) ? activation : gradient);
    Way in(rank, rank.is(0) ? 1 : 0, rank.is(0) ? 0 : 1, rank.is(0) ? gradient : activation);
    for (int i = 1; i <= 3; ++i) {
      rank.compute(rank.is(0) ? 5.0 : 10.0);
      const auto sent = out.send(100);
      rank.wait(in.receive(100));
      EXPECT_EQ(rank.now(), i * 15.0);  // both are there after 10, then 2 + 3
      rank.wait(sent);
      EXPECT_EQ(rank.now(), i * 15.0);
    }
  });
}

TEST(Rehearsal, PartsOfOneMessageGoAtTheSameTime) {
  rehearse(3, true, [](const Rank& rank) {
    if (rank.is(2)) {
      Way one(rank, 0, 2, activation);
      Way other(rank, 1, 2, activation);
      const auto first = one.receive(50);
      const auto second = other.receive(50);
      rank.wait(first);
      rank.wait(second);
      EXPECT_EQ(rank.now(), 2.0);
    } else {
      Way way(rank, rank.world.rank(), 2, activation);
      rank.wait(way.send(50));
      EXPECT_EQ(rank.now(), 2.0);
    }
  });
}

TEST(Rehearsal, MessagesThatDoNotBlockQueueForTheLink) {
  rehearse(2, false, [](const Rank& rank) {
    Way way(rank, 0, 1, activation);
    if (rank.is(0)) {
      rank.compute(1.0);
      const auto first = way.send(100);   // from 1 to 3
      const auto second = way.send(100);  // from 3 to 5
      rank.compute(1.0);
      EXPECT_EQ(rank.now(), 2.0);
      EXPECT_FALSE(rank.is_done(first));
      rank.wait(second);
      EXPECT_EQ(rank.now(), 5.0);
      EXPECT_TRUE(rank.is_done(first));
    } else {
      for (const double end : {3.0, 5.0}) {
        rank.wait(way.receive(100));
        EXPECT_EQ(rank.now(), end);
      }
    }
  });
}

TEST(Rehearsal, OtherMessagesFollowEachOtherOnTheLinksOfBothRanks) {
  rehearse(4, true, [](const Rank& rank) {  // activations and gradients would block
    // Ranks 1 and 2 send to 0; 2 then sends to 3, which also gets a message from 1.
    const auto way = [&](int from, int to) { return Way(rank, from, to, MessageKind::other); };
    if (rank.is(0)) {
      Way from_1 = way(1, 0);
      Way from_2 = way(2, 0);
      const auto first = from_1.receive(300);
      const auto second = from_2.receive(200);
      rank.wait(first);
      EXPECT_EQ(rank.now(), 3.0);
      rank.wait(second);
      EXPECT_EQ(rank.now(), 5.0);
    } else if (rank.is(1)) {
      Way to_0 = way(1, 0);
      Way to_3 = way(1, 3);
      const auto first = to_0.send(300);
      rank.wait(to_3.send(100));
      EXPECT_EQ(rank.now(), 4.0);
      EXPECT_TRUE(rank.is_done(first));
    } else if (rank.is(2)) {
      Way to_0 = way(2, 0);
      Way to_3 = way(2, 3);
      rank.wait(to_0.send(200));
      EXPECT_EQ(rank.now(), 2.0);
      rank.wait(to_3.send(100));
      EXPECT_EQ(rank.now(), 3.0);
    } else {
      Way from_2 = way(2, 3);
      Way from_1 = way(1, 3);
      rank.wait(from_2.receive(100));
      EXPECT_EQ(rank.now(), 3.0);
      rank.wait(from_1.receive(100));
      EXPECT_EQ(rank.now(), 4.0);
    }
  });
}

TEST(Rehearsal, SumsStartWithTheLastRankAndFollowEachOther) {
  rehearse(3, false, [](const Rank& rank) {
    const auto all = rank.world.transport.make_group({0, 1, 2});
    const auto sums = rank.device.make_stream();
    const auto first = rank.device.make_event();
    const auto second = rank.device.make_event();
    rank.compute(1.0 + rank.world.rank());
    all->all_reduce_sum(*sums, nullptr, 100);  // 400 bytes: from 3 to 7
    sums->record(*first);
    all->all_reduce_sum(*sums, nullptr, 50);  // to 9
    sums->record(*second);
    rank.compute(5.0);  // beside them: to 6, 7 and 8
    EXPECT_EQ(rank.now(), 6.0 + rank.world.rank());
    rank.wait(first);
    EXPECT_EQ(rank.now(), std::max(7.0, 6.0 + rank.world.rank()));
    rank.wait(second);
    EXPECT_EQ(rank.now(), 9.0);
    if (!rank.is(2)) {
      const auto group = rank.world.transport.make_group({0, 1});
      rank.compute(rank.world.rank());
      group->all_gather(rank.device.main(), nullptr, 1000);  // in the time of a layer: they only meet
      EXPECT_EQ(rank.now(), 10.0);
    }
    EXPECT_EQ(rank.world.control.max(rank.world.rank()), 2.0);  // real values, and all clocks at the last one's
    EXPECT_EQ(rank.now(), 10.0);
  });
}

TEST(Rehearsal, SumsOfBfloat16TakeTwoBytesPerValue) {
  rehearse(3, false, [](const Rank& rank) {
    const auto all = rank.world.transport.make_group({0, 1, 2});
    all->all_reduce_sum(rank.device.main(), {nullptr, DataType::bfloat16}, 100);  // 200 bytes
    EXPECT_EQ(rank.now(), 2.0);
    all->all_reduce_sum(rank.device.main(), nullptr, 100);
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
    Way way(rank, 0, 1, activation);
    rank.wait(rank.is(0) ? way.send(1024) : way.receive(2048));
  });
  EXPECT_EQ(
      message,
      "rank 1 aborts: the ranks disagree about what they exchange: expected is activation 1 of 2.00 KiB from rank "
      "0, message 1 in all; what came is activation 1 of 1.00 KiB, message 1");
}

TEST(Rehearsal, MessagesTakenInAnotherOrderThanSentAreNoticed) {
  const std::string message = failure_of([](const Rank& rank) {
    Way activations(rank, 0, 1, activation);
    Way gradients(rank, 0, 1, gradient);
    if (rank.is(0)) {
      const auto first = activations.send(8);
      rank.wait(gradients.send(8));
    } else {
      rank.wait(gradients.receive(8));
    }
  });
  EXPECT_NE(message.find("expected is gradient 1 of 8 B from rank 0, message 1 in all; what came is gradient 1 of 8 B, "
                         "message 2"),
            std::string::npos)
      << message;
}

TEST(Rehearsal, RanksThatDisagreeAboutASumAreNamed) {
  const std::string message = failure_of([](const Rank& rank) {
    const auto all = rank.world.transport.make_group({0, 1});
    if (rank.is(0))
      all->all_reduce_sum(rank.device.main(), nullptr, 3'000'000);
    else
      all->all_gather(rank.device.main(), nullptr, 7);
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
}  // namespace sailor::runtime::rehearsal_test
