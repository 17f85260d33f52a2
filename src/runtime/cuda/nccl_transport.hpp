// The data plane between GPUs: every group and channel is an NCCL communicator of its own.
#pragma once

#include <memory>

#include "core/units.hpp"
#include "runtime/control.hpp"
#include "runtime/cuda/cuda_stream.hpp"
#include "runtime/transport.hpp"

namespace sailor::runtime {

struct NcclSettings {
  Seconds timeout{600.0};  ///< max time without progress of transfers while the host waits, or to create a communicator
};

/// `control` numbers the ranks, and distributes NCCL's ids when groups and channels are created. It and `device` must
/// outlive the transport, which watches the device's waits as long as it lives.
std::unique_ptr<Transport> make_nccl_transport(Control& control, CudaDevice& device, const NcclSettings& settings = {});

}  // namespace sailor::runtime
