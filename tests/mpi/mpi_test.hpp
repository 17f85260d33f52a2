// What tests that start mpirun have in common: a folder of their own, and an environment in which more ranks than cores
// start, also as root.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp and setenv are POSIX

#include <filesystem>
#include <string>

namespace sailor {

/// GPUs that are emulated on the CPU (tests/fakes/cuda), for the programs that a test starts; false: they were not
/// built.
inline bool use_emulated_gpus(int gpus) {
  const char* const module = SAILOR_TESTS_DIR "/libsailor_cuda_emulated.so";
  ::setenv("SAILOR_GPU_MODULE", module, 1);
  ::setenv("SAILOR_EMULATED_GPUS", std::to_string(gpus).c_str(), 1);
  return std::filesystem::exists(module);
}

inline void use_no_emulated_gpus() {
  for (const char* const name : {"SAILOR_GPU_MODULE", "SAILOR_EMULATED_GPUS", "SAILOR_EMULATED_NAME"}) ::unsetenv(name);
}

class MpiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "sailor-mpi-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    // Containers run tests as root.
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    ::setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
  }
  void TearDown() override {
    use_no_emulated_gpus();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

}  // namespace sailor
