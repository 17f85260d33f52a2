// cuDNN accepts our attention graphs and has kernels for them, without a GPU present.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>

#include "runtime/cuda/fused_attention.hpp"

namespace sailor::runtime::cuda::cudnn_attention_test {
namespace {

/// What cuDNN asks of a device, here of an H200.
const DescribedDevice h200{
    R"({"deviceName":"NVIDIA H200","deviceVer":900,"driverVer":13000,"cudaDeviceId":0,"pciDeviceId":0,"isTccDriver":0,)"
    R"("multiProcessorCount":132,"warpSize":32,"maxCtasPerSM":32,"maxThreadsPerSM":2048,"maxThreadsPerBlock":1024,)"
    R"("maxBlockSize":[1024,1024,64],"maxGridSize":[2147483647,65535,65535],"regsPerBlock":65536,)"
    R"("maxRegistersPerSM":65536,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("reservedSharedMemoryPerBlock":1024,"l2CacheSize":62914560,"totalGlobalMem":150000000000,)"
    R"("smClockRateKHz":1980000,"memClockRateKHz":3201000,"supportCoopLaunch":1,"finalizeMode":0})",
    90};

class CudnnAttention : public testing::Test {
 protected:
  /// libcuda.so.1 is then this one for all that ask for it by name.
  static void SetUpTestSuite() { ASSERT_NE(::dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << ::dlerror(); }
};

TEST_F(CudnnAttention, HasKernelsForTheModels) {
  const auto attention = make_cudnn_attention(false, h200);
  EXPECT_TRUE(attention->version().starts_with("cuDNN ")) << attention->version();
  const AttentionShape opt_350m{
      .sequences = 8, .sequence_length = 2048, .heads = 16, .key_value_heads = 16, .head_width = 64};
  const AttentionShape gpt_neo{
      .sequences = 4, .sequence_length = 2048, .heads = 20, .key_value_heads = 20, .head_width = 128};
  AttentionShape gpt_neo_local = gpt_neo;
  gpt_neo_local.window = 256;
  const AttentionShape llama_3{
      .sequences = 1, .sequence_length = 8192, .heads = 32, .key_value_heads = 8, .head_width = 128};
  const AttentionShape odd{.sequences = 3, .sequence_length = 17, .heads = 2, .key_value_heads = 1, .head_width = 8};
  for (const AttentionShape& shape : {opt_350m, gpt_neo, gpt_neo_local, llama_3, odd}) {
    const FusedAttention::Plan* const plan = attention->plan_for(shape, DataType::bfloat16);
    ASSERT_NE(plan, nullptr) << shape.heads << " heads of " << shape.head_width;
    // Far from the scores of all heads at once, which take 2 bytes for each two tokens; gradients of keys and queries
    // may stand in float32, those of grouped heads apart.
    const double values = static_cast<double>(shape.tokens() * shape.width());
    EXPECT_LE(static_cast<double>(plan->forward_workspace), 4096.0);
    EXPECT_LE(static_cast<double>(plan->backward_workspace), 12.0 * values + (1 << 20));
    EXPECT_EQ(attention->plan_for(shape, DataType::bfloat16), plan);
  }
  EXPECT_NE(attention->plan_for(odd, DataType::float16), nullptr);
  EXPECT_NE(make_cudnn_attention(true, h200)->plan_for(opt_350m, DataType::bfloat16), nullptr) << "deterministic";
}

TEST_F(CudnnAttention, LeavesToOurKernelsWhatItDoesNotTake) {
  const auto attention = make_cudnn_attention(false, h200);
  const AttentionShape narrow{.sequences = 1, .sequence_length = 16, .heads = 2, .key_value_heads = 2, .head_width = 6};
  EXPECT_EQ(attention->plan_for(narrow, DataType::bfloat16), nullptr);
  AttentionShape wide = narrow;
  wide.head_width = 64;
  EXPECT_EQ(attention->plan_for(wide, DataType::float32), nullptr);
  EXPECT_NE(attention->plan_for(wide, DataType::bfloat16), nullptr);
}

}  // namespace
}  // namespace sailor::runtime::cuda::cudnn_attention_test
