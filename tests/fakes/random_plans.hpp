// Random plans for tiny-gpt over three GPU types in two zones, with measurements of everything they need. For tests
// under RapidCheck, inside of a property.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "simulator/quick.hpp"
#include "simulator/simulator.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor::testing {

struct RandomWorld {
  /// Also which parts of communication the framework hides is random.
  RandomWorld() {
    framework.overlaps_transfers = *rc::gen::arbitrary<bool>();
    framework.overlaps_reduction = *rc::gen::arbitrary<bool>();
    framework.reduction_bucket = Bytes(*rc::gen::element(0.0, 1e4, 1e6));
    framework.transfer_overhead = Seconds(*rc::gen::element(0.0, 0.25));
    framework.reduction_rate = BytesPerSecond(*rc::gen::element(0.0, 1e6));
    framework.profiling_overhead = *rc::gen::element(0.0, 0.5);
    framework.base = Bytes(1e6);
    add_measurements();
    for (const char* zone : {"a", "b"}) {
      for (const std::string& gpu : gpu_types())
        cluster.groups.push_back({.nodes = {},
                                  .count = 64,
                                  .gpu = gpu,
                                  .gpus_per_node = 4,
                                  .cpus_per_node = 8,
                                  .memory_per_node = Bytes(1e9),
                                  .state = NodeState::idle,
                                  .state_reason = {},
                                  .zone = zone,
                                  .partitions = {}});
      cluster.zones.push_back({.name = zone, .region = {}, .prices = {}});
    }
    cluster.links.push_back({.from = "a",
                             .to = "b",
                             .bandwidth = BytesPerSecond(1e5),
                             .latency = Seconds(0.5),
                             .egress_usd_per_byte = 1e-9});
  }

  static const std::vector<std::string>& gpu_types() {
    static const std::vector<std::string> types{"A100-40", "V100-16", "cpu"};
    return types;
  }
  static std::string any_gpu_type() { return *rc::gen::elementOf(gpu_types()); }

  static TimeStatistics scaled(TimeStatistics times, double factor) {
    for (Seconds TimeStatistics::*member : {&TimeStatistics::median, &TimeStatistics::p10, &TimeStatistics::p90,
                                            &TimeStatistics::low, &TimeStatistics::high})
      times.*member *= factor;
    return times;
  }
  void scale_gpu(const std::string& gpu, double factor) {
    for (LayerTime& row : data.layer_times) {
      if (row.key.gpu != gpu) continue;
      row.forward = scaled(row.forward, factor);
      row.backward = scaled(row.backward, factor);
      row.update = scaled(row.update, factor);
    }
  }
  /// All links that end at the type.
  void scale_links(const std::string& gpu, double factor) {
    for (LinkMeasurement& row : data.links)
      if (row.key.from.gpu == gpu || row.key.to.gpu == gpu) row.time = scaled(row.time, factor);
  }

  [[nodiscard]] simulator::Environment environment(const Profile& profile) const {
    return {.model = model, .profile = profile, .gpus = gpus, .framework = framework, .cluster = &cluster};
  }
  [[nodiscard]] Result<simulator::Prediction> predict(const Plan& plan, Timeline* timeline = nullptr) const {
    const Profile profile(data);
    return simulator::simulate(plan, environment(profile), timeline);
  }

  /// One to three entries of one or two pipelines, which differ in everything.
  [[nodiscard]] Plan random_plan(int most_tensor_parallel = 4) const {
    Plan plan;
    plan.schedule = *rc::gen::element(Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved_1f1b);
    plan.micro_batch = *rc::gen::inRange(1, 3);
    plan.optimizer_sharding = *rc::gen::element(OptimizerSharding::none, OptimizerSharding::zero1);
    plan.job = {.model = "tiny-gpt",
                .global_batch = 0,
                .sequence_length = 64,
                .precision = Precision::fp32,
                .optimizer = Optimizer::adamw};
    const int entries = *rc::gen::inRange(1, 4);
    for (int i = 0; i < entries; ++i) {
      plan.pipelines.push_back(random_entry(plan.schedule, most_tensor_parallel));
      const Pipeline& pipeline = plan.pipelines.back();
      plan.job.global_batch += pipeline.count * pipeline.micro_batches * plan.micro_batch_of(pipeline);
    }
    return plan;
  }

  Model model = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
  GpuCatalogue gpus = GpuCatalogue::load(SAILOR_SOURCE_DIR "/profiles/gpus.toml").value();
  simulator::Framework framework =
      simulator::load_framework(SAILOR_SOURCE_DIR "/profiles/frameworks/sailor.toml").value();
  Cluster cluster{.name = "random", .origin = {}, .groups = {}, .partitions = {}, .zones = {}, .links = {}};
  ProfileData data;

 private:
  [[nodiscard]] Pipeline random_entry(Schedule schedule, int most_tensor_parallel) const {
    const bool interleaved = schedule == Schedule::interleaved_1f1b;
    Pipeline pipeline;
    const int stages = *rc::gen::inRange(interleaved ? 2 : 1, interleaved ? 4 : 5);
    const int chunks = interleaved ? *rc::gen::inRange(2, model.layers() / stages + 1) : 1;
    pipeline.count = *rc::gen::inRange(1, 3);
    pipeline.micro_batch = *rc::gen::element(0, 0, 1, 2);
    pipeline.micro_batches = interleaved ? stages * *rc::gen::inRange(1, 4) : *rc::gen::inRange(1, 7);
    std::vector<LayerRange> ranges;  // every one at least a layer, the rest anywhere
    int first = 0;
    for (int left = stages * chunks; left > 0; --left) {
      const int spare = model.layers() - first - left;
      const int size = left == 1 ? spare + 1 : 1 + *rc::gen::inRange(0, spare + 1);
      ranges.push_back({first, first + size});
      first += size;
    }
    for (int i = 0; i < stages; ++i) {
      Stage stage{
          .layers = ranges[static_cast<std::size_t>(i)],
          .gpu = any_gpu_type(),
          .tensor_parallel = *rc::gen::element(1, 2, 4),
          .zone = *rc::gen::element<std::string>("a", "a", "b"),
          .recompute = *rc::gen::element(Recompute::none, Recompute::none, Recompute::selective, Recompute::full)};
      stage.tensor_parallel = std::min(stage.tensor_parallel, most_tensor_parallel);
      for (int chunk = 1; chunk < chunks; ++chunk)
        stage.later_chunks.push_back(ranges[static_cast<std::size_t>(chunk * stages + i)]);
      pipeline.stages.push_back(std::move(stage));
    }
    return pipeline;
  }

  /// As of round_numbers_profile() with a spread of 5%, a type half as fast as the one before it; tensor parallelism
  /// divides times by three quarters of its degree. Links of 0.25 s inside a node and 0.5 s between nodes that grow
  /// with the message.
  void add_measurements() {
    const ProfileData base = round_numbers_profile();
    data.sessions = base.sessions;
    double slower = 1.0;
    const auto spread = [](double seconds) {
      TimeStatistics times = exactly(seconds);
      times.low *= 0.95;
      times.high *= 1.05;
      return times;
    };
    for (const std::string& gpu : gpu_types()) {
      for (const int degree : {1, 2, 4})
        for (std::size_t i = 0; i < base.layer_times.size(); ++i) {
          LayerTime time = base.layer_times[i];
          LayerMemory memory = base.layer_memory[i];
          time.key.gpu = memory.key.gpu = gpu;
          time.key.tensor_parallel = memory.key.tensor_parallel = degree;
          const double factor = degree == 1 ? slower : slower / (0.75 * degree);
          time.forward = spread(time.forward.median.value() * factor);
          time.backward = spread(time.backward.median.value() * factor);
          time.update = spread(time.update.median.value() * factor);
          memory.parameters /= degree;
          memory.activation /= degree;
          data.layer_times.push_back(time);
          time.key.busy_ranks = 4;  // all of a node: a quarter slower
          time.forward = scaled(time.forward, 1.25);
          time.backward = scaled(time.backward, 1.25);
          data.layer_times.push_back(time);
          data.layer_memory.push_back(memory);
        }
      slower *= 2.0;
      for (const std::string& to : gpu_types())
        for (const LinkScope scope : {LinkScope::intra_node, LinkScope::inter_node})
          for (const double bytes : {1.0, 1e4, 1e6, 1e8})
            data.links.push_back({.key = {.from = {.gpu = gpu}, .to = {.gpu = to}, .scope = scope},
                                  .message = Bytes(bytes),
                                  .time = spread((scope == LinkScope::intra_node ? 0.25 : 0.5) * (1.0 + bytes / 1e5))});
    }
  }
};

}  // namespace sailor::testing
