// GPU names of Slurm, node features and drivers, and the GPU types that they match.
#include <gtest/gtest.h>

#include "cluster/gpu_match.hpp"

namespace sailor::gpu_match_test {
namespace {

const GpuCatalogue& catalogue() {
  static const GpuCatalogue known = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  return known;
}

/// "A100-40", "none", or "A100-40 or A100-80"
std::string meant(const std::string& gres_type, const std::vector<std::string>& features = {}) {
  const GpuMatch match = match_gres(catalogue(), gres_type, features);
  if (match.type != nullptr) return match.type->name;
  std::string names;
  for (const GpuType* type : match.candidates) names += (names.empty() ? "" : " or ") + type->name;
  return names.empty() ? "none" : names;
}

TEST(GpuMatch, TakesAGresTypeForTheGpuThatItIsAPartOfTheDriversNameOf) {
  // As slurmd finds the types itself (AutoDetect=nvml), and parts of that as administrators write them.
  EXPECT_EQ(meant("nvidia_h100_80gb_hbm3"), "H100-80");
  EXPECT_EQ(meant("h100_80gb_hbm3"), "H100-80");
  EXPECT_EQ(meant("nvidia_h100_pcie"), "H100-PCIe-80");
  EXPECT_EQ(meant("NVIDIA_A100-SXM4-80GB"), "A100-80");
  EXPECT_EQ(meant("nvidia_a100-sxm4-40gb"), "A100-40");
  EXPECT_EQ(meant("nvidia_a100_80gb_pcie"), "A100-PCIe-80");
  EXPECT_EQ(meant("tesla_v100-sxm2-32gb"), "V100-32");
  EXPECT_EQ(meant("geforce_rtx_4090"), "RTX-4090");
  EXPECT_EQ(meant("rtx4090"), "RTX-4090");
  EXPECT_EQ(meant("nvidia_geforce_rtx_2080_ti"), "RTX-2080");
  EXPECT_EQ(meant("nvidia_gh200_480gb"), "GH200-96");
  EXPECT_EQ(meant("nvidia_gh200_144g_hbm3e"), "GH200-144");
  EXPECT_EQ(meant("a100-sxm4"), "A100-40 or A100-80");
}

TEST(GpuMatch, TakesWholeWords) {
  EXPECT_EQ(meant("h200"), "H200-141");  // not GH200, whose name holds the letters
  EXPECT_EQ(meant("gh200"), "GH200-96");
  EXPECT_EQ(meant("a10"), "A10");
  EXPECT_EQ(meant("l4"), "L4");
  EXPECT_EQ(meant("l40"), "L40");
  EXPECT_EQ(meant("l40s"), "L40S");
  EXPECT_EQ(meant("b200"), "B200");
  EXPECT_EQ(meant("gb200"), "GB200");
  EXPECT_EQ(meant("mi250x"), "MI250X");
  EXPECT_EQ(meant("mi300a"), "MI300A");
  EXPECT_EQ(meant("mi300"), "none");
  for (const char* word : {"rtx", "rtx_6000", "tesla", "80gb", "titan", "ada", "sxm4"})
    EXPECT_EQ(meant(word), "none") << word;
}

TEST(GpuMatch, KeepsWhatTheCatalogueSaysOfAType) {
  EXPECT_EQ(meant("a100"), "A100-40");
  EXPECT_EQ(meant("v100"), "V100-16");
  EXPECT_EQ(meant("h100"), "H100-80");
  EXPECT_EQ(meant("a100", {"a100", "gpu"}), "A100-40");
}

TEST(GpuMatch, LetsFeaturesSayMore) {
  EXPECT_EQ(meant("v100", {"cascadelake", "v100", "32gb"}), "V100-32");
  EXPECT_EQ(meant("a100", {"a100-sxm4-80gb"}), "A100-80");
  EXPECT_EQ(meant("", {"gpu", "h100"}), "H100-80");
  EXPECT_EQ(meant("", {"GPU_GEN:HPR", "GPU_SKU:H100_SXM5", "GPU_MEM:80GB"}), "H100-80");
  EXPECT_EQ(meant("", {"A100_80GB_PCIe"}), "A100-PCIe-80");
  EXPECT_EQ(meant("", {"nvidia", "rtx3090"}), "RTX-3090");
  EXPECT_EQ(meant("big", {"gh200"}), "GH200-96");  // a word of the administrator's own
  EXPECT_EQ(meant("", {"80gb", "gpu", "thp_never"}), "none");
  EXPECT_EQ(meant("a100", {"v100"}), "A100-40");  // the GRES type is what jobs ask for
}

TEST(GpuMatch, TakesNoInstanceForAGpu) {
  EXPECT_EQ(meant("a100_1g.5gb", {"a100"}), "none");
  EXPECT_EQ(meant("3g.20gb", {"a100"}), "none");
}

TEST(GpuMatch, DoubtsATypeOnlyWhereItIsThatOfOtherGpus) {
  EXPECT_TRUE(may_be(catalogue(), "a100", "A100-40"));
  EXPECT_TRUE(may_be(catalogue(), "a100", "A100-80"));
  EXPECT_FALSE(may_be(catalogue(), "a100", "GH200-96"));
  EXPECT_TRUE(may_be(catalogue(), "big", "GH200-96"));
}

TEST(GpuMatch, SaysWhatAProgramNeedsToComputeThere) {
  EXPECT_EQ(catalogue().find("H100")->backend, "cuda");
  EXPECT_EQ(catalogue().find("MI300X")->backend, "hip");
  EXPECT_EQ(catalogue().find("cpu")->backend, "cpu");
}

TEST(GpuCatalogue, HasTheGpusOfToday) {
  for (const char* name :
       {"H100-80", "H100-PCIe-80", "H100-NVL-94",  "H200-141",     "H200-NVL-141", "GH200-96", "GH200-144", "B200",
        "GB200",   "GB300",        "A100-PCIe-40", "A100-PCIe-80", "A10",          "A40",      "L4",        "L40",
        "L40S",    "V100-32",      "RTX-4090",     "RTX-6000-Ada", "MI250X",       "MI300A",   "MI300X"}) {
    const auto type = catalogue().find(name);
    ASSERT_TRUE(type.has_value()) << name;
    EXPECT_NE(type->source.find("20"), std::string::npos) << name << " has no source with a year";
    EXPECT_FALSE(type->driver_names.empty()) << name;
    // A slip of the pen: rates that no device of these years has.
    EXPECT_GE(type->memory, Bytes(23e9)) << name;
    EXPECT_LE(type->memory, Bytes(300e9)) << name;
    EXPECT_GT(type->peak_fp32.value(), 10e12) << name;
    EXPECT_LT(type->peak_bf16.value(), 3e15) << name;
    if (type->peak_fp8.value() > 0.0) {
      EXPECT_NEAR(type->peak_fp8 / type->peak_bf16, 2.0, 0.03) << name;
    }
    EXPECT_GE(type->memory_bandwidth.value(), 0.3e12) << name;
    EXPECT_LE(type->memory_bandwidth.value(), 8e12) << name;
    // For each driver's name there is one.
    for (const std::string& driver : type->driver_names) {
      const GpuType* found = match_device(catalogue(), driver, type->memory);
      EXPECT_TRUE(found != nullptr && found->name == type->name) << driver;
    }
  }
}

}  // namespace
}  // namespace sailor::gpu_match_test
