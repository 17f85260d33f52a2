// Shared parts of `sailor-profile layers` and `links`: options, the frame of a measuring program under MPI, and
// storing. Both run once per rank under srun or mpirun; rank 0 writes and prints. A usage error is printed once; a
// failure on one rank ends the job.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/options.hpp"
#include "core/error.hpp"
#include "profile/measurements.hpp"

#ifdef SAILOR_HAVE_MPI
#include "apps/devices.hpp"
#include "cluster/gpu_catalogue.hpp"
#include "runtime/device.hpp"
#include "runtime/world.hpp"
#endif

namespace sailor::apps {

Option gpu_option();
Option store_option();
Option samples_option();
Option warm_up_option();
Option time_budget_option(const std::string& seconds);
Option timeout_option();

/// The options that `layers` and `links` have in common.
struct MeasuringOptions : CommonOptions {
  OptionValue<std::string> gpu, store, gpus;
  OptionValue<int> samples, warm_up;
  OptionValue<double> time_budget, timeout;
};

#ifdef SAILOR_HAVE_MPI

/// The node this rank runs on: Slurm's name, else the host's.
std::string node_name(const Environment& environment, const runtime::Control& control);

/// The GPU type that --gpu names, and the catalogue that has it.
struct MeasuredDevice {
  GpuCatalogue catalogue;
  GpuType type;
};

/// Reads --gpu. Errors: usage (Sailor does not compute on such devices), not_found (not in the catalogue).
Result<MeasuredDevice> measured_device(const MeasuringOptions& options, const Environment& environment);

/// Collective: opens the device to be measured; errors are agreed on (those of open_device(); usage: GPUs beside CPUs,
/// or a GPU that the catalogue knows as another type).
Result<RankDevice> open_measured(const MeasuringOptions& options, const Environment& environment, Precision precision,
                                 const MeasuredDevice& measured, runtime::Control& control);

/// Checks, before minutes are spent on measuring, that rank 0 can create the store or add a file to it.
Result<void> check_store(const MeasuringOptions& options);

/// Runs `measure` between the start and the end of MPI. Its error must be agreed on: the same on all ranks.
/// `timeout` limits the start of MPI.
Result<void> with_mpi(Seconds timeout, const Environment& environment,
                      const std::function<Result<void>(const runtime::World&)>& measure);

/// Collective: an error of code `usage` on all ranks when an option other than --gpu and --zone differs between them.
Result<void> same_on_all_ranks(const MeasuringOptions& options, runtime::Control& control);

/// Collective: rank 0 adds the data, as one session, to the store and prints `summary`, or all of the data if that is
/// empty. Clocks in the session (the first of the data, if there is one) stay; its provenance is filled in.
Result<void> store_and_print(const MeasuringOptions& options, const Environment& environment, runtime::Control& control,
                             const runtime::Device& device, ProfileData data, const std::string& summary = {});

#else

/// The error of a build that cannot measure.
Result<void> needs_mpi();

#endif

}  // namespace sailor::apps
