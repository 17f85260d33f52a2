// Piper (Tarnawski, Narayanan and Phanishayee, NeurIPS 2021) as the Sailor artifact adapts it (baselines/Piper):
// dynamic programming over the chain of layers, each stage with replicas of its own, under a memory model of
// synchronous 1F1B. One bandwidth and one GPU type.
//
// The artifact turned tensor parallelism off (src/algo.cpp:140) and knows micro-batches of one sequence; with
// Faults::fixed it is on, and there is a plan of every measured micro-batch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/baselines/homogeneous.hpp"

namespace sailor::planner::baselines {
namespace piper_detail {

constexpr double bytes_per_float = 4.0;
constexpr double state_bytes = 20.0;  // per parameter: Adam 8, weight, gradient and communication 4 each
constexpr double unreachable = 1e30;
constexpr double table_bytes_limit = 1e9;

/// Costs of a layer at one tensor-parallel degree, for one replica.
struct LayerCost {
  double seconds = 0.0;           ///< forward + backward of a micro-batch
  double parameter_bytes = 0.0;   ///< all-reduced by the replicas
  double activation_bytes = 0.0;  ///< of one micro-batch in flight
  double fixed_bytes = 0.0;
};

struct Degree {
  int tensor_parallel = 1;
  std::vector<LayerCost> layers;
};

/// The instance as Piper's search reads it.
struct Instance {
  std::vector<Degree> degrees;     ///< ascending
  std::vector<double> edge_bytes;  ///< [l]: from layer l to layer l + 1
  double bandwidth = 0.0;          ///< bytes/s between devices
  double device_bytes = 0.0;
  int devices = 0;
  int micro_batches = 0;  ///< of the global batch

  [[nodiscard]] int layers() const { return static_cast<int>(degrees.front().layers.size()); }
};

/// Cost of a stage of layers [first, last) on `replicas` groups.
struct BlockCost {
  double seconds = 0.0;  ///< per micro-batch, of all replicas together
  double activation_bytes = 0.0;
  double fixed_bytes = 0.0;

  [[nodiscard]] double memory(int in_flight) const { return activation_bytes * in_flight + fixed_bytes; }
};

BlockCost block_cost(const Instance& instance, const Degree& degree, int first, int last, int replicas) {
  BlockCost cost;
  double seconds = 0.0;
  double parameter_bytes = 0.0;
  for (int layer = first; layer < last; ++layer) {
    const LayerCost& of_layer = degree.layers[layer];
    seconds += of_layer.seconds;
    parameter_bytes += of_layer.parameter_bytes;
    cost.activation_bytes += of_layer.activation_bytes;
    cost.fixed_bytes += of_layer.fixed_bytes;
  }
  double edges = 0.0;  // activation and gradient
  if (first > 0) edges += 2.0 * instance.edge_bytes[first - 1];
  if (last < instance.layers()) edges += 2.0 * instance.edge_bytes[last - 1];
  const double gradients = 4.0 * (replicas - 1) * parameter_bytes / replicas / instance.micro_batches;
  cost.seconds = (edges / replicas + gradients) / instance.bandwidth + seconds / replicas;
  return cost;
}

Result<Degree> degree_of(const Inputs& inputs, std::string_view gpu, int micro_batch, int tensor_parallel) {
  const LayerTimes* times = inputs.times(gpu, micro_batch, tensor_parallel);
  const LayerSizes* sizes = inputs.sizes(tensor_parallel);
  if (times == nullptr || sizes == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no {} of {} on {} with micro-batch {} and tensor parallel {}",
                            times == nullptr ? "layer times" : "layer sizes", inputs.model().name, gpu, micro_batch,
                            tensor_parallel),
                "Piper needs them; profile the model there");
  Degree degree{tensor_parallel, {}};
  for (int layer = 0; layer < inputs.layers(); ++layer)
    degree.layers.push_back({times->forward[layer] + times->backward[layer], bytes_per_float * sizes->parameters[layer],
                             bytes_per_float * sizes->activation[layer] * micro_batch,
                             state_bytes * sizes->parameters[layer]});
  return degree;
}

struct StageChoice {
  LayerRange layers;
  int replicas = 1;
  int tensor_parallel = 1;
};

/// best(i, k, s): the min bottleneck time of the last i layers on at most k devices, in stages whose numbers of
/// replicas add up to at most s. s bounds the micro-batches in flight. With only one tensor-parallel degree, k is that
/// degree times s, and is left out.
class Search {
 public:
  explicit Search(const Instance& instance)
      : instance_(instance),
        layers_(instance.layers()),
        has_one_degree_(instance.degrees.size() == 1),
        devices_(has_one_degree_ ? 0 : instance.devices),
        sum_(std::min(instance.micro_batches, instance.devices / instance.degrees.front().tensor_parallel)) {
    for (int replicas = 1; replicas <= sum_; ++replicas)
      if (instance.micro_batches % replicas == 0) replica_counts_.push_back(replicas);
  }

  [[nodiscard]] double table_bytes() const {
    return static_cast<double>(sizeof(double)) * (layers_ + 1) * (devices_ + 1) * (sum_ + 1);
  }

  /// False if interrupted.
  bool fill(const Problem& problem) {
    best_.assign(static_cast<std::size_t>(layers_ + 1) * (devices_ + 1) * (sum_ + 1), unreachable);
    std::fill(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(row(1, 0) - row(0, 0)), 0.0);
    for (int size = 1; size <= layers_; ++size) {
      for (int rest = 0; rest < size; ++rest) {
        if (problem.is_over()) return false;
        for (const Degree& degree : instance_.degrees)
          for (const int replicas : replica_counts_) relax(size, rest, degree, replicas);
      }
      // More devices and more replicas are never worse.
      for (int k = 0; k <= devices_; ++k)
        for (int s = 0; s <= sum_; ++s) {
          double& here = best_[row(size, k) + s];
          if (k > 0) here = std::min(here, best_[row(size, k - 1) + s]);
          if (s > 0) here = std::min(here, best_[row(size, k) + s - 1]);
        }
    }
    return true;
  }

  /// Empty if no plan fits.
  [[nodiscard]] std::vector<StageChoice> stages(double& seconds) const {
    constexpr double tolerance = 1e-9;
    int k = 0;
    int s = 0;
    double least = unreachable;
    for (int devices = 0; devices <= devices_; ++devices)
      for (int sum = 0; sum <= sum_; ++sum)
        if (best_[row(layers_, devices) + sum] < least - tolerance) {
          least = best_[row(layers_, devices) + sum];
          k = devices;
          s = sum;
        }
    seconds = least;
    std::vector<StageChoice> stages;
    if (least >= unreachable / 2) return stages;
    // The shortest front stage that achieves it, then the fewest devices.
    for (int size = layers_; size > 0;) {
      const auto found = front_stage(size, k, s, tolerance);
      if (!found) return {};
      stages.push_back(*found);
      size -= found->layers.last - found->layers.first;
      k -= devices_of(found->replicas, found->tensor_parallel);
      s -= found->replicas;
    }
    return stages;
  }

 private:
  [[nodiscard]] std::size_t row(int size, int k) const {
    return (static_cast<std::size_t>(size) * (devices_ + 1) + k) * (sum_ + 1);
  }

  /// Number of devices as the table counts them.
  [[nodiscard]] int devices_of(int replicas, int tensor_parallel) const {
    return has_one_degree_ ? 0 : replicas * tensor_parallel;
  }

  void relax(int size, int rest, const Degree& degree, int replicas) {
    const int used = devices_of(replicas, degree.tensor_parallel);
    if (used > devices_ || replicas > sum_) return;
    const BlockCost cost = block_cost(instance_, degree, layers_ - size, layers_ - rest, replicas);
    int reach = replicas;  // the first sum at which the stage does not fit any more
    while (reach <= sum_ && cost.memory((reach + replicas - 1) / replicas) <= instance_.device_bytes) ++reach;
    for (int k = used; k <= devices_; ++k) {
      double* here = &best_[row(size, k)];
      const double* before = &best_[row(rest, k - used)];
      for (int s = replicas; s < reach; ++s) here[s] = std::min(here[s], std::max(before[s - replicas], cost.seconds));
    }
  }

  [[nodiscard]] std::optional<StageChoice> front_stage(int size, int k, int s, double tolerance) const {
    const double wanted = best_[row(size, k) + s];
    for (int rest = size - 1; rest >= 0; --rest)
      for (const Degree& degree : instance_.degrees)
        for (const int replicas : replica_counts_) {
          const int used = devices_of(replicas, degree.tensor_parallel);
          if (used > k || replicas > s) break;
          const BlockCost cost = block_cost(instance_, degree, layers_ - size, layers_ - rest, replicas);
          if (cost.memory((s + replicas - 1) / replicas) > instance_.device_bytes) continue;
          if (std::abs(wanted - std::max(best_[row(rest, k - used) + s - replicas], cost.seconds)) < tolerance)
            return StageChoice{{layers_ - size, layers_ - rest}, replicas, degree.tensor_parallel};
        }
    return std::nullopt;
  }

  const Instance& instance_;
  int layers_;
  bool has_one_degree_;
  int devices_;
  int sum_;
  std::vector<int> replica_counts_;
  std::vector<double> best_;
};

class Piper final : public HomogeneousBaseline {
 public:
  [[nodiscard]] std::string_view name() const override { return "piper"; }
  [[nodiscard]] std::string_view title() const override { return "Piper"; }
  [[nodiscard]] std::string_view citation() const override { return "Tarnawski et al., NeurIPS 2021"; }
  [[nodiscard]] std::string_view summary() const override {
    return "layers, replicas and tensor parallel of each stage by dynamic programming under a memory model; ignores "
           "zones, several GPU types, message sizes and prices";
  }

  [[nodiscard]] Result<Estimate> estimate(const PlanList& plan, const Problem& problem) const override {
    const auto uniform = uniform_plan(plan, problem.inputs, title(), Differences::replicas);
    SAILOR_CHECK(uniform);
    auto instance = instance_of(problem, {uniform->gpu, uniform->zone, 0, uniform->gpus_per_node}, uniform->micro_batch,
                                uniform->stage_degrees);
    SAILOR_CHECK(instance);
    double bottleneck = 0.0;
    double memory = 0.0;
    int behind = 0;  // replicas of this and later stages
    for (int stage = uniform->pipeline_parallel() - 1; stage >= 0; --stage) {
      const auto [first, last] = uniform->stages[stage];
      const int replicas = uniform->stage_replicas[stage];
      behind += replicas;
      if (first == last) continue;
      const BlockCost cost = block_cost(*instance, instance->degrees[stage], first, last, replicas);
      bottleneck = std::max(bottleneck, cost.seconds);
      memory = std::max(memory, cost.memory((behind + replicas - 1) / replicas));
    }
    return Estimate{Seconds(bottleneck * instance->micro_batches), Bytes(memory)};
  }

 private:
  /// In the artifact, sizes on edges are those of one sequence, whatever the micro-batch. They are never divided by the
  /// tensor-parallel degree.
  static Result<Instance> instance_of(const Problem& problem, const Offer& offer, int micro_batch,
                                      const std::vector<int>& degrees) {
    Instance instance;
    for (const int tensor_parallel : degrees) {
      auto degree = degree_of(problem.inputs, offer.gpu, micro_batch, tensor_parallel);
      SAILOR_CHECK(degree);
      instance.degrees.push_back(std::move(*degree));
    }
    const auto link = node_link(problem.inputs, offer.gpu, offer.zone, offer.gpus_per_node, problem.faults);
    SAILOR_CHECK(link);
    if (problem.inputs.sizes(1) == nullptr)
      return fail(
          ErrorCode::not_found,
          fmt::format("the profile has no layer sizes of {} with tensor parallel 1", problem.inputs.model().name),
          "Piper needs them; profile the model there");
    for (const double floats : problem.inputs.sizes(1)->output)
      instance.edge_bytes.push_back(bytes_per_float * floats * (problem.faults == Faults::kept ? 1 : micro_batch));
    instance.bandwidth = (*link)->max_bandwidth;
    instance.device_bytes = problem.inputs.memory(offer.gpu);
    instance.devices = offer.gpus / offer.gpus_per_node * offer.gpus_per_node;
    instance.micro_batches = std::max(1, problem.job.global_batch / micro_batch);
    return instance;
  }

  /// As published: only micro-batches of one sequence, without tensor parallelism.
  static std::vector<int> degrees_of(const Problem& problem, const Offer& offer, int micro_batch) {
    if (problem.faults == Faults::kept) return {1};
    std::vector<int> degrees;
    for (const int degree : problem.inputs.degrees(offer.gpu, micro_batch))
      if (offer.gpus_per_node % degree == 0 && problem.inputs.sizes(degree) != nullptr) degrees.push_back(degree);
    return degrees;
  }

  /// With Faults::fixed plans of one tensor-parallel degree come first: they are found quickly.
  Result<void> plan_offer(const Problem& problem, const Offer& offer, Proposals& proposals) const override {
    std::vector<int> micro_batches{1};
    if (problem.faults == Faults::fixed) micro_batches = problem.inputs.micro_batches(offer.gpu);
    std::vector<std::pair<int, std::vector<int>>> several;  // micro-batch, degrees
    bool is_measured = false;
    for (const int micro_batch : micro_batches) {
      const std::vector<int> degrees = degrees_of(problem, offer, micro_batch);
      if (degrees.empty() || problem.job.global_batch % micro_batch != 0) continue;
      is_measured = true;
      for (const int degree : degrees) SAILOR_CHECK(plan_micro_batch(problem, offer, micro_batch, {degree}, proposals));
      if (degrees.size() > 1) several.emplace_back(micro_batch, degrees);
    }
    for (const auto& [micro_batch, degrees] : several)
      SAILOR_CHECK(plan_micro_batch(problem, offer, micro_batch, degrees, proposals));
    if (!is_measured)
      return fail(ErrorCode::not_found,
                  fmt::format("the profile has no layer times of {} on {} with a micro-batch that divides the global "
                              "batch of {}",
                              problem.inputs.model().name, offer.gpu, problem.job.global_batch),
                  "Piper needs them; profile the model there");
    return {};
  }

  static Result<void> plan_micro_batch(const Problem& problem, const Offer& offer, int micro_batch,
                                       const std::vector<int>& degrees, Proposals& proposals) {
    if (proposals.out_of_time) return {};
    const auto instance = instance_of(problem, offer, micro_batch, degrees);
    SAILOR_CHECK(instance);
    Search search(*instance);
    if (search.table_bytes() > table_bytes_limit) {
      note(proposals,
           fmt::format("Piper's stages all have one tensor-parallel degree: with several its table for {} {} "
                       "would take more than {:.0f} GB",
                       instance->devices, offer.gpu, table_bytes_limit / gigabyte.value()));
      return {};
    }
    if (!search.fill(problem)) {
      proposals.out_of_time = true;
      return {};
    }
    double seconds = 0.0;
    const std::vector<StageChoice> stages = search.stages(seconds);
    if (stages.empty()) return {};
    Proposal proposal;
    proposal.plan.micro_batch = micro_batch;
    ListPipeline pipeline;
    int devices = 0;
    for (const StageChoice& stage : stages) {
      const Replica replica{{{offer.gpu, offer.gpus_per_node, offer.zone}}, stage.tensor_parallel};
      pipeline.stages.push_back(
          {stage.layers, std::vector<Replica>(static_cast<std::size_t>(stage.replicas), replica)});
      devices += stage.replicas * stage.tensor_parallel;
    }
    proposal.plan.pipelines.push_back(std::move(pipeline));
    if (problem.faults == Faults::fixed) {  // the artifact reports none
      const double iteration = seconds * instance->micro_batches;
      proposal.throughput = 1.0 / iteration;
      proposal.cost = devices_cost(problem.inputs, offer.gpu, devices, iteration);
    }
    const std::string text = describe(proposal.plan);
    const auto is_same = [&](const Proposal& known) { return describe(known.plan) == text; };
    if (std::any_of(proposals.plans.begin(), proposals.plans.end(), is_same)) return {};
    proposals.plans.push_back(std::move(proposal));
    return {};
  }
};

}  // namespace piper_detail

const Baseline& piper() {
  static const piper_detail::Piper planner;
  return planner;
}

}  // namespace sailor::planner::baselines
