#include "planner/baselines/galvatron_costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "planner/baselines/homogeneous.hpp"

namespace sailor::planner::baselines::galvatron_detail {
namespace {

constexpr double mebibyte = 1024.0 * 1024.0;
constexpr double bytes_of_float = 4.0;
constexpr double bytes_of_states = 20.0;  // per parameter: Adam 8, weight, gradient and communication 4 each
constexpr double context_mib = 1024.0;    // of PyTorch, in every process
constexpr double seconds_per_ms = 0.001;
constexpr double layers_summed = 4.0;  // activations all-reduced by a block's tensor parallelism, forward and backward
constexpr const char* published_model_name = "opt-350m-sailor";

/// The profile files of the artifact for OPT-350 (github.com/eth-easl/sailor, baselines/Galvatron/profiles/OPT-350, MIT
/// licence). Its layer times are older than the common profile's, model states are a quarter and activations 4 / T
/// times those measured (section 7).
struct PublishedProfile {
  const char* gpu;
  double forward_ms;  // 0: as the common profile
  double states_mib;
  std::array<double, 3> activation;  // tensor parallel 1, 2, 4
  OtherMemory whole, first, last;
  /// hw_prof.json: GiB/s of all-reduces over 2, 4, ... 128 ranks. That of GH200-96 comes from the common profile's
  /// links as collective() derives it; those of A100-40 and V100-16 are older. 0: none.
  std::array<double, 7> collectives{};
};
constexpr std::array<double, 7> collectives_of_a100_40{1.1006025245919653, 0.6990995026625999, 0.567914734910003,
                                                       0.4995609827542335, 0.4530042608714108, 0.41526601402574403,
                                                       0.38145740145552287};
constexpr std::array<double, 7> collectives_of_v100_16{0.9307518545108833, 0.5977694261330637, 0.47988441824577466,
                                                       0.4023776382069341, 0.3311849914750926, 0.25951962266594764,
                                                       0.1900500215807433};
constexpr std::array<double, 3> activation_of_a100{1344.0625, 352.03125, 96.5156};
constexpr PublishedProfile as_a100(const char* gpu, double forward_ms, const std::array<double, 7>& collectives = {}) {
  return {gpu, forward_ms, 48.0449, activation_of_a100, {557.4658, 0.0}, {362.9023, 0.0}, {729.4429, 0.0}, collectives};
}
constexpr std::array<PublishedProfile, 7> published_profiles{{as_a100("A100-40", 6.3, collectives_of_a100_40),
                                                              as_a100("A100-80", 2.076),
                                                              as_a100("GH200-96", 1.403),
                                                              as_a100("Titan-RTX", 0.0),
                                                              as_a100("RTX-2080", 0.0),
                                                              as_a100("RTX-3090", 0.0),
                                                              {"V100-16",
                                                               8.0,
                                                               240.2539,
                                                               {344.0156, 184.0156, 104.0156},
                                                               {1022.5, 8.0},
                                                               {1022.5, 8.0},
                                                               {982.539, 796.026},
                                                               collectives_of_v100_16}}};

/// overlap_coe_dicts.json, by GPUs of a node.
double overlap_of(std::string_view gpu, int gpus_per_node) {
  const bool is_v100 = gpu.starts_with("V100");
  switch (gpus_per_node) {
    case 1:
      return 1.0;
    case 2:
      return is_v100 ? 1.67 : 1.513;
    case 4:
      return is_v100 ? 1.34 : 1.227;
    default:
      return is_v100 ? 1.59 : 1.227;
  }
}

/// The share of the samples that is in flight at a stage.
double in_flight(const std::vector<double>& pieces, int stages_behind) {
  const auto end = std::min<std::ptrdiff_t>(stages_behind, std::ssize(pieces));
  return std::accumulate(pieces.begin(), pieces.begin() + end, 0.0) /
         std::accumulate(pieces.begin(), pieces.end(), 0.0);
}

/// Samples of one rank, as if there were no tensor parallelism.
double samples_of_rank(const Strategy& strategy, int batch) {
  return static_cast<double>(batch) / strategy.data_parallel / strategy.tensor_parallel;
}

std::vector<double> micro_batches_of(const Strategy& strategy, int batch, int micro_batch) {
  const int whole = batch / strategy.data_parallel / strategy.tensor_parallel;
  const int chunks = std::min((whole + micro_batch - 1) / micro_batch, whole);
  return pieces_of(samples_of_rank(strategy, batch), std::max(chunks, 1));
}

/// ms of a backward pass of `compute` ms while `message` MiB are all-reduced at `cost` ms per MiB.
double overlapped(double message, double cost, double compute, double slow_down) {
  const double summed = message * cost * slow_down;
  const double computed = compute * slow_down;
  if (summed > computed) return computed + (message - computed / (cost * slow_down)) * cost;
  if (summed < computed) return summed + (compute - summed / slow_down);
  return computed;
}

}  // namespace

double Profile::collective(int ranks, bool consecutive) const {
  if (ranks <= 1) return 0.0;
  if (!published_collectives.empty()) {
    // Linear interpolation between powers of two; more than 128 ranks, where the artifact ends with a key error, count
    // as 128.
    std::size_t index = 0;
    while (index + 1 < published_collectives.size() && (4 << index) <= ranks) ++index;
    const double below = published_collectives[index];
    const double above = published_collectives[std::min(index + 1, published_collectives.size() - 1)];
    return 1.0 / (below + (above - below) * std::min(1.0, static_cast<double>(ranks - (2 << index)) / (2 << index)));
  }
  const bool inside = consecutive && ranks <= gpus_per_node && inside_node != nullptr;
  const LinkCoefficients& link = inside ? *inside_node : *between_nodes;
  double bandwidth = 0.0;  // GiB/s, the mean of messages of 16 to 256 MiB
  constexpr std::array<double, 5> sizes{16.0, 32.0, 64.0, 128.0, 256.0};
  for (const double size : sizes) {
    const double bytes = size * mebibyte;
    bandwidth += bytes / link.all_reduce(bytes, ranks) / gib.value() / sizes.size();
  }
  if (algorithm_bandwidth) return 1.0 / bandwidth;  // GiB/s are taken for MiB/ms
  return 1.0 / (bandwidth * 2.0 * (ranks - 1) / ranks * 1024.0 * seconds_per_ms);
}

Result<Profile> galvatron_profile(const Problem& problem, const Offer& offer) {
  const Inputs& inputs = problem.inputs;
  const Faults faults = problem.faults;
  Profile profile;
  profile.blocks = inputs.blocks();
  profile.summed_mib = layers_summed * bytes_of_float * problem.job.sequence_length * inputs.model().hidden / mebibyte;
  profile.output_bytes = bytes_of_float * problem.job.sequence_length * inputs.model().hidden;
  profile.has_transfers = faults == Faults::fixed;
  const int head = 1 + inputs.blocks();  // and a final norm before it, where the model has one
  const std::vector<int> degrees = inputs.degrees(offer.gpu, 1);
  if (degrees.empty() || inputs.sizes(1) == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no layer {} of {} on {} with micro-batch 1",
                            degrees.empty() ? "times" : "sizes", inputs.model().name, offer.gpu),
                "Galvatron needs them; profile the model there");
  // As published: the time of the smallest degree, whatever it is.
  profile.forward_ms = inputs.times(offer.gpu, 1, degrees.front())->forward[1] / seconds_per_ms;
  if (faults == Faults::fixed) profile.forward_ms *= degrees.front();

  const auto published =
      std::find_if(published_profiles.begin(), published_profiles.end(), [&](const PublishedProfile& known) {
        return faults == Faults::kept && inputs.model().name == published_model_name && offer.gpu == known.gpu;
      });
  if (published != published_profiles.end()) {
    profile.is_published = true;
    if (published->forward_ms > 0.0) profile.forward_ms = published->forward_ms;
    profile.states_mib = published->states_mib;
    for (std::size_t i = 0; i < published->activation.size(); ++i)
      profile.activation[1 << i] = published->activation[i];
    profile.whole = published->whole;
    profile.first = published->first;
    profile.last = published->last;
    if (published->collectives.front() > 0.0)
      profile.published_collectives.assign(published->collectives.begin(), published->collectives.end());
  } else {
    const LayerSizes& sizes = *inputs.sizes(1);
    const auto other = [&](int first, int last) {
      return OtherMemory{bytes_of_states * sizes.parameters_of(first, last) / mebibyte,
                         bytes_of_float * sizes.activation_of(first, last) / mebibyte};
    };
    profile.states_mib = bytes_of_states * sizes.parameters[1] / mebibyte;
    for (const int degree : inputs.size_degrees())
      profile.activation[degree] = bytes_of_float * inputs.sizes(degree)->activation[1] / mebibyte;
    profile.first = other(0, 1);
    profile.last = other(head, inputs.layers());
    profile.whole = {profile.first.states + profile.last.states, profile.first.activation + profile.last.activation};
  }

  // The artifact's bandwidths were derived for nodes of one GPU.
  profile.gpus_per_node = faults == Faults::kept ? 1 : offer.gpus_per_node;
  profile.algorithm_bandwidth = faults == Faults::kept;
  profile.overlap = overlap_of(offer.gpu, profile.gpus_per_node);
  const auto link = node_link(inputs, offer.gpu, offer.zone, profile.gpus_per_node, faults);
  SAILOR_CHECK(link);
  profile.between_nodes = *link;
  if (profile.gpus_per_node > 1) profile.inside_node = inputs.intra(offer.gpu, profile.gpus_per_node);
  return profile;
}

std::vector<double> pieces_of(double samples, int chunks) {
  std::vector<double> pieces;
  const double size = std::max(1.0, std::ceil(samples / chunks));
  for (double left = samples; left > 0.0; left -= size) pieces.push_back(std::min(size, left));
  return pieces;
}

double layer_memory(const Profile& profile, const Strategy& strategy, int batch, int micro_batch, int stage) {
  const auto activation = profile.activation.find(strategy.tensor_parallel);
  if (activation == profile.activation.end()) return std::numeric_limits<double>::infinity();  // not measured
  const double share = in_flight(micro_batches_of(strategy, batch, micro_batch), strategy.pipeline_parallel - stage);
  return profile.states_mib / strategy.tensor_parallel + activation->second * share * batch / strategy.data_parallel;
}

std::vector<double> other_memory(const Profile& profile, const Strategy& strategy, int batch, int micro_batch) {
  const int stages = strategy.pipeline_parallel;
  const std::vector<double> pieces = micro_batches_of(strategy, batch, micro_batch);
  const double samples = samples_of_rank(strategy, batch);
  std::vector<double> memory(static_cast<std::size_t>(stages), context_mib);
  if (stages == 1) {
    memory.front() += profile.whole.states + profile.whole.activation * samples * in_flight(pieces, 1);
    return memory;
  }
  memory.front() += profile.first.states + profile.first.activation * samples * in_flight(pieces, stages);
  memory.back() += profile.last.states + profile.last.activation * samples * in_flight(pieces, 1);
  return memory;
}

double layer_time(const Profile& profile, const Strategy& strategy, double samples, bool with_gradients) {
  const int tensor = strategy.tensor_parallel;
  const int data = strategy.data_parallel;
  const double of_replica = samples / data;
  const double forward = profile.forward_ms * of_replica / tensor * profile.blocks;
  const double backward = 2.0 * forward;
  const double gradients =
      with_gradients ? 2.0 * (data - 1) / data * profile.states_mib / tensor * profile.blocks : 0.0;
  const double sums = 2.0 * (tensor - 1) / tensor * of_replica * profile.summed_mib * profile.blocks;
  const bool alone = tensor == 1 || data == 1;
  const double gradient_cost = profile.collective(data, alone || !strategy.consecutive);
  const double sum_cost = profile.collective(tensor, alone || strategy.consecutive);

  double ms = forward;
  if (data == 1)
    ms += backward + sums * sum_cost;
  else if (tensor == 1)
    ms += overlapped(gradients, gradient_cost, backward, profile.overlap);
  else if (tensor < tensor * data / 2)
    ms += overlapped(gradients, gradient_cost, backward, profile.overlap) + sums * sum_cost;
  else
    ms += backward / 2.0 + overlapped(gradients, gradient_cost, backward / 2.0, profile.overlap) + sums * sum_cost;
  return ms * seconds_per_ms / profile.blocks;
}

double layout_change(const Profile& profile, const Strategy& from, const Strategy& to, int batch) {
  const bool other_order = from.consecutive != to.consecutive;
  const bool is_special =
      to.tensor_parallel * to.data_parallel == 8 && from.tensor_parallel == 4 && to.tensor_parallel == 2 && other_order;
  const bool changes = to.tensor_parallel > from.tensor_parallel ||
                       (to.tensor_parallel == from.tensor_parallel && other_order) || is_special;
  if (!changes) return 0.0;
  const double degree = to.tensor_parallel;
  return (degree - 1.0) / degree * 2.0 * batch / to.data_parallel *
         profile.collective(to.tensor_parallel, to.consecutive) * seconds_per_ms;
}

double pipeline_time(const Profile& profile, const std::vector<std::vector<Strategy>>& stages, int batch, int chunks) {
  const Strategy& front = stages.front().front();
  const auto pieces = static_cast<double>(pieces_of(samples_of_rank(front, batch), chunks).size());
  const double samples = batch / pieces;
  double longest = 0.0;
  double before = 0.0;
  double exposed = 0.0;  // gradients that are not behind later stages' work
  // Time of activation and gradient over the link to the next stage, for one micro-batch.
  const double transfer = profile.has_transfers
                              ? 2.0 * profile.between_nodes->send(profile.output_bytes * samples / front.data_parallel)
                              : 0.0;
  for (const std::vector<Strategy>& stage : stages) {
    double with = &stage != &stages.back() ? transfer : 0.0;
    double without = with;
    for (const Strategy& strategy : stage) {
      with += layer_time(profile, strategy, samples, true);
      without += layer_time(profile, strategy, samples, false);
    }
    longest = std::max(longest, without);
    before += without;
    exposed = std::max(exposed, with - before);
  }
  return longest * (pieces - 1.0 + static_cast<double>(stages.size())) + exposed;
}

std::vector<int> blocks_of_stages(int blocks, int stages) {
  std::vector<int> counts(static_cast<std::size_t>(stages), blocks / stages);
  counts.back() += blocks % stages;
  return counts;
}

}  // namespace sailor::planner::baselines::galvatron_detail
