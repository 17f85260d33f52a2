// In which order samples are trained on: a pure function of the seed and the position, whatever the plan.
#pragma once

#include <cstdint>

namespace sailor::runtime {

/// The sample at `position` (counted over the whole training: iteration * global_batch + index in the batch) among
/// `samples` of them. Every run of `samples` positions, an epoch, is a permutation of all samples, and each epoch
/// another one. Takes constant memory and time, so that training can start anywhere.
std::int64_t sample_at(std::uint64_t seed, std::int64_t position, std::int64_t samples);

}  // namespace sailor::runtime
