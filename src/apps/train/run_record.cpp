#include "apps/train/run_record.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/train/recording.hpp"
#include "core/files.hpp"

namespace sailor::apps {

namespace {

using Json = nlohmann::json;

constexpr std::array all_parts{&PartsRecord::forward,       &PartsRecord::backward,  &PartsRecord::wait_activation,
                               &PartsRecord::wait_gradient, &PartsRecord::reduction, &PartsRecord::update};

constexpr std::int64_t statistics_warm_up = 2;  // the first iterations connect ranks and touch memory

/// What later ranks need of a record, in CBOR, which has numbers that are not finite.
std::string to_text(const RunRecord& run) {
  Json json{{"iterations", Json::array()}, {"parts", Json::array()}, {"epochs", Json::array()}};
  for (const IterationRecord& row : run.iterations)
    json["iterations"].push_back({row.iteration, row.loss, row.time.value()});
  for (const PartsRecord& row : run.parts) {
    Json parts{row.iteration};
    for (const PartsRecord::Part PartsRecord::*part : all_parts)
      parts.insert(parts.end(), {(row.*part).mean.value(), (row.*part).slowest.value()});
    json["parts"].push_back(std::move(parts));
  }
  for (const EpochRecord& row : run.epochs) json["epochs"].push_back({row.epoch, row.first_iteration, row.plan_toml});
  std::string text;
  Json::to_cbor(json, text);
  return text;
}

void read_text(RunRecord& run, const std::string& text) {
  const Json json = Json::from_cbor(text);
  run.iterations.clear();
  run.parts.clear();
  run.epochs.clear();
  for (const Json& row : json["iterations"])
    run.iterations.push_back({.iteration = row[0], .loss = row[1], .time = Seconds(row[2].get<double>())});
  for (const Json& row : json["parts"]) {
    PartsRecord parts{.iteration = row[0]};
    for (std::size_t i = 0; i < all_parts.size(); ++i)
      parts.*all_parts[i] = {Seconds(row[2 * i + 1].get<double>()), Seconds(row[2 * i + 2].get<double>())};
    run.parts.push_back(parts);
  }
  for (const Json& row : json["epochs"])
    run.epochs.push_back({.epoch = row[0], .first_iteration = row[1], .plan_toml = row[2]});
}

/// The events of the training, with one that says when they were read, and which iteration is the next. An unfinished
/// last line is left out: the controller may be writing it.
std::string events_so_far(const std::filesystem::path& path, std::int64_t iteration) {
  auto lines = read_text_file(path);
  if (!lines) return {};
  std::string text = *std::move(lines);
  text.resize(text.rfind('\n') + 1);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return text + Json{{"what", "written"}, {"iteration", iteration}, {"unix_time_s", now.count()}}.dump() + "\n";
}

}  // namespace

RunFile::RunFile(const TrainOptions& options, const std::string& command, const Plan& plan,
                 const runtime::Device& device, const std::string& transport)
    : path_(*options.run_file) {
  run_.provenance = {
      .tool = fmt::format("sailor-train {}", version()),
      .command = command,
      .device = device.name(),
      .versions = fmt::format("{}, {}", device.versions(), transport),
      .date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                          fmt::gmtime(std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now())))};
  run_.plan_toml = plan_to_toml(plan);
}

void RunFile::take_over(runtime::Control& control) {
  if (path_.empty()) return;
  const double recorded = run_.iterations.empty() ? -1.0 : static_cast<double>(run_.iterations.back().iteration);
  const bool has_most = recorded == control.max(recorded);
  const auto giver = static_cast<int>(
      control.min(has_most ? static_cast<double>(control.rank()) : static_cast<double>(control.size())));
  if (giver == 0) return;
  const auto told = control.gather(control.rank() == giver ? to_text(run_) : std::string());
  if (control.rank() == 0) read_text(run_, told[static_cast<std::size_t>(giver)]);
}

void RunFile::begin_epoch(const EpochRecord& epoch, const std::filesystem::path& events) {
  events_ = events;
  if (!path_.empty()) run_.add(epoch);
}

void RunFile::add_missed(std::int64_t iteration, const runtime::IterationResult& result) {
  if (!run_.iterations.empty() && run_.iterations.back().iteration >= iteration) return;
  run_.add({.iteration = iteration, .loss = result.loss, .time = result.time});
}

Result<void> RunFile::check(const std::vector<std::string>& inputs) const {
  if (path_.empty()) return {};
  if (auto good = check_can_write(path_); !good) return fail(good.error(), "--run-file");
  std::error_code code;
  for (const std::string& input : inputs)
    if (std::filesystem::equivalent(path_, input, code))
      return fail(ErrorCode::usage, fmt::format("--run-file '{}' is an input of this run", path_), "name another file");
  return {};
}

void RunFile::add(std::int64_t iteration, const runtime::IterationResult& result,
                  const std::optional<runtime::IterationSummary>& summary) {
  run_.add({.iteration = iteration, .loss = result.loss, .time = result.time});
  if (summary) run_.parts.push_back(parts_record(iteration, *summary));
}

Result<void> RunFile::write(runtime::Trainer& trainer) {
  run_.ranks.clear();
  for (const runtime::RankUse& use : trainer.rank_uses())
    run_.ranks.push_back({.rank = use.role.rank,
                          .pipeline = use.role.pipeline,
                          .stage = use.role.stage,
                          .tensor_parallel_index = use.role.tensor_parallel_index,
                          .host = use.host,
                          .peak_tensor_memory = use.peak_tensor_memory,
                          .peak_resident_memory = use.peak_resident_memory});
  run_.warm_up_iterations =
      static_cast<int>(std::min(statistics_warm_up, static_cast<std::int64_t>(run_.iterations.size()) - 1));
  if (trainer.role().rank != 0 || path_.empty()) return {};
  if (!events_.empty())
    run_.events = events_so_far(events_, run_.iterations.empty() ? -1 : run_.iterations.back().iteration + 1);
  std::set<std::string> hosts;
  for (const RankRecord& rank : run_.ranks) hosts.insert(rank.host);
  run_.provenance.host.clear();
  for (const std::string& host : hosts) run_.provenance.host += (run_.provenance.host.empty() ? "" : ",") + host;
  return save_run(run_, path_);
}

}  // namespace sailor::apps
