// Signals that ask a program to end at the next safe moment, for programs that have something to save then.
#pragma once

#include <initializer_list>
#include <string_view>

namespace sailor::apps {

/// From now on these signals are only recorded. But a SIGINT or SIGTERM more than five seconds after the first one ends
/// the program, even one that is stuck; an earlier one counts as the same request, since launchers like Slurm and
/// mpirun deliver it twice.
void catch_stop_requests(std::string_view program, std::initializer_list<int> signals);

/// The first signal that arrived, or 0.
int stop_request();

}  // namespace sailor::apps
