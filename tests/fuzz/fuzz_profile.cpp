#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/files.hpp"
#include "profile/run_file.hpp"
#include "profile/store.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace {

std::filesystem::path scratch_file() {
  return std::filesystem::temp_directory_path() / ("sailor_fuzz_" + std::to_string(::getpid()) + ".h5");
}

}  // namespace

// HDF5 1.10.8 itself leaks when it refuses some damaged files.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5"; }  // NOLINT

// Any bytes are either a profile store or a clear error; the same for a run file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path = scratch_file();
  // Not flushed to disk: many thousand files.
  if (!std::ofstream(path, std::ios::binary)
           .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size)))
    return 0;
  const auto store = sailor::load_profile(path);
  if (!store && store.error().what.empty()) __builtin_trap();
  const auto run = sailor::load_run(path);
  if (!run && run.error().what.empty()) __builtin_trap();
  std::filesystem::remove(path);
  return 0;
}

extern "C" std::size_t sailor_fuzz_seed(std::vector<std::uint8_t>& seed) {
  const std::filesystem::path path = scratch_file();
  if (!sailor::save_profile(sailor::testing::round_numbers_profile(), path)) return 0;
  const std::string bytes = sailor::read_text_file(path).value_or("");
  std::filesystem::remove(path);
  seed.assign(bytes.begin(), bytes.end());
  return seed.size();
}
