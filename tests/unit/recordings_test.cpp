// Imports of what other programs recorded. Traces are written here, with times that are added up by hand.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "profile/layer_costs.hpp"
#include "profile/traces/import_training.hpp"
#include "profile/traces/megatron_timers.hpp"
#include "profile/traces/torch_trace.hpp"
#if SAILOR_HAVE_SQLITE
#include <sqlite3.h>
#endif
#if SAILOR_HAVE_ZLIB
#include <zlib.h>
#endif

namespace sailor::traces::recordings_test {
namespace {

namespace fs = std::filesystem;

Model two_blocks() {
  Model model{.name = "two", .blocks = 2, .hidden = 64};
  model.embedding_width = 64;
  model.attention_heads = model.key_value_heads = 1;
  model.feed_forward = 256;
  model.vocabulary = 100;
  model.max_sequence_length = 16;
  return model;
}

const GpuCatalogue& catalogue() {
  static const GpuCatalogue gpus = GpuCatalogue::parse(R"(schema_version = 1
[[gpus]]
name = "A100-40"
memory_bytes = 4e10
peak_fp32_flop_per_s = 19.5e12
peak_bf16_flop_per_s = 312e12
memory_bandwidth_bytes_per_s = 1.5e12
price_usd_per_hour = 1.0
source = "test"
driver_names = ["NVIDIA A100-SXM4-40GB"]
[[gpus]]
name = "V100-16"
memory_bytes = 16e9
peak_fp32_flop_per_s = 15e12
memory_bandwidth_bytes_per_s = 9e11
price_usd_per_hour = 1.0
source = "test"
driver_names = ["Tesla V100-SXM2-16GB"]
[[gpus]]
name = "cpu"
kind = "cpu"
peak_fp32_flop_per_s = 1e11
memory_bandwidth_bytes_per_s = 1e10
price_usd_per_hour = 0.1
source = "test"
)",
                                                       "gpus.toml")
                                       .value();
  return gpus;
}

/// Writes a trace of a training with its kernels, event by event. Times are microseconds.
class TraceWriter {
 public:
  static constexpr int forward_thread = 10;
  static constexpr int backward_thread = 20;

  void event(const std::string& category, const std::string& name, int thread, double begin, double duration,
             const std::string& arguments = "") {
    events_.push_back(fmt::format(
        R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": 1, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{{}}}}})",
        category, name, thread, 4786043701700.0 + begin, duration, arguments));
  }
  void annotation(const std::string& name, double begin, double duration) {
    event("user_annotation", name, forward_thread, begin, duration);
  }
  /// A forward operation with its autograd number; 0: none.
  void operation(const std::string& name, double begin, double duration, int sequence) {
    event("cpu_op", name, forward_thread, begin, duration,
          sequence > 0 ? fmt::format(R"("Sequence number": {}, "Fwd thread id": 0)", sequence) : "");
  }
  void node(const std::string& name, double begin, double duration, int sequence) {
    event("cpu_op", "autograd::engine::evaluate_function: " + name, backward_thread, begin, duration,
          sequence > 0 ? fmt::format(R"("Sequence number": {}, "Fwd thread id": 1)", sequence) : "");
  }
  /// A kernel that a thread launches at `launched` and that runs from `begin` on.
  void kernel(const std::string& name, int thread, double launched, double begin, double duration,
              const std::string& more = "") {
    ++correlation_;
    event("cuda_runtime", "cudaLaunchKernel", thread, launched, 1, fmt::format(R"("correlation": {})", correlation_));
    event("kernel", name, 7, begin, duration,
          fmt::format(R"("device": 0, "stream": 7, "correlation": {}{}{})", correlation_, more.empty() ? "" : ", ",
                      more));
  }
  [[nodiscard]] std::string text(const std::string& device = "NVIDIA A100-SXM4-40GB") const {
    return fmt::format(
        "{{\"schemaVersion\": 1, \"deviceProperties\": [{{\"id\": 0, \"name\": \"{}\"}}], "
        "\"cuda_runtime_version\": 12040, \"traceEvents\": [\n{}\n]}}",
        device, fmt::join(events_, ",\n"));
  }

 private:
  std::vector<std::string> events_;
  int correlation_ = 0;
};

/// One micro-batch from `start` on: kernels of 10 (embedding), 100 and 120 (blocks), 50 (head) microseconds forward,
/// and twice that backward; the optimizer takes 40. `annotated`: the blocks have annotations.
void add_step(TraceWriter& trace, double start, int sequence, bool annotated) {
  const int forward = TraceWriter::forward_thread;
  const int backward = TraceWriter::backward_thread;
  trace.annotation(fmt::format("ProfilerStep#{}", sequence), start, 2000);
  trace.operation("aten::embedding", start + 10, 5, sequence);
  trace.kernel("gather", forward, start + 11, start + 100, 10);
  for (int block = 0; block < 2; ++block) {
    const double begin = start + 20 + 20 * block;
    if (annotated) trace.annotation(fmt::format("layers.{}", block), begin, 19);
    trace.operation("aten::layer_norm", begin + 1, 3, sequence + 1 + 2 * block);
    trace.operation("aten::linear", begin + 6, 8, sequence + 2 + 2 * block);
    trace.operation("aten::addmm", begin + 7, 6, sequence + 2 + 2 * block);
    trace.kernel("norm", forward, begin + 2, start + 110 + 130 * block, 30);
    trace.kernel("gemm", forward, begin + 8, start + 140 + 130 * block, 70 + 20 * block);
  }
  trace.operation("aten::cross_entropy_loss", start + 70, 5, sequence + 5);
  trace.kernel("softmax", forward, start + 71, start + 400, 50);
  // The autograd thread. Nodes that accumulate gradients have no number.
  trace.node("LossBackward0", start + 500, 10, sequence + 5);
  trace.kernel("softmax_grad", backward, start + 501, start + 501, 100);
  for (int block = 1; block >= 0; --block) {
    const double begin = start + 520 + 40 * (1 - block);
    trace.node("AddmmBackward0", begin, 8, sequence + 2 + 2 * block);
    trace.kernel("gemm_grad", backward, begin + 1, start + 610 + 300 * (1 - block), 140 + 40 * block);
    trace.node("torch::autograd::AccumulateGrad", begin + 9, 4, 0);
    trace.kernel("add", backward, begin + 10, start + 800 + 300 * (1 - block), 20);
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", backward, begin + 11, start + 820 + 300 * (1 - block), 70,
                 R"("Group size": 2, "Process Group Description": "default_pg")");
    trace.node("NativeLayerNormBackward0", begin + 14, 8, sequence + 1 + 2 * block);
    trace.kernel("norm_grad", backward, begin + 15, start + 850 + 300 * (1 - block), 40);
  }
  trace.node("EmbeddingBackward0", start + 600, 10, sequence);
  trace.kernel("scatter", backward, start + 601, start + 1300, 20);
  trace.annotation("Optimizer.step#AdamW.step", start + 1400, 100);
  trace.kernel("adam", forward, start + 1410, start + 1420, 40);
}

std::string annotated_trace(bool annotated = true) {
  TraceWriter trace;
  add_step(trace, 0, 100, annotated);
  add_step(trace, 3000, 200, annotated);
  return trace.text();
}

class Recordings : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("sailor-recordings-{}", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  Result<ProfileData> import(const std::string& text, TrainingFacts facts = facts_of_two_blocks(),
                             const std::string& gpu = "") {
    return import_recordings({write("trace.json", text)}, RecordingForm::torch_trace,
                             {.model = model_, .gpus = catalogue(), .gpu = gpu, .given = facts});
  }
  static TrainingFacts facts_of_two_blocks() {
    return {.precision = Precision::fp32, .micro_batch = 1, .sequence_length = 16};
  }
  static const LayerTime& row(const ProfileData& data, LayerKind kind) {
    for (const LayerTime& row : data.layer_times)
      if (row.key.kind == kind) return row;
    ADD_FAILURE() << "no row of " << to_string(kind);
    static const LayerTime none;
    return none;
  }
  static double microseconds(Seconds time) { return time.value() * 1e6; }

  Model model_ = two_blocks();
  fs::path folder_;
};

TEST_F(Recordings, KernelsCountForTheLayerWhoseForwardPassOrAutogradNodeLaunchedThem) {
  for (const bool annotated : {true, false}) {
    const auto data = import(annotated_trace(annotated));
    ASSERT_TRUE(data) << data.error().message();
    const LayerTime& embedding = row(*data, LayerKind::embedding);
    EXPECT_NEAR(microseconds(embedding.forward.median), 10.0, 0.01);
    EXPECT_NEAR(microseconds(embedding.backward.median), 20.0, 0.01);
    // Blocks take 30 + 70 and 30 + 90 forward, 140 + 20 + 40 and 180 + 20 + 40 backward: the same row holds for both,
    // and the collectives of data parallelism are not in it.
    const LayerTime& block = row(*data, LayerKind::block);
    EXPECT_NEAR(microseconds(block.forward.median), 110.0, 0.01);
    EXPECT_NEAR(microseconds(block.backward.median), 220.0, 0.01);
    EXPECT_EQ(block.forward.samples, 4);
    EXPECT_LE(microseconds(block.forward.low), 100.001);
    EXPECT_GE(microseconds(block.forward.high), 119.999);
    const LayerTime& head = row(*data, LayerKind::head);
    EXPECT_NEAR(microseconds(head.forward.median), 50.0, 0.01);
    EXPECT_NEAR(microseconds(head.backward.median), 100.0, 0.01);
    // The optimizer's 40 us are divided by parameters.
    double update = 0.0;
    for (const LayerTime& one : data->layer_times)
      update += microseconds(one.update.median) * (one.key.kind == LayerKind::block ? 2 : 1);
    EXPECT_NEAR(update, 40.0, 0.01);
    EXPECT_EQ(block.key.gpu, "A100-40");  // by the device's name
    EXPECT_NE(data->sessions.front().notes.find("communication kernels kept out"), std::string::npos);
  }
}

TEST_F(Recordings, AsManyIterationsAsBlocksAreNotTakenForBlocks) {
  // Annotations around both forward passes: PyTorch's numbered name of the one module, a name without a number, and
  // names that number the iterations.
  for (const char* name : {"nn.Module: Gpt_0", "forward", "iteration {}"})
    for (const char* block_name : {"layers.{}", "block", "gpt2_block"}) {
      TraceWriter trace;
      for (const int step : {0, 1}) {
        const double start = 3000 * step;
        trace.annotation(fmt::format(fmt::runtime(name), step), start + 5, 80);
        for (const int block : {0, 1})
          trace.annotation(fmt::format(fmt::runtime(block_name), block), start + 20 + 20 * block, 19);
        add_step(trace, start, 100 * (step + 1), false);
      }
      const auto data = import(trace.text());
      ASSERT_TRUE(data) << name << ": " << data.error().message();
      EXPECT_NEAR(microseconds(row(*data, LayerKind::block).forward.median), 110.0, 0.01) << name << ", " << block_name;
      EXPECT_EQ(row(*data, LayerKind::block).forward.samples, 4) << name << ", " << block_name;
    }
}

TEST_F(Recordings, AsManyPartsOfABlockAsBlocksAreNotTakenForBlocks) {
  TraceWriter trace;
  for (const int step : {0, 1}) {
    add_step(trace, 3000 * step, 100 * (step + 1), true);
    for (const int block : {0, 1})
      for (const int expert : {0, 1})
        trace.annotation(fmt::format("expert.{}", expert), 3000 * step + 20 + 20 * block + 6 + 4 * expert, 3);
  }
  const auto data = import(trace.text());
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_NEAR(microseconds(row(*data, LayerKind::block).forward.median), 110.0, 0.01);
}

TEST_F(Recordings, IntervalsHoldTheGapsBetweenKernels) {
  // Block 0 waits 20 us between its norm and its gemm in the second of two traces that are equal otherwise.
  TraceWriter trace;
  add_step(trace, 0, 100, true);
  std::string text = trace.text();
  const auto without = import(text);
  const std::string gemm = R"("ts": 4786043701840.000, "dur": 70.000)";
  const auto at = text.find(gemm);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, gemm.size(), R"("ts": 4786043701860.000, "dur": 70.000)");
  const auto with = import(text);
  ASSERT_TRUE(without && with);
  EXPECT_DOUBLE_EQ(row(*with, LayerKind::block).forward.median.value(),
                   row(*without, LayerKind::block).forward.median.value());
  EXPECT_GE(microseconds(row(*with, LayerKind::block).forward.high),
            110.0 + 10.0 - 0.01);  // half of the blocks wait 20
}

TEST_F(Recordings, CollectivesOfTensorParallelismBelongToTheLayers) {
  TraceWriter trace;
  add_step(trace, 0, 100, true);
  trace.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", TraceWriter::forward_thread, 35, 210, 25,
               R"("Group size": 2, "Process Group Description": "mesh_tp")");
  TrainingFacts facts = facts_of_two_blocks();
  const auto alone = import(trace.text(), facts);
  facts.tensor_parallel = 2;
  const auto pair = import(trace.text(), facts);
  ASSERT_TRUE(alone && pair) << pair.error().message();
  EXPECT_NEAR(microseconds(row(*alone, LayerKind::block).forward.median), 110.0, 0.01);
  EXPECT_NEAR(microseconds(row(*pair, LayerKind::block).forward.median), 122.5, 0.01);  // of 125 and 120
  // Those that accumulating gradients started stay out.
  EXPECT_NEAR(microseconds(row(*pair, LayerKind::block).backward.median), 220.0, 0.01);
}

TEST_F(Recordings, ForwardPassesWithinTheBackwardPassAreRecomputation) {
  TraceWriter trace;
  add_step(trace, 0, 100, true);
  trace.event("user_annotation", "layers.1", TraceWriter::backward_thread, 521, 6);
  const auto data = import(trace.text());
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(row(*data, LayerKind::block).key.recompute, Recompute::full);
  TrainingFacts facts = facts_of_two_blocks();
  facts.recompute = Recompute::none;
  const auto refused = import(trace.text(), facts);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("--recompute none"), std::string::npos);
}

TEST_F(Recordings, OperationsCountWhereThereAreNoKernels) {
  // The same thread computes forward and backward, as PyTorch does on a CPU.
  TraceWriter trace;
  const auto on_cpu = [&](double start, int sequence) {
    trace.annotation(fmt::format("ProfilerStep#{}", sequence), start, 900);
    trace.operation("aten::embedding", start, 10, sequence);
    for (int block = 0; block < 2; ++block) {
      trace.annotation(fmt::format("layers.{}", block), start + 20 + 100 * block, 90);
      trace.operation("aten::linear", start + 25 + 100 * block, 50 + 10 * block, sequence + 1 + block);
      trace.operation("aten::addmm", start + 26 + 100 * block, 40, sequence + 1 + block);
    }
    trace.operation("aten::cross_entropy_loss", start + 230, 30, sequence + 3);
    auto node = [&](const char* name, double begin, double duration, int number) {
      trace.event("cpu_op", std::string("autograd::engine::evaluate_function: ") + name, TraceWriter::forward_thread,
                  begin, duration, fmt::format(R"("Sequence number": {})", number));
    };
    node("LossBackward0", start + 300, 40, sequence + 3);
    node("AddmmBackward0", start + 400, 130, sequence + 2);
    trace.operation("aten::mm", start + 410, 100, 0);  // within the node
    node("AddmmBackward0", start + 600, 110, sequence + 1);
    node("EmbeddingBackward0", start + 750, 15, sequence);
  };
  on_cpu(0, 100);
  on_cpu(1000, 200);
  std::string text = trace.text("");
  text.replace(text.find("[{\"id\""), text.find(']') - text.find("[{\"id\"") + 1, "[]");
  const auto data = import(text, facts_of_two_blocks(), "cpu");
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_NEAR(microseconds(row(*data, LayerKind::block).forward.median), 55.0, 0.01);
  EXPECT_NEAR(microseconds(row(*data, LayerKind::block).backward.median), 120.0, 0.01);
  EXPECT_NEAR(microseconds(row(*data, LayerKind::head).backward.median), 40.0, 0.01);
  // No optimizer: its times are estimates, with their interval.
  const TimeStatistics& update = row(*data, LayerKind::block).update;
  EXPECT_GT(update.high, update.median);
  EXPECT_NE(data->sessions.front().notes.find("update times are estimates"), std::string::npos);

  const auto as_gpu = import(text, facts_of_two_blocks(), "A100-40");
  ASSERT_FALSE(as_gpu);
  EXPECT_NE(as_gpu.error().message().find("ProfilerActivity.CUDA"), std::string::npos) << as_gpu.error().message();
}

TEST_F(Recordings, SaysWhatATraceLacks) {
  struct Case {
    std::string text;
    std::string message;
  };
  TraceWriter no_blocks;
  no_blocks.operation("aten::linear", 0, 1, 1);
  no_blocks.kernel("gemm", TraceWriter::forward_thread, 0, 0, 1);
  TraceWriter no_backward;
  for (int block = 0; block < 2; ++block) {
    no_backward.annotation(fmt::format("layers.{}", block), 10 * block, 9);
    no_backward.kernel("gemm", TraceWriter::forward_thread, 10 * block + 1, 10 * block + 1, 1);
  }
  TraceWriter parts;  // annotations of attention: the feed-forward parts lie between them
  add_step(parts, 0, 100, false);
  for (int block = 0; block < 2; ++block) parts.annotation(fmt::format("attention.{}", block), 20 + 20 * block, 4);
  TraceWriter two_gpus;
  add_step(two_gpus, 0, 100, true);
  two_gpus.event("kernel", "gemm", 7, 0, 1, R"("device": 1)");
  const std::vector<Case> cases{
      {"{}", "no traceEvents"},
      {annotated_trace().substr(0, 2000), "cut off"},
      {R"({"traceEvents": []})", "neither operations nor annotations"},
      {no_blocks.text(), "record_function"},
      {no_backward.text(), "no backward pass"},
      {parts.text(), "annotate whole blocks"},
      {two_gpus.text(), "kernels of 2 GPUs"},
      {annotated_trace().replace(annotated_trace().find("NVIDIA A100-SXM4-40GB"), 21, "Tesla V100-SXM2-16GB "),
       "which is a V100-16, no A100-40"},
  };
  for (const Case& one : cases) {
    const auto data = import(one.text, facts_of_two_blocks(), "A100-40");
    ASSERT_FALSE(data) << one.message;
    EXPECT_NE(data.error().message().find(one.message), std::string::npos) << data.error().message();
  }
  const auto missing = import(annotated_trace(), {.precision = Precision::fp32});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::usage);
  EXPECT_NE(missing.error().message().find("--micro-batch, --sequence-length"), std::string::npos);
}

TEST_F(Recordings, AStageOfAPipelineNamesItsLayers) {
  model_.blocks = 6;
  const auto all = import(annotated_trace());
  ASSERT_FALSE(all);
  EXPECT_NE(all.error().message().find("--layers"), std::string::npos) << all.error().message();
  TrainingFacts facts = facts_of_two_blocks();
  facts.layers = LayerRange{2, 4};
  const auto stage = import(annotated_trace(), facts);
  ASSERT_TRUE(stage) << stage.error().message();
  ASSERT_EQ(stage->layer_times.size(), 1U);  // neither embedding nor head
  EXPECT_NEAR(microseconds(stage->layer_times.front().forward.median), 110.0, 0.01);
}

TEST_F(Recordings, TimesWithoutSizesAreUsedWithEstimatedSizes) {
  auto data = import(annotated_trace());
  ASSERT_TRUE(data) << data.error().message();
  const Profile profile(*data);
  const LayerKey key = row(*data, LayerKind::block).key;
  EXPECT_FALSE(profile.layer(key));
  const LayerCosts costs(model_, profile, catalogue());
  const auto& price = costs.find(key);
  ASSERT_TRUE(price) << price.error().message();
  EXPECT_EQ(price->basis, Basis::look_up);
  EXPECT_NEAR(microseconds(price->cost.forward.median), 110.0, 0.01);
  EXPECT_EQ(price->cost.activation, layer_sizes(model_, key).activation);
  EXPECT_NE(costs.explain(key, *price).find("sizes"), std::string::npos);
  EXPECT_FALSE(LayerCosts(model_, profile, catalogue(), true).find(key));  // measured only
}

#if SAILOR_HAVE_ZLIB
TEST_F(Recordings, CompressedTracesAreRead) {
  const fs::path file = folder_ / "trace.json.gz";
  const std::string text = annotated_trace();
  const gzFile compressed = gzopen(file.c_str(), "wb");
  gzwrite(compressed, text.data(), static_cast<unsigned>(text.size()));
  gzclose(compressed);
  EXPECT_EQ(recognise_recording(file).value(), RecordingForm::torch_trace);
  const RecordingOptions options{.model = model_, .gpus = catalogue(), .given = facts_of_two_blocks()};
  const auto data = import_recordings({file}, RecordingForm::torch_trace, options);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_NEAR(microseconds(row(*data, LayerKind::block).forward.median), 110.0, 0.01);
  fs::resize_file(file, fs::file_size(file) / 2);
  const auto cut = import_recordings({file}, RecordingForm::torch_trace, options);
  ASSERT_FALSE(cut);
  EXPECT_NE(cut.error().message().find("gzip"), std::string::npos) << cut.error().message();
}
#endif

// ---- Megatron-LM

constexpr const char* megatron_arguments = R"(------------------------ arguments ------------------------
  bf16 ............................................ True
  context_parallel_size ........................... 1
  data_parallel_size .............................. 2
  global_batch_size ............................... 16
  hidden_size ..................................... 64
  micro_batch_size ................................ 2
  num_layers ...................................... 2
  pipeline_model_parallel_size .................... {}
  recompute_granularity ........................... None
  seq_length ...................................... 16
  tensor_model_parallel_size ...................... 1
-------------------- end of arguments ---------------------
)";
/// Timers of one iteration, milliseconds.
std::string timers(double forward, double backward) {
  return fmt::format(
      " [2026-01-01 00:00:00] iteration 10/ 100 | elapsed time per iteration (ms): 99.0 | global batch size:    16 |\n"
      "(min, max) time across ranks (ms):\n"
      "    forward-backward ...............................: (90.00, 90.00)\n"
      "    forward-compute ................................: ({:.2f}, {:.2f})\n"
      "    backward-compute ...............................: ({:.2f}, {:.2f})\n"
      "    optimizer-inner-step ...........................: (7.00, 7.00)\n"
      "    optimizer ......................................: (3.00, 5.00)\n",
      forward - 1, forward + 1, backward, backward);
}

TEST_F(Recordings, TimersOfAnIterationAreSharedOutInProportionToEstimates) {
  // Four micro-batches (16 / 2 / 2) of 10 ms forward and 20 ms backward; the first iteration is left out.
  const std::string log =
      fmt::format(fmt::runtime(megatron_arguments), 1) + timers(900, 900) + timers(40, 80) + timers(40, 80);
  const fs::path file = write("train.log", log);
  EXPECT_EQ(recognise_recording(file).value(), RecordingForm::megatron_timers);
  const auto data = import_recordings({file}, RecordingForm::megatron_timers,
                                      {.model = model_, .gpus = catalogue(), .gpu = "A100-40"});
  ASSERT_TRUE(data) << data.error().message();
  double forward = 0.0;
  double backward = 0.0;
  double update = 0.0;
  for (const LayerTime& one : data->layer_times) {
    const double layers = one.key.kind == LayerKind::block ? 2.0 : 1.0;
    forward += layers * one.forward.median.value();
    backward += layers * one.backward.median.value();
    update += layers * one.update.median.value();
    EXPECT_LT(one.forward.low, one.forward.median);  // the division is an estimate, and says so
    EXPECT_GT(one.forward.high, one.forward.median);
  }
  EXPECT_NEAR(forward, 10e-3, 1e-9);
  EXPECT_NEAR(backward, 20e-3, 1e-9);
  EXPECT_NEAR(update, 4e-3, 1e-9);
  const LayerKey& key = data->layer_times.front().key;
  EXPECT_EQ(key.precision, Precision::bf16);
  EXPECT_EQ(key.micro_batch, 2);
  EXPECT_EQ(key.sequence_length, 16);
  EXPECT_NE(data->sessions.front().notes.find("in proportion to their estimates"), std::string::npos);
}

TEST_F(Recordings, StagesOfAPipelineHaveTheTimersOfTheirRanks) {
  // Two stages of two ranks; forward 4 x 10 ms on the first, 4 x 12 ms on the second.
  const std::string one =
      "times across ranks (ms):\n  forward-compute:\n     rank  0: 40.00\n     rank  1: 40.00\n     rank  2: 48.00\n"
      "     rank  3: 48.00\n  backward-compute:\n     rank  0: 80.00\n     rank  1: 80.00\n     rank  2: 96.00\n"
      "     rank  3: 96.00\n";
  const std::string arguments = fmt::format(fmt::runtime(megatron_arguments), 2);
  std::istringstream all(arguments + one);
  const auto read = read_megatron_timers(all, model_, {}, "train.log");
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->stages.size(), 2U);
  EXPECT_EQ(read->stages[0].layers, (LayerRange{0, 2}));
  EXPECT_EQ(read->stages[1].layers, (LayerRange{2, 4}));
  EXPECT_DOUBLE_EQ(read->stages[0].iterations.front().forward.largest, 10e-3);
  EXPECT_DOUBLE_EQ(read->stages[1].iterations.front().backward.smallest, 24e-3);
  std::istringstream minima(arguments + timers(40, 80));
  const auto refused = read_megatron_timers(minima, model_, {}, "train.log");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("--timing-log-option all"), std::string::npos) << refused.error().message();
}

TEST_F(Recordings, LogsSayWhatTheyAreOf) {
  const std::string arguments = fmt::format(fmt::runtime(megatron_arguments), 1);
  auto read = [&](const std::string& text, const TrainingFacts& given) {
    std::istringstream stream(text);
    return read_megatron_timers(stream, model_, given, "train.log");
  };
  const auto other = read(arguments + timers(40, 80), {.micro_batch = 4});
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("--micro-batch says 4 but the file says 2"), std::string::npos);
  const auto unknown = read("time (ms) | forward-compute: 12.50 | backward-compute: 25.00 | optimizer: 2.00\n", {});
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message().find("--gradient-accumulation"), std::string::npos);
  const auto older = read("time (ms) | forward-compute: 12.50 | backward-compute: 25.00 | optimizer: 2.00\n",
                          {.gradient_accumulation = 5});
  ASSERT_TRUE(older) << older.error().message();
  EXPECT_DOUBLE_EQ(older->stages.front().iterations.front().forward.smallest, 2.5e-3);
  model_.blocks = 3;
  const auto wrong = read(arguments + timers(40, 80), {});
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message().find("num_layers is 2 in the log, but 3"), std::string::npos);
}

// ---- nsys

#if SAILOR_HAVE_SQLITE
/// An export with the tables and columns that nsys writes, as far as they are read.
fs::path write_export(const fs::path& file, const std::string& rows, bool ranges = true) {
  sqlite3* database = nullptr;
  sqlite3_open(file.c_str(), &database);
  std::string schema =
      "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
      "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
      " correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,"
      " nameId INTEGER);";
  if (ranges)
    schema +=
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,"
        " textId INTEGER);";
  char* problem = nullptr;
  EXPECT_EQ(sqlite3_exec(database, (schema + rows).c_str(), nullptr, nullptr, &problem), SQLITE_OK) << problem;
  sqlite3_close(database);
  return file;
}

/// `emitted`: operations and autograd nodes as emit_nvtx() writes them; else ranges of the blocks' backward passes.
std::string export_rows(bool emitted) {
  const std::int64_t process = 77LL << 24;
  const std::int64_t main_thread = process + 1;
  const std::int64_t autograd = process + 2;
  std::string rows =
      "INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100-SXM4-40GB');"
      "INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllGather'), (3, 'layers.1');";
  int correlation = 0;
  auto range = [&](const std::string& text, std::int64_t thread, int begin, int end) {
    rows += fmt::format("INSERT INTO NVTX_EVENTS VALUES ({}, {}, 59, {}, {}, {});", begin, end,
                        text == "layers.1" ? "NULL" : "'" + text + "'", thread, text == "layers.1" ? "3" : "NULL");
  };
  auto kernel = [&](std::int64_t thread, int launched, int begin, int duration, int name) {
    ++correlation;
    rows += fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({}, {}, {}, {}, 0);", launched, launched + 1,
                        thread, correlation);
    rows += fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({}, {}, 0, 7, {}, {}, {}, {});", begin,
                        begin + duration, correlation, process, name, name);
  };
  kernel(main_thread, 5, 100, 1000, 1);  // the embedding
  for (int block = 0; block < 2; ++block) {
    range(fmt::format("layers.{}", block), main_thread, 20 + 20 * block, 38 + 20 * block);
    if (emitted)
      range(fmt::format("aten::linear, seq = {}, op_id = 9", 7 + block), main_thread, 22 + 20 * block, 30 + 20 * block);
    kernel(main_thread, 23 + 20 * block, 2000 + 10'000 * block, 4000 + 1000 * block, 1);
    kernel(main_thread, 24 + 20 * block, 1000, 90'000, 2);  // communication
  }
  kernel(main_thread, 70, 30'000, 3000, 1);  // the head
  for (int block = 1; block >= 0; --block) {
    const int begin = 200 + 20 * (1 - block);
    range(emitted ? fmt::format("autograd::engine::evaluate_function: AddmmBackward0, seq = {}, op_id = 9", 7 + block)
                  : fmt::format("layers.{} backward", block),
          autograd, begin, begin + 15);
    kernel(autograd, begin + 5, 40'000 + 20'000 * (1 - block), 8000 + 2000 * block, 1);
  }
  return rows;
}

TEST_F(Recordings, ExportsOfNsysAreReadByTheirRanges) {
  for (const bool emitted : {true, false}) {
    const fs::path file = write_export(folder_ / fmt::format("{}.sqlite", emitted), export_rows(emitted));
    EXPECT_EQ(recognise_recording(file).value(), RecordingForm::nsys_sqlite);
    const auto data = import_recordings({file}, RecordingForm::nsys_sqlite,
                                        {.model = model_, .gpus = catalogue(), .given = facts_of_two_blocks()});
    ASSERT_TRUE(data) << data.error().message();
    EXPECT_NEAR(microseconds(row(*data, LayerKind::block).forward.median), 4.5, 1e-3);   // of 4 and 5
    EXPECT_NEAR(microseconds(row(*data, LayerKind::block).backward.median), 9.0, 1e-3);  // of 8 and 10
    EXPECT_NEAR(microseconds(row(*data, LayerKind::embedding).forward.median), 1.0, 1e-3);
    EXPECT_NEAR(microseconds(row(*data, LayerKind::head).forward.median), 3.0, 1e-3);
    EXPECT_EQ(data->sessions.front().provenance.device, "NVIDIA A100-SXM4-40GB");
  }
}

TEST_F(Recordings, SaysWhatAnExportLacks) {
  const RecordingOptions options{.model = model_, .gpus = catalogue(), .given = facts_of_two_blocks()};
  const fs::path no_ranges = write_export(folder_ / "ranges.sqlite", "", false);
  const auto refused = import_recordings({no_ranges}, RecordingForm::nsys_sqlite, options);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("NVTX_EVENTS"), std::string::npos);
  const fs::path damaged = write("damaged.sqlite", "SQLite format 3 and then nothing");
  const auto unreadable = import_recordings({damaged}, RecordingForm::nsys_sqlite, options);
  ASSERT_FALSE(unreadable);
  EXPECT_NE(unreadable.error().message().find("damaged.sqlite"), std::string::npos);
  const auto report = recognise_recording(write("report.nsys-rep", "x"));
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message().find("nsys export --type sqlite"), std::string::npos);
}
#endif

}  // namespace
}  // namespace sailor::traces::recordings_test
