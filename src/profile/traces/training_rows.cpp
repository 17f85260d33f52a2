#include "profile/traces/training_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/text.hpp"
#include "profile/layer_costs.hpp"

namespace sailor::traces {

namespace {

/// Layers of one row: [first, last), which cost the same.
struct Group {
  LayerKind kind = LayerKind::block;
  int first = 0;
  int last = 0;
  [[nodiscard]] int size() const { return last - first; }
};

std::vector<Group> groups_of(const Model& model, LayerRange layers) {
  std::vector<Group> groups;
  for (int layer = layers.first; layer < layers.last;) {
    const LayerKind kind = model.layer_kind(layer);
    const int last =
        kind == LayerKind::block ? std::min({model.alike_until(layer), layers.last, model.blocks + 1}) : layer + 1;
    groups.push_back({kind, layer, std::max(last, layer + 1)});
    layer = groups.back().last;
  }
  return groups;
}

LayerKey key_of(const Training& training, const Group& group) {
  LayerKey key = training.key;
  key.kind = group.kind;
  const bool first_of_kind = group.first == 0 || training.model.layer_kind(group.first - 1) != group.kind;
  const bool all_alike = group.kind != LayerKind::block || training.model.alike_until(1) > training.model.blocks;
  key.first_layer = first_of_kind || all_alike ? 0 : group.first;
  return key;
}

/// Key of the group's first layer, for estimates.
LayerKey estimate_key(const Training& training, const Group& group) {
  LayerKey key = key_of(training, group);
  key.first_layer = group.first;
  return key;
}

Result<LayerTimes> estimate_of(const Training& training, const Group& group) {
  return roofline(layer_work(training.model, estimate_key(training, group), training.kernels), training.gpu,
                  training.key.precision, training.key.tensor_parallel, std::nullopt, training.kernels);
}

double parameters_of(const Training& training, const Group& group) {
  return static_cast<double>(layer_sizes(training.model, estimate_key(training, group), training.kernels).parameters);
}

/// The update of a layer: its part of the measured one, by parameters, else an estimate.
struct Updates {
  std::vector<double> seconds;  // of all layers together, one per iteration; empty: not measured
  double parameters = 0.0;      // of all layers together
};
Result<TimeStatistics> update_of(const Training& training, const Group& group, const Updates& updates) {
  if (updates.seconds.empty() || updates.parameters <= 0.0) {
    const auto estimate = estimate_of(training, group);
    if (!estimate) return fail(estimate.error());
    const double factor = 1.0 + expected_error(Basis::roofline, training.key.precision, training.kernels).wide;
    TimeStatistics times = TimeStatistics::single(estimate->update);
    times.low = estimate->update / factor;
    times.high = estimate->update * factor;
    return times;
  }
  std::vector<double> own = updates.seconds;
  for (double& seconds : own) seconds *= parameters_of(training, group) / updates.parameters;
  return summarize(own);
}
double all_parameters(const Training& training, const std::vector<Group>& groups) {
  double sum = 0.0;
  for (const Group& group : groups) sum += parameters_of(training, group) * group.size();
  return sum;
}
std::string update_note(bool measured) {
  return measured ? "the optimizer's time is divided among the layers by their parameters"
                  : "the optimizer was not recorded: update times are estimates";
}

template <class Value>
Result<void> fill_in(std::optional<Value>& fact, const std::optional<Value>& given, std::string_view file,
                     const char* option, const std::function<std::string(const Value&)>& text) {
  if (fact && given && !(*fact == *given))
    return fail(ErrorCode::invalid_input,
                fmt::format("{}: --{} says {} but the file says {}", file, option, text(*given), text(*fact)),
                fmt::format("leave out --{}", option));
  if (!fact) fact = given;
  return {};
}

}  // namespace

Result<TrainingFacts> joined(const TrainingFacts& of_file, const TrainingFacts& given, std::string_view file) {
  TrainingFacts facts = of_file;
  const std::function<std::string(const int&)> number = [](const int& value) { return fmt::to_string(value); };
  SAILOR_CHECK(fill_in<Precision>(facts.precision, given.precision, file, "precision",
                                  [](const Precision& value) { return std::string(to_string(value)); }));
  SAILOR_CHECK(fill_in<Recompute>(facts.recompute, given.recompute, file, "recompute",
                                  [](const Recompute& value) { return std::string(to_string(value)); }));
  SAILOR_CHECK(fill_in(facts.tensor_parallel, given.tensor_parallel, file, "tensor-parallel", number));
  SAILOR_CHECK(fill_in(facts.micro_batch, given.micro_batch, file, "micro-batch", number));
  SAILOR_CHECK(fill_in(facts.sequence_length, given.sequence_length, file, "sequence-length", number));
  SAILOR_CHECK(
      fill_in(facts.gradient_accumulation, given.gradient_accumulation, file, "gradient-accumulation", number));
  SAILOR_CHECK(fill_in<LayerRange>(facts.layers, given.layers, file, "layers", [](const LayerRange& value) {
    return fmt::format("{},{}", value.first, value.last);
  }));
  return facts;
}

int blocks_in(const Model& model, LayerRange layers) {
  return std::max(0, std::min(layers.last, model.blocks + 1) - std::max(layers.first, 1));
}

Result<Training> training_of(const Model& model, const GpuType& gpu, const TrainingFacts& facts,
                             const LayerKernels& kernels, int busy_ranks, std::string_view file) {
  std::vector<std::string> missing;
  if (!facts.micro_batch) missing.emplace_back("--micro-batch");
  if (!facts.sequence_length) missing.emplace_back("--sequence-length");
  if (!facts.precision) missing.emplace_back("--precision");
  if (!missing.empty())
    return fail(ErrorCode::usage, fmt::format("{}: the file does not say all that its times depend on", file),
                fmt::format("add {}", join(missing, ", ")));
  const LayerRange layers = facts.layers.value_or(LayerRange{0, model.layers()});
  if (layers.first < 0 || layers.first >= layers.last || layers.last > model.layers())
    return fail(ErrorCode::usage,
                fmt::format("--layers {},{} is no range of the {} layers of {}", layers.first, layers.last,
                            model.layers(), model.name),
                "layers are [FIRST, LAST): the embedding is 0, the first block 1");
  if (blocks_in(model, layers) < 2)
    return fail(ErrorCode::usage, fmt::format("{}: fewer than two blocks tell nothing", file),
                "record at least two blocks");
  return Training{.model = model,
                  .gpu = gpu,
                  .layers = layers,
                  .key = {.model = model.name,
                          .gpu = gpu.name,
                          .precision = *facts.precision,
                          .recompute = facts.recompute.value_or(Recompute::none),
                          .tensor_parallel = facts.tensor_parallel.value_or(1),
                          .micro_batch = *facts.micro_batch,
                          .sequence_length = *facts.sequence_length,
                          .busy_ranks = busy_ranks},
                  .kernels = kernels};
}

Result<TrainingRows> rows_of(const Training& training, const std::vector<RecordedTimes>& recorded) {
  const auto groups = groups_of(training.model, training.layers);
  TrainingRows result;
  Updates updates{.seconds = {}, .parameters = all_parameters(training, groups)};
  for (const RecordedTimes& times : recorded)
    updates.seconds.insert(updates.seconds.end(), times.updates.begin(), times.updates.end());

  // The last time of a pass is of all layers after the blocks.
  double last_forward = 0.0;
  double last_backward = 0.0;
  for (const Group& group : groups)
    if (group.kind == LayerKind::final_norm || group.kind == LayerKind::head) {
      const auto estimate = estimate_of(training, group);
      if (!estimate) return fail(estimate.error());
      last_forward += estimate->forward.value();
      last_backward += estimate->backward.value();
    }

  const int first_block = std::max(training.layers.first, 1);
  double idle = 0.0;
  double busy = 0.0;
  for (const Group& group : groups) {
    LayerTime row{.key = key_of(training, group)};
    double forward_share = 1.0;
    double backward_share = 1.0;
    if (group.kind == LayerKind::final_norm || group.kind == LayerKind::head) {
      const auto estimate = estimate_of(training, group);
      if (!estimate) return fail(estimate.error());
      if (last_forward > 0.0) forward_share = estimate->forward.value() / last_forward;
      if (last_backward > 0.0) backward_share = estimate->backward.value() / last_backward;
    }
    auto statistics = [&](auto of_pass, auto idle_of_pass, double share) {
      std::vector<std::vector<double>> batches;
      std::vector<double> gaps;
      for (const RecordedTimes& times : recorded)
        for (const PassTimes& pass : times.passes) {
          std::vector<double>& batch = batches.emplace_back();
          for (int layer = group.first; layer < group.last; ++layer) {
            const std::size_t index = group.kind == LayerKind::embedding ? 0
                                      : group.kind == LayerKind::block
                                          ? static_cast<std::size_t>(layer - first_block) + 1
                                          : of_pass(pass).size() - 1;
            batch.push_back(of_pass(pass)[index] * share);
            gaps.push_back(idle_of_pass(pass)[index] * share);
          }
        }
      TimeStatistics times = summarize_batches(batches);
      const Seconds gap(quantile(gaps, 0.5));
      times.high = std::max(times.high, times.median + gap);
      if (group.kind == LayerKind::block) {
        idle += gap.value();
        busy += times.median.value();
      }
      return times;
    };
    row.forward = statistics(
        [](const PassTimes& pass) -> const auto& { return pass.forward; },
        [](const PassTimes& pass) -> const auto& { return pass.forward_idle; }, forward_share);
    row.backward = statistics(
        [](const PassTimes& pass) -> const auto& { return pass.backward; },
        [](const PassTimes& pass) -> const auto& { return pass.backward_idle; }, backward_share);
    auto update = update_of(training, group, updates);
    if (!update) return fail(update.error());
    row.update = *update;
    result.times.push_back(std::move(row));
  }

  std::size_t passes = 0;
  int left_out = 0;
  double communication = 0.0;
  for (const RecordedTimes& times : recorded) {
    passes += times.passes.size();
    left_out += times.left_out;
    communication += times.communication;
  }
  result.notes.push_back(fmt::format("{} passes of a micro-batch; blocks are {}", passes, recorded.front().found_by));
  if (left_out > 0) result.notes.push_back(fmt::format("{} incomplete passes left out", left_out));
  result.notes.push_back(recorded.front().on_cpu ? "times of operations on the CPU, which recording makes longer"
                                                 : "times in which kernels run");
  if (busy > 0.0 && idle > 0.0)
    result.notes.push_back(
        fmt::format("between the {} of a block pass {:.0f}% of their time, which only the intervals "
                    "contain",
                    recorded.front().on_cpu ? "operations" : "kernels", 100.0 * idle / busy));
  if (communication > 0.0)
    result.notes.push_back(fmt::format("{:.3g} s of communication kernels kept out", communication));
  const bool separate_norm =
      std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.kind == LayerKind::final_norm; });
  result.notes.push_back(
      fmt::format("what precedes the blocks is the embedding, what follows them {}",
                  separate_norm ? "final norm and head, in proportion to their estimates" : "the head"));
  result.notes.push_back(update_note(!updates.seconds.empty()));
  return result;
}

Result<TrainingRows> rows_of(const Training& training, const std::vector<StageTimes>& iterations) {
  const auto groups = groups_of(training.model, training.layers);
  const double factor = 1.0 + expected_error(Basis::roofline, training.key.precision, training.kernels).wide;
  TrainingRows result;
  std::vector<LayerTimes> estimates;
  struct Sums {
    double blocks = 0.0;
    double others = 0.0;
  };
  Sums forward;
  Sums backward;
  for (const Group& group : groups) {
    const auto estimate = estimate_of(training, group);
    if (!estimate) return fail(estimate.error());
    estimates.push_back(*estimate);
    const bool block = group.kind == LayerKind::block;
    (block ? forward.blocks : forward.others) += estimate->forward.value() * group.size();
    (block ? backward.blocks : backward.others) += estimate->backward.value() * group.size();
  }
  Updates updates{.seconds = {}, .parameters = all_parameters(training, groups)};
  for (const StageTimes& times : iterations)
    if (times.update) updates.seconds.push_back((times.update->smallest + times.update->largest) / 2.0);

  for (std::size_t i = 0; i < groups.size(); ++i) {
    auto statistics = [&](StageTimes::Range StageTimes::*member, double own, const Sums& sums) {
      std::vector<double> middle;
      std::vector<double> smallest;
      std::vector<double> largest;
      for (const StageTimes& times : iterations) {
        const StageTimes::Range& range = times.*member;
        middle.push_back((range.smallest + range.largest) / 2.0);
        smallest.push_back(range.smallest);
        largest.push_back(range.largest);
      }
      const bool block = groups[i].kind == LayerKind::block;
      auto share = [&](double scale) {  // of the layer, if the estimates besides the blocks are `scale` times as large
        return own * (block ? 1.0 : scale) / (sums.blocks + sums.others * scale);
      };
      for (double& seconds : middle) seconds *= share(1.0);
      TimeStatistics times = summarize(middle);
      const auto [least, most] = std::minmax({share(1.0 / factor), share(1.0), share(factor)});
      times.low = std::min(times.low, Seconds(quantile(smallest, 0.5) * least));
      times.high = std::max(times.high, Seconds(quantile(largest, 0.5) * most));
      return times;
    };
    LayerTime row{.key = key_of(training, groups[i])};
    row.forward = statistics(&StageTimes::forward, estimates[i].forward.value(), forward);
    row.backward = statistics(&StageTimes::backward, estimates[i].backward.value(), backward);
    auto update = update_of(training, groups[i], updates);
    if (!update) return fail(update.error());
    row.update = *update;
    result.times.push_back(std::move(row));
  }
  result.notes.push_back(
      fmt::format("{} iterations; the measured sums of {} layers are divided among them in "
                  "proportion to their estimates",
                  iterations.size(), training.layers.size()));
  result.notes.push_back(update_note(!updates.seconds.empty()));
  return result;
}

}  // namespace sailor::traces
