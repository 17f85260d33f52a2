// Small random clusters with measurements of a model of three or four layers, for tests that compare the planner with
// brute force. Under RapidCheck, inside of a property.
#pragma once

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "planner/planner.hpp"
#include "tests/fakes/round_numbers.hpp"

namespace sailor::testing {

/// How large a world may be.
struct WorldSize {
  int gpus = 6;
  int types = 2;
  int layers = 4;
  int zones = 2;
  int global_batch = 8;
};

/// Faster inside a node than between nodes, and never faster beside others: otherwise everything is random. Members are
/// there to be changed.
struct PlannerWorld {
  explicit PlannerWorld(const WorldSize& size = {}) {
    model.blocks = size.layers - 2 - *rc::gen::element(0, 0, 0, 1);
    model.blocks = std::max(model.blocks, 1);
    model.tied_embedding = *rc::gen::arbitrary<bool>();
    const int types = std::max(1, size.types - *rc::gen::element(0, 0, 1));
    const int zones = std::max(1, size.zones - *rc::gen::element(0, 1, 1));
    static const std::vector<std::string> type_names{"Alpha", "Beta", "Gamma"};
    gpu_types.assign(type_names.begin(), type_names.begin() + types);
    make_catalogue();
    make_cluster(size, zones);
    make_framework();
    degrees = *rc::gen::element(std::vector<int>{1}, std::vector<int>{1}, std::vector<int>{1, 2}, std::vector<int>{2},
                                std::vector<int>{1, 2, 4});
    micro_batches = *rc::gen::element(std::vector<int>{1}, std::vector<int>{1}, std::vector<int>{2},
                                      std::vector<int>{1, 2}, std::vector<int>{1, 3}, std::vector<int>{1, 2, 4});
    measure();
    request.job = {.model = model.name,
                   .global_batch = std::max(1, size.global_batch - *rc::gen::element(0, 1, 2, 3, 4, 4, 5, 7)),
                   .sequence_length = 64,
                   // Of which the catalogue has no rate: nothing is estimated that was not measured.
                   .precision = Precision::fp16,
                   .optimizer = Optimizer::adamw};
    request.objective = *rc::gen::element(planner::Objective::throughput, planner::Objective::cost,
                                          planner::Objective::throughput_per_usd);
    request.memory_margin = *rc::gen::element(0.0, 0.05, 0.2);
    request.max_plans = 3;
  }

  [[nodiscard]] simulator::Environment environment(const Profile& profile) const {
    return {.model = model,
            .profile = profile,
            .gpus = gpus,
            .framework = framework,
            .cluster = &cluster,
            .measured_only = measured_only};
  }
  [[nodiscard]] Result<planner::SearchResult> search(const planner::Request& wanted) const {
    const Profile profile(data);
    return planner::find_plans(wanted, environment(profile));
  }

  /// Gives types (or zones) other names everywhere.
  void rename_types(const std::vector<std::string>& names) {
    const auto to = [&](std::string& name) {
      for (std::size_t i = 0; i < gpu_types.size(); ++i)
        if (name == gpu_types[i]) {
          name = names[i];
          return;
        }
    };
    for (NodeGroup& group : cluster.groups) to(group.gpu);
    for (Zone& zone : cluster.zones)
      for (auto& [gpu, price] : zone.prices) to(gpu);
    for (LayerTime& row : data.layer_times) to(row.key.gpu);
    for (LayerMemory& row : data.layer_memory) to(row.key.gpu);
    for (LinkMeasurement& row : data.links) {
      to(row.key.from.gpu);
      to(row.key.to.gpu);
    }
    for (ProcessMeasurement& row : data.processes) to(row.gpu);
    for (std::string& name : request.pins.gpus) to(name);
    gpu_types = names;
    make_catalogue_text();
  }
  void rename_zones(const std::string& a, const std::string& b) {
    const auto to = [&](std::string& name) { name = name == "a" ? a : name == "b" ? b : name; };
    for (NodeGroup& group : cluster.groups) to(group.zone);
    for (Zone& zone : cluster.zones) to(zone.name);
    for (ZoneLink& link : cluster.links) {
      to(link.from);
      to(link.to);
    }
    for (std::string& name : request.pins.zones) to(name);
  }

  /// Micro-batch sizes that a plan may have: those measured, and what lies between unless only measured ones count;
  /// divisors of the batch.
  [[nodiscard]] std::vector<int> allowed_micro_batches() const {
    std::vector<int> sizes;
    for (int size = micro_batches.front(); size <= micro_batches.back(); ++size) {
      const bool measured = std::find(micro_batches.begin(), micro_batches.end(), size) != micro_batches.end();
      if (request.job.global_batch % size == 0 && (measured || !measured_only)) sizes.push_back(size);
    }
    return sizes;
  }

  Model model = find_model("tiny-gpt", SAILOR_SOURCE_DIR "/profiles/models").value();
  std::vector<std::string> gpu_types;
  GpuCatalogue gpus;
  simulator::Framework framework =
      simulator::load_framework(SAILOR_SOURCE_DIR "/profiles/frameworks/sailor.toml").value();
  Cluster cluster{.name = "random", .origin = {}, .groups = {}, .partitions = {}, .zones = {}, .links = {}};
  ProfileData data;
  std::vector<int> degrees;
  std::vector<int> micro_batches;  ///< measured
  bool measured_only = false;
  planner::Request request;  ///< without limits and pins

 private:
  struct TypeFacts {
    double memory = 0.0;
    double price = 0.0;
  };

  void make_catalogue() {
    for (std::size_t i = 0; i < gpu_types.size(); ++i)
      facts_.push_back({.memory = *rc::gen::element(5.5e6, 7e6, 9e6, 1.2e7, 1.2e7, 1e9, 1e9, 1e9),
                        .price = *rc::gen::element(0.0, 0.5, 1.0, 1.0, 2.0, 3.7)});
    make_catalogue_text();
  }

  void make_catalogue_text() {
    std::string text = "schema_version = 1\n";
    for (std::size_t i = 0; i < gpu_types.size(); ++i)
      text += fmt::format(
          "[[gpus]]\nname = \"{}\"\nmemory_bytes = {:e}\npeak_fp32_flop_per_s = 1e9\npeak_tf32_flop_per_s = 1e9\n"
          "peak_bf16_flop_per_s = 1e9\nmemory_bandwidth_bytes_per_s = 1e12\nprice_usd_per_hour = {:.3f}\n"
          "slurm_gres = []\nsource = \"a test\"\n",
          gpu_types[i], facts_[i].memory, facts_[i].price);
    gpus = GpuCatalogue::parse(text, "gpus.toml").value();
  }

  void make_cluster(const WorldSize& size, int zones) {
    std::vector<std::string> zone_names{"a", "b"};
    if (zones > 2) zone_names.emplace_back("c");
    const int all = std::max(1, size.gpus - *rc::gen::element(0, 0, 0, 1, 1, 2, 3, 5));
    for (int left = all; left > 0;) {
      const int each = std::min(left, *rc::gen::element(1, 1, 2, 2, 3, 4));
      const int count = std::min(left / each, *rc::gen::element(1, 1, 2, 3));
      cluster.groups.push_back({.nodes = {},
                                .count = count,
                                .gpu = *rc::gen::elementOf(gpu_types),
                                .gpus_per_node = each,
                                .cpus_per_node = 8,
                                .memory_per_node = Bytes(1e9),
                                .state = NodeState::idle,
                                .state_reason = {},
                                .zone = zones == 1 ? "" : *rc::gen::elementOf(zone_names),
                                .partitions = {}});
      left -= each * count;
    }
    if (zones == 1) return;
    for (const std::string& zone : zone_names) {
      Zone row{.name = zone, .region = {}, .prices = {}};
      for (const std::string& gpu : gpu_types)
        if (*rc::gen::arbitrary<bool>()) row.prices.emplace_back(gpu, UsdPerHour(*rc::gen::element(0.4, 1.5, 4.0)));
      cluster.zones.push_back(row);
    }
    for (std::size_t a = 0; a < zone_names.size(); ++a)
      for (std::size_t b = a + 1; b < zone_names.size(); ++b)
        cluster.links.push_back({.from = zone_names[a],
                                 .to = zone_names[b],
                                 .bandwidth = BytesPerSecond(*rc::gen::element(1e5, 1e6, 1e7)),
                                 .latency = Seconds(*rc::gen::element(0.01, 0.3)),
                                 .egress_usd_per_byte = *rc::gen::element(0.0, 0.0, 1e-11, 1e-9)});
  }

  void make_framework() {
    framework.supports_tensor_parallel = true;
    framework.supports_recompute = *rc::gen::element(false, false, true);
    using Shardings = std::vector<OptimizerSharding>;
    const auto [one, two, three] =
        std::array{OptimizerSharding::zero1, OptimizerSharding::zero2, OptimizerSharding::zero3};
    framework.shardings = *rc::gen::element(Shardings{}, Shardings{}, Shardings{one}, Shardings{three},
                                            Shardings{two, three}, Shardings{one, two, three});
    framework.prefetches_weights = *rc::gen::arbitrary<bool>();
    framework.copies_reduced_gradients = *rc::gen::arbitrary<bool>();
    framework.overlaps_transfers = *rc::gen::element(false, false, true);
    framework.overlaps_reduction = *rc::gen::element(false, false, true);
    framework.reduction_bucket = Bytes(*rc::gen::element(0.0, 2e5, 1e6));
    framework.transfer_overhead = Seconds(*rc::gen::element(0.0, 0.05));
    framework.reduction_rate = BytesPerSecond(*rc::gen::element(0.0, 1e7));
    framework.base = Bytes(5e5);
    framework.attention_score = Bytes(*rc::gen::element(0.0, 2.0));
    using How = simulator::StageMessages;
    framework.stage_messages = *rc::gen::element(How::whole, How::pieces, How::once);
    framework.keeps_stage_inputs = *rc::gen::element(false, false, true);
    framework.extra_logits = *rc::gen::element(0.0, 0.0, 4.0);
    framework.workspace_hidden_states = *rc::gen::element(0.0, 10.0);
  }

  void measure() {
    data.sessions = round_numbers_profile().sessions;
    for (const std::string& gpu : gpu_types) {
      const double slower = *rc::gen::element(1.0, 1.0, 1.7, 3.0);
      const double group_gain = *rc::gen::element(1.0, 0.8, 0.55);  // time at twice the tensor-parallel degree
      const double batch_gain = *rc::gen::element(1.0, 0.8, 0.6);   // time of a sequence at twice the micro-batch
      const double beside = *rc::gen::element(1.0, 1.15);
      const double activation = *rc::gen::element(1e5, 5e5, 1.5e6);
      for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::head}) {
        const double forward = slower * *rc::gen::element(0.5, 1.0, 1.3, 2.0);
        const double backward = forward * *rc::gen::element(1.0, 1.8, 2.0);
        const double update = slower * *rc::gen::element(0.01, 0.1, 0.4);
        double degree_factor = 1.0;
        for (int degree = 1; degree <= degrees.back(); degree *= 2, degree_factor *= group_gain) {
          if (std::find(degrees.begin(), degrees.end(), degree) == degrees.end()) continue;
          for (const int micro_batch : micro_batches)
            for (const int busy : {1, 2}) {
              const double times =
                  degree_factor * (micro_batch == 1 ? 1.0 : micro_batch * batch_gain) * (busy == 2 ? beside : 1.0);
              const LayerKey key{.model = model.name,
                                 .gpu = gpu,
                                 .precision = Precision::fp16,
                                 .tensor_parallel = degree,
                                 .micro_batch = micro_batch,
                                 .sequence_length = 64,
                                 .busy_ranks = busy,
                                 .kind = kind};
              data.layer_times.push_back({.key = key,
                                          .forward = exactly(forward * times),
                                          .backward = exactly(backward * times),
                                          .update = exactly(update / degree)});
              if (busy == 1)
                data.layer_memory.push_back(
                    {.key = key,
                     .parameters = model.parameters(kind) / degree,
                     .activation = Bytes(activation * micro_batch / degree * (kind == LayerKind::block ? 1.0 : 0.2)),
                     .output = Bytes(0),
                     .workspace = Bytes(1e4 * micro_batch)});
            }
        }
      }
      for (const std::string& to : gpu_types) {
        const double latency = *rc::gen::element(0.001, 0.05, 0.3);
        const double rate = *rc::gen::element(3e6, 1e6, 2e5);
        for (const LinkScope scope : {LinkScope::intra_node, LinkScope::inter_node})
          for (const int ranks : {1, 2})
            for (const double bytes : {1.0, 1e4, 1e6, 1e8}) {
              const double farther = scope == LinkScope::inter_node ? 2.0 : 1.0;
              const double shared = ranks == 2 && scope == LinkScope::inter_node ? 1.5 : 1.0;
              data.links.push_back(
                  {.key = {.from = {.gpu = gpu, .ranks = ranks}, .to = {.gpu = to, .ranks = ranks}, .scope = scope},
                   .message = Bytes(bytes),
                   .time = exactly(farther * (latency + shared * bytes / rate))});
            }
      }
    }
  }

  std::vector<TypeFacts> facts_;
};

}  // namespace sailor::testing
