// Look-ups in measurements. Does no file I/O.
#include "profile/profile.hpp"
#include "core/assert.hpp"
#include "core/text.hpp"
#include "profile/advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <set>

namespace sailor {

namespace {

/// The fields of a layer key, in the order in which a missing one is reported.
struct KeyField {
  const char* one;
  const char* many;
  std::function<std::string(const LayerKey&)> value;
  bool (*same)(const LayerKey&, const LayerKey&);
  bool numeric = false;
};
const std::vector<KeyField>& key_fields() {
  static const std::vector<KeyField> fields{
      {"model", "models", [](const LayerKey& key) { return key.model; },
       [](const LayerKey& a, const LayerKey& b) { return a.model == b.model; }},
      {"GPU", "GPUs", [](const LayerKey& key) { return key.gpu; },
       [](const LayerKey& a, const LayerKey& b) { return a.gpu == b.gpu; }},
      {"precision", "precisions", [](const LayerKey& key) { return std::string(to_string(key.precision)); },
       [](const LayerKey& a, const LayerKey& b) { return a.precision == b.precision; }},
      {"recompute", "recompute", [](const LayerKey& key) { return std::string(to_string(key.recompute)); },
       [](const LayerKey& a, const LayerKey& b) { return a.recompute == b.recompute; }},
      {"tensor parallel", "tensor parallel", [](const LayerKey& key) { return fmt::to_string(key.tensor_parallel); },
       [](const LayerKey& a, const LayerKey& b) { return a.tensor_parallel == b.tensor_parallel; }, true},
      {"sequence length", "sequence lengths", [](const LayerKey& key) { return fmt::to_string(key.sequence_length); },
       [](const LayerKey& a, const LayerKey& b) { return a.sequence_length == b.sequence_length; }, true},
      {"micro-batch", "micro-batches", [](const LayerKey& key) { return fmt::to_string(key.micro_batch); },
       [](const LayerKey& a, const LayerKey& b) { return a.micro_batch == b.micro_batch; }, true},
      {"layer kind", "layer kinds", [](const LayerKey& key) { return std::string(to_string(key.kind)); },
       [](const LayerKey& a, const LayerKey& b) { return a.kind == b.kind; }}};
  return fields;
}

/// Names the field of `key` that no measurement has (given the fields before it), and the values that exist.
template <class Row>
Error explain_missing(const LayerKey& key, const std::vector<Row>& layers, const std::string& what) {
  std::vector<const LayerKey*> candidates;
  for (const Row& layer : layers) candidates.push_back(&layer.key);
  if (candidates.empty())
    return {ErrorCode::not_found, fmt::format("the profile has no measurements of {}", what),
            layers_advice(key.precision, std::nullopt)};
  std::string found;  // "model tiny-gpt, GPU cpu"
  for (const KeyField& field : key_fields()) {
    const std::string wanted = field.value(key);
    std::vector<const LayerKey*> remaining;
    for (const LayerKey* candidate : candidates)
      if (field.same(*candidate, key)) remaining.push_back(candidate);
    if (remaining.empty()) {
      std::vector<std::string> present;
      for (const LayerKey* candidate : candidates) present.push_back(field.value(*candidate));
      std::sort(present.begin(), present.end(), [&](const std::string& a, const std::string& b) {
        return field.numeric ? std::stoll(a) < std::stoll(b) : a < b;
      });
      present.erase(std::unique(present.begin(), present.end()), present.end());
      return {ErrorCode::not_found,
              fmt::format("the profile has no {} of {} {}{}{} ({} there: {})", what, field.one, wanted,
                          found.empty() ? "" : " for ", found, field.many, join(present, ", ")),
              layers_advice(key.precision, std::nullopt)};
    }
    found += fmt::format("{}{} {}", found.empty() ? "" : ", ", field.one, wanted);
    candidates = std::move(remaining);
  }
  return {ErrorCode::not_found, "the profile has no such layer", {}};  // unreachable: some field differs
}

/// Time of a message from a curve of (bytes -> seconds), at least one point.
double time_at(const std::map<double, double>& curve, double bytes) {
  SAILOR_ASSERT(!curve.empty() && bytes >= 0.0, "a link has no measured message, or the message is negative");
  const auto above = curve.lower_bound(bytes);
  if (above == curve.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == curve.end()) {
    // Bandwidth of the largest message; an empty message has none.
    return below->first > 0.0 ? below->second * (bytes / below->first) : below->second;
  }
  const bool positive = below->first > 0.0 && below->second > 0.0 && above->second > 0.0;
  if (!positive) return std::lerp(below->second, above->second, (bytes - below->first) / (above->first - below->first));
  const double share = std::log(bytes / below->first) / std::log(above->first / below->first);
  return below->second * std::pow(above->second / below->second, share);
}

/// Steps of a ring all-reduce per byte: 2(n - 1)/n (Patarasuk & Yuan 2009).
double ring_factor(int ranks) { return 2.0 * (ranks - 1) / ranks; }

/// `key` at another precision and device.
LayerRows::Series series_of(const LayerKey& key, Precision precision, std::string_view gpu) {
  return {.model = key.model,
          .gpu = gpu,
          .precision = precision,
          .recompute = key.recompute,
          .tensor_parallel = key.tensor_parallel,
          .sequence_length = key.sequence_length};
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

std::size_t LayerRows::Hash::operator()(const Series& series) const {
  const auto mixed = [](std::size_t hash, std::size_t value) {
    return (hash ^ value) * 0x9e3779b97f4a7c15ULL + (hash >> 29);
  };
  std::size_t hash = std::hash<std::string_view>()(series.model);
  hash = mixed(hash, std::hash<std::string_view>()(series.gpu));
  for (const int value : {static_cast<int>(series.precision), static_cast<int>(series.recompute),
                          series.tensor_parallel, series.sequence_length})
    hash = mixed(hash, static_cast<std::size_t>(value));
  return hash ^ (hash >> 32);
}

void LayerRows::add(const LayerKey& key, std::size_t index) {
  const Series series = series_of(key, key.precision, key.gpu);
  auto found = series_.find(series);
  if (found == series_.end()) {
    Key own{.model = key.model, .gpu = key.gpu, .rest = series};
    own.rest.model = own.rest.gpu = {};
    found = series_.emplace(std::move(own), std::vector<Group>()).first;
  }
  std::vector<Group>& groups = found->second;
  auto group = std::lower_bound(groups.begin(), groups.end(), key.micro_batch,
                                [](const Group& other, int micro_batch) { return other.micro_batch < micro_batch; });
  if (group == groups.end() || group->micro_batch != key.micro_batch)
    group = groups.insert(group, {.micro_batch = key.micro_batch, .rows = {}});
  const Row added{.busy_ranks = key.busy_ranks, .kind = key.kind, .first_layer = key.first_layer, .index = index};
  const auto row = std::lower_bound(group->rows.begin(), group->rows.end(), added,
                                    [](const Row& a, const Row& b) { return a.position() < b.position(); });
  if (row != group->rows.end() && row->position() == added.position())
    row->index = index;
  else
    group->rows.insert(row, added);
  SAILOR_ASSERT(
      std::adjacent_find(groups.begin(), groups.end(),
                         [](const Group& a, const Group& b) { return a.micro_batch >= b.micro_batch; }) == groups.end(),
      "micro-batch sizes of a profile are not ascending, or one is there twice");
}

LayerRows::Found LayerRows::nearest(const Group& group, int busy_ranks, LayerKind kind, int first_layer) {
  const Row* best = nullptr;
  for (const Row& row : group.rows) {
    if (row.kind != kind) continue;
    if (best == nullptr || (best->busy_ranks < busy_ranks && row.busy_ranks > best->busy_ranks) ||
        (row.busy_ranks == best->busy_ranks && row.first_layer <= first_layer))
      best = &row;
    else if (row.busy_ranks > best->busy_ranks)
      break;
  }
  if (best == nullptr) return {};
  const Row* const next = best + 1;
  const bool ends =
      next != group.rows.data() + group.rows.size() && next->kind == best->kind && next->busy_ranks == best->busy_ranks;
  return {.row = best, .end_layer = ends ? next->first_layer : std::numeric_limits<int>::max()};
}

LayerRows::Found LayerRows::find(const Series& series, int micro_batch, int busy_ranks, LayerKind kind,
                                 int first_layer) const {
  const auto found = series_.find(series);
  if (found == series_.end()) return {};
  for (const Group& group : found->second)
    if (group.micro_batch == micro_batch) return nearest(group, busy_ranks, kind, first_layer);
  return {};
}

LayerRows::Found LayerRows::find_near(const Series& series, int micro_batch, int busy_ranks, LayerKind kind,
                                      int first_layer) const {
  const auto found = series_.find(series);
  if (found == series_.end()) return {};
  Found best;
  for (const Group& group : found->second) {
    if (best && group.micro_batch > micro_batch) break;
    if (const Found here = nearest(group, busy_ranks, kind, first_layer)) best = here;
  }
  return best;
}

Profile::Profile(ProfileData data) : data_(std::move(data)) {
  for (std::size_t i = 0; i < data_.layer_times.size(); ++i) times_.add(data_.layer_times[i].key, i);
  times_.for_each_series([&](const LayerRows::Series& series, const std::vector<LayerRows::Group>&) {
    precisions_[std::string(series.model)][std::string(series.gpu)].insert(series.precision);
  });
  for (std::size_t i = 0; i < data_.layer_memory.size(); ++i) memory_.add(data_.layer_memory[i].key, i);
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
    if (measured.points.empty()) measured.error = 0.0;  // points take precedence over the curve
    measured.points[row.message.value()] = row.time.median.value();
    measured.error = std::max(measured.error, row.time.relative_error());
  }
  known_sends_ = name_links(LinkOperation::send_receive);
  known_all_reduces_ = name_links(LinkOperation::all_reduce);
}

Origin Profile::origin_of(int session) const {
  const bool cited = session >= 0 && session < static_cast<int>(data_.sessions.size()) &&
                     !data_.sessions[static_cast<std::size_t>(session)].provenance.source.empty();
  return cited ? Origin::published : Origin::measured;
}

LayerRows::Found Profile::find_memory(const LayerKey& key, LayerKind kind, int first_layer) const {
  // Memory depends only on the bytes per value, not on the number of busy ranks nor, if published so, on the GPU.
  const Precision other = key.precision == Precision::tf32   ? Precision::fp32
                          : key.precision == Precision::fp32 ? Precision::tf32
                          : key.precision == Precision::bf16 ? Precision::fp16
                          : key.precision == Precision::fp16 ? Precision::bf16
                                                             : key.precision;
  for (const std::string_view gpu : {std::string_view(key.gpu), std::string_view(any_gpu)})
    for (const Precision precision : {key.precision, other}) {
      const LayerRows::Series series = series_of(key, precision, gpu);
      if (const auto exact = memory_.find(series, key.micro_batch, 1, kind, first_layer)) return exact;
      if (const auto near = memory_.find_near(series, key.micro_batch, 1, kind, first_layer)) return near;
    }
  return {};
}

double Profile::share_of_update(const LayerTime& time, const LayerMemory& memory, const LayerKey& key) const {
  if (time.update_scope == UpdateScope::layer) return 1.0;
  double all = 0.0;
  for (const LayerKind kind : {LayerKind::embedding, LayerKind::block, LayerKind::final_norm, LayerKind::head}) {
    const auto found = find_memory(key, kind, std::numeric_limits<int>::max());
    if (!found) continue;
    const double parameters = static_cast<double>(data_.layer_memory[found.row->index].parameters);
    all += kind == LayerKind::block ? 2.0 * parameters : parameters;
  }
  return all > 0.0 ? static_cast<double>(memory.parameters) / all : 1.0;
}

Precision Profile::stored_precision(const std::string& model, const std::string& gpu, Precision wanted) const {
  if (wanted != Precision::tf32) return wanted;
  const auto of_model = precisions_.find(model);
  if (of_model == precisions_.end()) return wanted;
  const auto known = of_model->second.find(gpu);
  if (known == of_model->second.end()) return wanted;
  const auto has = [&](Precision precision) { return known->second.contains(precision); };
  return !has(Precision::tf32) && has(Precision::fp32) ? Precision::fp32 : wanted;
}

Result<LayerCost> Profile::layer(const LayerKey& wanted) const {
  if (auto found = find_layer(wanted)) return *found;
  LayerKey key = wanted;
  key.precision = stored_precision(wanted.model, wanted.gpu, wanted.precision);
  const auto row =
      times_.find(series_of(key, key.precision, key.gpu), key.micro_batch, key.busy_ranks, key.kind, key.first_layer);
  if (!row) return fail(explain_missing(key, data_.layer_times, "layers"));
  return fail(explain_missing(key, data_.layer_memory, "layer memory"));
}

std::optional<LayerCost> Profile::find_layer(const LayerKey& wanted) const {
  const Precision stored = stored_precision(wanted.model, wanted.gpu, wanted.precision);
  LayerKey key = wanted;
  key.precision = stored;
  const auto time_row =
      times_.find(series_of(key, stored, key.gpu), key.micro_batch, key.busy_ranks, key.kind, key.first_layer);
  if (!time_row) return std::nullopt;
  const auto memory_row = find_memory(key);
  if (!memory_row) return std::nullopt;
  const LayerTime& time = data_.layer_times[time_row.row->index];
  const LayerMemory& memory = data_.layer_memory[memory_row.row->index];
  SAILOR_ASSERT(time.key.micro_batch == key.micro_batch && time.key.kind == key.kind && time.key.model == key.model,
                "the profile finds the times of another layer");
  SAILOR_ASSERT(time.forward.median >= Seconds(0.0) && time.backward.median >= Seconds(0.0),
                "the profile has a negative time");
  const double scale = static_cast<double>(key.micro_batch) / memory.key.micro_batch;
  return LayerCost{.forward = time.forward,
                   .backward = time.backward,
                   .update = scaled(time.update, share_of_update(time, memory, key)),
                   .parameters = memory.parameters,
                   .activation = memory.activation * scale,
                   .output = memory.output * scale,
                   .workspace = memory.workspace * scale,
                   .last_layer = std::min(time_row.end_layer, memory_row.end_layer),
                   .origin = std::max(origin_of(time.session), origin_of(memory.session))};
}

std::optional<LayerCost> Profile::times_alone(const LayerKey& wanted) const {
  const Precision stored = stored_precision(wanted.model, wanted.gpu, wanted.precision);
  const auto row = times_.find(series_of(wanted, stored, wanted.gpu), wanted.micro_batch, wanted.busy_ranks,
                               wanted.kind, wanted.first_layer);
  if (!row) return std::nullopt;
  const LayerTime& time = data_.layer_times[row.row->index];
  if (time.update_scope != UpdateScope::layer) return std::nullopt;
  return LayerCost{.forward = time.forward,
                   .backward = time.backward,
                   .update = time.update,
                   .last_layer = row.end_layer,
                   .origin = origin_of(time.session)};
}

const Profile::Link* Profile::find_link(const LinkKey& wanted, LinkKey* found) const {
  const auto route = links_.find(LinkRoute(wanted.from.gpu, wanted.to.gpu, wanted.scope, wanted.operation));
  if (route == links_.end()) return nullptr;
  // A zone without measurements is treated as any one zone.
  std::string from_zone = zones_.contains(wanted.from.zone) ? wanted.from.zone : "";
  std::string to_zone = zones_.contains(wanted.to.zone) ? wanted.to.zone : "";
  const bool same_zone = wanted.from.zone == wanted.to.zone;
  if (!same_zone && (from_zone.empty() || to_zone.empty())) from_zone = to_zone = "?";  // only rows without zones match
  auto fits = [&](const LinkKey& key) {
    if (key.from.zone.empty() && key.to.zone.empty()) return true;
    if (from_zone.empty() && to_zone.empty()) return key.from.zone == key.to.zone;
    return key.from.zone == from_zone && key.to.zone == to_zone;
  };
  // Smaller is better: rows that name zones first; then too few ranks is worse than too many; then the distance.
  auto distance = [](int have, int want) { return have >= want ? have - want : (1 << 24) + want - have; };
  const Link* best = nullptr;
  auto best_score = std::tuple(2, 0, 0, 0);
  const auto look_at = [&](Links::const_iterator first, Links::const_iterator last) {
    for (; first != last; ++first) {
      const auto& [key, link] = *first;
      if (!fits(key)) continue;
      const auto score =
          std::tuple(key.from.zone.empty() ? 1 : 0, std::abs(key.ranks - wanted.ranks),
                     distance(key.from.ranks, wanted.from.ranks), distance(key.to.ranks, wanted.to.ranks));
      if (best == nullptr || score < best_score) {
        best = &link;
        best_score = score;
        if (found != nullptr) *found = key;
      }
    }
  };
  const Links& links = route->second;
  if (from_zone.empty() && to_zone.empty()) {
    look_at(links.begin(), links.end());
    return best;
  }
  // Links are ordered by the sender's zone: visits only those from this zone, and those without zones.
  for (const std::string& zone : {from_zone, std::string()}) {
    LinkKey start{};
    start.from = {.gpu = wanted.from.gpu, .zone = zone, .ranks = std::numeric_limits<int>::min()};
    LinkKey end = start;
    end.from.zone += '\0';
    look_at(links.lower_bound(start), links.lower_bound(end));
  }
  return best;
}

std::string Profile::name_links(LinkOperation operation) const {
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
  constexpr std::size_t most = 4;
  const std::size_t more = present.size() > most ? present.size() - most : 0;
  while (present.size() > most) present.erase(std::prev(present.end()));
  if (present.empty()) return "none";
  return fmt::format("{}{}", join(present, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

int Profile::senders(const Link& link, const LinkEnd& from, LinkScope scope) {
  return scope == LinkScope::intra_node ? link.senders : std::max(link.senders, from.ranks);
}

LinkTime Profile::SendRoute::time(Bytes message) const {
  return {
      link_->points.empty() ? link_->curve->time(message, senders_) : Seconds(time_at(link_->points, message.value())),
      link_->error, link_->origin};
}

LinkTime Profile::AllReduceRoute::time(Bytes message) const {
  if (ranks_ <= 1) return {};
  if (measured_ != nullptr) {
    const Seconds time = measured_->points.empty() ? measured_->curve->time(message, measured_->senders)
                                                   : Seconds(time_at(measured_->points, message.value()));
    double slower = 1.0;
    if (alone_ && beside_)
      if (const Seconds alone = alone_->time(message).time; alone > Seconds(0.0))
        slower = std::max(1.0, beside_->time(message).time / alone);
    return {time * (slower * ring_factor(ranks_) / ring_factor(measured_ranks_)), measured_->error, measured_->origin};
  }
  // A ring moves 2(n - 1)/n of the message over every link (Patarasuk & Yuan 2009), pipelined: NCCL and MPI split it
  // into pieces that follow each other, so the whole message's bandwidth counts; 2(n - 1) steps take at least their
  // latency each.
  const LinkTime whole = beside_->time(message);
  return {std::max(whole.time * ring_factor(ranks_), latencies_), whole.error, whole.origin};
}

std::optional<Profile::SendRoute> Profile::find_send_route(const LinkEnd& from, const LinkEnd& to,
                                                           LinkScope scope) const {
  const LinkKey there{.from = from, .to = to, .scope = scope, .operation = LinkOperation::send_receive, .ranks = 2};
  LinkKey back = there;
  std::swap(back.from, back.to);
  const Link* link = find_link(there);
  // The reverse direction is used if there is no other link, or no other that names the zones.
  if (link == nullptr || !link->names_zones)
    if (const Link* reverse = find_link(back); reverse != nullptr && (link == nullptr || reverse->names_zones))
      link = reverse;
  if (link == nullptr) return std::nullopt;
  SendRoute route;
  route.link_ = link;
  route.senders_ = senders(*link, from, scope);
  return route;
}

Result<Profile::SendRoute> Profile::send_route(const LinkEnd& from, const LinkEnd& to, LinkScope scope) const {
  if (const auto route = find_send_route(from, to, scope)) return *route;
  const bool zones = from.zone != to.zone;
  return fail(ErrorCode::not_found,
              fmt::format("the profile has no send_receive between {}{} and {}{}, {} (there: {})", from.gpu,
                          zones ? " in " + from.zone : "", to.gpu, zones ? " in " + to.zone : "", to_string(scope),
                          known_sends_),
              links_advice(std::nullopt));
}

Result<LinkTime> Profile::send_time(const LinkEnd& from, const LinkEnd& to, LinkScope scope, Bytes message) const {
  const auto route = send_route(from, to, scope);
  if (!route) return fail(route.error());
  return route->time(message);
}

std::optional<Profile::AllReduceRoute> Profile::find_all_reduce_route(const LinkEnd& from, const LinkEnd& to,
                                                                      LinkScope scope, int ranks, int rings) const {
  AllReduceRoute route;
  route.ranks_ = ranks;
  if (ranks <= 1) return route;
  const auto message_of = [&](int senders) {
    LinkEnd busy_from = from;
    LinkEnd busy_to = to;
    busy_from.ranks = busy_to.ranks = senders;
    return find_send_route(busy_from, busy_to, scope);
  };
  const LinkKey there{.from = from, .to = to, .scope = scope, .operation = LinkOperation::all_reduce, .ranks = ranks};
  LinkKey back = there;
  std::swap(back.from, back.to);
  for (const LinkKey& key : {there, back}) {
    LinkKey measured;
    route.measured_ = find_link(key, &measured);
    if (route.measured_ == nullptr) continue;
    route.measured_ranks_ = measured.ranks;
    if (rings > 1 && scope == LinkScope::inter_node) {
      route.alone_ = message_of(1);
      route.beside_ = message_of(rings);
    }
    return route;
  }
  route.beside_ = message_of(rings);
  if (!route.beside_) return std::nullopt;
  route.latencies_ = route.beside_->time(Bytes(0.0)).time * (2.0 * (ranks - 1));
  return route;
}

Result<Profile::AllReduceRoute> Profile::all_reduce_route(const LinkEnd& from, const LinkEnd& to, LinkScope scope,
                                                          int ranks, int rings) const {
  if (const auto route = find_all_reduce_route(from, to, scope, ranks, rings)) return *route;
  return fail(ErrorCode::not_found,
              fmt::format("the profile has no all_reduce or send_receive between {} and {}, {} (there: {}; {})",
                          from.gpu, to.gpu, to_string(scope), known_all_reduces_, known_sends_),
              links_advice(std::nullopt));
}

Result<LinkTime> Profile::all_reduce_time(const LinkEnd& from, const LinkEnd& to, LinkScope scope, int ranks,
                                          Bytes message, int rings) const {
  const auto route = all_reduce_route(from, to, scope, ranks, rings);
  if (!route) return fail(route.error());
  return route->time(message);
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
  times_.for_each_series([&](const LayerRows::Series& key, const std::vector<LayerRows::Group>& groups) {
    if (key.model == model && key.gpu == gpu && key.precision == precision && key.tensor_parallel == tensor_parallel &&
        key.sequence_length == sequence_length)
      for (const LayerRows::Group& group : groups) values.insert(group.micro_batch);
  });
  return {values.begin(), values.end()};
}

std::vector<int> Profile::tensor_parallel_degrees(const std::string& model, const std::string& gpu, Precision precision,
                                                  int sequence_length) const {
  precision = stored_precision(model, gpu, precision);
  std::set<int> values;
  times_.for_each_series([&](const LayerRows::Series& key, const auto&) {
    if (key.model == model && key.gpu == gpu && key.precision == precision && key.sequence_length == sequence_length)
      values.insert(key.tensor_parallel);
  });
  return {values.begin(), values.end()};
}

std::vector<int> Profile::sequence_lengths(const std::string& model, const std::string& gpu) const {
  std::set<int> values;
  times_.for_each_series([&](const LayerRows::Series& key, const auto&) {
    if (key.model == model && key.gpu == gpu) values.insert(key.sequence_length);
  });
  return {values.begin(), values.end()};
}

std::vector<Precision> Profile::precisions(const std::string& model) const {
  std::set<Precision> values;
  times_.for_each_series([&](const LayerRows::Series& key, const auto&) {
    if (key.model == model) values.insert(key.precision);
  });
  return {values.begin(), values.end()};
}

}  // namespace sailor
