#include "planner/baselines/varuna_costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "planner/baselines/homogeneous.hpp"

namespace sailor::planner::baselines::varuna_detail {
namespace {

constexpr double float_bytes = 4.0;
constexpr double parameter_state_bytes = 24.0;  // Adam 8, weight, gradient, communication and a copy 4 each

/// `mem_required` of the artifact's profile_4.json for OPT-350 (github.com/eth-easl/sailor, baselines/Varuna/profiles,
/// MIT licence): the peak of forward, backward and optimizer step of one layer alone with tensor parallel 4, in bytes,
/// by micro-batch 1, 2, 4, 8.
using PeakBytes = std::array<double, 4>;
constexpr const char* measured_model = "opt-350m-sailor";
constexpr int measured_degree = 4;
constexpr PeakBytes embedding_peak{292813004.8, 351132723.2, 450602752.0, 656296960.0};
constexpr PeakBytes block_peak{390031974.4, 708840038.4, 1346456166.4, 2622514176.0};
constexpr PeakBytes head_peak{610759270.4, 1030582886.4, 1890706841.6, 3610954752.0};

}  // namespace

double Costs::output(int layer, int micro_batch) const {
  return float_bytes * sizes->output[layer] * micro_batch / tensor_parallel;
}

double Costs::gradient_bytes(int first, int last) const { return float_bytes * sizes->parameters_of(first, last); }

double Costs::workspace(int layer, int micro_batch) const {
  constexpr double score_matrices = 3.0;
  const double output_floats = sizes->output[layer];
  if (inputs.model().layer_kind(layer) != LayerKind::block) return float_bytes * micro_batch * 2.0 * output_floats;
  const double scores = static_cast<double>(inputs.model().attention_heads) * sequence_length * sequence_length;
  return float_bytes * micro_batch * (score_matrices * scores / tensor_parallel + output_floats);
}

double Costs::peak(int layer, int micro_batch) const {
  if (is_measured) {
    const auto index = static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(micro_batch)));
    return (layer == 0 ? embedding_peak : layer + 1 == layers() ? head_peak : block_peak)[index];
  }
  return parameter_state_bytes * sizes->parameters[layer] + float_bytes * micro_batch * sizes->activation[layer] +
         workspace(layer, micro_batch);
}

double Costs::published_memory(const LayerRange& range, int micro_batch) const {
  double bytes = range.first < range.last ? output(range.last - 1, micro_batch) : 0.0;
  for (int layer = range.first; layer < range.last; ++layer)
    bytes += peak(layer, micro_batch) - output(layer, micro_batch);
  return bytes;
}

double Costs::true_memory(const LayerRange& range, int micro_batch, int in_flight) const {
  double bytes = 0.0;
  double largest = 0.0;
  for (int layer = range.first; layer < range.last; ++layer) {
    bytes += parameter_state_bytes * sizes->parameters[layer] +
             float_bytes * micro_batch * in_flight * sizes->activation[layer];
    largest = std::max(largest, workspace(layer, micro_batch));
  }
  return bytes + largest;
}

Result<Costs> varuna_costs(const Problem& problem, const Offer& offer, int tensor_parallel) {
  Costs costs{.inputs = problem.inputs, .gpu = offer.gpu, .tensor_parallel = tensor_parallel};
  costs.sizes = problem.inputs.sizes(tensor_parallel);
  if (costs.sizes == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no layer sizes of {} with tensor parallel {}", problem.inputs.model().name,
                            tensor_parallel),
                "Varuna takes a node for one worker and needs them; profile the model at this degree");
  const auto link = node_link(problem.inputs, offer.gpu, offer.zone, offer.gpus_per_node, problem.faults);
  SAILOR_CHECK(link);
  costs.link = *link;
  costs.sequence_length = problem.job.sequence_length;
  costs.is_measured = problem.faults == Faults::kept && problem.inputs.model().name == measured_model &&
                      tensor_parallel == measured_degree;
  return costs;
}

}  // namespace sailor::planner::baselines::varuna_detail
