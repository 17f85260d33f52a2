#include "planner/baselines/aceso_operators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace sailor::planner::baselines::aceso_detail {

namespace {

constexpr double bytes_per_float = 4.0;
constexpr double bytes_per_token = 8.0;  // an index
constexpr double bytes_per_gb = 1e9;
constexpr int curve_points = 11;  // 1 MB to 1024 MB
/// Time that the artifact assumes for an operator that was not measured.
constexpr double unmeasured_seconds = 1.0;
/// FLOP that take as long as one byte: an A100 has 156 TFLOP/s (TF32) and 1.56 TB/s.
constexpr double flop_per_byte = 100.0;

/// Work of an operator in the forward pass on one device: FLOP, and values (4 bytes) that it reads, writes, holds as
/// weights and keeps.
struct Work {
  double flop = 0.0;
  double input = 0.0;
  double output = 0.0;
  double weights = 0.0;
  double kept = 0.0;

  /// The operator's share of the layer's time is in proportion to this.
  [[nodiscard]] double weight() const { return flop / flop_per_byte + (input + output + weights) * bytes_per_float; }
};

/// The 13 operators of a block with `batch` sequences on `degree` devices; Megatron's column and row split (Aceso's
/// algorithm 0, which its primitives never leave).
std::vector<Work> block_work(const Model& model, double sequence, double batch, double degree) {
  const double hidden = model.hidden;
  const double tokens = sequence * batch;
  const double stream = tokens * hidden;  // whole on every device
  const double queries = hidden / degree;
  const double keys = model.key_value_heads * model.head_width() / degree;  // the same for the values
  const double scores = batch * model.attention_heads * sequence * sequence / degree;
  const double inner = model.feed_forward / degree;
  const double gates = model.activation == Activation::swiglu ? 2.0 : 1.0;
  const auto product = [&](double from, double to) { return 2.0 * tokens * from * to; };
  const double attention = 2.0 * tokens * sequence * queries;
  const double split = tokens * (queries + 2.0 * keys);
  const double wide = tokens * inner;
  return {
      {.input = stream, .output = stream, .weights = 2.0 * hidden, .kept = stream},                     // 1st-layernorm
      {product(hidden, queries + 2.0 * keys), stream, split, hidden * (queries + 2.0 * keys), stream},  // qkv
      {attention, tokens * (queries + keys), scores, 0.0, tokens * (queries + keys)},                   // score
      {.input = scores, .output = scores, .kept = scores},                                              // softmax
      {.input = scores, .output = scores, .kept = 1.25 * scores},                 // dropout: a mask of bytes too
      {attention, scores + tokens * keys, tokens * queries, 0.0, tokens * keys},  // context
      {product(queries, hidden), tokens * queries, stream, hidden * queries, tokens * queries},  // dense
      {.input = 2.0 * stream, .output = stream, .kept = 0.25 * stream},              // post-attention-dropout, residual
      {.input = stream, .output = stream, .weights = 2.0 * hidden, .kept = stream},  // 2nd-layernorm
      {product(hidden, gates * inner), stream, gates * wide, gates * hidden * inner, stream},  // MLP-GEMM-1
      {.input = gates * wide, .output = wide, .kept = gates * wide},                           // gelu
      {product(inner, hidden), wide, stream, hidden * inner, wide},                            // MLP-GEMM-2
      {.input = 2.0 * stream, .output = stream, .kept = 0.25 * stream},  // post-MLP-dropout, residual
  };
}

std::vector<Work> layer_work(const Model& model, LayerKind kind, double sequence, double batch, double degree) {
  const double tokens = sequence * batch;
  const double stream = tokens * model.hidden;
  const double logits = tokens * model.vocabulary / degree;
  const double matrix = static_cast<double>(model.hidden) * model.vocabulary / degree;
  const Work norm{.input = stream, .output = stream, .weights = 2.0 * model.hidden, .kept = stream};
  const Work head{.flop = 2.0 * tokens * model.hidden * model.vocabulary / degree,
                  .input = stream,
                  .output = logits,
                  .weights = matrix,
                  .kept = stream + 2.0 * logits};
  switch (kind) {
    case LayerKind::embedding:
      return {
          {.input = tokens * bytes_per_token / bytes_per_float, .output = stream, .weights = matrix, .kept = stream}};
    case LayerKind::block:
      return block_work(model, sequence, batch, degree);
    case LayerKind::final_norm:
      return {norm};
    case LayerKind::head:
      break;
  }
  if (model.has_norm_in_head() && !model.has_separate_norm()) return {norm, head};
  return {head};
}

/// Appends the operators' shares of a layer's total to the prefix sums.
void share(double total, const std::vector<Work>& work, const std::function<double(const Work&)>& weight,
           std::vector<double>& sums) {
  double whole = 0.0;
  for (const Work& entry : work) whole += weight(entry);
  for (const Work& entry : work) sums.push_back(sums.back() + (whole > 0.0 ? total * weight(entry) / whole : 0.0));
}

std::vector<double> bandwidths(const LinkCoefficients& link) {
  std::vector<double> curve;
  for (int point = 0; point < curve_points; ++point)
    curve.push_back(std::max(link.bandwidth(std::ldexp(mib.value(), point)) * bytes_per_gb, 1.0));
  return curve;
}

}  // namespace

Result<Operators> Operators::build(const Inputs& inputs, const TrainingJob& job, const Site& site) {
  const Model& model = inputs.model();
  const double sequence = job.sequence_length;
  Operators operators;
  operators.site_ = site;
  for (int layer = 0; layer < model.layers(); ++layer) {
    operators.first_of_layer_.push_back(operators.count());
    operators.layer_.insert(operators.layer_.end(), layer_work(model, model.layer_kind(layer), 1.0, 1.0, 1.0).size(),
                            layer);
  }
  operators.first_of_layer_.push_back(operators.count());

  for (const int batch : micro_batches)
    for (int degree = 1; degree <= site.largest_group(); degree *= 2) {
      const LayerTimes* times = inputs.times(site.gpu, batch, degree);
      const LayerSizes* sizes = inputs.sizes(degree);
      OperatorCosts costs;
      costs.measured = times != nullptr && times->compute(0, model.layers()) > 0.0 && sizes != nullptr;
      if (sizes == nullptr) sizes = inputs.sizes(1);
      costs.time_sum = costs.parameter_sum = costs.activation_sum = {0.0};
      for (int layer = 0; layer < model.layers(); ++layer) {
        const auto at = static_cast<std::size_t>(layer);
        const auto work = layer_work(model, model.layer_kind(layer), sequence, batch, degree);
        const double seconds = costs.measured ? times->forward[at] + times->backward[at]
                                              : unmeasured_seconds * static_cast<double>(work.size());
        share(
            seconds, work, [](const Work& entry) { return entry.weight(); }, costs.time_sum);
        share(
            sizes->parameters[at] * bytes_per_float, work, [](const Work& entry) { return entry.weights; },
            costs.parameter_sum);
        share(
            sizes->activation[at] * bytes_per_float * batch, work, [](const Work& entry) { return entry.kept; },
            costs.activation_sum);
        for (const Work& entry : work) {
          costs.input.push_back(entry.input * bytes_per_float);
          costs.output.push_back(entry.output * bytes_per_float);
        }
      }
      // The loss is the only output of the model.
      costs.output.back() = sequence * batch * bytes_per_float;
      operators.costs_[{batch, degree}] = std::move(costs);
    }

  if (std::none_of(operators.costs_.begin(), operators.costs_.end(),
                   [](const auto& entry) { return entry.second.measured; }))
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no times of {} on {} with tensor parallel up to {} inside a node",
                            model.name, site.gpu, site.largest_group()),
                "Aceso's operators are derived from them; import or measure them");

  const LinkCoefficients* inside = inputs.intra(site.gpu, 2);
  const LinkCoefficients* between = inputs.inter(site.gpu, site.zone, 1, site.gpu, site.zone, 1);
  if (inside == nullptr && between == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no links between {} in zone '{}'", site.gpu, site.zone),
                "Aceso needs one, inside a node or between nodes; import or measure it");
  operators.inside_ = bandwidths(inside != nullptr ? *inside : *between);
  operators.between_ = bandwidths(between != nullptr ? *between : *inside);
  return operators;
}

LayerRange Operators::of_layers(LayerRange layers) const {
  return {first_of_layer_[static_cast<std::size_t>(layers.first)],
          first_of_layer_[static_cast<std::size_t>(layers.last)]};
}

int Operators::nearest_layer(int operator_index) const {
  if (operator_index >= count()) return layers();
  const int layer = layer_[static_cast<std::size_t>(operator_index)];
  const LayerRange whole = of_layers({layer, layer + 1});
  const OperatorCosts& one = costs(1, 1);
  return one.time({whole.first, operator_index}) < one.time({operator_index, whole.last}) ? layer : layer + 1;
}

double Operators::send(double bytes, bool between_nodes) const {
  // The artifact's look-up: its index is one too low, and counts from the end below 1 MB.
  int entry = bytes > 0.0 ? static_cast<int>(std::log2(bytes / mib.value())) : 0;
  if (entry >= 1) --entry;
  entry = std::clamp(entry, -curve_points, curve_points - 1);
  if (entry < 0) entry += curve_points;
  return bytes / (between_nodes ? between_ : inside_)[static_cast<std::size_t>(entry)];
}

}  // namespace sailor::planner::baselines::aceso_detail
