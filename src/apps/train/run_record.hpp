// The run file of `sailor-train --run-file`. All ranks hold one; rank 0 writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/train_options.hpp"
#include "core/error.hpp"
#include "plan/plan.hpp"
#include "profile/run_file.hpp"
#include "runtime/control.hpp"
#include "runtime/trainer.hpp"

namespace sailor::apps {

class RunFile {
 public:
  /// `command`: the command line, for provenance. `transport`: its name.
  RunFile(const TrainOptions& options, const std::string& command, const Plan& plan, const runtime::Device& device,
          const std::string& transport);

  /// Must be called before anything is computed: checks that the file can be written and replaces none of the run's
  /// inputs.
  [[nodiscard]] Result<void> check(const std::vector<std::string>& inputs) const;
  [[nodiscard]] bool is_wanted() const { return !path_.empty(); }
  void forget() { path_.clear(); }

  /// Of an elastic training, collective among the ranks of an epoch and its spares: rank 0 takes over the record of the
  /// rank that has recorded most, as it may have joined later.
  void take_over(runtime::Control& control);
  /// Of an elastic training: begins an epoch. `events`: the events.jsonl whose lines the run file holds, too.
  void begin_epoch(const EpochRecord& epoch, const std::filesystem::path& events);
  /// Adds an iteration that none of the remaining ranks has ended, unless it is recorded.
  void add_missed(std::int64_t iteration, const runtime::IterationResult& result);

  void add(std::int64_t iteration, const runtime::IterationResult& result,
           const std::optional<runtime::IterationSummary>& summary);
  /// Collective; rank 0 writes.
  [[nodiscard]] Result<void> write(runtime::Trainer& trainer);
  [[nodiscard]] const RunRecord& record() const { return run_; }

 private:
  std::string path_;
  std::filesystem::path events_;  // empty: not an elastic training
  RunRecord run_;
};

}  // namespace sailor::apps
