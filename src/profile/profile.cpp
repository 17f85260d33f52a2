// Look-ups over measurements. Nothing here touches a file.
#include "profile/profile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <set>

namespace sailor {

namespace {

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
template <class Row>
Error explain_missing(const LayerKey& key, const std::vector<Row>& layers, const std::string& what) {
  std::vector<const LayerKey*> candidates;
  for (const Row& layer : layers) candidates.push_back(&layer.key);
  if (candidates.empty())
    return {ErrorCode::not_found, fmt::format("the profile has no measurements of {}", what),
            "run sailor-profile layers"};
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
              fmt::format("the profile has no {} of {} {}{}{} ({} there: {})", what, field.one, wanted,
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

/// Of the rows that differ from `key` in busy_ranks and first_layer only: the ones with the nearest busy_ranks at or
/// above, else the nearest below; of them the last one that begins at or before key.first_layer, else the first.
/// In the map busy_ranks, kind and first_layer come last, so the candidates are neighbours in ascending order.
std::map<LayerKey, std::size_t>::const_iterator nearest(const std::map<LayerKey, std::size_t>& rows,
                                                        const LayerKey& key) {
  LayerKey first = key;
  first.busy_ranks = 0;
  first.kind = LayerKind::embedding;
  first.first_layer = 0;
  auto best = rows.end();
  for (auto entry = rows.lower_bound(first); entry != rows.end(); ++entry) {
    LayerKey like = entry->first;
    like.busy_ranks = key.busy_ranks;
    like.kind = key.kind;
    like.first_layer = key.first_layer;
    if (like != key) break;
    if (entry->first.kind != key.kind) continue;
    const int busy = entry->first.busy_ranks;
    if (best == rows.end() || (best->first.busy_ranks < key.busy_ranks && busy > best->first.busy_ranks))
      best = entry;
    else if (busy == best->first.busy_ranks && entry->first.first_layer <= key.first_layer)
      best = entry;
    else if (busy > best->first.busy_ranks)
      break;
  }
  return best;
}

/// The layer at which the row after `row` begins, when it differs in nothing else.
int end_of(const std::map<LayerKey, std::size_t>& rows, std::map<LayerKey, std::size_t>::const_iterator row) {
  const auto next = std::next(row);
  if (next == rows.end()) return std::numeric_limits<int>::max();
  LayerKey like = next->first;
  like.first_layer = row->first.first_layer;
  return like == row->first ? next->first.first_layer : std::numeric_limits<int>::max();
}

TimeStatistics scaled(TimeStatistics times, double factor) {
  for (Seconds TimeStatistics::*member : {&TimeStatistics::median, &TimeStatistics::p10, &TimeStatistics::p90,
                                          &TimeStatistics::low, &TimeStatistics::high})
    times.*member *= factor;
  return times;
}

}  // namespace

std::string_view to_string(LinkOperation operation) {
  switch (operation) {
    case LinkOperation::send_receive:
      return "send_receive";
    case LinkOperation::all_reduce:
      return "all_reduce";
    case LinkOperation::all_gather:
      return "all_gather";
    case LinkOperation::reduce_scatter:
      return "reduce_scatter";
  }
  return "?";
}
std::string_view to_string(LinkScope scope) { return scope == LinkScope::intra_node ? "intra_node" : "inter_node"; }
std::string_view to_string(UpdateScope scope) { return scope == UpdateScope::layer ? "layer" : "profiled_model"; }
std::string_view to_string(Origin origin) {
  switch (origin) {
    case Origin::measured:
      return "measured";
    case Origin::published:
      return "published";
    case Origin::interpolated:
      return "interpolated";
    case Origin::estimated:
      return "estimated";
  }
  return "?";
}

Profile::Profile(ProfileData data) : data_(std::move(data)) {
  for (std::size_t i = 0; i < data_.layer_times.size(); ++i) times_[data_.layer_times[i].key] = i;
  for (std::size_t i = 0; i < data_.layer_memory.size(); ++i) memory_[data_.layer_memory[i].key] = i;
  auto link = [&](const LinkKey& key, int session) -> Link& {
    for (const LinkEnd* end : {&key.from, &key.to})
      if (!end->zone.empty()) zones_.insert(end->zone);
    Link& found = links_[LinkRoute(key.from.gpu, key.to.gpu, key.scope, key.operation)][key];
    found.origin = origin_of(session);
    found.names_zones = !key.from.zone.empty();
    found.senders = key.from.ranks;
    return found;
  };
  for (const LinkFit& row : data_.fits) {
    Link& fitted = link(row.key, row.session);
    fitted.curve = row.curve;
    fitted.error = row.median_error / 0.6745;  // median of |x| of a normal distribution
  }
  for (const LinkMeasurement& row : data_.links) {
    Link& measured = link(row.key, row.session);
    if (measured.points.empty()) measured.error = 0.0;  // points count before the curve
    measured.points[row.message.value()] = row.time.median.value();
    measured.error = std::max(measured.error, row.time.relative_error());
  }
}

Origin Profile::origin_of(int session) const {
  const bool cited = session >= 0 && session < static_cast<int>(data_.sessions.size()) &&
                     !data_.sessions[static_cast<std::size_t>(session)].provenance.source.empty();
  return cited ? Origin::published : Origin::measured;
}

Profile::Rows::const_iterator Profile::find_memory(const LayerKey& key) const {
  // Memory does not depend on how many ranks are busy, nor, when published so, on the GPU; TF32 is stored as FP32.
  LayerKey wanted = key;
  wanted.busy_ranks = 1;
  std::vector<Precision> precisions{key.precision};
  if (key.precision == Precision::tf32) precisions.push_back(Precision::fp32);
  if (key.precision == Precision::fp32) precisions.push_back(Precision::tf32);
  for (const std::string& gpu : {key.gpu, std::string(any_gpu)})
    for (const Precision precision : precisions) {
      wanted.gpu = gpu;
      wanted.precision = precision;
      wanted.micro_batch = key.micro_batch;
      if (const auto exact = nearest(memory_, wanted); exact != memory_.end()) return exact;
      std::set<int> micro_batches;
      for (const auto& [other, index] : memory_) {
        LayerKey like = other;
        like.micro_batch = wanted.micro_batch;
        like.busy_ranks = wanted.busy_ranks;
        like.first_layer = wanted.first_layer;
        if (like == wanted) micro_batches.insert(other.micro_batch);
      }
      if (micro_batches.empty()) continue;
      const auto above = micro_batches.lower_bound(key.micro_batch);
      wanted.micro_batch = above == micro_batches.begin() ? *above : *std::prev(above);
      return nearest(memory_, wanted);
    }
  return memory_.end();
}

double Profile::share_of_update(const LayerTime& time, const LayerMemory& memory, const LayerKey& key) const {
  if (time.update_scope == UpdateScope::layer) return 1.0;
  double all = 0.0;
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::final_norm, LayerKind::head}) {
    LayerKey part = key;
    part.kind = kind;
    part.first_layer = std::numeric_limits<int>::max();
    const auto row = find_memory(part);
    if (row == memory_.end()) continue;
    const double parameters = static_cast<double>(data_.layer_memory[row->second].parameters);
    all += kind == LayerKind::block ? 2.0 * parameters : parameters;
  }
  return all > 0.0 ? static_cast<double>(memory.parameters) / all : 1.0;
}

Precision Profile::stored_precision(const std::string& model, const std::string& gpu, Precision wanted) const {
  if (wanted != Precision::tf32) return wanted;
  const auto has = [&](Precision precision) {
    const auto row = times_.lower_bound(LayerKey{.model = model,
                                                 .gpu = gpu,
                                                 .precision = precision,
                                                 .recompute = Recompute::none,
                                                 .tensor_parallel = 0,
                                                 .micro_batch = 0});
    return row != times_.end() && row->first.model == model && row->first.gpu == gpu &&
           row->first.precision == precision;
  };
  return !has(Precision::tf32) && has(Precision::fp32) ? Precision::fp32 : wanted;
}

Result<LayerCost> Profile::layer(const LayerKey& wanted) const {
  LayerKey key = wanted;
  key.precision = stored_precision(wanted.model, wanted.gpu, wanted.precision);
  const auto time_row = nearest(times_, key);
  if (time_row == times_.end()) return fail(explain_missing(key, data_.layer_times, "layers"));
  const auto memory_row = find_memory(key);
  if (memory_row == memory_.end()) return fail(explain_missing(key, data_.layer_memory, "layer memory"));
  const LayerTime& time = data_.layer_times[time_row->second];
  const LayerMemory& memory = data_.layer_memory[memory_row->second];
  const double scale = static_cast<double>(key.micro_batch) / memory.key.micro_batch;
  return LayerCost{.forward = time.forward,
                   .backward = time.backward,
                   .update = scaled(time.update, share_of_update(time, memory, key)),
                   .parameters = memory.parameters,
                   .activation = memory.activation * scale,
                   .output = memory.output * scale,
                   .workspace = memory.workspace * scale,
                   .last_layer = std::min(end_of(times_, time_row), end_of(memory_, memory_row)),
                   .origin = std::max(origin_of(time.session), origin_of(memory.session))};
}

const Profile::Link* Profile::find_link(const LinkKey& wanted, LinkKey* found) const {
  const auto route = links_.find(LinkRoute(wanted.from.gpu, wanted.to.gpu, wanted.scope, wanted.operation));
  if (route == links_.end()) return nullptr;
  // A zone that nobody measured is like any one zone.
  std::string from_zone = zones_.contains(wanted.from.zone) ? wanted.from.zone : "";
  std::string to_zone = zones_.contains(wanted.to.zone) ? wanted.to.zone : "";
  const bool same_zone = wanted.from.zone == wanted.to.zone;
  if (!same_zone && (from_zone.empty() || to_zone.empty())) from_zone = to_zone = "?";  // only rows without zones fit
  auto fits = [&](const LinkKey& key) {
    if (key.from.zone.empty() && key.to.zone.empty()) return true;
    if (from_zone.empty() && to_zone.empty()) return key.from.zone == key.to.zone;
    return key.from.zone == from_zone && key.to.zone == to_zone;
  };
  // Smaller is better: zones named; then too few ranks is worse than too many; then how far off.
  auto distance = [](int have, int want) { return have >= want ? have - want : (1 << 24) + want - have; };
  const Link* best = nullptr;
  auto best_score = std::tuple(2, 0, 0, 0);
  for (const auto& [key, link] : route->second) {
    if (!fits(key)) continue;
    const auto score = std::tuple(key.from.zone.empty() ? 1 : 0, std::abs(key.ranks - wanted.ranks),
                                  distance(key.from.ranks, wanted.from.ranks), distance(key.to.ranks, wanted.to.ranks));
    if (best == nullptr || score < best_score) {
      best = &link;
      best_score = score;
      if (found != nullptr) *found = key;
    }
  }
  return best;
}

std::string Profile::known_links(LinkOperation operation) const {
  std::set<std::string> present;
  for (const auto& [route, links] : links_) {
    const auto& [from, to, scope, known_operation] = route;
    if (known_operation != operation) continue;
    for (const auto& [key, link] : links) {
      const std::string zones = key.from.zone.empty()
                                    ? ""
                                    : fmt::format(" {}{}{}", key.from.zone, key.from.zone == key.to.zone ? "" : " - ",
                                                  key.from.zone == key.to.zone ? "" : key.to.zone);
      present.insert(fmt::format("{} - {} {}{}", from, to, to_string(scope), zones));
    }
  }
  constexpr std::size_t most = 12;
  const std::size_t more = present.size() > most ? present.size() - most : 0;
  while (present.size() > most) present.erase(std::prev(present.end()));
  if (present.empty()) return "none";
  return fmt::format("{}{}", fmt::join(present, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

int Profile::senders(const Link& link, const LinkEnd& from, LinkScope scope) {
  return scope == LinkScope::intra_node ? link.senders : std::max(link.senders, from.ranks);
}

Result<LinkTime> Profile::send_time(const LinkEnd& from, const LinkEnd& to, LinkScope scope, Bytes message) const {
  const LinkKey there{.from = from, .to = to, .scope = scope, .operation = LinkOperation::send_receive, .ranks = 2};
  LinkKey back = there;
  std::swap(back.from, back.to);
  const Link* link = find_link(there);
  // The way back counts when there is nothing else, or nothing else that names the zones.
  if (link == nullptr || !link->names_zones)
    if (const Link* reverse = find_link(back); reverse != nullptr && (link == nullptr || reverse->names_zones))
      link = reverse;
  if (link != nullptr)
    return LinkTime{link->points.empty() ? link->curve->time(message, senders(*link, from, scope))
                                         : Seconds(time_at(link->points, message.value())),
                    link->error, link->origin};
  const bool zones = from.zone != to.zone;
  return fail(ErrorCode::not_found,
              fmt::format("the profile has no send_receive between {}{} and {}{}, {} (there: {})", from.gpu,
                          zones ? " in " + from.zone : "", to.gpu, zones ? " in " + to.zone : "", to_string(scope),
                          known_links(LinkOperation::send_receive)),
              "measure it with sailor-profile links");
}

Result<LinkTime> Profile::all_reduce_time(const LinkEnd& from, const LinkEnd& to, LinkScope scope, int ranks,
                                          Bytes message, int rings) const {
  if (ranks <= 1) return LinkTime{};
  const auto with_senders = [&](const LinkEnd& end, int senders) {
    LinkEnd busy = end;
    busy.ranks = senders;
    return busy;
  };
  const LinkKey there{.from = from, .to = to, .scope = scope, .operation = LinkOperation::all_reduce, .ranks = ranks};
  LinkKey back = there;
  std::swap(back.from, back.to);
  for (const LinkKey& key : {there, back}) {
    LinkKey measured;
    if (const Link* link = find_link(key, &measured)) {
      const Seconds time = link->points.empty() ? link->curve->time(message, link->senders)
                                                : Seconds(time_at(link->points, message.value()));
      double slower = 1.0;
      if (rings > 1 && scope == LinkScope::inter_node) {
        const auto alone = send_time(with_senders(from, 1), with_senders(to, 1), scope, message);
        const auto beside = send_time(with_senders(from, rings), with_senders(to, rings), scope, message);
        if (alone && beside && alone->time > Seconds(0.0)) slower = std::max(1.0, beside->time / alone->time);
      }
      return LinkTime{time * (slower * ring_factor(ranks) / ring_factor(measured.ranks)), link->error, link->origin};
    }
  }
  // A ring moves 2(n - 1)/n of the message over every link (Patarasuk & Yuan 2009), in a stream: NCCL and MPI cut it
  // into pieces that follow each other, so it is the whole message's bandwidth that counts; 2(n - 1) steps take at
  // least their latency each.
  const auto whole = send_time(with_senders(from, rings), with_senders(to, rings), scope, message);
  const auto step = send_time(with_senders(from, rings), with_senders(to, rings), scope, Bytes(0.0));
  if (whole && step)
    return LinkTime{std::max(whole->time * ring_factor(ranks), step->time * (2.0 * (ranks - 1))), whole->error,
                    whole->origin};
  return fail(ErrorCode::not_found,
              fmt::format("the profile has no all_reduce or send_receive between {} and {}, {} (there: {}; {})",
                          from.gpu, to.gpu, to_string(scope), known_links(LinkOperation::all_reduce),
                          known_links(LinkOperation::send_receive)),
              "measure it with sailor-profile links");
}

std::optional<Bytes> Profile::base_memory(const std::string& gpu, const std::string& framework) const {
  for (auto row = data_.processes.rbegin(); row != data_.processes.rend(); ++row)
    if (row->gpu == gpu && row->framework == framework) return row->base_memory;
  return std::nullopt;
}

std::vector<int> Profile::micro_batches(const std::string& model, const std::string& gpu, Precision precision,
                                        int tensor_parallel, int sequence_length) const {
  precision = stored_precision(model, gpu, precision);
  std::set<int> values;
  for (const auto& [key, index] : times_)
    if (key.model == model && key.gpu == gpu && key.precision == precision && key.tensor_parallel == tensor_parallel &&
        key.sequence_length == sequence_length)
      values.insert(key.micro_batch);
  return {values.begin(), values.end()};
}

std::vector<int> Profile::tensor_parallel_degrees(const std::string& model, const std::string& gpu, Precision precision,
                                                  int sequence_length) const {
  precision = stored_precision(model, gpu, precision);
  std::set<int> values;
  for (const auto& [key, index] : times_)
    if (key.model == model && key.gpu == gpu && key.precision == precision && key.sequence_length == sequence_length)
      values.insert(key.tensor_parallel);
  return {values.begin(), values.end()};
}

std::vector<int> Profile::sequence_lengths(const std::string& model, const std::string& gpu) const {
  std::set<int> values;
  for (const auto& [key, index] : times_)
    if (key.model == model && key.gpu == gpu) values.insert(key.sequence_length);
  return {values.begin(), values.end()};
}

std::vector<Precision> Profile::precisions(const std::string& model) const {
  std::set<Precision> values;
  for (const auto& [key, index] : times_)
    if (key.model == model) values.insert(key.precision);
  return {values.begin(), values.end()};
}

}  // namespace sailor
