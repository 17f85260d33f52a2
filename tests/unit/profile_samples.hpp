// A small profile, a folder for it, and comparisons: for the tests of the profile store.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/files.hpp"
#include "profile/store.hpp"

namespace sailor {

namespace fs = std::filesystem;

/// A folder that lives as long as the test.
class ProfileStore : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sailor-profile-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] fs::path file(const std::string& name) const { return folder_ / name; }
  fs::path folder_;
};

inline TimeStatistics times(double median) {
  return {.median = Seconds(median),
          .p10 = Seconds(median * 0.9),
          .p90 = Seconds(median * 1.2),
          .low = Seconds(median * 0.95),
          .high = Seconds(median * 1.05),
          .samples = 20};
}

inline LayerTime layer(int micro_batch, LayerKind kind, double forward) {
  return {.key = {.model = "tiny-gpt",
                  .gpu = "cpu",
                  .tensor_parallel = 1,
                  .micro_batch = micro_batch,
                  .sequence_length = 64,
                  .busy_ranks = 2,
                  .kind = kind},
          .forward = times(forward),
          .backward = times(2 * forward),
          .update = times(1e-4)};
}

inline LayerMemory memory(int micro_batch, LayerKind kind) {
  return {.key = {.model = "tiny-gpt",
                  .gpu = "cpu",
                  .tensor_parallel = 1,
                  .micro_batch = micro_batch,
                  .sequence_length = 64,
                  .kind = kind},
          .parameters = 198272,
          .activation = Bytes(1234.0),
          .output = Bytes(32768.0 * micro_batch),
          .input = Bytes(256.0 * micro_batch),
          .workspace = Bytes(777.0)};
}

inline LinkMeasurement link(LinkOperation operation, int ranks, double bytes, double seconds) {
  return {.key = {.from = {.gpu = "cpu"},
                  .to = {.gpu = "cpu"},
                  .scope = LinkScope::intra_node,
                  .operation = operation,
                  .ranks = ranks},
          .message = Bytes(bytes),
          .time = times(seconds)};
}

inline Session session(const std::string& id, const std::string& date) {
  return {.id = id,
          .provenance = {.tool = "sailor-profile 0.1.0",
                         .command = "sailor-profile layers --model tiny-gpt",
                         .host = "nid001,nid002",
                         .device = "AMD EPYC 7763",
                         .versions = "OpenBLAS 0.3.21",
                         .date = date,
                         .source = "Müller et al. 2025"},
          .lowest_clock_hz = 2.5e9,
          .highest_clock_hz = 3.5e9,
          .slowdown = 1.25};
}

inline ProfileData sample() {
  return {.sessions = {session("sample", "2026-01-02T03:04:05Z")},
          .layer_times = {layer(1, LayerKind::block, 0.001), layer(2, LayerKind::block, 0.0018),
                          layer(1, LayerKind::head, 0.003)},
          .layer_memory = {memory(1, LayerKind::block), memory(2, LayerKind::block), memory(1, LayerKind::head)},
          .out_of_memory = {{.key = memory(64, LayerKind::head).key, .needed = Bytes(2e12), .available = Bytes(1e12)}},
          .links = {link(LinkOperation::send_receive, 2, 1024, 1e-6), link(LinkOperation::send_receive, 2, 16384, 4e-6),
                    link(LinkOperation::all_reduce, 4, 1024, 8e-6)},
          .fits = {{.key = {.from = {.gpu = "cpu", .zone = "a", .ranks = 4}, .to = {.gpu = "cpu", .zone = "b"}},
                    .curve = {.quadratic = -0.5,
                              .linear = 1.25,
                              .constant = 3.0,
                              .largest_bandwidth = BytesPerSecond(4e9),
                              .smallest_message = Bytes(65536),
                              .largest_message = Bytes(1e9),
                              .latency = Seconds(1e-5)},
                    .median_error = 0.01,
                    .largest_error = 0.125,
                    .points = 15}},
          .processes = {{.gpu = "cpu", .framework = "sailor", .base_memory = Bytes(5e7)}}};
}

inline void expect_equal(const ProfileData& a, const ProfileData& b) {
  EXPECT_EQ(a.sessions, b.sessions);
  EXPECT_EQ(a.layer_times, b.layer_times);
  EXPECT_EQ(a.layer_memory, b.layer_memory);
  EXPECT_EQ(a.out_of_memory, b.out_of_memory);
  EXPECT_EQ(a.links, b.links);
  EXPECT_EQ(a.fits, b.fits);
  EXPECT_EQ(a.processes, b.processes);
}

inline std::string error_of(const fs::path& path) {
  auto data = load_profile(path);
  return data ? "no error" : data.error().message();
}

inline std::string content_of(const fs::path& path) { return *read_text_file(path); }
inline void put(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

}  // namespace sailor
