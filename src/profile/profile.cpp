// Look-ups over measurements. Nothing here touches a file.
#include "profile/profile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>

namespace sailor {

namespace {

bool same_but_for_busy_ranks(LayerKey a, const LayerKey& b) {
  a.busy_ranks = b.busy_ranks;
  return a == b;
}

/// The fields of a layer key in the order in which a missing one is explained.
struct KeyField {
  const char* one;
  const char* many;
  std::function<std::string(const LayerKey&)> value;
  bool numeric = false;
};
const std::vector<KeyField>& key_fields() {
  static const std::vector<KeyField> fields{
      {"model", "models", [](const LayerKey& key) { return key.model; }},
      {"GPU", "GPUs", [](const LayerKey& key) { return key.gpu; }},
      {"precision", "precisions", [](const LayerKey& key) { return std::string(to_string(key.precision)); }},
      {"recompute", "recompute", [](const LayerKey& key) { return std::string(to_string(key.recompute)); }},
      {"tensor parallel", "tensor parallel", [](const LayerKey& key) { return fmt::to_string(key.tensor_parallel); },
       true},
      {"sequence length", "sequence lengths", [](const LayerKey& key) { return fmt::to_string(key.sequence_length); },
       true},
      {"micro-batch", "micro-batches", [](const LayerKey& key) { return fmt::to_string(key.micro_batch); }, true},
      {"layer kind", "layer kinds", [](const LayerKey& key) { return std::string(to_string(key.kind)); }}};
  return fields;
}

/// Which field of `key` no measurement has (given the fields before it), and the values that are there.
Error explain_missing(const LayerKey& key, const std::vector<LayerMeasurement>& layers) {
  std::vector<const LayerKey*> candidates;
  for (const LayerMeasurement& layer : layers) candidates.push_back(&layer.key);
  if (candidates.empty())
    return {ErrorCode::not_found, "the profile has no layer measurements", "run sailor-profile layers"};
  std::string found;  // "model tiny-gpt, GPU cpu"
  for (const KeyField& field : key_fields()) {
    const std::string wanted = field.value(key);
    std::vector<const LayerKey*> remaining;
    for (const LayerKey* candidate : candidates)
      if (field.value(*candidate) == wanted) remaining.push_back(candidate);
    if (remaining.empty()) {
      std::vector<std::string> present;
      for (const LayerKey* candidate : candidates) present.push_back(field.value(*candidate));
      std::sort(present.begin(), present.end(), [&](const std::string& a, const std::string& b) {
        return field.numeric ? std::stoll(a) < std::stoll(b) : a < b;
      });
      present.erase(std::unique(present.begin(), present.end()), present.end());
      return {ErrorCode::not_found,
              fmt::format("the profile has no layers of {} {}{}{} ({} there: {})", field.one, wanted,
                          found.empty() ? "" : " for ", found, field.many, fmt::join(present, ", ")),
              "measure them with sailor-profile layers"};
    }
    found += fmt::format("{}{} {}", found.empty() ? "" : ", ", field.one, wanted);
    candidates = std::move(remaining);
  }
  return {ErrorCode::not_found, "the profile has no such layer", {}};  // not reached: some field differs
}

/// Time of a message from a curve of (bytes -> seconds), at least one point.
double time_at(const std::map<double, double>& curve, double bytes) {
  const auto above = curve.lower_bound(bytes);
  if (above == curve.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == curve.end()) {
    // Bandwidth of the largest message; a message of no bytes has none.
    return below->first > 0.0 ? below->second * (bytes / below->first) : below->second;
  }
  const bool positive = below->first > 0.0 && below->second > 0.0 && above->second > 0.0;
  if (!positive) return std::lerp(below->second, above->second, (bytes - below->first) / (above->first - below->first));
  const double share = std::log(bytes / below->first) / std::log(above->first / below->first);
  return below->second * std::pow(above->second / below->second, share);
}

/// Steps of a ring all-reduce per byte: 2(n - 1)/n (Patarasuk & Yuan 2009).
double ring_factor(int ranks) { return 2.0 * (ranks - 1) / ranks; }

}  // namespace

std::string_view to_string(LinkOperation operation) {
  return operation == LinkOperation::send_receive ? "send_receive" : "all_reduce";
}
std::string_view to_string(LinkScope scope) { return scope == LinkScope::intra_node ? "intra_node" : "inter_node"; }

Profile::Profile(ProfileData data) : data_(std::move(data)) {
  for (std::size_t i = 0; i < data_.layers.size(); ++i) layers_[data_.layers[i].key] = i;
  for (const LinkMeasurement& link : data_.links) {
    const LinkKey key{.from = link.from_gpu,
                      .to = link.to_gpu,
                      .scope = link.scope,
                      .operation = link.operation,
                      .ranks = link.ranks};
    links_[key][link.message.value()] = link.time.median.value();
  }
}

Result<LayerMeasurement> Profile::layer(const LayerKey& key) const {
  if (const auto exact = layers_.find(key); exact != layers_.end()) return data_.layers[exact->second];
  // In the map busy_ranks and kind come last, so the candidates are neighbours in ascending order.
  LayerKey first = key;
  first.busy_ranks = 0;
  first.kind = LayerKind::embedding;
  const LayerMeasurement* below = nullptr;
  for (auto entry = layers_.lower_bound(first); entry != layers_.end(); ++entry) {
    LayerKey prefix = entry->first;
    prefix.kind = key.kind;
    if (!same_but_for_busy_ranks(prefix, key)) break;
    if (entry->first.kind != key.kind) continue;
    if (entry->first.busy_ranks >= key.busy_ranks) return data_.layers[entry->second];
    below = &data_.layers[entry->second];
  }
  if (below != nullptr) return *below;
  return fail(explain_missing(key, data_.layers));
}

Result<Seconds> Profile::send_time(const std::string& from_gpu, const std::string& to_gpu, LinkScope scope,
                                   Bytes message) const {
  for (const auto& [from, to] : {std::pair(from_gpu, to_gpu), std::pair(to_gpu, from_gpu)}) {
    const auto curve = links_.find(
        LinkKey{.from = from, .to = to, .scope = scope, .operation = LinkOperation::send_receive, .ranks = 2});
    if (curve != links_.end()) return Seconds(time_at(curve->second, message.value()));
  }
  std::set<std::string> present;
  for (const auto& [key, curve] : links_)
    if (key.operation == LinkOperation::send_receive)
      present.insert(fmt::format("{} - {} {}", key.from, key.to, to_string(key.scope)));
  return fail(ErrorCode::not_found,
              fmt::format("the profile has no send_receive between {} and {}, {} (there: {})", from_gpu, to_gpu,
                          to_string(scope), present.empty() ? "none" : fmt::format("{}", fmt::join(present, ", "))),
              "measure it with sailor-profile links");
}

Result<Seconds> Profile::all_reduce_time(const std::string& gpu, LinkScope scope, int ranks, Bytes message) const {
  if (ranks <= 1) return Seconds(0.0);
  const SizeCurve* nearest = nullptr;
  int nearest_ranks = 0;
  std::set<std::string> present;
  for (const auto& [key, curve] : links_) {
    if (key.operation != LinkOperation::all_reduce) continue;
    present.insert(fmt::format("{} {} over {} ranks", key.from, to_string(key.scope), key.ranks));
    if (key.from != gpu || key.to != gpu || key.scope != scope) continue;
    if (nearest == nullptr || std::abs(key.ranks - ranks) < std::abs(nearest_ranks - ranks)) {
      nearest = &curve;
      nearest_ranks = key.ranks;
    }
  }
  if (nearest == nullptr)
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no all_reduce between {}, {} (there: {})", gpu, to_string(scope),
                            present.empty() ? "none" : fmt::format("{}", fmt::join(present, ", "))),
                "measure it with sailor-profile links");
  return Seconds(time_at(*nearest, message.value()) * ring_factor(ranks) / ring_factor(nearest_ranks));
}

std::optional<Bytes> Profile::base_memory(const std::string& gpu, const std::string& framework) const {
  for (auto row = data_.processes.rbegin(); row != data_.processes.rend(); ++row)
    if (row->gpu == gpu && row->framework == framework) return row->base_memory;
  return std::nullopt;
}

std::vector<int> Profile::micro_batches(const std::string& model, const std::string& gpu, Precision precision,
                                        int tensor_parallel, int sequence_length) const {
  std::set<int> values;
  for (const auto& [key, index] : layers_)
    if (key.model == model && key.gpu == gpu && key.precision == precision && key.tensor_parallel == tensor_parallel &&
        key.sequence_length == sequence_length)
      values.insert(key.micro_batch);
  return {values.begin(), values.end()};
}

std::vector<int> Profile::tensor_parallel_degrees(const std::string& model, const std::string& gpu, Precision precision,
                                                  int sequence_length) const {
  std::set<int> values;
  for (const auto& [key, index] : layers_)
    if (key.model == model && key.gpu == gpu && key.precision == precision && key.sequence_length == sequence_length)
      values.insert(key.tensor_parallel);
  return {values.begin(), values.end()};
}

std::vector<int> Profile::sequence_lengths(const std::string& model, const std::string& gpu) const {
  std::set<int> values;
  for (const auto& [key, index] : layers_)
    if (key.model == model && key.gpu == gpu) values.insert(key.sequence_length);
  return {values.begin(), values.end()};
}

}  // namespace sailor
