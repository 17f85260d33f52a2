#include "apps/train/run_record.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "apps/train/recording.hpp"
#include "core/files.hpp"

namespace sailor::apps {

namespace {

constexpr std::int64_t statistics_warm_up = 2;  // the first iterations connect ranks and touch memory

}  // namespace

RunFile::RunFile(const Options& options, const std::string& command, const Plan& plan, const runtime::Device& device,
                 const std::string& transport)
    : path_(options.text("run-file")) {
  run_.provenance = {
      .tool = fmt::format("sailor-train {}", version()),
      .command = command,
      .device = device.name(),
      .versions = fmt::format("{}, {}", device.versions(), transport),
      .date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                          fmt::gmtime(std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now())))};
  use_plan(plan);
}

void RunFile::use_plan(const Plan& plan) { run_.plan_toml = plan_to_toml(plan); }

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
  run_.iterations.push_back({.iteration = iteration, .loss = result.loss, .time = result.time});
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
  std::set<std::string> hosts;
  for (const RankRecord& rank : run_.ranks) hosts.insert(rank.host);
  run_.provenance.host.clear();
  for (const std::string& host : hosts) run_.provenance.host += (run_.provenance.host.empty() ? "" : ",") + host;
  return save_run(run_, path_);
}

}  // namespace sailor::apps
