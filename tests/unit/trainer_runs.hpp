// Small trainings of every kind of plan, over ranks that are threads.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "runtime/cpu/cpu_device.hpp"
#include "runtime/data/token_file_writer.hpp"
#include "runtime/trainer.hpp"
#include "runtime_models.hpp"
#include "tests/fakes/thread_transport.hpp"

namespace sailor::runtime::test {

namespace fs = std::filesystem;

constexpr int sequence_length = 8;

/// A stage: its layers by chunk, its degree, what it recomputes.
struct StageSketch {
  std::vector<LayerRange> chunks;
  int tensor_parallel = 1;
  Recompute recompute = Recompute::none;
};

struct PipelineSketch {
  int micro_batches = 1;
  int micro_batch = 1;
  std::vector<StageSketch> stages;
  int count = 1;
};

inline Plan plan_of(const std::vector<PipelineSketch>& sketches, Schedule schedule = Schedule::one_f_one_b,
                    OptimizerSharding sharding = OptimizerSharding::none) {
  Plan plan;
  plan.job = {.model = "any", .global_batch = 0, .sequence_length = sequence_length, .precision = {}, .optimizer = {}};
  plan.schedule = schedule;
  plan.optimizer_sharding = sharding;
  for (const PipelineSketch& sketch : sketches) {
    Pipeline pipeline{
        .count = sketch.count, .micro_batches = sketch.micro_batches, .micro_batch = sketch.micro_batch, .stages = {}};
    for (const StageSketch& part : sketch.stages) {
      sailor::Stage stage;
      stage.layers = part.chunks.front();
      stage.later_chunks.assign(part.chunks.begin() + 1, part.chunks.end());
      stage.gpu = "cpu";
      stage.tensor_parallel = part.tensor_parallel;
      stage.recompute = part.recompute;
      pipeline.stages.push_back(std::move(stage));
    }
    plan.pipelines.push_back(std::move(pipeline));
    plan.job.global_batch += sketch.count * sketch.micro_batches * sketch.micro_batch;
  }
  return plan;
}

/// The plan with every sequence divided among `context_parallel` times as many ranks.
inline Plan in_parts(int context_parallel, Plan plan) {
  plan.context_parallel = context_parallel;
  return plan;
}

/// The plan with the experts of every layer divided among `expert_parallel` of the ranks that would hold the same.
inline Plan with_experts_divided(int expert_parallel, Plan plan) {
  plan.expert_parallel = expert_parallel;
  return plan;
}

/// Four blocks, so that there is something to divide: layers 0 to 5, one more with a separate final norm.
inline Model deep(Model model) {
  model.blocks = 4;
  model.key_value_heads = std::max(model.key_value_heads, 4);  // for tensor parallelism 4
  return model;
}

/// A file of tokens that a small model can learn something of.
class Corpus {
 public:
  Corpus() {
    std::string pattern = (fs::temp_directory_path() / "sailor-trainer-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = pattern;
    std::string text;
    for (int i = 0; i < 3000; ++i) text += static_cast<char>((i * 7 + i / 40) % 23);
    if (!write_file_atomically(folder_ / "text", text) || !write_byte_tokens(prefix(), {folder_ / "text"}))
      throw std::runtime_error("no corpus");
  }
  ~Corpus() { fs::remove_all(folder_); }
  [[nodiscard]] std::string prefix() const { return (folder_ / "corpus").string(); }

 private:
  fs::path folder_;
};

inline const Corpus& corpus() {
  static const Corpus made;
  return made;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::pair<int, std::string>, std::vector<double>> weights;  // by layer and name, whole; NaN: nobody has it
  double spread = 0.0;      // largest difference between ranks that hold the same
  double host_waits = 0.0;  // for its device, per iteration, of the rank with most
};

struct RunSettings {
  double clip_norm = 0.5;
  bool overlap = true;
  int iterations = 30;
  float router_aux_loss = 0.0f;
  LossScaleSettings loss_scale{.initial = 256.0};  // of fp16: no gradient of these models overflows
  /// Of rank `rank`.
  std::function<std::unique_ptr<Device>(int rank)> make_device = [](int) { return make_cpu_device(); };
  /// Null: that between threads.
  std::function<std::unique_ptr<Transport>(Control& control, Device& device)> make_transport{};
};

inline TrainerSettings settings_of(const RunSettings& settings) {
  return {.seed = 3,
          .optimizer = {},
          .learning_rate = {.peak = 0.004f, .least = 0.0005f, .warm_up_iterations = 3, .decay_iterations = 25},
          .clip_norm = settings.clip_norm,
          .router_aux_loss = settings.router_aux_loss,
          .loss_scale = settings.loss_scale,
          .overlap_reduction = settings.overlap};
}

inline Outcome train(const Plan& plan, const Model& model, const RunSettings& settings = {}) {
  Outcome outcome;
  std::mutex mutex;
  run_ranks(plan.ranks(), [&](const World& threads) {
    const auto device = settings.make_device(threads.rank());
    const auto transport = settings.make_transport ? settings.make_transport(threads.control, *device) : nullptr;
    const World world{threads.control, transport != nullptr ? *transport : threads.transport};
    const auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
    if (!samples) throw std::runtime_error(samples.error().message());
    if (auto good = check_trainable(plan, model, world.size()); !good) throw std::runtime_error(good.error().message());
    const TrainerSettings trainer_settings = settings_of(settings);
    TrainingState state(plan, model, world.rank(), *device);
    state.initialize(trainer_settings);
    Trainer trainer(state, trainer_settings, world, &*samples);
    const std::int64_t waits = device->host_waits();
    for (int i = 0; i < settings.iterations; ++i) {
      const IterationResult result = trainer.run();
      if (world.rank() != 0) continue;
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.gradient_norm);
    }
    const double mine = static_cast<double>(device->host_waits() - waits) / settings.iterations;
    trainer.settle();
    device->synchronize();
    const std::scoped_lock lock(mutex);
    outcome.host_waits = std::max(outcome.host_waits, mine);
    for (const Parameter* parameter : state.parameters().parameters()) {
      auto& whole = outcome.weights[{parameter->layer, parameter->name}];
      whole.resize(static_cast<std::size_t>(parameter->whole_elements()), std::nan(""));
      std::vector<char> bytes(bytes_of(parameter->value.type, parameter->elements()));
      device->read(bytes.data(), parameter->value.data, bytes.size());
      const ConstValues values(bytes.data(), parameter->value.type);
      for (const Piece& piece : parameter->pieces())
        for (std::int64_t i = 0; i < piece.count; ++i) {
          double& value = whole[static_cast<std::size_t>(piece.whole + i)];
          const double mine_here = load(values + (piece.local + i));
          if (!std::isnan(value)) outcome.spread = std::max(outcome.spread, std::abs(value - mine_here));
          value = mine_here;
        }
    }
  });
  return outcome;
}

using Named = std::pair<const char*, Plan>;

/// Every n-th plan, others for another `which`; all with SAILOR_LONG=1 (tests/long.sh). n is `usual`; under the
/// sanitizers, where each takes ten times as long, 12.
inline std::vector<Named> share_of(const std::vector<Named>& plans, int which, int usual) {
#ifdef __SANITIZE_ADDRESS__
  usual = 12;
#endif
  if (std::getenv("SAILOR_LONG") != nullptr) usual = 1;
  std::vector<Named> chosen;
  for (const Named& plan : plans)
    if (which++ % usual == 0) chosen.push_back(plan);
  return chosen;
}

/// Batches of 12 in every way that has a name, for models of `last` layers.
inline std::vector<Named> divisions(int last) {
  const auto whole = [&](int degree, Recompute recompute = Recompute::none) {
    return std::vector<StageSketch>{{{{0, last}}, degree, recompute}};
  };
  const auto two = [&](int at, int first, int second, Recompute recompute = Recompute::none) {
    return std::vector<StageSketch>{{{{0, at}}, first, recompute}, {{{at, last}}, second, recompute}};
  };
  const auto three = [&](int a, int b, std::vector<int> degrees) {
    return std::vector<StageSketch>{{{{0, a}}, degrees[0]}, {{{a, b}}, degrees[1]}, {{{b, last}}, degrees[2]}};
  };
  const std::vector<StageSketch> interleaved{{{{0, 1}, {3, 4}}}, {{{1, 3}, {4, last}}}};
  const std::vector<StageSketch> interleaved_tp{{{{0, 2}, {3, 4}}, 2}, {{{2, 3}, {4, last}}, 4, Recompute::full}};
  using enum Schedule;
  constexpr auto zero1 = OptimizerSharding::zero1;
  return {
      {"accumulation", plan_of({{12, 1, whole(1)}})},
      {"data parallel", plan_of({{3, 2, whole(1), 2}})},
      {"data parallel, three", plan_of({{2, 2, whole(1), 3}})},
      {"unequal micro-batch counts", plan_of({{5, 1, whole(1)}, {7, 1, whole(1)}})},
      {"unequal micro-batches", plan_of({{1, 4, whole(1)}, {4, 2, whole(1)}})},
      {"tensor parallel 2", plan_of({{6, 2, whole(2)}})},
      {"tensor parallel 4", plan_of({{3, 4, whole(4)}})},
      {"two stages", plan_of({{6, 2, two(3, 1, 1)}})},
      {"uneven stages", plan_of({{12, 1, two(1, 1, 1)}})},
      {"three stages", plan_of({{4, 3, three(2, 4, {1, 1, 1})}})},
      {"gpipe", plan_of({{4, 3, three(1, 3, {1, 1, 1})}}, gpipe)},
      {"interleaved", plan_of({{6, 2, interleaved}}, interleaved_1f1b)},
      {"interleaved, several degrees", plan_of({{4, 3, interleaved_tp}}, interleaved_1f1b)},
      {"stages of rising degree", plan_of({{6, 2, three(2, 3, {1, 2, 4})}})},
      {"stages of falling degree", plan_of({{6, 2, three(2, 5, {4, 2, 1})}})},
      {"replicas of other degree", plan_of({{3, 2, whole(2)}, {3, 2, whole(1)}})},
      {"replicas of three degrees", plan_of({{2, 2, whole(4)}, {2, 2, whole(2)}, {2, 2, whole(1)}})},
      {"replicas of other depth", plan_of({{2, 2, three(1, 4, {1, 1, 1})}, {4, 2, whole(1)}})},
      {"other depth and degree", plan_of({{2, 2, two(2, 2, 1)}, {4, 1, three(1, 4, {1, 4, 2})}, {2, 2, whole(1)}})},
      {"sixteen ranks", plan_of({{2, 2, two(2, 4, 4)}, {4, 1, two(4, 2, 2)}, {1, 2, whole(2), 2}})},
      {"zero1", plan_of({{3, 2, whole(1), 2}}, one_f_one_b, zero1)},
      {"zero1 over five", plan_of({{2, 1, whole(1), 4}, {4, 1, whole(1)}}, one_f_one_b, zero1)},
      {"zero1 of several degrees", plan_of({{3, 2, whole(2)}, {3, 2, two(3, 1, 4)}}, one_f_one_b, zero1)},
      {"zero1, interleaved", plan_of({{4, 1, interleaved}, {4, 2, interleaved}}, interleaved_1f1b, zero1)},
      {"zero1, gpipe", plan_of({{2, 3, two(2, 1, 2)}, {2, 3, two(4, 2, 1)}}, gpipe, zero1)},
      {"full recomputation", plan_of({{6, 2, whole(1, Recompute::full)}})},
      {"selective recomputation", plan_of({{6, 2, whole(1, Recompute::selective)}})},
      {"full recomputation, divided", plan_of({{6, 2, two(3, 2, 1, Recompute::full)}})},
      {"selective recomputation, divided", plan_of({{6, 2, two(2, 1, 2, Recompute::selective)}}, gpipe)},
      {"context parallel", in_parts(2, plan_of({{6, 2, whole(1)}}))},
      {"context parallel 4, two stages", in_parts(4, plan_of({{12, 1, two(2, 1, 1)}}))},
      {"context and tensor parallel", in_parts(2, plan_of({{4, 3, whole(2, Recompute::full)}}))},
      {"context parallel, zero1 of several degrees and depths",
       in_parts(2, plan_of({{2, 2, two(3, 2, 1, Recompute::selective)}, {4, 2, whole(1)}}, one_f_one_b, zero1))},
      {"everything at once",
       plan_of({{2, 2, two(3, 2, 4, Recompute::selective)}, {4, 2, three(1, 3, {1, 2, 1})}}, one_f_one_b, zero1)},
  };
}

/// Batches of 12 in every way that divides the experts of a model of `last` layers with four experts in a block.
inline std::vector<Named> expert_divisions(int last) {
  const auto whole = [&](int degree, Recompute recompute = Recompute::none) {
    return std::vector<StageSketch>{{{{0, last}}, degree, recompute}};
  };
  const auto two = [&](int at, int first, int second, Recompute recompute = Recompute::none) {
    return std::vector<StageSketch>{{{{0, at}}, first, recompute}, {{{at, last}}, second, recompute}};
  };
  const std::vector<StageSketch> interleaved{{{{0, 1}, {3, 4}}}, {{{1, 3}, {4, last}}}};
  const auto experts = with_experts_divided;
  constexpr auto zero1 = OptimizerSharding::zero1;
  using enum Schedule;
  return {
      {"expert parallel", experts(2, plan_of({{3, 2, whole(1), 2}}))},
      {"expert parallel 4, two stages", experts(4, plan_of({{3, 1, two(3, 1, 1), 4}}))},
      {"two expert-parallel groups", experts(2, plan_of({{3, 1, whole(1), 4}}))},
      {"expert and tensor parallel", experts(2, plan_of({{2, 3, two(2, 2, 4), 2}}))},
      {"expert parallel, full recomputation", experts(2, plan_of({{3, 2, whole(1, Recompute::full), 2}}))},
      {"expert parallel, gpipe", experts(2, plan_of({{2, 3, two(4, 1, 2), 2}}, gpipe))},
      {"expert parallel, interleaved", experts(2, plan_of({{6, 1, interleaved, 2}}, interleaved_1f1b))},
      {"expert parallel, zero1", experts(2, plan_of({{3, 1, whole(1), 4}}, one_f_one_b, zero1))},
      {"experts over the parts of sequences", experts(2, in_parts(2, plan_of({{6, 2, whole(1)}})))},
      {"experts over parts and copies", experts(4, in_parts(2, plan_of({{3, 2, whole(1), 2}})))},
      {"experts, several depths and degrees",
       experts(2, plan_of({{2, 1, two(3, 2, 1, Recompute::selective), 2}, {2, 2, whole(1), 2}}, one_f_one_b, zero1))},
  };
}

}  // namespace sailor::runtime::test
