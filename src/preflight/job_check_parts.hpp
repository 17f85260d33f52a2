// What the checks of a job share; in no other file.
#pragma once

#include <optional>
#include <string>

#include "core/units.hpp"
#include "preflight/preflight.hpp"
#include "slurm/accounting.hpp"

namespace sailor::preflight {

/// Time that the job gets: what it asks for, else the shortest that its partitions give. Nothing: no limit.
std::optional<Seconds> time_of(const Subject& subject);

/// Null where Slurm keeps no accounts, or they are not known.
const slurm::Accounting* accounting_of(const Subject& subject);

/// Of the warnings of a reading (Subject::left_out): "reservation 'x' is FLEX: ...", "reservations are not known: ...".
inline bool is_about_reservation(const std::string& warning) { return warning.starts_with("reservation"); }

/// That the job is charged to; empty: not known.
std::string account_of(const Subject& subject);

}  // namespace sailor::preflight
