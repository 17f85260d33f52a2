#include "planner/planner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "simulator/quick.hpp"

namespace sailor::planner {

namespace {

constexpr int most_estimated_tensor_parallel = 8;  // on a device that nobody measured
constexpr int most_estimated_micro_batch = 128;
constexpr int most_supply = 1 << 20;  // nodes, and as many devices: no plan has more ranks

/// The nodes of one GPU type that a plan may use.
struct Supply {
  std::string gpu;
  int nodes = 0;
  int gpus_per_node = 0;
  std::string zone;
};

Result<std::vector<Supply>> supplies(const Request& request, const Cluster& cluster) {
  int most_nodes = std::numeric_limits<int>::max();
  if (!request.partition.empty()) {
    const Partition* partition = cluster.find_partition(request.partition);
    if (partition == nullptr) {
      std::vector<std::string> names;
      for (const Partition& known : cluster.partitions) names.push_back(known.name);
      const auto guess = closest(request.partition, names);
      return fail(ErrorCode::not_found,
                  fmt::format("partition '{}' not found (known: {})", request.partition, fmt::join(names, ", ")),
                  guess ? fmt::format("did you mean --partition {}?", *guess) : "use --partition NAME");
    }
    if (!partition->up)
      return fail(ErrorCode::unavailable, fmt::format("partition '{}' is down", request.partition),
                  "choose another partition, or ask its administrators");
    if (partition->most_nodes) most_nodes = *partition->most_nodes;
  }
  // Zones keep apart what is far from each other: a homogeneous plan stays in one.
  std::map<std::pair<std::string, std::string>, Supply> found;
  for (const NodeGroup& group : cluster.usable(request.partition, request.only_idle)) {
    Supply& supply = found[{group.gpu, group.zone}];
    supply.gpu = group.gpu;
    supply.zone = group.zone;
    supply.nodes = std::min(supply.nodes + group.count, most_supply);
    supply.gpus_per_node =
        supply.gpus_per_node == 0 ? group.gpus_per_node : std::min(supply.gpus_per_node, group.gpus_per_node);
  }
  std::vector<Supply> list;
  for (auto& entry : found) {
    entry.second.nodes = std::min(entry.second.nodes, most_nodes);
    list.push_back(entry.second);
  }
  if (list.empty()) {
    std::set<std::string> reasons;
    for (const NodeGroup& group : cluster.groups)
      if (group.state != NodeState::idle)
        reasons.insert(group.state_reason.empty() ? std::string(to_string(group.state))
                                                  : fmt::format("{}: {}", to_string(group.state), group.state_reason));
    return fail(
        ErrorCode::infeasible,
        fmt::format("no node of {} is {}{}",
                    request.partition.empty() ? "the cluster" : fmt::format("partition '{}'", request.partition),
                    request.only_idle ? "idle" : "up",
                    reasons.empty() ? "" : fmt::format(" ({})", fmt::join(reasons, "; "))),
        request.only_idle ? "leave out --only-idle to plan for nodes that are busy now" : "choose another partition");
  }
  return list;
}

// So many of the best by the closed form are simulated, for each plan that is wanted, and some more.
constexpr std::size_t ranked_again = 4;
constexpr std::size_t least_ranked_again = 32;

/// Everything but the layers of a homogeneous plan.
struct Shape {
  const Supply* supply;
  int tensor_parallel;
  int micro_batch;
  int pipeline_parallel;
  int data_parallel;
};

std::vector<int> powers_of_two(int most) {
  std::vector<int> values;
  for (int value = 1; value <= most; value *= 2) values.push_back(value);
  return values;
}

/// Tensor parallel degrees to consider: those that were measured; on a device without any measurement of the model the
/// usual ones that divide the attention heads.
std::vector<int> tensor_parallel_degrees(const TrainingJob& job, const simulator::Environment& env,
                                         const Supply& supply) {
  if (!env.costs->only_estimates(supply.gpu, job.precision))
    return env.profile.tensor_parallel_degrees(env.model.name, supply.gpu, job.precision, job.sequence_length);
  std::vector<int> degrees = powers_of_two(std::min(supply.gpus_per_node, most_estimated_tensor_parallel));
  std::erase_if(degrees, [&](int degree) { return env.model.attention_heads % degree != 0; });
  return degrees;
}

/// Micro-batches to consider: what was measured or lies between two that were.
std::vector<int> micro_batches(const TrainingJob& job, const simulator::Environment& env, const Supply& supply,
                               int tensor_parallel) {
  if (env.costs->only_estimates(supply.gpu, job.precision))
    return powers_of_two(std::min(job.global_batch, most_estimated_micro_batch));
  std::vector<int> values =
      env.profile.micro_batches(env.model.name, supply.gpu, job.precision, tensor_parallel, job.sequence_length);
  if (env.costs->measured_only() || values.empty()) return values;
  const std::pair range(values.front(), std::min(values.back(), job.global_batch));
  values.clear();
  for (int value = range.first; value <= range.second; ++value) values.push_back(value);
  return values;
}

std::vector<Shape> shapes_of(const Request& request, const simulator::Environment& env,
                             const std::vector<Supply>& list) {
  std::vector<Shape> shapes;
  const TrainingJob& job = request.job;
  for (const Supply& supply : list)
    for (const int tensor_parallel : tensor_parallel_degrees(job, env, supply)) {
      if (tensor_parallel > supply.gpus_per_node) continue;
      const auto groups = static_cast<int>(std::min<std::int64_t>(
          std::int64_t{supply.nodes} * (supply.gpus_per_node / tensor_parallel), most_supply / tensor_parallel));
      for (const int micro_batch : micro_batches(job, env, supply, tensor_parallel)) {
        if (job.global_batch % micro_batch != 0) continue;
        const int micro_batches = job.global_batch / micro_batch;
        for (int pipeline_parallel = 1; pipeline_parallel <= std::min(groups, env.model.layers()); ++pipeline_parallel)
          for (int data_parallel = 1; data_parallel <= std::min(groups / pipeline_parallel, micro_batches);
               ++data_parallel)
            shapes.push_back({&supply, tensor_parallel, micro_batch, pipeline_parallel, data_parallel});
      }
    }
  return shapes;
}

/// Time of one micro-batch, forward and backward, through every layer of the model.
Result<std::vector<double>> layer_times(const Request& request, const simulator::Environment& env, const Shape& shape) {
  std::vector<double> times;
  const int ranks = shape.pipeline_parallel * shape.data_parallel * shape.tensor_parallel;
  LayerKind last_kind = LayerKind::head;
  int same_until = 0;
  for (int layer = 0; layer < env.model.layers(); ++layer) {
    const LayerKind kind = env.model.layer_kind(layer);
    if (kind == last_kind && layer < same_until) {
      times.push_back(times.back());
      continue;
    }
    const Result<LayerPrice>& price = env.costs->find({.model = env.model.name,
                                                       .gpu = shape.supply->gpu,
                                                       .precision = request.job.precision,
                                                       .recompute = Recompute::none,
                                                       .tensor_parallel = shape.tensor_parallel,
                                                       .micro_batch = shape.micro_batch,
                                                       .sequence_length = request.job.sequence_length,
                                                       .busy_ranks = std::min(ranks, shape.supply->gpus_per_node),
                                                       .kind = kind,
                                                       .first_layer = layer});
    if (!price) return fail(price.error());
    const LayerCost& cost = price->cost;
    times.push_back((cost.forward.median + cost.backward.median).value());
    last_kind = kind;
    same_until = cost.last_layer;
  }
  return times;
}

Plan make_plan(const Request& request, const Shape& shape, const std::vector<LayerRange>& ranges) {
  Plan plan;
  plan.job = request.job;
  plan.micro_batch = shape.micro_batch;
  Pipeline pipeline;
  for (const LayerRange& layers : ranges)
    pipeline.stages.push_back({.layers = layers,
                               .gpu = shape.supply->gpu,
                               .tensor_parallel = shape.tensor_parallel,
                               .zone = shape.supply->zone,
                               .recompute = Recompute::none});
  // Micro-batches that do not divide evenly: some pipelines run one more.
  const int micro_batches = request.job.global_batch / shape.micro_batch;
  const int longer = micro_batches % shape.data_parallel;
  pipeline.micro_batches = micro_batches / shape.data_parallel + 1;
  pipeline.count = longer;
  if (longer > 0) plan.pipelines.push_back(pipeline);
  pipeline.micro_batches -= 1;
  pipeline.count = shape.data_parallel - longer;
  plan.pipelines.push_back(std::move(pipeline));
  return plan;
}

Error no_measurement(const Request& request, const simulator::Environment& env, const std::vector<Supply>& list) {
  std::vector<std::string> gpus;
  std::vector<std::string> there;
  for (const Supply& supply : list) {
    gpus.push_back(supply.gpu);
    for (const int length : env.profile.sequence_lengths(env.model.name, supply.gpu))
      there.push_back(fmt::format("{} at sequence length {}", supply.gpu, length));
  }
  Error error{
      ErrorCode::not_found,
      fmt::format("the profile has no {} measurement of model {} on {} at sequence length {}",
                  to_string(request.job.precision), env.model.name, fmt::join(gpus, ", "), request.job.sequence_length),
      "measure it with sailor-profile layers"};
  if (!there.empty()) error.hint += fmt::format("; it has: {}", fmt::join(there, ", "));
  return error;
}

}  // namespace

std::vector<LayerRange> balance_layers(const std::vector<double>& times, int stages) {
  // best[s][i]: smallest largest sum when the first i layers form s stages. O(stages · layers²).
  const std::size_t layers = times.size();
  std::vector<double> prefix(layers + 1, 0.0);
  for (std::size_t i = 0; i < layers; ++i) prefix[i + 1] = prefix[i] + times[i];
  const auto count = static_cast<std::size_t>(stages);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(count + 1, std::vector<double>(layers + 1, infinity));
  std::vector<std::vector<std::size_t>> cut(count + 1, std::vector<std::size_t>(layers + 1, 0));
  best[0][0] = 0.0;
  for (std::size_t s = 1; s <= count; ++s)
    for (std::size_t i = s; i <= layers; ++i)
      for (std::size_t j = s - 1; j < i; ++j) {
        const double largest = std::max(best[s - 1][j], prefix[i] - prefix[j]);
        if (largest <= best[s][i]) {  // on ties the later cut, so that later stages are shorter
          best[s][i] = largest;
          cut[s][i] = j;
        }
      }
  std::vector<LayerRange> ranges(count);
  std::size_t end = layers;
  for (std::size_t s = count; s > 0; --s) {
    ranges[s - 1] = {static_cast<int>(cut[s][end]), static_cast<int>(end)};
    end = cut[s][end];
  }
  return ranges;
}

Result<SearchResult> find_plans(const Request& request, const simulator::Environment& given,
                                const std::function<void(std::size_t, std::size_t)>& progress) {
  std::optional<LayerCosts> own_costs;  // one for all plans: they ask for the same layers again and again
  simulator::Environment environment = given;
  if (environment.costs == nullptr)
    environment.costs = &own_costs.emplace(given.model, given.profile, given.gpus, given.measured_only);
  if (environment.cluster == nullptr) return fail(ErrorCode::invalid_input, "planning needs a cluster");
  if (request.job.sequence_length > environment.model.max_sequence_length)
    return fail(ErrorCode::invalid_input,
                fmt::format("sequence length {} is over the {} that model {} allows", request.job.sequence_length,
                            environment.model.max_sequence_length, environment.model.name));
  auto list = supplies(request, *environment.cluster);
  if (!list) return fail(list.error());
  const std::vector<Shape> shapes = shapes_of(request, environment, *list);
  if (shapes.empty()) {
    bool measured = false;
    for (const Supply& supply : *list)
      measured = measured || !environment.profile
                                  .tensor_parallel_degrees(environment.model.name, supply.gpu, request.job.precision,
                                                           request.job.sequence_length)
                                  .empty();
    if (!measured) return fail(no_measurement(request, environment, *list));
    return fail(ErrorCode::infeasible,
                fmt::format("no measured micro-batch size divides global_batch {}", request.job.global_batch),
                "choose a global batch that is a multiple of one, or measure others with sailor-profile layers "
                "--micro-batches");
  }

  SearchResult result;
  struct Found {
    Plan plan;
    simulator::QuickPrediction quick;
  };
  std::vector<Found> found;
  std::optional<Found> nearest;  // of those that do not fit
  simulator::QuickSimulator simulator(environment);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (progress && i % 64 == 0) progress(i, shapes.size());
    auto times = layer_times(request, environment, shapes[i]);
    if (!times) return fail(times.error());
    Plan plan = make_plan(request, shapes[i], balance_layers(*times, shapes[i].pipeline_parallel));
    const auto quick = simulator.predict(plan);
    if (!quick && quick.error().code == ErrorCode::not_found) {
      if (result.not_measured++ == 0) result.missing = quick.error().message();
      continue;
    }
    if (!quick) return fail(quick.error());
    ++result.considered;
    if (quick->memory_headroom >= request.memory_margin) {
      found.push_back({std::move(plan), *quick});
      continue;
    }
    ++result.did_not_fit;
    if (!nearest || quick->memory_headroom > nearest->quick.memory_headroom)
      nearest = Found{std::move(plan), *quick};
  }
  if (result.considered == 0) return fail(ErrorCode::not_found, result.missing);
  if (found.empty()) {
    const auto prediction = simulator::simulate(nearest->plan, environment);
    if (!prediction) return fail(prediction.error());
    const std::string problem = simulator::memory_problem(nearest->plan, *prediction, environment)
                                    .value_or(fmt::format("it would leave {:.1f}% free but the margin is {:.1f}%",
                                                          nearest->quick.memory_headroom * 100.0,
                                                          request.memory_margin * 100.0));
    return fail(ErrorCode::infeasible,
                fmt::format("none of {} fits into memory; the nearest is {}: {}", plural(result.considered, "plan"),
                            describe(nearest->plan), problem),
                "use more or larger devices, a smaller micro-batch, or more pipeline stages");
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.quick.iteration_time < b.quick.iteration_time;
  });
  found.resize(std::min(found.size(), request.most_plans * ranked_again + least_ranked_again));
  for (Found& entry : found) {
    auto prediction = simulator::simulate(entry.plan, environment);
    if (!prediction) return fail(prediction.error());
    entry.plan.prediction = simulator::summary(*prediction);
    result.plans.push_back({.plan = std::move(entry.plan),
                            .prediction = std::move(*prediction),
                            .memory_headroom = entry.quick.memory_headroom});
  }
  std::stable_sort(result.plans.begin(), result.plans.end(), [](const Candidate& a, const Candidate& b) {
    if (a.prediction.iteration_time != b.prediction.iteration_time)
      return a.prediction.iteration_time < b.prediction.iteration_time;
    if (a.prediction.cost_per_iteration != b.prediction.cost_per_iteration)
      return a.prediction.cost_per_iteration < b.prediction.cost_per_iteration;
    return a.plan.ranks() < b.plan.ranks();
  });
  if (result.plans.size() > request.most_plans) result.plans.resize(request.most_plans);
  return result;
}

}  // namespace sailor::planner
