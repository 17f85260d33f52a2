// The data plane between GPUs: every group and channel is an NCCL communicator of its own.
#pragma once

#include <memory>

#include "core/units.hpp"
#include "runtime/control.hpp"
#include "runtime/cuda/cuda_stream.hpp"
#include "runtime/transport.hpp"

namespace sailor::runtime {

struct NcclSettings {
  Seconds timeout{600.0};  ///< without any transfer getting on while the host waits, or for a communicator to be made
};

/// `control` numbers the ranks, and brings NCCL's ids to them when groups and channels are made. Both it and the device
/// must outlive the transport, which watches the device's waits as long as it lives.
std::unique_ptr<Transport> make_nccl_transport(Control& control, CudaDevice& device, const NcclSettings& settings = {});

}  // namespace sailor::runtime
