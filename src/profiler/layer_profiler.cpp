#include "profiler/layer_profiler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <system_error>
#include <tuple>

#include "core/stopwatch.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "profile/estimate.hpp"
#include "profile/store.hpp"
#include "profiler/layer_batch.hpp"
#include "profiler/layer_chain.hpp"
#include "profiler/pooling.hpp"
#include "runtime/layer.hpp"
#include "runtime/process_memory.hpp"
#include "runtime/tensor.hpp"

namespace sailor::profiler {

namespace {

using Clock = std::chrono::steady_clock;

// Fewer batches may agree by chance: the target is checked after each, and would be met too early.
constexpr int fewest_batches_for_the_aim = 5;
// Cold passes are one sample per batch and as slow as the flushing: this many are enough.
constexpr int cold_batches = 5;
// A batch takes at most this share of the time budget.
constexpr double share_of_a_batch = 1.0 / 6.0;

/// Ranks by host, ascending, in the order of their first ranks.
std::vector<std::vector<int>> ranks_by_host(runtime::Control& control) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string, std::size_t> index;
  const std::vector<std::string> names = runtime::all_texts(control, control.host());
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    const auto [host, is_new] = index.emplace(names[rank], hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[host->second].push_back(static_cast<int>(rank));
  }
  return hosts;
}

int most_ranks_of_a_host(const std::vector<std::vector<int>>& hosts) {
  std::size_t most = 1;
  for (const auto& ranks : hosts) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

/// The ranks of a host that work at once, in whole tensor-parallel groups; a host with fewer ranks has as many groups
/// as fit.
std::vector<std::vector<int>> groups_of(const std::vector<int>& host, const Combination& combination) {
  std::vector<std::vector<int>> groups;
  const auto degree = static_cast<std::ptrdiff_t>(combination.tensor_parallel);
  const std::ptrdiff_t count = std::min<std::ptrdiff_t>(combination.busy_ranks, std::ssize(host)) / degree;
  for (std::ptrdiff_t i = 0; i < count; ++i)
    groups.emplace_back(host.begin() + i * degree, host.begin() + (i + 1) * degree);
  return groups;
}

std::vector<Combination> combinations_of(const LayerSettings& settings, int most_ranks,
                                         std::vector<Combination>& left_out) {
  std::set<int> busy_counts(settings.busy_ranks.begin(), settings.busy_ranks.end());
  if (busy_counts.empty()) busy_counts.insert(most_ranks);
  std::set<Combination> all;
  std::set<Combination> not_filled;
  for (const int busy : busy_counts)
    for (const int degree : settings.tensor_parallel)
      for (const Recompute recompute : settings.recompute)
        if (busy % degree == 0)
          all.insert({.busy_ranks = busy, .tensor_parallel = degree, .recompute = recompute});
        else
          not_filled.insert({.busy_ranks = busy, .tensor_parallel = degree});
  left_out.assign(not_filled.begin(), not_filled.end());
  return {all.begin(), all.end()};
}

/// Results of one combination so far, on rank 0.
class Records {
 public:
  Records(const Model& model, const LayerSettings& settings, const Combination& combination)
      : model_(model), settings_(settings), combination_(combination) {}

  /// Collective over the workers. Adds the samples of all of them.
  void add(const Batch& batch, const std::vector<std::string>& gpus, runtime::Control& workers) {
    std::vector<double> mine;
    for (const auto& [micro_batch, size] : batch.sizes)
      for (const auto& phase : size.seconds)
        for (const auto& samples : phase) mine.insert(mine.end(), samples.begin(), samples.end());
    const auto all = gather_numbers(workers, mine);
    if (workers.rank() != 0) return;
    std::map<Series, std::vector<double>> pooled;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      auto next = all[rank].begin();  // as many numbers as on this rank
      for (const auto& [micro_batch, size] : batch.sizes)
        for (std::size_t phase = 0; phase < phases; ++phase)
          for (std::size_t kind = 0; kind < layer_kinds; ++kind) {
            const auto count = static_cast<std::ptrdiff_t>(size.seconds[phase][kind].size());
            auto& samples = pooled[{micro_batch, kind, phase, gpus[rank]}];
            samples.insert(samples.end(), next, next + count);
            next += count;
          }
    }
    for (auto& [series, samples] : pooled)
      if (!samples.empty()) series_[series].push_back(std::move(samples));
    for (const auto& [micro_batch, size] : batch.sizes) bytes_.emplace(micro_batch, size.bytes);
    parameters_ = batch.parameters;
    ++batches_;
  }

  /// Collective over the workers. Adds the ranks that ran out of memory.
  void add_failure(const Batch& batch, const std::vector<std::string>& gpus, runtime::Control& workers) {
    const FailedAllocation failure = batch.failure.value_or(FailedAllocation{});
    const auto all = gather_numbers(workers, {batch.failure ? 1.0 : 0.0, static_cast<double>(failure.kind),
                                              failure.needed.value(), failure.available.value()});
    std::map<std::string, OutOfMemory> largest;  // by GPU
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][0] == 0.0) continue;
      const Bytes needed(all[rank][2]);
      if (const auto known = largest.find(gpus[rank]); known != largest.end() && known->second.needed >= needed)
        continue;
      LayerKey key = key_of(batch.too_large.value_or(settings_.micro_batches.front()), gpus[rank]);
      key.kind = static_cast<LayerKind>(static_cast<int>(all[rank][1]));
      largest[gpus[rank]] = {.key = key, .needed = needed, .available = Bytes(all[rank][3])};
    }
    for (const auto& [gpu, row] : largest) out_of_memory.push_back(row);
  }

  [[nodiscard]] std::vector<LayerTime> times() const {
    std::vector<LayerTime> rows;
    for (const auto& [series, batches] : series_) {
      const auto& [micro_batch, kind, phase, gpu] = series;
      if (phase != forward) continue;
      const auto statistics = [&, micro_batch = micro_batch, kind = kind, gpu = gpu](Phase wanted) {
        const auto found = series_.find({micro_batch, kind, wanted, gpu});
        return found == series_.end() ? TimeStatistics{} : summarize_batches(found->second);
      };
      LayerKey key = key_of(micro_batch, gpu);
      key.kind = static_cast<LayerKind>(kind);
      rows.push_back({.key = key,
                      .forward = statistics(forward),
                      .backward = statistics(backward),
                      .update = statistics(update),
                      .cold_forward = statistics(cold_forward),
                      .cold_backward = statistics(cold_backward)});
    }
    return rows;
  }

  [[nodiscard]] std::vector<LayerMemory> memory() const {
    std::vector<LayerMemory> rows;
    for (const LayerTime& row : times()) {
      const auto kind = index_of(row.key.kind);
      const KindBytes& bytes = bytes_.at(row.key.micro_batch)[kind];
      rows.push_back({.key = row.key,
                      .parameters = parameters_[kind],
                      .activation = Bytes(bytes.activation),
                      .output = Bytes(bytes.output),
                      .input = Bytes(bytes.input),
                      .workspace = Bytes(bytes.workspace)});
      rows.back().key.busy_ranks = 1;
    }
    return rows;
  }

  [[nodiscard]] int batches() const { return batches_; }

  std::vector<OutOfMemory> out_of_memory;

 private:
  using Series = std::tuple<int, std::size_t, std::size_t, std::string>;  // micro-batch, kind, phase, gpu

  [[nodiscard]] LayerKey key_of(int micro_batch, const std::string& gpu) const {
    return {.model = model_.name,
            .gpu = gpu,
            .precision = settings_.precision,
            .recompute = combination_.recompute,
            .tensor_parallel = combination_.tensor_parallel,
            .micro_batch = micro_batch,
            .sequence_length = settings_.sequence_length,
            .busy_ranks = combination_.busy_ranks};
  }

  const Model& model_;
  const LayerSettings& settings_;
  const Combination combination_;
  int batches_ = 0;
  std::map<Series, std::vector<std::vector<double>>> series_;  // samples by batch
  std::map<int, std::array<KindBytes, layer_kinds>> bytes_;    // by micro-batch
  std::array<std::int64_t, layer_kinds> parameters_{};
};

/// Number of batches after which an interval of width `relative` after `batches` would have width `aim`, if batches go
/// on to differ as they did; at most `most`.
double batches_needed(double relative, double aim, int batches, double most) {
  const auto width = [](double count) {
    return student_t_95(static_cast<int>(count) - 1) * std::sqrt(1.0 + 1.0 / count);
  };
  double count = std::max(batches, 2);
  const double spread = relative / width(count);
  count = std::max<double>(batches, fewest_batches_for_the_aim);
  while (count < most && spread * width(count) > aim) ++count;
  return count;
}

/// Decision of all ranks of the world, idle ones included, after each batch.
enum class Verdict { finished, more, interrupted };

Verdict agree_on(Verdict mine, runtime::Control& control) {
  control.idle_barrier();  // ranks that do not take part must not slow down those that do
  return static_cast<Verdict>(static_cast<int>(control.max(static_cast<double>(mine))));
}

/// Clocks and the reference computation of all ranks over the session.
struct DeviceState {
  std::vector<double> clocks;
  std::map<int, std::vector<double>> references;  // by rank

  void add(const Batch& batch, const std::vector<int>& ranks, runtime::Control& workers) {
    const auto all = gather_numbers(workers, {batch.clock_hz, batch.reference});
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i][0] > 0.0) clocks.push_back(all[i][0]);
      if (all[i][1] > 0.0) references[ranks[i]].push_back(all[i][1]);
    }
  }
  void describe(MeasuredLayers& layers) const {
    if (!clocks.empty()) {
      layers.lowest_clock_hz = *std::min_element(clocks.begin(), clocks.end());
      layers.highest_clock_hz = *std::max_element(clocks.begin(), clocks.end());
    }
    for (const auto& [rank, seconds] : references)
      layers.slowdown =
          std::max(layers.slowdown, *std::max_element(seconds.begin(), seconds.end()) / quantile(seconds, 0.5));
  }
};

}  // namespace

Result<void> check_layers(const Model& model, const LayerSettings& settings, runtime::Control& control) {
  SAILOR_CHECK(runtime::check_supported(model));
  if (settings.sequence_length > model.max_sequence_length)
    return fail(ErrorCode::usage, fmt::format("--sequence-length: {} is over the {} tokens that model {} allows",
                                              settings.sequence_length, model.max_sequence_length, model.name));
  bool some = false;
  for (int index = 0; index < model.layers(); ++index) some = some || settings.kinds.contains(model.layer_kind(index));
  if (!some)
    return fail(ErrorCode::usage, fmt::format("--layers: model {} has none of these layers", model.name),
                "measure block, for example");
  const std::vector<std::vector<int>> hosts = ranks_by_host(control);
  const int ranks = most_ranks_of_a_host(hosts);
  const std::string are = ranks == 1 ? "is" : "are";
  for (const int busy : settings.busy_ranks)
    if (busy > ranks)
      return fail(
          ErrorCode::usage,
          fmt::format("--busy-ranks: {} ranks cannot be busy on a host: the most there {} {}", busy, are, ranks),
          fmt::format("start {} ranks per node", busy));
  std::vector<Combination> left_out;
  const std::vector<Combination> measured = combinations_of(settings, ranks, left_out);
  for (const int degree : settings.tensor_parallel) {
    if (auto divisible = runtime::check_divisible(model, degree); !divisible)
      return fail(ErrorCode::usage, "--tensor-parallel: " + divisible.error().what, divisible.error().hint);
    const auto there = static_cast<int>(hosts.front().size());  // rank 0 takes part in every measurement
    if (degree > there)
      return fail(ErrorCode::usage,
                  fmt::format("--tensor-parallel: {} ranks cannot share a layer: a host has {}", degree, there),
                  fmt::format("start {} ranks per node", degree));
    if (std::none_of(measured.begin(), measured.end(),
                     [&](const Combination& combination) { return combination.tensor_parallel == degree; }))
      return fail(
          ErrorCode::usage,
          fmt::format(
              "--tensor-parallel: groups of {} ranks cannot be made of {} of a host", degree,
              settings.busy_ranks.size() > 1
                  ? fmt::format("{} busy ranks", join(settings.busy_ranks, " or "))
                  : plural(static_cast<std::size_t>(settings.busy_ranks.empty() ? ranks : settings.busy_ranks.front()),
                           "busy rank")),
          fmt::format("use --busy-ranks {}, or another multiple of {}", degree, degree));
  }
  const std::vector<std::string> gpus = runtime::all_texts(control, settings.gpu);
  for (const Combination& combination : measured)
    for (const auto& host : hosts)
      for (const auto& group : groups_of(host, combination))
        for (const int rank : group)
          if (const auto& first = gpus[static_cast<std::size_t>(group.front())];
              gpus[static_cast<std::size_t>(rank)] != first)
            return fail(ErrorCode::usage,
                        fmt::format("--tensor-parallel: ranks {} and {} would share a layer, but are on '{}' and '{}'",
                                    group.front(), rank, first, gpus[static_cast<std::size_t>(rank)]),
                        "a tensor-parallel group is of one GPU type: start the ranks of a type side by side");
  return {};
}

std::vector<Combination> combinations(const LayerSettings& settings, runtime::Control& control,
                                      std::vector<Combination>& left_out) {
  return combinations_of(settings, most_ranks_of_a_host(ranks_by_host(control)), left_out);
}

namespace {

/// One combination: batches until everything is known as precisely as requested.
class CombinationRun {
 public:
  struct Context {
    const Model& model;
    const LayerSettings& settings;
    runtime::Device& device;
    const runtime::World& world;
    const std::vector<std::vector<int>>& hosts;
    const std::vector<std::string>& gpus;  ///< of the world
    const std::function<bool()>& stop_asked;
  };
  using Show = std::function<void(double share, Seconds left, const std::string& what)>;

  CombinationRun(const Context& context, const Combination& combination)
      : records(context.model, context.settings, combination), context_(context), combination_(combination) {
    for (const auto& host : context.hosts)
      for (const auto& group : groups_of(host, combination)) {
        ranks_.insert(ranks_.end(), group.begin(), group.end());
        const auto mine = std::find(group.begin(), group.end(), context.world.rank());
        if (mine == group.end()) continue;
        group_ = group;
        shard_ = {.index = static_cast<int>(mine - group.begin()), .count = combination.tensor_parallel};
      }
    std::sort(ranks_.begin(), ranks_.end());
    for (const int rank : ranks_) gpus_.push_back(context.gpus[static_cast<std::size_t>(rank)]);
  }

  Records records;

  /// False if it was interrupted. `show` is called on rank 0.
  bool run(Seconds budget, DeviceState& state, const Show& show) {
    runtime::Device& device = context_.device;
    runtime::Control& control = context_.world.control;
    device.release_unused_memory();
    control.barrier();
    // Reads the available memory before any rank takes some of it.
    const double available = device.available_memory(combination_.busy_ranks).value();
    control.barrier();
    if (group_.empty()) return sleep();
    const std::unique_ptr<runtime::Control> workers = control.subgroup(ranks_);
    std::unique_ptr<runtime::Control> partners;  // in a tensor-parallel group
    std::unique_ptr<runtime::Group> group;
    if (shard_.count > 1) {
      partners = control.subgroup(group_);
      group = context_.world.transport.make_group(group_);
    }
    const double wanted = context_.settings.memory_limit.value();
    double limit = wanted > 0.0 && available > 0.0 ? std::min(wanted, available) : std::max(wanted, available);
    // The ranks of a group allocate alike: with the same limit they fail together, and none waits forever for another.
    if (partners != nullptr) limit = partners->min(limit);
    device.set_memory_limit(Bytes(limit));
    const bool finished = work({.shard = shard_, .group = group.get()}, *workers, budget, state, show);
    device.set_memory_limit(Bytes(0.0));
    return finished;
  }

 private:
  bool sleep() {
    Verdict verdict = Verdict::more;
    while (verdict == Verdict::more)
      verdict = agree_on(context_.stop_asked() ? Verdict::interrupted : Verdict::finished, context_.world.control);
    return verdict != Verdict::interrupted;
  }

  bool work(const runtime::TensorParallel& tensor_parallel, runtime::Control& workers, Seconds budget,
            DeviceState& state, const Show& show) {
    const LayerSettings& settings = context_.settings;
    const std::set<int> micro_batches(settings.micro_batches.begin(), settings.micro_batches.end());
    std::vector<int> sizes(micro_batches.begin(), micro_batches.end());
    std::map<int, int> passes;  // not shared with other combinations: ranks that were idle would lack it
    const auto start = Clock::now();
    Verdict verdict = Verdict::more;
    for (int number = 0; verdict == Verdict::more; ++number) {
      const Batch batch = measure_batch(context_.model, sizes,
                                        {.sequence_length = settings.sequence_length,
                                         .kinds = settings.kinds,
                                         .blocks = settings.blocks,
                                         .tensor_parallel = tensor_parallel,
                                         .recompute = combination_.recompute,
                                         .type = runtime::working_type(settings.precision),
                                         .warm_up = settings.warm_up,
                                         .samples = settings.samples,
                                         .cold = settings.cold && number < cold_batches,
                                         .time_limit = budget * share_of_a_batch},
                                        passes, context_.device, workers, context_.stop_asked);
      if (!batch.sizes.empty()) records.add(batch, gpus_, workers);
      state.add(batch, ranks_, workers);
      if (batch.out_of_memory) {
        // A size that fitted before but does not now is a matter of other processes, not too large.
        if (batch.too_large || number == 0) records.add_failure(batch, gpus_, workers);
        if (batch.too_large)
          sizes.erase(std::lower_bound(sizes.begin(), sizes.end(), *batch.too_large), sizes.end());
        else
          sizes.clear();  // the parameters alone do not fit
      }
      const bool more = context_.world.rank() == 0 && is_more_needed(number + 1, sizes.empty(), start, budget, show);
      verdict = agree_on(batch.interrupted ? Verdict::interrupted
                         : more            ? Verdict::more
                                           : Verdict::finished,
                         context_.world.control);
    }
    return verdict != Verdict::interrupted;
  }

  /// On rank 0, after `batches` batches.
  bool is_more_needed(int batches, bool nothing_fits, Clock::time_point start, Seconds budget, const Show& show) const {
    const LayerSettings& settings = context_.settings;
    const double elapsed = seconds_since(start);
    const double per_batch = elapsed / batches;
    double worst = 0.0;
    for (const LayerTime& row : records.times())
      worst = std::max({worst, row.forward.relative_interval(), row.backward.relative_interval()});
    const bool met = records.batches() >= fewest_batches_for_the_aim && worst <= settings.interval;
    const bool late = records.batches() >= fewest_batches && elapsed + per_batch > budget.value();
    const double needed = batches_needed(worst, settings.interval, records.batches(), budget.value() / per_batch);
    const double left = std::max(0.0, needed * per_batch - elapsed);
    std::string what = plural(static_cast<std::size_t>(combination_.busy_ranks), "rank") + " busy";
    if (settings.tensor_parallel.size() > 1) what += fmt::format(", tensor parallel {}", combination_.tensor_parallel);
    if (settings.recompute.size() > 1) what += fmt::format(", recompute {}", to_string(combination_.recompute));
    show(elapsed / (elapsed + left), Seconds(left),
         fmt::format("{}, batch {}, ±{:.0f}% so far", what, batches, 100.0 * worst));
    return !nothing_fits && !met && !late;
  }

  const Context& context_;
  const Combination combination_;
  std::vector<int> ranks_;         // ranks of the world that work
  std::vector<std::string> gpus_;  // GPUs of these ranks
  std::vector<int> group_;         // this rank's; empty: it sleeps
  runtime::Shard shard_;
};

/// LayerSettings::blocks where it is 0, the same on all ranks.
int usual_blocks(const Model& model, const LayerSettings& settings, const runtime::Device& device,
                 const runtime::World& world, int ranks_of_host) {
  constexpr double fewest = 4.0;
  // The head's products are the largest, and a GPU at its power limit computes the slower the larger they are. Beside
  // four blocks the head takes so much of the time that blocks are measured at a clock that no training has: on an H100
  // iterations were predicted 2 to 5 % too long, and with 16 blocks half of that
  // (experiments/results/2026-11-26-h100.md).
  constexpr double most_on_gpus = 16.0;
  double blocks = fewest;
  if (!device.computes_on_host() && !settings.micro_batches.empty()) {
    Bytes room = device.available_memory(ranks_of_host);
    if (settings.memory_limit > Bytes(0)) room = std::min(room, settings.memory_limit);
    const auto bytes_of = [&](LayerKind kind) {
      const LayerKey key{.model = model.name,
                         .precision = settings.precision,
                         .tensor_parallel = settings.tensor_parallel.front(),
                         .micro_batch = *std::max_element(settings.micro_batches.begin(), settings.micro_batches.end()),
                         .sequence_length = settings.sequence_length,
                         .kind = kind};
      const LayerSizes sizes = layer_sizes(model, key, {.attention = Attention::fused, .recomputes_elementwise = true});
      // Values, gradients, two moments, and master weights of 16-bit values.
      const double state = value_bytes(settings.precision) < 4.0 ? 2.0 + 4.0 + 12.0 : 4.0 + 4.0 + 8.0;
      return Bytes(state * static_cast<double>(sizes.parameters)) + sizes.activation + sizes.workspace;
    };
    constexpr double share = 0.8;  // what else is there, is not reckoned
    const Bytes ends = bytes_of(LayerKind::embedding) + bytes_of(LayerKind::head);
    blocks = std::clamp(std::floor((room * share - ends) / bytes_of(LayerKind::block)), fewest, most_on_gpus);
  }
  return static_cast<int>(-world.control.max(-blocks));
}

}  // namespace

Result<MeasuredLayers> measure_layers(const Model& model, const LayerSettings& given, runtime::Device& device,
                                      const runtime::World& world,
                                      const std::function<void(const LayerProgress&)>& show,
                                      const std::function<bool()>& stop_asked) {
  const std::vector<std::vector<int>> hosts = ranks_by_host(world.control);
  const std::vector<std::string> gpus = runtime::all_texts(world.control, given.gpu);
  LayerSettings settings = given;
  if (settings.blocks == 0) settings.blocks = usual_blocks(model, given, device, world, most_ranks_of_a_host(hosts));
  std::vector<Combination> left_out;
  const std::vector<Combination> all = combinations_of(settings, most_ranks_of_a_host(hosts), left_out);
  const CombinationRun::Context context{model, settings, device, world, hosts, gpus, stop_asked};
  const double parts = static_cast<double>(all.size());
  const Seconds budget = settings.time_budget / parts;

  MeasuredLayers layers;
  DeviceState state;
  std::string no_memory;  // what did not fit, for the message
  double part = 0.0;      // combinations that are done, as a share
  for (const Combination& combination : all) {
    CombinationRun run(context, combination);
    const bool finished = run.run(budget, state, [&](double share, Seconds left, const std::string& what) {
      if (show) show({.share = (part + share) / parts, .left = left + budget * (parts - part - 1.0), .what = what});
    });
    if (!finished)
      return fail(ErrorCode::failure, "interrupted; nothing was stored",
                  "the same command begins anew; a smaller --time-budget ends sooner");
    ++part;
    if (world.rank() != 0) continue;
    for (const LayerTime& row : run.records.times()) layers.times.push_back(row);
    for (const LayerMemory& row : run.records.memory())
      if (std::none_of(layers.memory.begin(), layers.memory.end(),
                       [&](const LayerMemory& known) { return known.key == row.key; }))
        layers.memory.push_back(row);
    for (const OutOfMemory& row : run.records.out_of_memory) {
      if (no_memory.empty())
        no_memory = fmt::format("micro-batch {} needs at least {} at the {} but {} are available to a rank",
                                row.key.micro_batch, format_bytes(row.needed), to_string(row.key.kind),
                                format_bytes(row.available));
      layers.out_of_memory.push_back(row);
    }
  }
  if (world.rank() != 0) return layers;
  state.describe(layers);
  if (layers.times.empty())
    return fail(ErrorCode::unavailable, fmt::format("nothing of model {} fits into memory: {}", model.name, no_memory),
                "use a smaller micro-batch, fewer ranks per node, fewer --blocks, or --layers");
  return layers;
}

bool meets(const LayerTime& row, double interval) {
  return std::max(row.forward.relative_interval(), row.backward.relative_interval()) <= interval;
}

std::vector<ProcessMeasurement> measure_process(const std::string& gpu, const runtime::World& world,
                                                runtime::Device& device) {
  {
    // The BLAS allocates its buffers in the first product, and MPI its own with the first messages.
    constexpr std::int64_t rows = 1024;
    constexpr std::int64_t inner = 512;
    runtime::Tensor a(device, {rows, inner});
    runtime::Tensor b(device, {inner, rows});
    runtime::Tensor c(device, {rows, rows});
    runtime::Stream& stream = device.main();
    stream.zero(a.data(), a.bytes());
    stream.zero(b.data(), b.bytes());
    stream.matmul({.m = rows, .n = rows, .k = inner}, a.floats(), b.floats(), c.floats());
    if (world.size() > 1) {  // one rank has no transport between GPUs
      std::vector<int> ranks(static_cast<std::size_t>(world.size()));
      std::iota(ranks.begin(), ranks.end(), 0);
      const std::unique_ptr<runtime::Group> all = world.transport.make_group(ranks);
      all->all_reduce_sum(stream, c.floats(), c.elements());
    }
    device.synchronize();
  }
  device.release_unused_memory();
  // HDF5 stays in memory after the first file, and rank 0 of a training writes one.
  std::error_code code;
  const auto scratch =
      std::filesystem::temp_directory_path(code) / fmt::format("sailor-{}-{}.h5", world.control.host(), ::getpid());
  if (save_profile(ProfileData{}, scratch)) std::filesystem::remove(scratch, code);
  world.control.barrier();
  const std::vector<std::string> gpus = runtime::all_texts(world.control, gpu);
  const auto memory = gather_numbers(world.control, {device.memory_of_process().value()});
  std::map<std::string, double> largest;
  for (std::size_t rank = 0; rank < memory.size(); ++rank)
    largest[gpus[rank]] = std::max(largest[gpus[rank]], memory[rank].front());
  std::vector<ProcessMeasurement> rows;
  for (const auto& [name, resident] : largest)
    rows.push_back({.gpu = name, .framework = "sailor", .base_memory = Bytes(resident)});
  return rows;
}

}  // namespace sailor::profiler
