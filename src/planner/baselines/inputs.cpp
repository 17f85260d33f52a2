#include "planner/baselines/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>

#include "planner/artifact/published.hpp"

namespace sailor::planner::baselines {

namespace {

constexpr double bytes_per_gb = 1e9;
constexpr double bytes_per_mb = 1e6;

using artifact::bucket_bytes;
using artifact::bytes_per_float;
using artifact::default_zone;
using artifact::find_published_gpu;
using artifact::LayerRows;
using artifact::precision_of;
using artifact::PublishedGpu;
using artifact::row_of;

double sum(const std::vector<double>& values, int first, int last) {
  return std::accumulate(values.begin() + first, values.begin() + last, 0.0);
}

}  // namespace

double LayerTimes::compute(int first, int last) const {
  double seconds = 0.0;
  for (int layer = first; layer < last; ++layer) seconds += forward[layer] + backward[layer];
  return seconds;
}

double LayerSizes::parameters_of(int first, int last) const { return sum(parameters, first, last); }
double LayerSizes::activation_of(int first, int last) const { return sum(activation, first, last); }

double LinkCoefficients::bandwidth(double bytes) const {
  const double x = std::log2(bytes / bytes_per_mb);
  return (c[0] * x + c[1]) * x + c[2];
}

double LinkCoefficients::send(double bytes) const {
  return bytes > 0.0 ? bytes / bytes_per_gb / bandwidth(bytes) : 0.0;
}

double LinkCoefficients::all_reduce(double bytes, int ranks) const {
  return ranks > 1 && bytes > 0.0 ? 2.0 * (ranks - 1) * send(bytes / ranks) : 0.0;
}

double LinkCoefficients::bucketed_all_reduce(double bytes, int ranks) const {
  double seconds = 0.0;
  for (double left = bytes; ranks > 1 && left > 0.0; left -= bucket_bytes)
    seconds += all_reduce(std::min(left, bucket_bytes), ranks);
  return seconds;
}

Result<Inputs> Inputs::build(const TrainingJob& job, const Model& model, const Profile& profile,
                             const GpuCatalogue& catalogue) {
  Inputs inputs;
  inputs.model_ = &model;
  inputs.catalogue_ = &catalogue;
  inputs.layers_ = model.layers();
  inputs.blocks_ = model.blocks;
  const ProfileData& data = profile.data();
  const auto of_job = [&](const LayerKey& key) {
    return key.model == model.name && key.sequence_length == job.sequence_length && key.recompute == Recompute::none;
  };

  std::map<std::string, std::set<Precision>> precisions;
  for (const LayerTime& row : data.layer_times)
    if (of_job(row.key)) precisions[row.key.gpu].insert(row.key.precision);
  std::map<std::tuple<std::string, int, int>, LayerRows<LayerTime>> times;
  for (const LayerTime& row : data.layer_times) {
    const LayerKey& key = row.key;
    if (!of_job(key) || precision_of(precisions[key.gpu], job.precision) != key.precision) continue;
    auto& slot = times[{key.gpu, key.micro_batch, key.tensor_parallel}][{key.kind, key.first_layer}];
    if (slot == nullptr || key.busy_ranks < slot->key.busy_ranks) slot = &row;
  }
  for (const auto& [key, rows] : times) {
    LayerTimes entry;
    for (int layer = 0; layer < inputs.layers_; ++layer) {
      const LayerTime* row = row_of(rows, model.layer_kind(layer), layer);
      if (row == nullptr) break;
      entry.forward.push_back(row->forward.median.value());
      entry.backward.push_back(row->backward.median.value());
      entry.update.push_back(row->update.median.value());
    }
    const auto& [gpu, micro_batch, degree] = key;
    if (static_cast<int>(entry.forward.size()) == inputs.layers_)
      inputs.times_[gpu][micro_batch][degree] = std::move(entry);
  }

  // Sizes for any GPU type come before those for one.
  std::map<std::tuple<int, bool, std::string>, LayerRows<LayerMemory>> sizes;
  for (const LayerMemory& row : data.layer_memory)
    if (of_job(row.key) && row.key.micro_batch == 1)
      sizes[{row.key.tensor_parallel, row.key.gpu != any_gpu, row.key.gpu}].try_emplace(
          {row.key.kind, row.key.first_layer}, &row);
  for (const auto& [key, rows] : sizes) {
    LayerSizes entry;
    for (int layer = 0; layer < inputs.layers_; ++layer) {
      const LayerMemory* row = row_of(rows, model.layer_kind(layer), layer);
      if (row == nullptr) break;
      entry.parameters.push_back(static_cast<double>(row->parameters));
      entry.activation.push_back(row->activation.value() / bytes_per_float);
      entry.output.push_back(row->output.value() / bytes_per_float);
    }
    if (static_cast<int>(entry.parameters.size()) == inputs.layers_)
      inputs.sizes_.try_emplace(std::get<0>(key), std::move(entry));
  }
  if (inputs.times_.empty() || !inputs.sizes_.contains(1))
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no {} of {} with sequence length {}",
                            inputs.times_.empty() ? "layer times" : "layer sizes with tensor parallel 1", model.name,
                            job.sequence_length),
                "the published planners need them; import the published profiles or profile the model");

  for (const LinkFit& fit : data.fits) {
    if (fit.key.operation != LinkOperation::send_receive) continue;
    const LinkCoefficients link{.c = {fit.curve.quadratic, fit.curve.linear, fit.curve.constant},
                                .max_bandwidth = fit.curve.largest_bandwidth.value()};
    const LinkEnd& from = fit.key.from;
    const LinkEnd& to = fit.key.to;
    if (fit.key.scope == LinkScope::intra_node)  // half of the GPUs send to the other half
      inputs.intra_[{from.gpu, from.ranks + to.ranks}] = link;
    else
      inputs.inter_[{{from.gpu, from.zone, from.ranks}, {to.gpu, to.zone, to.ranks}}] = link;
  }
  return inputs;
}

std::vector<std::string> Inputs::gpus() const {
  std::vector<std::string> names;
  for (const auto& [gpu, times] : times_) names.push_back(gpu);
  return names;
}

std::vector<int> Inputs::micro_batches(std::string_view gpu) const {
  std::vector<int> sizes;
  if (const auto of_gpu = times_.find(gpu); of_gpu != times_.end())
    for (const auto& [micro_batch, degrees] : of_gpu->second) sizes.push_back(micro_batch);
  return sizes;
}

std::vector<int> Inputs::degrees(std::string_view gpu, int micro_batch) const {
  std::vector<int> found;
  const auto of_gpu = times_.find(gpu);
  if (of_gpu == times_.end()) return found;
  if (const auto of_size = of_gpu->second.find(micro_batch); of_size != of_gpu->second.end())
    for (const auto& [degree, times] : of_size->second)
      if (times.compute(0, layers_) > 0.0) found.push_back(degree);
  return found;
}

const LayerTimes* Inputs::times(std::string_view gpu, int micro_batch, int tensor_parallel) const {
  const auto of_gpu = times_.find(gpu);
  if (of_gpu == times_.end()) return nullptr;
  const auto of_size = of_gpu->second.find(micro_batch);
  if (of_size == of_gpu->second.end()) return nullptr;
  const auto found = of_size->second.find(tensor_parallel);
  return found == of_size->second.end() ? nullptr : &found->second;
}

const LayerSizes* Inputs::sizes(int tensor_parallel) const {
  const auto found = sizes_.find(tensor_parallel);
  return found == sizes_.end() ? nullptr : &found->second;
}

std::vector<int> Inputs::size_degrees() const {
  std::vector<int> degrees;
  for (const auto& [degree, sizes] : sizes_) degrees.push_back(degree);
  return degrees;
}

const LinkCoefficients* Inputs::inter(std::string_view from_gpu, std::string_view from_zone, int senders,
                                      std::string_view to_gpu, std::string_view to_zone, int receivers) const {
  // A zone that no link names has the links of the default zone; links without zones hold anywhere.
  const auto is_named = [&](std::string_view zone) {
    return std::any_of(inter_.begin(), inter_.end(), [&](const auto& entry) {
      return std::get<1>(entry.first.first) == zone || std::get<1>(entry.first.second) == zone;
    });
  };
  const auto find = [&](std::string_view from, std::string_view to) {
    const auto found = inter_.find(
        {{std::string(from_gpu), std::string(from), senders}, {std::string(to_gpu), std::string(to), receivers}});
    return found == inter_.end() ? nullptr : &found->second;
  };
  if (const auto* link = find(from_zone, to_zone)) return link;
  if (const auto* link =
          find(is_named(from_zone) ? from_zone : default_zone, is_named(to_zone) ? to_zone : default_zone))
    return link;
  return find("", "");
}

std::vector<int> Inputs::senders(std::string_view gpu, std::string_view zone) const {
  std::set<int> numbers;
  for (const auto& [ends, link] : inter_) {
    const auto& [from_gpu, from_zone, senders] = ends.first;
    if (from_gpu == gpu && inter(gpu, zone, senders, gpu, zone, senders) != nullptr) numbers.insert(senders);
  }
  return {numbers.begin(), numbers.end()};
}

const LinkCoefficients* Inputs::intra(std::string_view gpu, int ranks) const {
  const auto found = intra_.find({std::string(gpu), ranks});
  return found == intra_.end() ? nullptr : &found->second;
}

double Inputs::memory(std::string_view gpu) const {
  if (const PublishedGpu* known = find_published_gpu(gpu)) return known->memory_gib * gib.value();
  const auto type = catalogue_->find(gpu);
  return type ? type->memory.value() : 0.0;
}

double Inputs::configured_memory(std::string_view gpu) const {
  const PublishedGpu* known = find_published_gpu(gpu);
  return known != nullptr && known->configured_bytes > 0.0 ? known->configured_bytes : memory(gpu);
}

double Inputs::price(std::string_view gpu) const {
  const PublishedGpu* known = find_published_gpu(gpu);
  if (known != nullptr && known->usd_per_hour > 0.0) return known->usd_per_hour;
  const auto type = catalogue_->find(gpu);
  return type ? type->price.value() : 0.0;
}

double Inputs::egress_price(std::string_view from_zone, std::string_view to_zone) {
  if (from_zone == to_zone) return 0.0;
  return region_of(from_zone) == region_of(to_zone) ? 0.01 : 0.02;
}

}  // namespace sailor::planner::baselines
