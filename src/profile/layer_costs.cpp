// Cost of a layer from the best available source.
#include "profile/layer_costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "core/text.hpp"

namespace sailor {

namespace {

struct Weighted {
  double value;
  double weight;
};

/// The smallest value at which half of the weight is reached.
double weighted_median(std::vector<Weighted> values) {
  std::sort(values.begin(), values.end(), [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  double half = 0.0;
  for (const Weighted& value : values) half += value.weight / 2.0;
  for (const Weighted& value : values) {
    half -= value.weight;
    if (half <= 0.0) return value.value;
  }
  return values.empty() ? 0.0 : values.back().value;
}

double log2_distance(double a, double b) { return std::abs(std::log2(a / b)); }

/// Distance of two measurements of the model on one device. The weights make a doubled micro-batch, which changes
/// little but the amount of work, count less than other ranks or formats, which change the operations.
double distance(const LayerKey& a, const LayerKey& b) {
  return 0.3 * log2_distance(a.micro_batch, b.micro_batch) + 0.5 * log2_distance(a.tensor_parallel, b.tensor_parallel) +
         0.5 * log2_distance(a.sequence_length, b.sequence_length) + (a.precision == b.precision ? 0.0 : 1.0) +
         (a.recompute == b.recompute ? 0.0 : 1.0);
}

/// Distance of numbers of busy ranks: any number at or above the wanted one is nearer than one below.
int busy_distance(int have, int want) { return have >= want ? have - want : (1 << 24) + want - have; }

TimeStatistics spread(Seconds time, double factor) {
  TimeStatistics statistics = TimeStatistics::single(time);
  statistics.low = time / factor;
  statistics.high = time * factor;
  return statistics;
}

/// Applies `mix` to each of the times; [low, high] is widened by the typical error of the interpolation.
template <class Mix>
TimeStatistics between(const TimeStatistics& a, const TimeStatistics& b, Basis basis, Mix mix) {
  auto time = [&](Seconds TimeStatistics::*member) { return Seconds(mix((a.*member).value(), (b.*member).value())); };
  const double factor = 1.0 + expected_error(basis, Precision::fp32).typical;
  return {.median = time(&TimeStatistics::median),
          .p10 = time(&TimeStatistics::p10),
          .p90 = time(&TimeStatistics::p90),
          .low = time(&TimeStatistics::low) / factor,
          .high = time(&TimeStatistics::high) * factor,
          .samples = std::min(a.samples, b.samples)};
}

template <class Mix>
LayerPrice between(const LayerPrice& a, const LayerPrice& b, Basis basis, Mix mix) {
  LayerPrice result{.cost = {}, .basis = basis, .sources = {}};
  LayerCost& cost = result.cost;
  cost.forward = between(a.cost.forward, b.cost.forward, basis, mix);
  cost.backward = between(a.cost.backward, b.cost.backward, basis, mix);
  cost.update = between(a.cost.update, b.cost.update, basis, mix);
  auto bytes = [&](Bytes LayerCost::*member) { return Bytes(mix((a.cost.*member).value(), (b.cost.*member).value())); };
  cost.parameters = std::llround(mix(static_cast<double>(a.cost.parameters), static_cast<double>(b.cost.parameters)));
  cost.activation = bytes(&LayerCost::activation);
  cost.output = bytes(&LayerCost::output);
  cost.workspace = bytes(&LayerCost::workspace);
  cost.last_layer = std::min(a.cost.last_layer, b.cost.last_layer);
  cost.origin = std::max({Origin::interpolated, a.cost.origin, b.cost.origin});
  return result;
}

/// Prices at the largest value below and the smallest above `wanted` that have one.
template <class Price>
std::optional<std::pair<LayerPrice, LayerPrice>> neighbours(const std::vector<int>& values, int wanted, Price price,
                                                            int& below, int& above) {
  std::optional<LayerPrice> low;
  std::optional<LayerPrice> high;
  for (const int value : values) {
    if (value < wanted) {
      if (auto found = price(value)) {
        low = std::move(found);
        below = value;
      }
    } else if (value > wanted) {
      high = price(value);
      above = value;
      if (high) break;
    }
  }
  if (!low || !high) return std::nullopt;
  return std::pair(std::move(*low), std::move(*high));
}

}  // namespace

std::string_view to_string(Basis basis) {
  switch (basis) {
    case Basis::look_up:
      return "look_up";
    case Basis::between_micro_batches:
      return "between_micro_batches";
    case Basis::between_tensor_parallel:
      return "between_tensor_parallel";
    case Basis::transfer:
      return "transfer";
    case Basis::roofline:
      return "roofline";
  }
  return "?";
}

EstimateError expected_error(Basis basis, Precision precision) {
  // Compared with single-node runs without tensor and pipeline parallelism by five publishers (InternEvo on A100, MPT,
  // nanotron, NVIDIA and torchtitan on H100; 0.1 to 70 billion parameters, sequences of 512 to 65,536; including the
  // communication of sharded data parallelism): half within 25%, nine of ten within a factor of 1.82.
  if (value_bytes(precision) < 4.0 && (basis == Basis::transfer || basis == Basis::roofline))
    return {.typical = 0.25, .wide = 0.85};
  // Errors of blocks, forward and backward, over the models and GPU types that eth-easl/sailor publishes, with its
  // links inside nodes, in the number formats that the times indicate (A100: tf32, but fp32 for OPT-30 and LLAMA-3-8).
  // From `sailor-profile estimate --leave-one-out`; the README has the table.
  switch (basis) {
    case Basis::look_up:
      return {};
    case Basis::between_micro_batches:
      return {.typical = 0.02, .wide = 0.11};
    case Basis::between_tensor_parallel:
      return {.typical = 0.08, .wide = 0.40};
    case Basis::transfer:
      return {.typical = 0.10, .wide = 0.45};
    case Basis::roofline:
      return {.typical = 0.15, .wide = 0.50};
  }
  return {};
}

EstimateError expected_error(Basis basis, Precision precision, const LayerKernels& kernels) {
  constexpr double typical_of_wide = 0.41;  // of a normal distribution: 50% within 0.67 deviations, 90% within 1.64
  const bool by_rates = basis == Basis::transfer || basis == Basis::roofline;
  if (by_rates && kernels.efficiency && kernels.efficiency->error > 0.0)
    return {.typical = typical_of_wide * kernels.efficiency->error, .wide = kernels.efficiency->error};
  return expected_error(basis, precision);
}

LayerCosts::LayerCosts(const Model& model, const Profile& profile, const GpuCatalogue& gpus, bool measured_only,
                       const LayerKernels& kernels)
    : model_(model), profile_(profile), gpus_(gpus), measured_only_(measured_only), kernels_(kernels) {}

const LayerCosts::TimeTable& LayerCosts::measured_times() const {
  std::call_once(guards_->times, [this] { collect_times(); });
  return times_;
}

const LayerCosts::SizeTable& LayerCosts::measured_sizes() const {
  std::call_once(guards_->sizes, [this] { collect_sizes(); });
  return sizes_;
}

void LayerCosts::collect_times() const {
  // Layers of a kind differ little; a row counts once for each layer that it holds for.
  std::map<LayerKey, std::map<int, const LayerTime*>> rows;
  for (const LayerTime& row : profile_.data().layer_times)
    if (row.key.model == model_.name) {
      LayerKey key = row.key;
      key.first_layer = 0;
      rows[key][row.key.first_layer] = &row;
    }
  for (const auto& [key, layers] : rows) {
    std::vector<Weighted> forward;
    std::vector<Weighted> backward;
    std::vector<Weighted> update;
    for (auto row = layers.begin(); row != layers.end(); ++row) {
      const auto next = std::next(row);
      const int last = next == layers.end() ? model_.blocks + 1 : next->first;
      const double weight = std::max(1, last - std::max(row->first, 1));
      forward.push_back({row->second->forward.median.value(), weight});
      backward.push_back({row->second->backward.median.value(), weight});
      TimeStatistics own_update = row->second->update;
      if (row->second->update_scope != UpdateScope::layer)
        if (const auto cost = profile_.find_layer(row->second->key)) own_update = cost->update;
      update.push_back({own_update.median.value(), weight});
    }
    times_[key] = {.forward = Seconds(weighted_median(std::move(forward))),
                   .backward = Seconds(weighted_median(std::move(backward))),
                   .update = Seconds(weighted_median(std::move(update)))};
  }
}

void LayerCosts::collect_sizes() const {
  for (const LayerMemory& row : profile_.data().layer_memory)
    if (row.key.model == model_.name) {
      LayerKey key = row.key;
      key.first_layer = 0;
      LayerSizes& sizes = sizes_[key];
      sizes.parameters = std::max(sizes.parameters, row.parameters);
      sizes.activation = std::max(sizes.activation, row.activation);
      sizes.output = std::max(sizes.output, row.output);
      sizes.workspace = std::max(sizes.workspace, row.workspace);
    }
}

bool LayerCosts::is_measured_on(const std::string& gpu) const {
  return std::any_of(profile_.data().layer_times.begin(), profile_.data().layer_times.end(),
                     [&](const LayerTime& row) { return row.key.gpu == gpu && row.key.model == model_.name; });
}

const Result<LayerPrice>& LayerCosts::find(const LayerKey& key) const {
  const std::lock_guard lock(guards_->finding);
  const auto known = found_.find(key);
  if (known != found_.end()) return known->second;
  return found_.emplace(key, price(key)).first->second;
}

Result<LayerPrice> LayerCosts::scaled_price(const LayerKey& key, const LayerKey& like) const {
  const auto wanted = roofline_of(key);
  if (!wanted) return fail(wanted.error());
  auto price = this->price(like);
  if (!price) return price;
  const auto had = roofline_of(like);
  if (!had) return fail(had.error());
  const auto ratio = [](Seconds to, Seconds from) { return from > Seconds(0) ? to / from : 1.0; };
  LayerCost& cost = price->cost;
  cost.forward = scaled(cost.forward, ratio(wanted->forward, had->forward));
  cost.backward = scaled(cost.backward, ratio(wanted->backward, had->backward));
  cost.update = scaled(cost.update, ratio(wanted->update, had->update));
  const LayerSizes wanted_sizes = layer_sizes(model_, key, kernels_);
  const LayerSizes sizes = layer_sizes(model_, like, kernels_);
  const auto scale_bytes = [](Bytes& bytes, Bytes to, Bytes from) {
    bytes = from > Bytes(0) ? bytes * (to / from) : to;
  };
  scale_bytes(cost.activation, wanted_sizes.activation, sizes.activation);
  scale_bytes(cost.output, wanted_sizes.output, sizes.output);
  scale_bytes(cost.workspace, wanted_sizes.workspace, sizes.workspace);
  cost.parameters -= sizes.parameters - wanted_sizes.parameters;
  cost.origin = Origin::estimated;
  return price;
}

Result<LayerPrice> LayerCosts::divided_price(const LayerKey& key) const {
  if (measured_only_)
    return fail(ErrorCode::not_found,
                fmt::format("layers of {} at context parallel {} and expert parallel {} are not measured", model_.name,
                            key.context_parallel, key.expert_parallel),
                "allow estimates, or use degrees of 1");
  return scaled_price(key, key.undivided());
}

Result<LayerPrice> LayerCosts::price_in_fp8(const LayerKey& key) const {
  LayerKey wide = key;
  wide.precision = Precision::bf16;
  auto price = scaled_price(key, wide);
  if (!price || price->basis == Basis::roofline) return price;
  if (price->basis != Basis::transfer) price->sources = "its times in bf16";
  price->basis = Basis::transfer;
  const double error = 1.0 + expected_error(Basis::transfer, Precision::fp8, kernels_).wide;
  for (TimeStatistics LayerCost::*times : {&LayerCost::forward, &LayerCost::backward, &LayerCost::update})
    price->cost.*times = spread((price->cost.*times).median, error);
  return price;
}

Result<PassShares> LayerCosts::attention_shares(const LayerKey& key) const {
  const auto all = roofline_of(key, false);
  if (!all) return fail(all.error());
  const auto gpu = gpus_.find(key.gpu);
  if (!gpu) return fail(gpu.error());
  const LayerWork work = attention_work(model_, key, kernels_);
  const auto attention = roofline(work, *gpu, key.precision, 1, std::nullopt, kernels_);
  if (!attention) return fail(attention.error());
  return PassShares{.forward = std::min(1.0, attention->forward / all->forward),
                    .backward = std::min(1.0, attention->backward / all->backward)};
}

Result<LayerPrice> LayerCosts::price(const LayerKey& key) const {
  if (key.is_divided()) return divided_price(key);
  if (measured_only_) {
    auto measured = profile_.layer(key);
    if (!measured) return fail(measured.error());
    return LayerPrice{.cost = *measured, .basis = Basis::look_up, .sources = {}};
  }
  if (auto found = look_up(key)) return std::move(*found);
  if (auto found = between_micro_batches(key)) return std::move(*found);
  if (auto found = between_tensor_parallel(key)) return std::move(*found);
  const auto has_fp8 = [&](const auto& row) {
    return row.first.kind == key.kind && row.first.precision == Precision::fp8;
  };
  if (key.precision == Precision::fp8 && std::none_of(measured_times().begin(), measured_times().end(), has_fp8))
    return price_in_fp8(key);
  if (auto found = estimate(key, Basis::transfer)) return found;
  auto found = estimate(key, Basis::roofline);
  if (found) return found;
  Error error = profile_.layer(key).error();
  error.what += fmt::format("; nor can it be estimated: {}", found.error().what);
  return fail(std::move(error));
}

std::optional<LayerPrice> LayerCosts::look_up(const LayerKey& key) const {
  if (const auto cost = profile_.find_layer(key))
    return LayerPrice{.cost = *cost, .basis = Basis::look_up, .sources = {}};
  if (measured_only_) return std::nullopt;
  auto times = profile_.times_alone(key);
  if (!times) return std::nullopt;
  const LayerSizes sizes = sizes_of(key, {});
  times->parameters = sizes.parameters;
  times->activation = sizes.activation;
  times->output = sizes.output;
  times->workspace = sizes.workspace;
  if (key.kind == LayerKind::block && key.first_layer > 0 && key.first_layer <= model_.blocks)
    times->last_layer = std::min(times->last_layer, model_.alike_until(key.first_layer));
  return LayerPrice{.cost = *times, .basis = Basis::look_up, .sources = "sizes by formula"};
}

std::optional<LayerPrice> LayerCosts::between_micro_batches(const LayerKey& key) const {
  int below = 0;
  int above = 0;
  const auto at = [&](int micro_batch) {
    LayerKey other = key;
    other.micro_batch = micro_batch;
    return other;
  };
  const auto found = neighbours(
      profile_.micro_batches(key.model, key.gpu, key.precision, key.tensor_parallel, key.sequence_length),
      key.micro_batch, [&](int micro_batch) { return look_up(at(micro_batch)); }, below, above);
  if (!found) return std::nullopt;
  const double share = static_cast<double>(key.micro_batch - below) / (above - below);
  LayerPrice result = between(found->first, found->second, Basis::between_micro_batches,
                              [&](double a, double b) { return std::lerp(a, b, share); });
  // Where the host limits the smaller of the two, times between them bend as their estimates do.
  if (const auto here = roofline_of(key), low = roofline_of(at(below)), high = roofline_of(at(above));
      here && low && high)
    for (const auto& [times, estimate] : {std::pair(&LayerCost::forward, &LayerTimes::forward),
                                          std::pair(&LayerCost::backward, &LayerTimes::backward)}) {
      const Seconds from = (*low).*estimate;
      const Seconds to = (*high).*estimate;
      if (to <= from) continue;
      const double bent = std::clamp(((*here).*estimate - from) / (to - from), 0.0, 1.0);
      result.cost.*times = between(found->first.cost.*times, found->second.cost.*times, Basis::between_micro_batches,
                                   [&](double a, double b) { return std::lerp(a, b, bent); });
    }
  result.sources = fmt::format("micro-batches {} and {}", below, above);
  return result;
}

std::optional<LayerPrice> LayerCosts::between_tensor_parallel(const LayerKey& key) const {
  int below = 0;
  int above = 0;
  const auto found = neighbours(
      profile_.tensor_parallel_degrees(key.model, key.gpu, key.precision, key.sequence_length), key.tensor_parallel,
      [&](int tensor_parallel) -> std::optional<LayerPrice> {
        LayerKey neighbour = key;
        neighbour.tensor_parallel = tensor_parallel;
        if (auto found = look_up(neighbour)) return found;
        return between_micro_batches(neighbour);
      },
      below, above);
  if (!found) return std::nullopt;
  const double share =
      std::log(static_cast<double>(key.tensor_parallel) / below) / std::log(static_cast<double>(above) / below);
  LayerPrice result = between(found->first, found->second, Basis::between_tensor_parallel, [&](double a, double b) {
    return a > 0.0 && b > 0.0 ? a * std::pow(b / a, share) : std::lerp(a, b, share);
  });
  const LayerSizes formula = layer_sizes(model_, key, kernels_);
  result.cost.parameters = formula.parameters;  // divided, not measured
  result.sources = fmt::format("tensor parallel {} and {}", below, above);
  return result;
}

Result<LayerTimes> LayerCosts::roofline_of(const LayerKey& key, bool launches) const {
  const auto gpu = gpus_.find(key.gpu);
  if (!gpu) return fail(gpu.error());
  LayerWork work = layer_work(model_, key, kernels_);
  if (!launches) work.forward_launches = work.backward_launches = 0;
  std::optional<Seconds> all_reduce;
  if (key.tensor_parallel > 1) {
    const LinkEnd end{.gpu = key.gpu, .zone = {}, .ranks = key.tensor_parallel};
    const auto time = profile_.all_reduce_time(end, end, LinkScope::intra_node, key.tensor_parallel, work.all_reduce);
    if (time) all_reduce = time->time;
  }
  return roofline(work, *gpu, key.precision, key.tensor_parallel, all_reduce, kernels_);
}

Result<LayerTimes> LayerCosts::transfer(const LayerKey& key, const std::string& without, std::string& sources) const {
  const auto target = gpus_.find(key.gpu);
  if (!target) return fail(target.error());
  const auto peak = peak_rate(*target, key.precision);
  if (!peak) return fail(peak.error());
  const auto wanted = roofline_of(key);
  if (!wanted) return fail(wanted.error());

  // For each GPU type, the measurement nearest to the request.
  using Score = std::tuple<double, int>;
  std::map<std::string, std::pair<Score, TimeTable::const_iterator>> nearest;
  for (auto row = measured_times().begin(); row != measured_times().end(); ++row) {
    const LayerKey& have = row->first;
    if (have.kind != key.kind || have.gpu == without) continue;
    const Score score{distance(have, key), busy_distance(have.busy_ranks, key.busy_ranks)};
    const auto [entry, is_new] = nearest.try_emplace(have.gpu, score, row);
    if (!is_new && score < entry->second.first) entry->second = {score, row};
  }

  std::vector<Weighted> forward;
  std::vector<Weighted> backward;
  std::vector<Weighted> update;
  std::vector<std::pair<double, std::string>> used;
  for (const auto& [name, entry] : nearest) {
    const LayerKey& have = entry.second->first;
    const LayerTimes& measured = entry.second->second;
    const auto gpu = gpus_.find(name);
    const auto expected = roofline_of(have);
    if (!gpu || !expected) continue;  // a device that is not in the catalogue says nothing about others
    const auto rate = peak_rate(*gpu, have.precision);
    if (!rate) continue;
    const double unlike = std::get<0>(entry.first) + std::abs(std::log(*rate / *peak)) +
                          std::abs(std::log(gpu->memory_bandwidth / target->memory_bandwidth)) +
                          (gpu->kind == target->kind ? 0.0 : 5.0);
    const double weight = 1.0 / ((0.05 + unlike) * (0.05 + unlike));
    forward.push_back({(measured.forward * (wanted->forward / expected->forward)).value(), weight});
    backward.push_back({(measured.backward * (wanted->backward / expected->backward)).value(), weight});
    update.push_back({(measured.update * (wanted->update / expected->update)).value(), weight});
    used.emplace_back(unlike, name);
  }
  if (used.empty())
    return fail(ErrorCode::not_found, fmt::format("the profile has no {} of model {} on another device to start from",
                                                  to_string(key.kind), model_.name));
  std::sort(used.begin(), used.end());
  constexpr std::size_t most_named = 3;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(used.size(), most_named); ++i) names.push_back(used[i].second);
  sources = join(names, ", ");
  if (used.size() > most_named) sources += fmt::format(" and {} more", used.size() - most_named);
  return LayerTimes{.forward = Seconds(weighted_median(std::move(forward))),
                    .backward = Seconds(weighted_median(std::move(backward))),
                    .update = Seconds(weighted_median(std::move(update)))};
}

LayerSizes LayerCosts::sizes_of(const LayerKey& key, const std::string& without) const {
  const LayerSizes formula = layer_sizes(model_, key, kernels_);
  const SizeTable& table = measured_sizes();
  auto best = table.end();
  std::pair<double, bool> best_score{std::numeric_limits<double>::infinity(), true};
  for (auto row = table.begin(); row != table.end(); ++row) {
    if (row->first.kind != key.kind || row->first.gpu == without) continue;
    const std::pair score{distance(row->first, key), row->first.gpu != key.gpu};
    if (score < best_score) {
      best = row;
      best_score = score;
    }
  }
  if (best == table.end()) return formula;
  // Sizes measured elsewhere, times the ratio of the formulas: right for the framework of the store.
  const LayerSizes there = layer_sizes(model_, best->first, kernels_);
  const LayerSizes& measured = best->second;
  auto scaled = [](Bytes bytes, Bytes wanted, Bytes had) {
    return had.value() > 0.0 ? bytes * (wanted / had) : std::max(bytes, wanted);
  };
  LayerSizes sizes;
  sizes.parameters = best->first.tensor_parallel == key.tensor_parallel ? measured.parameters : formula.parameters;
  sizes.activation = scaled(measured.activation, formula.activation, there.activation);
  sizes.output = scaled(measured.output, formula.output, there.output);
  sizes.workspace = scaled(measured.workspace, formula.workspace, there.workspace);
  return sizes;
}

Result<LayerPrice> LayerCosts::estimate(const LayerKey& key, Basis basis, const std::string& without) const {
  LayerPrice result{.cost = {}, .basis = basis, .sources = {}};
  const auto times = basis == Basis::transfer ? transfer(key, without, result.sources) : roofline_of(key);
  if (!times) return fail(times.error());
  const LayerSizes sizes = basis == Basis::transfer ? sizes_of(key, without) : layer_sizes(model_, key, kernels_);
  const double factor = 1.0 + expected_error(basis, key.precision, kernels_).wide;
  result.cost = {.forward = spread(times->forward, factor),
                 .backward = spread(times->backward, factor),
                 .update = spread(times->update, factor),
                 .parameters = sizes.parameters,
                 .activation = sizes.activation,
                 .output = sizes.output,
                 .workspace = sizes.workspace,
                 .last_layer = key.kind == LayerKind::block && key.first_layer > 0 && key.first_layer <= model_.blocks
                                   ? model_.alike_until(key.first_layer)
                                   : std::numeric_limits<int>::max(),
                 .origin = Origin::estimated};
  return result;
}

bool LayerCosts::can_estimate(const std::string& gpu, Precision precision) const {
  if (measured_only_) return false;
  const auto type = gpus_.find(gpu);
  return type && peak_rate(*type, precision);
}

std::string LayerCosts::explain(const LayerKey& key, const LayerPrice& price) const {
  std::string what = fmt::format("layer times of {} on {}{}", model_.name, key.gpu,
                                 key.is_divided() ? fmt::format(" at context parallel {}, expert parallel {}",
                                                                key.context_parallel, key.expert_parallel)
                                                  : "");
  const std::string sizes = fmt::format(" at tensor parallel {}, micro-batch {}", key.tensor_parallel, key.micro_batch);
  const EstimateError error = expected_error(price.basis, key.precision, kernels_);
  std::string expect = fmt::format("expect errors of about {:.0f}%", error.typical * 100.0);
  if (value_bytes(key.precision) < 4.0 && price.cost.origin == Origin::estimated)
    expect = fmt::format("{}: {}; one in ten is off by more than a factor of {:.2f}",
                         kernels_.efficiency ? std::string("by the rates of the framework's description")
                                             : fmt::format("nothing was fitted for {}", to_string(key.precision)),
                         expect, 1.0 + error.wide);
  switch (price.basis) {
    case Basis::look_up:
      return what + sizes + (key.is_divided() ? " (scaled from whole sequences with all experts)" : "") +
             (price.sources.empty() ? "" : fmt::format(" ({})", price.sources));
    case Basis::between_micro_batches:
    case Basis::between_tensor_parallel:
      return fmt::format("{}{} (between {}; {})", what, sizes, price.sources, expect);
    case Basis::transfer: {
      std::string which;
      const char* why = "no profile";
      if (!profile_.tensor_parallel_degrees(key.model, key.gpu, key.precision, key.sequence_length).empty()) {
        which = sizes;
        why = "not measured";
      } else if (is_measured_on(key.gpu)) {
        which = fmt::format(" in {} at sequence length {}", to_string(key.precision), key.sequence_length);
        why = "the profile has others only";
      }
      return fmt::format("{}{} ({}; scaled from {}; {})", what, which, why, price.sources, expect);
    }
    case Basis::roofline:
      return fmt::format("{} (no profile of the model at all; from peak rates; {})", what, expect);
  }
  return what;
}

}  // namespace sailor
