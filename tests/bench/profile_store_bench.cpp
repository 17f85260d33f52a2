// How long a profile store takes to write, to read and to look up: 10,000 layers, with times and memory, and 1,000
// links.
//
//   $ build/tests/bench_profile_store
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "profile/profile.hpp"
#include "profile/store.hpp"

namespace {

using namespace sailor;

constexpr int layer_count = 10'000;
constexpr int link_count = 1'000;

TimeStatistics times(double median) {
  return {.median = Seconds(median),
          .p10 = Seconds(median * 0.9),
          .p90 = Seconds(median * 1.2),
          .low = Seconds(median * 0.95),
          .high = Seconds(median * 1.05),
          .samples = 20};
}

ProfileData large_profile() {
  ProfileData data;
  data.sessions = {{.id = "bench", .provenance = {.tool = "a benchmark", .date = "2026-01-01T00:00:00Z"}}};
  // 10 models x 5 GPU types x 4 degrees x 10 micro-batches x 5 kinds and lengths
  for (int i = 0; i < layer_count; ++i) {
    LayerKey key{.model = "a-model-of-some-length-" + std::to_string(i % 10),
                 .gpu = "A100-" + std::to_string(i / 10 % 5),
                 .precision = Precision::bf16,
                 .tensor_parallel = 1 << (i / 50 % 4),
                 .micro_batch = 1 + i / 200 % 10,
                 .sequence_length = 2048,
                 .kind = i / 2000 < 4 ? static_cast<LayerKind>(i / 2000) : LayerKind::block};
    if (i / 2000 == 4) key.sequence_length = 4096;
    data.layer_times.push_back({.key = key,
                                .forward = times(1e-3),
                                .backward = times(2e-3),
                                .update = times(1e-4),
                                .cold_forward = times(1.5e-3),
                                .cold_backward = times(3e-3)});
    data.layer_memory.push_back({.key = key,
                                 .parameters = i,
                                 .activation = Bytes(1e6 + i),
                                 .output = Bytes(1e5),
                                 .input = Bytes(1e5),
                                 .workspace = Bytes(1e4)});
  }
  for (int i = 0; i < link_count; ++i)
    data.links.push_back({.key = {.from = {.gpu = "A100-" + std::to_string(i % 5), .ranks = 1 << (i / 5 % 4)},
                                  .to = {.gpu = "A100-" + std::to_string(i / 20 % 5), .ranks = 1},
                                  .scope = LinkScope::inter_node},
                          .message = Bytes(64.0 * (1 + i / 100)),
                          .time = times(1e-5)});
  return data;
}

/// The file of the benchmarks, in a folder that lives as long as the program.
const std::filesystem::path& file() {
  static const struct Folder {
    Folder() {
      std::string pattern = (std::filesystem::temp_directory_path() / "sailor-bench-XXXXXX").string();
      path = std::filesystem::path(::mkdtemp(pattern.data())) / "profile.h5";
      if (!save_profile(large_profile(), path)) std::abort();
    }
    ~Folder() { std::filesystem::remove_all(path.parent_path()); }
    std::filesystem::path path;
  } folder;
  return folder.path;
}

void write_store(benchmark::State& state) {
  const ProfileData data = large_profile();
  for (auto _ : state)
    if (!save_profile(data, file())) state.SkipWithError("cannot write");
}
BENCHMARK(write_store)->Unit(benchmark::kMillisecond);

void read_store(benchmark::State& state) {
  (void)file();
  for (auto _ : state) {
    auto data = load_profile(file());
    if (!data || data->layer_times.size() != layer_count) state.SkipWithError("cannot read");
    benchmark::DoNotOptimize(data);
  }
}
BENCHMARK(read_store)->Unit(benchmark::kMillisecond);

void make_profile(benchmark::State& state) {
  const ProfileData data = large_profile();
  for (auto _ : state) {
    const Profile profile(data);
    benchmark::DoNotOptimize(&profile);
  }
}
BENCHMARK(make_profile)->Unit(benchmark::kMillisecond);

void read_store_and_make_profile(benchmark::State& state) {
  (void)file();
  for (auto _ : state) {
    const Profile profile(*load_profile(file()));
    benchmark::DoNotOptimize(&profile);
  }
}
BENCHMARK(read_store_and_make_profile)->Unit(benchmark::kMillisecond);

void look_up_layer(benchmark::State& state) {
  const Profile profile(large_profile());
  const LayerKey key = profile.data().layer_times[layer_count / 2].key;
  for (auto _ : state) benchmark::DoNotOptimize(profile.layer(key));
}
BENCHMARK(look_up_layer);

}  // namespace

BENCHMARK_MAIN();
