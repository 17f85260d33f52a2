#include "profile/run_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/files.hpp"
#include "profile/provenance.hpp"
#include "profile/table.hpp"

namespace sailor {

namespace {

using hdf5::FileReader;
using hdf5::FileWriter;

const hdf5::Table<IterationRecord>& iteration_table() {
  using Row = IterationRecord;
  // A run that diverged has losses that are not finite; they are stored as they are.
  const auto any = [](double /*value*/) -> std::optional<std::string> { return std::nullopt; };
  const auto time_or_nan = [](double value) {
    return std::isnan(value) ? std::nullopt : hdf5::problem_with_amount(value);
  };
  static const hdf5::Table<Row> table("iterations",
                                      {hdf5::integer<Row>("iteration", SAILOR_MEMBER(iteration), {}),
                                       hdf5::number<Row>("loss", "nat/token", SAILOR_MEMBER(loss), any),
                                       hdf5::number<Row>("time_s", "s", SAILOR_MEMBER(time), time_or_nan)});
  return table;
}

const hdf5::Table<EpochRecord>& epoch_table() {
  using Row = EpochRecord;
  static const hdf5::Table<Row> table("epochs",
                                      {hdf5::integer<Row>("epoch", SAILOR_MEMBER(epoch), {}),
                                       hdf5::integer<Row>("first_iteration", SAILOR_MEMBER(first_iteration), {}),
                                       hdf5::free_text<Row>("plan", SAILOR_MEMBER(plan_toml))});
  return table;
}

const hdf5::Table<PartsRecord>& parts_table() {
  using Row = PartsRecord;
  static const hdf5::Table<Row> table(
      "iteration_parts", {hdf5::integer<Row>("iteration", SAILOR_MEMBER(iteration), {}),
                          hdf5::amount<Row>("forward_mean_s", "s", SAILOR_MEMBER(forward.mean)),
                          hdf5::amount<Row>("forward_slowest_s", "s", SAILOR_MEMBER(forward.slowest)),
                          hdf5::amount<Row>("backward_mean_s", "s", SAILOR_MEMBER(backward.mean)),
                          hdf5::amount<Row>("backward_slowest_s", "s", SAILOR_MEMBER(backward.slowest)),
                          hdf5::amount<Row>("wait_activation_mean_s", "s", SAILOR_MEMBER(wait_activation.mean)),
                          hdf5::amount<Row>("wait_activation_slowest_s", "s", SAILOR_MEMBER(wait_activation.slowest)),
                          hdf5::amount<Row>("wait_gradient_mean_s", "s", SAILOR_MEMBER(wait_gradient.mean)),
                          hdf5::amount<Row>("wait_gradient_slowest_s", "s", SAILOR_MEMBER(wait_gradient.slowest)),
                          hdf5::amount<Row>("reduction_mean_s", "s", SAILOR_MEMBER(reduction.mean)),
                          hdf5::amount<Row>("reduction_slowest_s", "s", SAILOR_MEMBER(reduction.slowest)),
                          hdf5::amount<Row>("update_mean_s", "s", SAILOR_MEMBER(update.mean)),
                          hdf5::amount<Row>("update_slowest_s", "s", SAILOR_MEMBER(update.slowest))});
  return table;
}

const hdf5::Table<RankRecord>& rank_table() {
  using Row = RankRecord;
  static const hdf5::Table<Row> table(
      "ranks",
      {hdf5::integer<Row>("rank", SAILOR_MEMBER(rank), {}), hdf5::integer<Row>("pipeline", SAILOR_MEMBER(pipeline), {}),
       hdf5::integer<Row>("stage", SAILOR_MEMBER(stage), {}),
       hdf5::integer<Row>("tensor_parallel_index", SAILOR_MEMBER(tensor_parallel_index), {}),
       hdf5::text<Row>("host", SAILOR_MEMBER(host)),
       hdf5::amount<Row>("peak_tensor_memory_bytes", "byte", SAILOR_MEMBER(peak_tensor_memory)),
       hdf5::amount<Row>("peak_resident_memory_bytes", "byte", SAILOR_MEMBER(peak_resident_memory))});
  return table;
}

Result<void> write_run(const RunRecord& run, const std::filesystem::path& path) {
  auto file = FileWriter::create(path);
  if (!file) return fail(file.error());
  Provenance provenance = run.provenance;
  if (provenance.date.empty()) provenance.date = hdf5::current_date();
  SAILOR_CHECK(hdf5::write_header(*file, hdf5::run_kind, provenance));
  SAILOR_CHECK(file->attribute("warm_up_iterations", std::int64_t{run.warm_up_iterations}));
  SAILOR_CHECK(file->text("plan", run.plan_toml));
  SAILOR_CHECK(iteration_table().write(*file, run.iterations));
  SAILOR_CHECK(rank_table().write(*file, run.ranks));
  SAILOR_CHECK(parts_table().write(*file, run.parts));
  if (!run.epochs.empty()) SAILOR_CHECK(epoch_table().write(*file, run.epochs));
  if (!run.events.empty()) SAILOR_CHECK(file->text("events", run.events));
  return file->close();
}

}  // namespace

std::vector<IterationRecord> RunRecord::counted_iterations() const {
  std::vector<IterationRecord> counted;
  std::size_t epoch = 0;
  std::int64_t since_begin = 0;  // iterations of this epoch
  for (const IterationRecord& record : iterations) {
    while (epoch + 1 < epochs.size() && epochs[epoch + 1].first_iteration <= record.iteration) {
      ++epoch;
      since_begin = 0;
    }
    if (since_begin++ < warm_up_iterations || std::isnan(record.time.value())) continue;
    if (epochs.empty() || epochs[epoch].plan_toml == plan_toml) counted.push_back(record);
  }
  return counted;
}

TimeStatistics RunRecord::iteration_time() const {
  std::vector<double> seconds;
  for (const IterationRecord& record : counted_iterations()) seconds.push_back(record.time.value());
  return summarize(seconds);
}

void RunRecord::add(const IterationRecord& iteration) {
  const auto is_again = [&](const auto& record) { return record.iteration >= iteration.iteration; };
  while (!iterations.empty() && is_again(iterations.back())) iterations.pop_back();
  while (!parts.empty() && is_again(parts.back())) parts.pop_back();
  iterations.push_back(iteration);
}

void RunRecord::add(EpochRecord epoch) {
  while (!epochs.empty() && epochs.back().first_iteration >= epoch.first_iteration) epochs.pop_back();
  plan_toml = epoch.plan_toml;
  epochs.push_back(std::move(epoch));
}

Bytes RunRecord::peak_resident_memory() const {
  Bytes largest{};
  for (const RankRecord& rank : ranks) largest = std::max(largest, rank.peak_resident_memory);
  return largest;
}

Result<void> save_run(const RunRecord& run, const std::filesystem::path& path) {
  return write_file_atomically(path, [&](const std::filesystem::path& temporary) { return write_run(run, temporary); });
}

Result<RunRecord> load_run(const std::filesystem::path& path) {
  auto file = FileReader::open(path);
  if (!file) return fail(file.error());
  auto kind = hdf5::read_kind(*file);
  if (!kind) return fail(kind.error());
  if (*kind != hdf5::run_kind)
    return file->invalid(
        fmt::format("it holds a {}, no run of sailor-train", *kind == hdf5::sweep_kind ? "sweep" : "profile"));
  RunRecord run;
  auto provenance = hdf5::read_provenance(*file);
  if (!provenance) return fail(provenance.error());
  run.provenance = *std::move(provenance);
  auto warm_up = file->integer_attribute("warm_up_iterations");
  if (!warm_up) return fail(warm_up.error());
  if (*warm_up < 0 || *warm_up > std::numeric_limits<int>::max())
    return file->invalid(fmt::format("attribute 'warm_up_iterations': {} is out of range", *warm_up));
  run.warm_up_iterations = static_cast<int>(*warm_up);
  auto plan = file->text("plan");
  if (!plan) return fail(plan.error());
  run.plan_toml = *std::move(plan);
  auto iterations = iteration_table().read(*file);
  if (!iterations) return fail(iterations.error());
  run.iterations = *std::move(iterations);
  auto ranks = rank_table().read(*file);
  if (!ranks) return fail(ranks.error());
  run.ranks = *std::move(ranks);
  if (file->has(parts_table().name())) {
    auto parts = parts_table().read(*file);
    if (!parts) return fail(parts.error());
    run.parts = *std::move(parts);
  }
  if (file->has(epoch_table().name())) {
    auto epochs = epoch_table().read(*file);
    if (!epochs) return fail(epochs.error());
    run.epochs = *std::move(epochs);
  }
  if (file->has("events")) {
    auto events = file->text("events");
    if (!events) return fail(events.error());
    run.events = *std::move(events);
  }
  return run;
}

}  // namespace sailor
