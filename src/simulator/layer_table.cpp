#include "simulator/layer_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/statistics.hpp"
#include "profile/advice.hpp"
#include "profile/estimate.hpp"

namespace sailor::simulator {

namespace {

/// Share of a block's forward FLOP that attention's scores and their products have.
double flop_share_of_attention(const Model& model, int sequence_length, const LayerKernels& kernels) {
  // forward_flop() counts the half that a causal mask keeps, as fused attention does; other kernels compute all of it.
  const double computed = kernels.attention == Attention::fused ? 1.0 : 2.0;
  const double without = model.forward_flop(LayerKind::block, 1.0, 0).value();
  const double scores = computed * (model.forward_flop(LayerKind::block, 1.0, sequence_length).value() - without);
  return scores / (without + scores);
}

/// Numbers of values on one rank.
double scores_of(const Model& model, const LayerKey& key) {
  return static_cast<double>(key.micro_batch) * model.attention_heads / key.tensor_parallel * key.sequence_length *
         key.sequence_length / key.context_parallel;
}
double hidden_of(const Model& model, const LayerKey& key) {
  return static_cast<double>(key.micro_batch) * key.sequence_length * model.hidden / key.context_parallel;
}
double logits_of(const Model& model, const LayerKey& key) {
  return static_cast<double>(key.micro_batch) * key.sequence_length * model.vocabulary / key.tensor_parallel /
         key.context_parallel;
}

LayerKey without_recompute(LayerKey key) {
  key.recompute = Recompute::none;
  return key;
}

/// The cost with recomputation, from the cost without. `attention`: its share of the forward time.
LayerCost with_recompute(LayerCost cost, const LayerKey& key, const Environment& env, double attention) {
  if (key.kind != LayerKind::block || key.recompute == Recompute::none) return cost;
  const double again = key.recompute == Recompute::full ? 1.0 : attention;
  for (Seconds TimeStatistics::*member : {&TimeStatistics::median, &TimeStatistics::p10, &TimeStatistics::p90,
                                          &TimeStatistics::low, &TimeStatistics::high})
    cost.backward.*member += cost.forward.*member * again;
  Bytes kept;
  if (key.recompute == Recompute::full) {
    kept = cost.output;  // as large as its input
  } else {
    const LayerKernels& kernels = env.framework.kernels;
    // At least the other arrays of a block, by formula; exactly those if no scores are kept.
    const double least = layer_sizes(env.model, key, kernels).activation /
                         layer_sizes(env.model, without_recompute(key), kernels).activation;
    kept = cost.activation * std::min(least, 1.0);
    if (kernels.attention == Attention::unfused)
      kept = std::max(kept, cost.activation - env.framework.attention_score * scores_of(env.model, key));
  }
  // While the layer runs backward, all of it is in memory again, together with its temporary tensors.
  cost.workspace += (cost.activation - kept) * (1.0 + env.framework.workspace_activations);
  cost.activation = kept;
  return cost;
}

class TableMaker {
 public:
  TableMaker(const Environment& env, const LayerCosts& costs, const LayerKey& key)
      : env_(env), costs_(costs), key_(key) {
    if (env.framework.profiling_overhead > 0.0 && !key.is_divided())
      for (const int micro_batch :
           env.profile.micro_batches(key.model, key.gpu, key.precision, key.tensor_parallel, key.sequence_length))
        if (micro_batch > key.micro_batch) larger_.push_back(micro_batch);
    const auto gpu = env.gpus.find(key.gpu);
    if (env.framework.launch_delay_across_nodes > Seconds(0) && key.tensor_parallel > 1 && gpu)
      launch_ = efficiency_of(env.framework.kernels, gpu->kind, key.precision).launch;
  }

  Result<LayerTable> run() {
    const int layers = env_.model.layers();
    table_.key = key_;
    table_.gpu = key_.gpu;
    const auto size = static_cast<std::size_t>(layers) + 1;
    table_.times.resize(size);
    table_.update.resize(size);
    table_.parameters.resize(size);
    table_.experts.resize(size);
    if (key_.context_parallel > 1) table_.attention.resize(size);
    if (launch_) table_.launches_across_nodes.resize(size);
    table_.activations.resize(size);
    table_.workspace.resize(size);
    const Bytes value(value_bytes(key_.precision));
    table_.extra_logits = value * (logits_of(env_.model, key_) * env_.framework.extra_logits);
    if (env_.framework.keeps_stage_inputs) table_.stage_input = value * hidden_of(env_.model, key_);
    int count = 0;
    for (int layer = 0; layer < layers; layer += count) {
      key_.kind = env_.model.layer_kind(layer);
      key_.first_layer = layer;
      auto cost = priced(key_);
      if (!cost) return fail(cost.error());
      count = 1;  // layers from here on that cost the same
      while (layer + count < std::min(layers, cost->last_layer) && env_.model.layer_kind(layer + count) == key_.kind)
        ++count;
      for (int i = layer; i < layer + count; ++i) append(static_cast<std::size_t>(i), *cost);
      if (key_.context_parallel > 1) SAILOR_CHECK(append_attention(layer, count, *cost));
      if (launch_) append_launches(static_cast<std::size_t>(layer), static_cast<std::size_t>(count));
      add_kind(layer, count, *cost);
      if (key_.kind == LayerKind::embedding && cost->parameters > 0) {
        const double tied = static_cast<double>(env_.model.tied_parameters()) / key_.tensor_parallel;
        table_.tied_update = cost->update.median * (tied / static_cast<double>(cost->parameters));
      }
    }
    table_.estimated_inputs.assign(inputs_.begin(), inputs_.end());
    return std::move(table_);
  }

 private:
  void append(std::size_t layer, const LayerCost& cost) {
    const bool head = key_.kind == LayerKind::head;
    table_.times[layer + 1] = {table_.times[layer].forward + cost.forward.median,
                               table_.times[layer].backward + cost.backward.median};
    table_.update[layer + 1] = table_.update[layer] + cost.update.median;
    table_.parameters[layer + 1] = table_.parameters[layer] + static_cast<double>(cost.parameters);
    const auto experts = static_cast<double>(env_.model.expert_parameters(static_cast<int>(layer)));
    table_.experts[layer + 1] = table_.experts[layer] + experts / key_.expert_parallel / key_.tensor_parallel;
    table_.activations[layer + 1] = table_.activations[layer] + (head ? Bytes(0) : cost.activation);
    table_.workspace[layer] = workspace_of(cost);
    if (head) table_.logits = cost.activation;
  }

  /// `cost`: of each of these layers.
  Result<void> append_attention(int first, int count, const LayerCost& cost) {
    const auto shares = key_.kind == LayerKind::block ? costs_.attention_shares(key_) : PassShares{};
    if (!shares) return fail(shares.error());
    for (auto i = static_cast<std::size_t>(first);
         i < static_cast<std::size_t>(first) + static_cast<std::size_t>(count); ++i)
      table_.attention[i + 1] = {table_.attention[i].forward + cost.forward.median * shares->forward,
                                 table_.attention[i].backward + cost.backward.median * shares->backward};
    return {};
  }

  /// Adds the launch times of `count` layers that are like the key's.
  void append_launches(std::size_t first, std::size_t count) {
    const LayerWork work = layer_work(env_.model, key_, env_.framework.kernels);
    const auto time = [&](int launches, int all_reduces) {
      return *launch_ * launches + env_.framework.launch_delay_across_nodes * (all_reduces * key_.tensor_parallel);
    };
    for (std::size_t i = first; i < first + count; ++i) {
      const PassTimes& before = table_.launches_across_nodes[i];
      table_.launches_across_nodes[i + 1] = {before.forward + time(work.forward_launches, work.forward_all_reduces),
                                             before.backward + time(work.backward_launches, work.backward_all_reduces)};
    }
  }

  /// Temporary tensors while the layer runs: those of the profile, or at least what the framework is known to need.
  [[nodiscard]] Bytes workspace_of(const LayerCost& cost) const {
    const Framework& framework = env_.framework;
    Bytes arrays;
    if (key_.kind == LayerKind::block)
      arrays = Bytes(value_bytes(key_.precision)) * (framework.workspace_scores * scores_of(env_.model, key_) +
                                                     framework.workspace_hidden_states * hidden_of(env_.model, key_));
    const auto state = framework.state.find(key_.precision);
    if (state != framework.state.end())
      arrays += state->second.gradient * (framework.workspace_gradients * static_cast<double>(cost.parameters));
    return std::max(cost.workspace, arrays) + cost.activation * framework.workspace_activations;
  }

  /// Layers of a kind share the error of their measurement.
  void add_kind(int layer, int count, const LayerCost& cost) {
    if (table_.kinds.empty() || table_.kinds.back().kind != key_.kind)
      table_.kinds.push_back({.kind = key_.kind, .first = layer, .last = layer});
    LayerTable::Kind& kind = table_.kinds.back();
    kind.last = layer + count;
    if (cost.origin == Origin::estimated && cost.forward.median > Seconds(0)) {  // 90% lie within [low, high]
      kind.estimate_error =
          std::max(kind.estimate_error, (cost.forward.high / cost.forward.median - 1.0) / percentile_95);
      return;
    }
    kind.forward_error = std::max(kind.forward_error, cost.forward.relative_error());
    kind.backward_error = std::max(kind.backward_error, cost.backward.relative_error());
  }

  /// The cost measured without recomputation, less the profiler's own time.
  Result<LayerCost> plain_cost(const LayerKey& key) {
    auto cost = found(key);
    if (!cost || larger_.empty()) return cost;
    std::optional<std::pair<Seconds, Seconds>> device;  // best times of larger micro-batches, scaled to this one
    for (const int micro_batch : larger_) {
      LayerKey other = key;
      other.micro_batch = micro_batch;
      const auto found = env_.profile.find_layer(other);
      if (!found) continue;
      const double share = static_cast<double>(key.micro_batch) / micro_batch;
      const auto times = std::pair(found->forward.median * share, found->backward.median * share);
      device = device ? std::pair(std::min(device->first, times.first), std::min(device->second, times.second)) : times;
    }
    if (!device) return cost;
    const auto without_overhead = [&](TimeStatistics& times, Seconds bound) {
      if (bound >= times.median) return;
      times = scaled(times, 1.0 - env_.framework.profiling_overhead * ((times.median - bound) / times.median));
    };
    without_overhead(cost->forward, device->first);
    without_overhead(cost->backward, device->second);
    cost->last_layer = key.first_layer + 1;  // neighbouring layers may be bound differently
    return cost;
  }

  /// Attention's share of a block's forward time, by estimates; on devices without known rates, its share of the FLOP.
  double attention_share(const LayerKey& key) const {
    const auto shares = costs_.attention_shares(without_recompute(key));
    return shares ? shares->forward : flop_share_of_attention(env_.model, key.sequence_length, env_.framework.kernels);
  }

  /// The cost with the recomputation of `key`, measured or derived.
  Result<LayerCost> priced(const LayerKey& key) {
    if (key.recompute == Recompute::none) return plain_cost(key);
    if (!key.is_divided())
      if (auto stored = costs_.look_up(key)) {
        note(stored->cost.origin);
        note_sizes(key, *stored);
        return stored->cost;
      }
    auto cost = plain_cost(without_recompute(key));
    if (!cost) return cost;
    if (key.kind != LayerKind::block) return cost;
    if (costs_.measured_only())
      return fail(ErrorCode::not_found,
                  fmt::format("the profile has no layers of {} on {} with recompute = {}", key.model, key.gpu,
                              to_string(key.recompute)),
                  layers_advice(env_.gpus, key.gpu, fmt::format(" --recompute {}", to_string(key.recompute))));
    note(Origin::estimated);
    inputs_.insert({.origin = Origin::estimated,
                    .what = fmt::format("blocks of {} on {} with recompute = {} (from those without)", key.model,
                                        key.gpu, to_string(key.recompute))});
    return with_recompute(*cost, key, env_, attention_share(key));
  }

  Result<LayerCost> found(const LayerKey& key) {
    const Result<LayerPrice>& price = costs_.find(key);
    if (!price) return fail(price.error());
    note(price->cost.origin);
    if (price->basis == Basis::look_up && !key.is_divided()) note_sizes(key, *price);
    if (price->basis != Basis::look_up || key.is_divided())
      inputs_.insert({.origin = price->cost.origin, .what = costs_.explain(key, *price)});
    return price->cost;
  }

  /// Sizes that are stored nowhere: the times beside them are measured.
  void note_sizes(const LayerKey& key, const LayerPrice& price) {
    if (price.sources.empty()) return;
    inputs_.insert(
        {.origin = Origin::estimated,
         .what = fmt::format("sizes of layers of {} on {} (the profile has times without sizes)", key.model, key.gpu)});
  }

  void note(Origin origin) { table_.origin = std::max(table_.origin, origin); }

  const Environment& env_;
  const LayerCosts& costs_;
  LayerKey key_;
  std::optional<Seconds> launch_;  // Efficiency::launch, where there is a delay across nodes
  std::vector<int> larger_;        // measured micro-batches larger than the key's
  std::set<EstimatedInput> inputs_;
  LayerTable table_;
};

}  // namespace

PassTimes LayerTable::passes(const LayerRange& layers, bool across_nodes) const {
  const auto of_range = [&](const std::vector<PassTimes>& sums) {
    const PassTimes& first = sums[static_cast<std::size_t>(layers.first)];
    const PassTimes& last = sums[static_cast<std::size_t>(layers.last)];
    return PassTimes{last.forward - first.forward, last.backward - first.backward};
  };
  PassTimes passes = of_range(times);
  if (across_nodes && !launches_across_nodes.empty()) {
    const PassTimes launches = of_range(launches_across_nodes);
    passes.forward = std::max(passes.forward, launches.forward);
    passes.backward = std::max(passes.backward, launches.backward);
  }
  return passes;
}

Result<LayerTable> make_layer_table(const Environment& environment, const LayerCosts& costs, const LayerKey& key) {
  return TableMaker(environment, costs, key).run();
}

}  // namespace sailor::simulator
