// A pipeline that owns its times.
#pragma once

#include <vector>

#include "simulator/closed_form.hpp"
#include "simulator/event_driven.hpp"

namespace sailor::testing {

using simulator::BoundaryTimes;
using simulator::PassTimes;
using simulator::PipelineTimes;

struct OwnedPipeline {
  Schedule schedule = Schedule::one_f_one_b;
  bool overlaps = false;
  int stages = 1;
  int chunks = 1;
  int micro_batches = 1;
  std::vector<PassTimes> passes;
  std::vector<BoundaryTimes> boundaries;

  [[nodiscard]] PipelineTimes times() const {
    return {.schedule = schedule,
            .overlaps_transfers = overlaps,
            .stages = stages,
            .chunks = chunks,
            .micro_batches = micro_batches,
            .passes = passes,
            .boundaries = boundaries};
  }
  /// By stage, in seconds.
  [[nodiscard]] std::vector<double> ends() const {
    std::vector<double> ends;
    for (const simulator::StageEnd& end : run_pipeline(times())) ends.push_back(end.end.value());
    return ends;
  }
  [[nodiscard]] double end() const { return ends().front(); }
  [[nodiscard]] double closed() const { return closed_form(times()).value(); }
};

}  // namespace sailor::testing
