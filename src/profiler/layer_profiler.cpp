#include "profiler/layer_profiler.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <system_error>
#include <tuple>

#include "core/terminal.hpp"
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

// Fewer batches may agree by chance: an aim that is checked after each would be met too early.
constexpr int fewest_batches_for_the_aim = 5;
// Cold passes are one sample per batch and take as long as the flushing: so many are enough.
constexpr int cold_batches = 5;
// A batch takes at most this share of the time budget.
constexpr double share_of_a_batch = 1.0 / 6.0;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Ranks by host, ascending, in the order of their first ranks.
std::vector<std::vector<int>> ranks_by_host(runtime::Communicator& world) {
  std::vector<std::vector<int>> hosts;
  std::map<std::string, std::size_t> index;
  const std::vector<std::string> names = all_texts(world, world.host());
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

/// What one number of busy ranks has measured so far, on rank 0.
class Records {
 public:
  Records(const Model& model, const LayerSettings& settings, int busy_ranks)
      : model_(model), settings_(settings), busy_ranks_(busy_ranks) {}

  /// Collective over the workers: the samples of all of them.
  void add(const Batch& batch, const std::vector<std::string>& gpus, runtime::Communicator& workers) {
    std::vector<double> mine;
    for (const auto& [micro_batch, size] : batch.sizes)
      for (const auto& phase : size.seconds)
        for (const auto& samples : phase) mine.insert(mine.end(), samples.begin(), samples.end());
    const auto all = gather_numbers(workers, mine);
    if (workers.rank() != 0) return;
    std::map<Series, std::vector<double>> pooled;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      auto next = all[rank].begin();  // as many numbers as here
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

  /// Collective over the workers: who ran out of memory.
  void add_failure(const Batch& batch, const std::vector<std::string>& gpus, runtime::Communicator& workers) {
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
            .precision = Precision::fp32,
            .recompute = settings_.recompute,
            .tensor_parallel = settings_.tensor_parallel,
            .micro_batch = micro_batch,
            .sequence_length = settings_.sequence_length,
            .busy_ranks = busy_ranks_};
  }

  const Model& model_;
  const LayerSettings& settings_;
  int busy_ranks_;
  int batches_ = 0;
  std::map<Series, std::vector<std::vector<double>>> series_;  // samples by batch
  std::map<int, std::array<KindBytes, layer_kinds>> bytes_;    // by micro-batch
  std::array<std::int64_t, layer_kinds> parameters_{};
};

/// Batches after which an interval `relative` wide after `batches` would be `aim` wide, if batches go on to differ as
/// they did; at most `most`.
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

/// What all ranks of the world, those asleep included, agree on after each batch.
enum class Verdict { finished, more, interrupted };

Verdict agree_on(Verdict mine, runtime::Communicator& world) {
  world.idle_barrier();  // ranks that do not take part take nothing from those that do
  return static_cast<Verdict>(static_cast<int>(world.max(static_cast<double>(mine))));
}

/// Clocks and the reference computation of all ranks over the session.
struct DeviceState {
  std::vector<double> clocks;
  std::map<int, std::vector<double>> references;  // by rank

  void add(const Batch& batch, const std::vector<int>& ranks, runtime::Communicator& workers) {
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

Result<void> check_layers(const Model& model, const LayerSettings& settings, runtime::Communicator& world) {
  SAILOR_CHECK(runtime::check_supported(model));
  if (settings.tensor_parallel != 1)
    return fail(ErrorCode::unavailable,
                fmt::format("--tensor-parallel: {} cannot be measured: the runtime does not split layers yet",
                            settings.tensor_parallel),
                "use 1");
  if (settings.recompute != Recompute::none)
    return fail(ErrorCode::unavailable,
                fmt::format("--recompute: '{}' cannot be measured: the runtime does not recompute yet",
                            to_string(settings.recompute)),
                "use none");
  if (settings.sequence_length > model.max_sequence_length)
    return fail(ErrorCode::usage, fmt::format("--sequence-length: {} is over the {} tokens that model {} allows",
                                              settings.sequence_length, model.max_sequence_length, model.name));
  bool some = false;
  for (int index = 0; index < model.layers(); ++index) some = some || settings.kinds.contains(model.layer_kind(index));
  if (!some)
    return fail(ErrorCode::usage, fmt::format("--layers: model {} has none of these layers", model.name),
                "measure block, for example");
  const int ranks = most_ranks_of_a_host(ranks_by_host(world));
  for (const int busy : settings.busy_ranks)
    if (busy > ranks)
      return fail(ErrorCode::usage,
                  fmt::format("--busy-ranks: {} ranks cannot be busy on a host: the most there {} {}", busy,
                              ranks == 1 ? "is" : "are", ranks),
                  fmt::format("start {} ranks per node", busy));
  return {};
}

Result<MeasuredLayers> measure_layers(const Model& model, const LayerSettings& settings, runtime::Device& device,
                                      runtime::Communicator& world,
                                      const std::function<void(const LayerProgress&)>& show,
                                      const std::function<bool()>& stop_asked) {
  const std::vector<std::vector<int>> hosts = ranks_by_host(world);
  const std::vector<std::string> gpus_of_world = all_texts(world, settings.gpu);
  std::set<int> busy_counts(settings.busy_ranks.begin(), settings.busy_ranks.end());
  if (busy_counts.empty()) busy_counts.insert(most_ranks_of_a_host(hosts));
  const std::set<int> micro_batches(settings.micro_batches.begin(), settings.micro_batches.end());

  MeasuredLayers layers;
  DeviceState state;
  bool interrupted = false;
  std::string no_memory;  // what did not fit, for the message
  double part = 0.0;      // numbers of busy ranks that are done
  for (const int busy : busy_counts) {
    std::vector<int> ranks;
    for (const auto& host : hosts)
      ranks.insert(ranks.end(), host.begin(), host.begin() + std::min<std::ptrdiff_t>(busy, std::ssize(host)));
    std::sort(ranks.begin(), ranks.end());
    std::vector<std::string> gpus;
    for (const int rank : ranks) gpus.push_back(gpus_of_world[static_cast<std::size_t>(rank)]);
    const bool takes_part = std::binary_search(ranks.begin(), ranks.end(), world.rank());

    device.release_unused_memory();
    world.barrier();
    // Reads what is there before any rank takes some of it.
    const double available = runtime::available_memory().value() / busy;
    const double limit = settings.memory_limit.value();
    world.barrier();
    if (!takes_part) {
      Verdict verdict = Verdict::more;
      while (verdict == Verdict::more)
        verdict = agree_on(stop_asked() ? Verdict::interrupted : Verdict::finished, world);
      interrupted = verdict == Verdict::interrupted;
      if (interrupted) break;
      continue;
    }
    device.set_memory_limit(
        Bytes(limit > 0.0 && available > 0.0 ? std::min(limit, available) : std::max(limit, available)));
    const std::unique_ptr<runtime::Communicator> workers = world.subgroup(ranks);
    Records records(model, settings, busy);
    std::vector<int> sizes(micro_batches.begin(), micro_batches.end());
    std::map<int, int> passes;  // not shared with other numbers of busy ranks: ranks that sat out would lack it
    const double budget = settings.time_budget.value() / static_cast<double>(busy_counts.size());
    const auto start = Clock::now();
    bool more = true;
    for (int number = 0; more; ++number) {
      const Batch batch = measure_batch(model, sizes,
                                        {.sequence_length = settings.sequence_length,
                                         .kinds = settings.kinds,
                                         .blocks = settings.blocks,
                                         .warm_up = settings.warm_up,
                                         .samples = settings.samples,
                                         .cold = settings.cold && number < cold_batches,
                                         .time_limit = Seconds(budget * share_of_a_batch)},
                                        passes, device, *workers, stop_asked);
      if (!batch.sizes.empty()) records.add(batch, gpus, *workers);
      state.add(batch, ranks, *workers);
      if (batch.out_of_memory) {
        // What fitted before and does not now is the neighbours' doing, not too large.
        if (batch.too_large || number == 0) records.add_failure(batch, gpus, *workers);
        if (batch.too_large)
          sizes.erase(std::lower_bound(sizes.begin(), sizes.end(), *batch.too_large), sizes.end());
        else
          sizes.clear();  // the parameters alone do not fit
      }
      if (world.rank() == 0) {
        const double elapsed = seconds_since(start);
        const double per_batch = elapsed / (number + 1);
        double worst = 0.0;
        for (const LayerTime& row : records.times())
          worst = std::max({worst, row.forward.relative_interval(), row.backward.relative_interval()});
        const bool met = records.batches() >= fewest_batches_for_the_aim && worst <= settings.interval;
        const bool late = records.batches() >= fewest_batches && elapsed + per_batch > budget;
        more = !sizes.empty() && !met && !late;
        const double needed = batches_needed(worst, settings.interval, records.batches(), budget / per_batch);
        const double left = std::max(0.0, needed * per_batch - elapsed);
        const double parts = static_cast<double>(busy_counts.size());
        if (show)
          show({.share = (part + elapsed / (elapsed + left)) / parts,
                .left = Seconds(left + (parts - part - 1.0) * budget),
                .what = fmt::format("{} busy, batch {}, ±{:.0f}% so far",
                                    plural(static_cast<std::size_t>(busy), "rank"), number + 1, 100.0 * worst)});
      }
      const Verdict verdict = agree_on(batch.interrupted           ? Verdict::interrupted
                                       : world.rank() == 0 && more ? Verdict::more
                                                                   : Verdict::finished,
                                       world);
      more = verdict == Verdict::more;
      interrupted = verdict == Verdict::interrupted;
    }
    device.set_memory_limit(Bytes(0.0));
    if (interrupted) break;
    ++part;
    if (world.rank() != 0) continue;
    for (const LayerTime& row : records.times()) layers.times.push_back(row);
    for (const LayerMemory& row : records.memory())
      if (std::none_of(layers.memory.begin(), layers.memory.end(),
                       [&](const LayerMemory& known) { return known.key == row.key; }))
        layers.memory.push_back(row);
    for (const OutOfMemory& row : records.out_of_memory) {
      if (no_memory.empty())
        no_memory = fmt::format("micro-batch {} needs at least {} at the {} but {} are available to a rank",
                                row.key.micro_batch, format_bytes(row.needed), to_string(row.key.kind),
                                format_bytes(row.available));
      layers.out_of_memory.push_back(row);
    }
  }
  if (interrupted) return fail(ErrorCode::failure, "interrupted; nothing was stored");
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

std::vector<ProcessMeasurement> measure_process(const std::string& gpu, runtime::Communicator& world,
                                                const std::function<std::unique_ptr<runtime::Device>()>& make_device) {
  {
    // The BLAS allocates its buffers in the first product, and MPI its own with the first messages.
    constexpr std::int64_t rows = 1024;
    constexpr std::int64_t inner = 512;
    const std::unique_ptr<runtime::Device> device = make_device();
    runtime::Tensor a(*device, {rows, inner});
    runtime::Tensor b(*device, {inner, rows});
    runtime::Tensor c(*device, {rows, rows});
    device->zero(a.data(), a.bytes());
    device->zero(b.data(), b.bytes());
    device->matmul({.m = rows, .n = rows, .k = inner}, a.floats(), b.floats(), c.floats());
    device->synchronize();
    world.all_reduce_sum(c.floats(), c.elements());
  }
  // HDF5 stays in memory after the first file: rank 0 of a training writes one.
  std::error_code code;
  const auto scratch =
      std::filesystem::temp_directory_path(code) / fmt::format("sailor-{}-{}.h5", world.host(), ::getpid());
  if (save_profile(ProfileData{}, scratch)) std::filesystem::remove(scratch, code);
  world.barrier();
  const std::vector<std::string> gpus = all_texts(world, gpu);
  const auto memory = gather_numbers(world, {runtime::resident_memory().now.value()});
  std::map<std::string, double> largest;
  for (std::size_t rank = 0; rank < memory.size(); ++rank)
    largest[gpus[rank]] = std::max(largest[gpus[rank]], memory[rank].front());
  std::vector<ProcessMeasurement> rows;
  for (const auto& [name, resident] : largest)
    rows.push_back({.gpu = name, .framework = "sailor", .base_memory = Bytes(resident)});
  return rows;
}

}  // namespace sailor::profiler
