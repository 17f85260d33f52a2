// Order in which samples are trained on: a pure function of the seed and the position, independent of the plan.
#pragma once

#include <cstdint>

namespace sailor::runtime {

/// The sample at `position` (counted over the whole training: iteration * global_batch + index in the batch) among
/// `samples` samples. Every epoch of `samples` positions is a permutation of all samples, each epoch a different one.
/// Takes constant memory and time, so that training can start at any position.
std::int64_t sample_at(std::uint64_t seed, std::int64_t position, std::int64_t samples);

}  // namespace sailor::runtime
