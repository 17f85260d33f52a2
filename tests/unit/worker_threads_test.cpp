#include "core/worker_threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace sailor::worker_threads_test {
namespace {

TEST(WorkerThreads, EveryPieceIsDoneOnce) {
  for (const int threads : {1, 2, 5}) {
    WorkerThreads workers(threads);
    for (const std::size_t count : {0U, 1U, 2U, 3U, 100U}) {
      std::vector<std::atomic<int>> done(count);
      workers.for_each(count, [&](std::size_t i, std::size_t thread) {
        EXPECT_LT(thread, workers.size());
        ++done[i];
      });
      for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
    }
  }
}

TEST(WorkerThreads, NoThreadDoesTwoAtOnce) {
  WorkerThreads workers(3);
  std::vector<std::atomic<int>> busy(workers.size());
  for (int round = 0; round < 50; ++round)
    workers.for_each(20, [&](std::size_t, std::size_t thread) {
      EXPECT_EQ(busy[thread]++, 0);
      std::this_thread::yield();
      --busy[thread];
    });
}

TEST(WorkerThreads, PiecesAreDoneAtOnce) {
  WorkerThreads workers(2);
  std::atomic<int> waiting = 0;
  // Neither ends before both have begun.
  workers.for_each(2, [&](std::size_t, std::size_t) {
    ++waiting;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (waiting < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(waiting, 2);
  });
}

TEST(WorkerThreads, PiecesMayHavePiecesOfTheirOwn) {
  for (const int threads : {1, 2, 5}) {
    WorkerThreads workers(threads);
    std::vector<std::atomic<int>> done(12);
    workers.for_each(4, [&](std::size_t i, std::size_t) {
      workers.for_each(3, [&](std::size_t k, std::size_t thread) {
        EXPECT_LT(thread, workers.size());
        ++done[3 * i + k];
      });
      EXPECT_EQ(done[3 * i] + done[3 * i + 1] + done[3 * i + 2], 3);
    });
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(WorkerThreads, ThoseThatAreDoneHelpWithThePiecesOfOthers) {
  WorkerThreads workers(2);
  std::atomic<int> waiting = 0;
  workers.for_each(2, [&](std::size_t i, std::size_t) {
    if (i == 1) return;
    workers.for_each(2, [&](std::size_t, std::size_t) {  // neither ends before both have begun
      ++waiting;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (waiting < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_EQ(waiting, 2);
    });
  });
}

TEST(WorkerThreads, AFailureInsideAPieceIsThatOfThePiece) {
  WorkerThreads workers(3);
  std::atomic<int> failed = 0;
  workers.for_each(2, [&](std::size_t, std::size_t) {
    try {
      workers.for_each(3, [](std::size_t k, std::size_t) {
        if (k == 1) throw std::runtime_error("inside");
      });
    } catch (const std::runtime_error&) {
      ++failed;
    }
  });
  EXPECT_EQ(failed, 2);
}

TEST(WorkerThreads, TheFirstFailureIsThrownWhenAllHaveEnded) {
  for (const int threads : {2, 4}) {
    WorkerThreads workers(threads);
    std::atomic<int> ended = 0;
    try {
      workers.for_each(10, [&](std::size_t i, std::size_t) {
        ++ended;
        if (i == 3 || i == 7) throw std::runtime_error(std::to_string(i));
      });
      ADD_FAILURE();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "3");
    }
    EXPECT_EQ(ended, 10);
    workers.for_each(4, [&](std::size_t, std::size_t) { ++ended; });  // it still works
    EXPECT_EQ(ended, 14);
  }
}

}  // namespace
}  // namespace sailor::worker_threads_test
