// What the SPANK plugin costs a job that does not ask for a plan: loading it, and its hooks.
//
//   $ build/tests/bench_spank
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "fakes/spank_host.hpp"

namespace {

using sailor::fakes::SpankHost;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// As Slurm loads a plugin, each time in a new process: srun and slurmstepd do it once. A copy of the file, for the
/// file itself is loaded already.
void load(benchmark::State& state) {
  namespace fs = std::filesystem;
  const fs::path copy = fs::temp_directory_path() / ("sailor-bench-spank-" + std::to_string(::getpid()) + ".so");
  fs::copy_file(SAILOR_SPANK_MODULE, copy, fs::copy_options::overwrite_existing);
  for (auto _ : state) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) std::abort();
    if (::fork() == 0) {
      const Clock::time_point begin = Clock::now();
      const void* module = ::dlopen(copy.c_str(), RTLD_LAZY);
      const double time = module == nullptr ? -1.0 : seconds_since(begin);
      ::_exit(::write(ends[1], &time, sizeof time) == sizeof time ? 0 : 1);
    }
    double time = -1.0;
    if (::read(ends[0], &time, sizeof time) != sizeof time || time < 0.0) state.SkipWithError("cannot load the plugin");
    ::close(ends[0]);
    ::close(ends[1]);
    ::wait(nullptr);
    state.SetIterationTime(time);
  }
  fs::remove(copy);
}
BENCHMARK(load)->UseManualTime()->Unit(benchmark::kMicrosecond);

SpankHost* host = nullptr;

void hooks_of_srun(benchmark::State& state) {
  host->context = S_CTX_LOCAL;
  for (auto _ : state) benchmark::DoNotOptimize(host->init() + host->init_post_opt());
}
BENCHMARK(hooks_of_srun)->Unit(benchmark::kMicrosecond);

void hooks_of_slurmstepd_and_a_task(benchmark::State& state) {
  host->context = S_CTX_REMOTE;
  for (auto _ : state) benchmark::DoNotOptimize(host->init() + host->init_post_opt() + host->task_init());
}
BENCHMARK(hooks_of_slurmstepd_and_a_task)->Unit(benchmark::kMicrosecond);

}  // namespace

int main(int argc, char** argv) {
  ::setenv("SAILOR_SPANK_MODULE", SAILOR_SPANK_MODULE, 1);
  benchmark::Initialize(&argc, argv);
  SpankHost the_host(S_CTX_LOCAL);
  return the_host
      .run([](SpankHost& running) {
        host = &running;
        ::alarm(0);
        benchmark::RunSpecifiedBenchmarks();
        return 0;
      })
      .status;
}
