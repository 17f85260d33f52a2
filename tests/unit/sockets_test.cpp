// Control plane and data plane over TCP: what they leave in memory, and what happens when ranks go away. Ranks are
// threads, or processes where they are to be killed.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <latch>
#include <thread>

#include "../fakes/transport_checks.hpp"
#include "socket_ranks.hpp"

namespace sailor::runtime::test {
namespace {

/// Runs `body` as so many members, each in a thread.
void run_members(int count, const std::function<void(Member&)>& body) {
  const auto coordinator = coordinator_for(count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        const auto member = member_of(coordinator->addresses(), {.rank = count - 1 - i});
        begin(*member);
        EXPECT_EQ(member->world().rank(), count - 1 - i);
        body(*member);
        member->world().control.barrier();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Sockets, CollectivesAndMessagesDoWhatTheySay) {
  for (const int ranks : {1, 2, 3, 4})
    run_members(ranks, [](Member& member) {
      const World world = member.world();
      const auto all = world.transport.make_group(all_ranks(world));
      for (const std::int64_t slice : {1, 7, 100'000}) {
        EXPECT_EQ(check_collectives<float>(*all, slice), "");
        EXPECT_EQ(check_collectives<std::uint16_t>(*all, slice), "");
      }
      for (const std::size_t bytes : {0, 1, 5000, 3'000'000}) EXPECT_EQ(check_messages(world, bytes), "");
      if (world.size() < 3 || world.rank() == 0) return;
      std::vector<int> some = all_ranks(world);
      some.erase(some.begin());
      EXPECT_EQ(check_collectives<float>(*world.transport.make_group(some), 5), "");
      const auto control = world.control.subgroup(some);
      EXPECT_EQ(control->rank(), world.rank() - 1);
      EXPECT_EQ(control->max(world.rank()), world.size() - 1.0);
      EXPECT_EQ(control->broadcast(control->rank() == 0 ? std::string("a\0\xff", 3) : ""), std::string("a\0\xff", 3));
    });
}

TEST(Sockets, CoordinatorsThatAreNotThereAreAnError) {
  const auto joined = Member::join("127.0.0.1:1", {.timeout = Seconds(0.2)});
  ASSERT_FALSE(joined);
  EXPECT_NE(joined.error().message().find("the coordinator of the job: cannot connect to 127.0.0.1:1"),
            std::string::npos)
      << joined.error().message();
}

/// Exchanges until somebody goes away, and then once more with those that are left; `begun` hears of the first time.
void exchange_until_lost(Member& member, int left, const char* wanted, const Pipe& begun) {
  const auto device = make_cpu_device();
  try {
    const World world = member.world();
    const auto all = world.transport.make_group(all_ranks(world));
    std::vector<float> values(100'000);
    for (bool told = false;; told = true) {
      all->all_reduce_sum(device->main(), values.data(), std::ssize(values));
      device->synchronize();
      world.control.barrier();
      if (!told) begun.send("begun");
    }
  } catch (const TransportError& error) {
    // Whoever hears of it from the coordinator, in the middle of a sum with others, says who has gone, too.
    // One that breaks off because of it is taken for gone by who has not heard yet.
    const std::string what = error.what();
    if (what.find(wanted) == std::string::npos && what.find("has gone away") == std::string::npos) throw;
  }
  begin(member);
  const World world = member.world();
  if (world.size() != left || member.epoch() != 2) throw std::runtime_error("the second epoch is not as it should be");
  const std::string wrong = check_messages(world, 1000);
  if (!wrong.empty()) throw std::runtime_error(wrong);
  const auto all = world.transport.make_group(all_ranks(world));
  const std::string also_wrong = check_collectives<float>(*all, 1000);
  if (!also_wrong.empty()) throw std::runtime_error(also_wrong);
  world.control.barrier();
}

TEST(Sockets, WhenARankIsKilledTheOthersGoOnInANewEpoch) {
  for (const int killed : {0, 1, 3}) {
    const Pipe begun;
    ForkedRanks ranks(4, {.members = 4, .silence = Seconds(600.0)}, [&](int rank, const Addresses& address) {
      const auto member = member_of(address, {.rank = rank});
      begin(*member);
      exchange_until_lost(*member, 3, "has gone away", begun);
    });
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(begun.receive(), "begun");
    ranks[killed].signal(SIGKILL);
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks[rank].status(), rank == killed ? -1 : 0) << rank;
  }
}

TEST(Sockets, ARankThatHangsIsGivenUpAfterTheSilence) {
  const Pipe begun;
  ForkedRanks ranks(3, {.members = 3, .silence = Seconds(2.0)}, [&](int rank, const Addresses& address) {
    const auto member = member_of(address, {.rank = rank, .heartbeat = Seconds(0.1)});
    begin(*member);
    exchange_until_lost(*member, 2, "has not been heard of", begun);
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(begun.receive(), "begun");
  ranks[1].signal(SIGSTOP);
  EXPECT_EQ(ranks[0].status(), 0);
  EXPECT_EQ(ranks[2].status(), 0);
}

TEST(Sockets, StrangersDoNotDisturbTheCoordinator) {
  const auto coordinator = coordinator_for(1);
  std::vector<Frames> strangers;
  for (const char* text : {"GET / HTTP/1.0", "{}", "[1]", R"({"what":5})", R"({"what":"join","rank":"first"})",
                           R"({"what":"call","epoch":"one"})", R"({"what":"call","ranks":{}})"}) {
    auto socket = connect_to(coordinator->addresses(), Seconds(5.0));
    ASSERT_TRUE(socket) << socket.error().message();
    strangers.emplace_back(*std::move(socket));
    strangers.back().send(text);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto member = member_of(coordinator->addresses());
  begin(*member);
  EXPECT_EQ(member->world().size(), 1);
  EXPECT_EQ(member->world().control.sum(2.0), 2.0);
}

TEST(Sockets, OneMoreRankJoinsInTheNextEpoch) {
  const auto coordinator = coordinator_for(2);
  std::vector<std::thread> threads;
  std::latch two_are_there(2);
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      try {
        if (i == 2) two_are_there.wait();
        const auto member = member_of(coordinator->addresses());
        if (i < 2) {
          begin(*member);
          two_are_there.count_down();
          EXPECT_EQ(member->world().size(), 2);
          member->world().control.barrier();
        }
        // The two ask for another epoch while the third has joined, or it joins a moment later.
        while (member->epoch() == 0 || member->world().size() < 3) begin(*member);
        EXPECT_EQ(check_messages(member->world(), 100), "");
        member->world().control.barrier();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sailor::runtime::test
