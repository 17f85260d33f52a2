// Control plane and data plane over TCP: their results in memory, and what happens when ranks are lost. Ranks are
// threads, or processes where they are to be killed.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <latch>
#include <thread>

#include "../fakes/transport_checks.hpp"
#include "runtime/sockets/socket_transport.hpp"
#include "socket_ranks.hpp"

namespace sailor::runtime::test::sockets_test {
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
    run_members(ranks, [ranks](Member& member) {
      const World world = member.world();
      const auto all = world.transport.make_group(all_ranks(world));
      for (const std::int64_t slice : {1, 7, 100'000}) {
        EXPECT_EQ(check_collectives<float>(*all, slice), "");
        EXPECT_EQ(check_collectives<std::uint16_t>(*all, slice), "");
      }
      for (const std::size_t bytes : {0, 1, 5000, 3'000'000}) {
        EXPECT_EQ(check_messages(world, bytes), "");
        if (ranks > 1) {
          EXPECT_EQ(check_order(world, bytes), "");
        }
      }
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

TEST(Sockets, AProcessThatCanOpenNoMoreFilesSaysSoAndNotThatOthersAreGone) {
  auto listener = Listener::start();
  ASSERT_TRUE(listener);
  const auto on_loopback = (*listener)->addresses().find("127.0.0.1:");
  ASSERT_NE(on_loopback, std::string::npos);
  const std::string address =
      (*listener)->addresses().substr(on_loopback, (*listener)->addresses().find(',', on_loopback) - on_loopback);
  const Socket client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 200, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<Socket> files;
  for (int file = ::dup(client.descriptor()); file >= 0; file = ::dup(client.descriptor())) files.emplace_back(file);

  const auto begun = begin_connecting(address);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  const int connected = ::connect(client.descriptor(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  std::string said;
  for (int i = 0; i < 500 && said.empty(); ++i) try {
      (void)(*listener)->take({});
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } catch (const TransportError& error) {
      said = error.what();
    }
  files.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(connected, 0);
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, ErrorCode::io);
  for (const std::string& text : {begun.error().message(), said})
    EXPECT_NE(text.find("(at most 200); raise the limit (ulimit -n)"), std::string::npos) << text;
  // When there is room again, it accepts.
  bool accepts = false;
  for (int i = 0; i < 500 && !accepts; ++i) try {
      (void)(*listener)->take({});
      accepts = true;
    } catch (const TransportError&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  EXPECT_TRUE(accepts);
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

/// Takes everybody, and remembers what it heard.
class Recorder final : public MembershipPolicy {
 public:
  explicit Recorder(std::size_t first, std::size_t later = 0) : needed_(first), later_(later) {}
  std::optional<EpochChoice> choose(const std::vector<MemberInfo>& members) override {
    if (members.size() < (restored().epoch == 0 ? needed_ : later_)) return std::nullopt;
    EpochChoice choice{.ranks = {}, .payload = fmt::format("{} members", members.size())};
    for (const MemberInfo& member : members) {
      if (!member.ready) return std::nullopt;
      choice.ranks.push_back(member.id);
    }
    return choice;
  }
  void lost(const MemberInfo& /*member*/, const std::string& how) override { note("lost: " + how); }
  void failed(const MemberInfo& /*member*/, const std::string& why) override { note("failed: " + why); }
  void done(const MemberInfo& /*member*/, int status, const std::string& text) override {
    note(fmt::format("done: {} {}", status, text));
  }
  void begins(std::uint64_t job, std::uint64_t epoch, const EpochChoice& /*choice*/,
              const std::vector<MemberInfo>& by_rank) override {
    const std::scoped_lock lock(mutex_);
    restored_ = {.job = job, .epoch = epoch, .members = {}, .patience = Seconds(20.0)};
    for (const MemberInfo& member : by_rank) restored_.members.push_back(member.facts);
  }
  [[nodiscard]] RestoredEpoch restored() {
    const std::scoped_lock lock(mutex_);
    return restored_;
  }
  [[nodiscard]] std::vector<std::string> notes() {
    const std::scoped_lock lock(mutex_);
    return notes_;
  }
  /// Waits for so many notes.
  void wait_for(std::size_t count) {
    for (int i = 0; i < 2000 && notes().size() < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

 private:
  void note(const std::string& what) {
    const std::scoped_lock lock(mutex_);
    notes_.push_back(what);
  }
  std::size_t needed_;  // in the first epoch
  std::size_t later_;
  std::mutex mutex_;
  RestoredEpoch restored_;
  std::vector<std::string> notes_;
};

std::unique_ptr<Coordinator> coordinator_with(CoordinatorSettings settings) {
  auto started = Coordinator::start(settings);
  if (!started) throw std::runtime_error(started.error().message());
  return *std::move(started);
}

/// Where the coordinator is, for members that lose it.
class Directory {
 public:
  void put(const Addresses& addresses) {
    const std::scoped_lock lock(mutex_);
    addresses_ = addresses;
  }
  [[nodiscard]] Addresses get() {
    const std::scoped_lock lock(mutex_);
    return addresses_;
  }

 private:
  std::mutex mutex_;
  Addresses addresses_;
};

TEST(Sockets, ACoordinatorThatTakesTheDeadOnesPlaceGoesOnWithItsEpochAndItsCalls) {
  for (int turn = 0; turn < 10; ++turn) {
    Recorder recorder(3);
    Directory directory;
    auto coordinator = coordinator_with({.silence = Seconds(20.0), .policy = &recorder});
    directory.put(coordinator->addresses());
    std::latch begun(3);
    std::atomic<int> calls = 0;
    std::atomic<bool> enough = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        try {
          const auto member = member_of(directory.get(), {.find_coordinator = [&] { return directory.get(); }});
          begin(*member);
          EXPECT_EQ(member->payload(), "3 members");
          begun.count_down();
          // Data go on whatever happens to the coordinator, and every call gets its answer.
          const World world = member->world();
          while (world.control.max(enough ? 1.0 : 0.0) < 1.0) {
            EXPECT_EQ(world.control.sum(world.rank() + 1.0), 6.0);
            EXPECT_EQ(world.control.gather("x").size(), world.rank() == 0 ? 3u : 0u);
            ++calls;
          }
          EXPECT_EQ(member->epoch(), 1);
          EXPECT_EQ(check_messages(world, 1000), "");
          world.control.barrier();
          member->leave(0, "finished");
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      });
    begun.wait();
    for (int death = 0; death < 3; ++death) {
      const int before = calls;
      while (calls < before + 5) std::this_thread::sleep_for(std::chrono::microseconds(100));
      coordinator.reset();
      coordinator = coordinator_with({.silence = Seconds(20.0), .policy = &recorder, .restored = recorder.restored()});
      directory.put(coordinator->addresses());
    }
    enough = true;
    for (std::thread& thread : threads) thread.join();
    recorder.wait_for(3);
    EXPECT_EQ(recorder.notes(), std::vector<std::string>(3, "done: 0 finished"));
  }
}

TEST(Sockets, MembersThatDoNotFindTheNewCoordinatorAreLostToIt) {
  Recorder recorder(1);
  auto coordinator = coordinator_with({.policy = &recorder});
  std::thread away([&] { begin(*member_of(coordinator->addresses())); });
  away.join();
  recorder.wait_for(1);
  RestoredEpoch restored = recorder.restored();
  restored.patience = Seconds(0.2);
  coordinator = coordinator_with({.policy = &recorder, .restored = restored});
  recorder.wait_for(2);
  EXPECT_EQ(recorder.notes(),
            (std::vector<std::string>{"lost: has gone away", "lost: did not find the new controller"}));
}

TEST(Sockets, ASpareWaitsLongerThanItsTimeoutAndLeavesWhenTheJobEndsAsItsConnectionDoes) {
  auto coordinator = coordinator_for(2);
  std::atomic<bool> is_over = false;
  const auto joined = Member::join(coordinator->addresses(), {.timeout = Seconds(0.1),
                                                              .find_coordinator = [] { return Addresses(); },
                                                              .is_job_over = [&] { return is_over.load(); },
                                                              .silence = Seconds(30.0)});
  ASSERT_TRUE(joined);
  std::thread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_EQ((*joined)->why_broken(), "");
    is_over = true;
    coordinator.reset();
  });
  const auto begun = (*joined)->begin_epoch();
  end.join();
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().what, "the job has ended");
  EXPECT_EQ((*joined)->dismissal(), Dismissal::over);
}

TEST(Sockets, AChangeIsMadeWhenAllHaveAskedForIt) {
  Recorder recorder(2, 3);
  const auto coordinator = coordinator_with({.policy = &recorder});
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      try {
        if (i == 2)
          while (recorder.restored().epoch == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const auto member = member_of(coordinator->addresses());
        if (i == 2) coordinator->request_change("one more has joined");
        if (i < 2) {
          begin(*member);
          EXPECT_EQ(member->world().size(), 2);
          // A rank that asks earlier does not break the epoch of the other.
          member->wait_for_news(Seconds(20.0));
          EXPECT_TRUE(member->is_change_wanted());
          if (member->world().rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
          EXPECT_EQ(member->why_broken(), "");
        }
        begin(*member);
        EXPECT_EQ(member->world().size(), 3);
        EXPECT_FALSE(member->is_change_wanted());
        member->world().control.barrier();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Sockets, AMemberThatDoesNotLeaveABrokenEpochIsDismissed) {
  Recorder recorder(3, 2);
  const auto coordinator = coordinator_with({.unwinding = Seconds(0.3), .policy = &recorder});
  std::vector<std::thread> threads;
  std::latch over(2);
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      try {
        const auto member = member_of(coordinator->addresses());
        begin(*member);
        const int rank = member->world().rank();
        if (rank == 1) {
          // Its heartbeat goes on, but it does not come.
          member->wait_for_news(Seconds(20.0));
          EXPECT_EQ(member->why_broken(), "a message was lost");
          over.wait();
          // The others have gone on; what the coordinator told this one may still be on its way.
          for (int i = 0; i < 2000 && member->dismissal() == Dismissal::none; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          EXPECT_EQ(member->dismissal(), Dismissal::given_up);
          const auto begun = member->begin_epoch();
          ASSERT_FALSE(begun);
          return;
        }
        if (rank == 2) {
          member->wait_for_news(Seconds(20.0));
          begin(*member);
        } else if (const auto begun = member->begin_epoch("a message was lost"); !begun) {
          throw std::runtime_error(begun.error().message());
        }
        EXPECT_EQ(member->world().size(), 2);
        EXPECT_EQ(member->epoch(), 2);
        member->world().control.barrier();
        over.arrive_and_wait();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.notes()[0], "failed: a message was lost");
  EXPECT_EQ(recorder.notes()[1], "lost: hangs: it did not leave the epoch within 0.3 s");
}

}  // namespace
}  // namespace sailor::runtime::test::sockets_test
