// Signals that ask a program to end at the next good moment, for programs that have something to save then.
#pragma once

#include <initializer_list>
#include <string_view>

namespace sailor::apps {

/// From now on these signals are only noted. But a SIGINT or SIGTERM that comes more than five seconds after the first
/// one ends the program, also one that is stuck; before, it is taken for the same request, as launchers like Slurm and
/// mpirun deliver it twice.
void catch_stop_requests(std::string_view program, std::initializer_list<int> signals);

/// The first signal that came, or 0.
int stop_request();

}  // namespace sailor::apps
