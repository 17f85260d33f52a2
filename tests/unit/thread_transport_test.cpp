// The transport of threads that other tests rely on (tests/fakes/thread_transport.hpp).
#include "../fakes/thread_transport.hpp"

#include <gtest/gtest.h>

#include "../fakes/transport_checks.hpp"

namespace sailor::runtime::test::thread_transport_test {
namespace {

TEST(ThreadTransport, CollectivesAndMessagesDoWhatTheySay) {
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [](const World& world) {
      const auto all = world.transport.make_group(all_ranks(world));
      for (const std::int64_t slice : {1, 7, 1000}) {
        EXPECT_EQ(check_collectives<float>(*all, slice), "");
        EXPECT_EQ(check_collectives<std::uint16_t>(*all, slice), "");
      }
      for (const std::size_t bytes : {0, 1, 5000}) EXPECT_EQ(check_messages(world, bytes), "");
    });
}

TEST(ThreadTransport, GroupsOfTheSameRanksAreApart) {
  run_ranks(4, [](const World& world) {
    if (world.rank() % 2 == 0) return;
    const auto device = make_cpu_device();
    const auto one = world.transport.make_group({1, 3});
    const auto two = world.transport.make_group({1, 3});
    EXPECT_EQ(one->rank(), world.rank() / 2);
    EXPECT_EQ(one->size(), 2);
    const auto first = device->make_stream();
    const auto second = device->make_stream();
    float a = 1.0f;
    float b = 5.0f;
    // In another order on each: they are two groups on two streams.
    if (world.rank() == 1) {
      one->all_reduce_sum(*first, &a, 1);
      two->all_reduce_sum(*second, &b, 1);
    } else {
      two->all_reduce_sum(*second, &b, 1);
      one->all_reduce_sum(*first, &a, 1);
    }
    const auto done = device->make_event();
    for (Stream* stream : {first.get(), second.get()}) {
      stream->record(*done);
      device->wait(*done);
    }
    EXPECT_EQ(a, 2.0f);
    EXPECT_EQ(b, 10.0f);
  });
}

TEST(ThreadTransport, WhatIsUnderWayIsBrokenOff) {
  run_ranks(2, [](const World& world) {
    if (world.rank() == 1) return;
    const auto device = make_cpu_device();
    const auto group = world.transport.make_group({0, 1});
    const auto stream = device->make_stream();
    const auto done = device->make_event();
    float value = 1.0f;
    group->all_reduce_sum(*stream, &value, 1);
    stream->record(*done);
    EXPECT_FALSE(device->is_done(*done));
    std::thread other([&] { world.transport.abort(); });
    EXPECT_THROW(device->wait(*done), TransportError);
    other.join();
    // The stream can be used on; what was asked for again is broken off too.
    float zeroed = 1.0f;
    stream->zero(&zeroed, sizeof(zeroed));
    EXPECT_EQ(zeroed, 0.0f);
    EXPECT_THROW(group->all_reduce_sum(*stream, &value, 1), TransportError);
  });
}

TEST(ThreadTransport, AFailingRankBreaksOffTheOthersAndIsReported) {
  try {
    run_ranks(3, [](const World& world) {
      if (world.rank() == 1) throw std::runtime_error("rank 1 has failed");
      world.control.barrier();
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1 has failed");
  }
}

TEST(ThreadTransport, RanksThatCallDifferentThingsFail) {
  EXPECT_THROW(run_ranks(2,
                         [](const World& world) {
                           const auto device = make_cpu_device();
                           const auto group = world.transport.make_group({0, 1});
                           float value[2] = {};
                           group->all_reduce_sum(device->main(), value, world.rank() + 1);
                           device->synchronize();
                         }),
               std::logic_error);
}

}  // namespace
}  // namespace sailor::runtime::test::thread_transport_test
