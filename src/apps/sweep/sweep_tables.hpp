// The results of a sweep: its HDF5 and CSV files, and what it prints.
#pragma once

#include <string>
#include <vector>

#include "apps/sweep/sweep.hpp"
#include "core/error.hpp"
#include "profile/sweep_file.hpp"

namespace sailor::apps::sweep {

/// NAME.h5 and NAME.csv in the sweep's folder. `tool` and `command` are what made them.
Result<void> write_tables(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& tool,
                          const std::string& command);

/// The text for stdout, as "table", "json" or "csv".
std::string report(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& format);

/// 0 when every point has an answer, 1 when one failed, 3 when none has a plan.
int exit_status_of(const std::vector<SweepRow>& rows);

}  // namespace sailor::apps::sweep
