// The communicator of threads that other tests rely on (tests/fakes/thread_communicator.hpp).
#include "../fakes/thread_communicator.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace sailor::runtime::test {
namespace {

TEST(ThreadCommunicator, CollectivesDoWhatTheySay) {
  run_ranks(3, [](Communicator& all) {
    const auto rank = static_cast<float>(all.rank());
    std::vector<float> values{rank, 10.0f * rank, 1.0f, -rank};
    all.all_reduce_sum(values.data(), 4);
    EXPECT_EQ(values, (std::vector<float>{3, 30, 3, -3}));
    values = {rank, -rank};
    all.all_reduce_max(values.data(), 2);
    EXPECT_EQ(values, (std::vector<float>{2, 0}));
    // Seven values: slices [0, 2), [2, 4), [4, 7).
    values.assign(7, -1.0f);
    const Range mine = cut(7, {all.rank(), 3});
    std::fill(values.begin() + mine.first, values.begin() + mine.last, rank);
    all.all_gather(values.data(), 7);
    EXPECT_EQ(values, (std::vector<float>{0, 0, 1, 1, 2, 2, 2}));
    std::iota(values.begin(), values.end(), rank);
    all.reduce_scatter_sum(values.data(), 7);
    for (std::int64_t i = mine.first; i < mine.last; ++i)
      EXPECT_EQ(values[static_cast<std::size_t>(i)], 3.0f * static_cast<float>(i) + 3.0f);
    all.broadcast(&values[0], sizeof(float), 2);
    int number = all.rank() == 1 ? 17 : 0;
    all.broadcast(&number, sizeof(number), 1);
    EXPECT_EQ(number, 17);
    all.barrier();
    EXPECT_EQ(all.sum(0.5 + all.rank()), 4.5);
    EXPECT_EQ(all.max(all.rank()), 2.0);
    EXPECT_EQ(all.min(all.rank()), 0.0);
    const std::vector<std::string> texts = all.gather(std::string(static_cast<std::size_t>(all.rank()), 'x'));
    EXPECT_EQ(texts, all.rank() == 0 ? (std::vector<std::string>{"", "x", "xx"}) : std::vector<std::string>{});
  });
}

TEST(ThreadCommunicator, SumsUnderWayMatchInTheirOrder) {
  run_ranks(2, [](Communicator& all) {
    float first = 1.0f;
    float second = 10.0f;
    const auto later = all.all_reduce_sum_later(&first, 1);
    all.all_reduce_sum(&second, 1);
    later->wait();
    EXPECT_TRUE(later->test());
    EXPECT_EQ(first, 2.0f);
    EXPECT_EQ(second, 20.0f);
  });
}

TEST(ThreadCommunicator, MessagesKeepOrderAndKindsApart) {
  run_ranks(2, [](Communicator& all) {
    const std::vector<int> numbers{1, 2, 3};
    if (all.rank() == 0) {
      std::vector<std::unique_ptr<Request>> sends;
      for (const int& number : numbers)
        sends.push_back(
            all.send_later(&number, sizeof(int), 1, number == 2 ? MessageKind::gradient : MessageKind::activation));
      for (const auto& send : sends) send->wait();
    } else {
      int gradient = 0;
      int first = 0;
      int second = 0;
      all.receive(&gradient, sizeof(int), 0, MessageKind::gradient);
      all.receive(&first, sizeof(int), 0, MessageKind::activation);
      all.receive(&second, sizeof(int), 0, MessageKind::activation);
      EXPECT_EQ(gradient, 2);
      EXPECT_EQ(first, 1);
      EXPECT_EQ(second, 3);
    }
  });
}

TEST(ThreadCommunicator, SubgroupsOfTheSameRanksAreApart) {
  run_ranks(4, [](Communicator& all) {
    if (all.rank() % 2 == 0) return;
    const auto one = all.subgroup({1, 3});
    const auto two = all.subgroup({1, 3});
    EXPECT_EQ(one->rank(), all.rank() / 2);
    EXPECT_EQ(one->size(), 2);
    float a = 1.0f;
    float b = 5.0f;
    if (all.rank() == 1) {  // in another order: they are two groups
      const auto later = one->all_reduce_sum_later(&a, 1);
      two->all_reduce_sum(&b, 1);
      later->wait();
    } else {
      const auto later = two->all_reduce_sum_later(&b, 1);
      one->all_reduce_sum(&a, 1);
      later->wait();
    }
    EXPECT_EQ(a, 2.0f);
    EXPECT_EQ(b, 10.0f);
  });
}

TEST(ThreadCommunicator, AnInterruptedRankGoesOnInNewSubgroups) {
  run_ranks(2, [](Communicator& all) {
    const auto group = all.subgroup({0, 1});
    float value = 1.0f;
    if (all.rank() == 0) {
      std::thread other([&] { all.interrupt(); });
      EXPECT_THROW(group->all_reduce_sum(&value, 1), Interrupted);
      other.join();
      EXPECT_THROW(group->barrier(), Interrupted);
      all.resume();
    }
    all.barrier();
    const auto fresh = all.subgroup({0, 1});
    fresh->all_reduce_sum(&value, 1);
    EXPECT_EQ(value, 2.0f);
  });
}

TEST(ThreadCommunicator, AFailingRankBreaksOffTheOthersAndIsReported) {
  try {
    run_ranks(3, [](Communicator& all) {
      if (all.rank() == 1) throw std::runtime_error("rank 1 has failed");
      all.barrier();
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1 has failed");
  }
}

TEST(ThreadCommunicator, RanksThatCallDifferentThingsFail) {
  EXPECT_THROW(run_ranks(2,
                         [](Communicator& all) {
                           float value[2] = {};
                           all.all_reduce_sum(value, all.rank() + 1);
                         }),
               std::logic_error);
}

}  // namespace
}  // namespace sailor::runtime::test
