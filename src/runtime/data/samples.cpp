#include "runtime/data/samples.hpp"

#include <fmt/format.h>

#include "runtime/data/sample_order.hpp"

namespace sailor::runtime {

Result<Samples> Samples::open(const std::string& prefix, int sequence_length, int vocabulary, std::uint64_t seed) {
  auto file = TokenFile::open(prefix);
  if (!file) return fail(file.error());
  Samples samples(std::move(*file));
  samples.size_ = (samples.file_.size() - 1) / sequence_length;  // the last target is one token further
  samples.sequence_length_ = sequence_length;
  samples.vocabulary_ = vocabulary;
  samples.seed_ = seed;
  if (samples.size_ == 0)
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}.bin' has {} tokens, but one sample of the plan takes {} (sequence_length and its last "
                            "target)",
                            prefix, samples.file_.size(), sequence_length + 1),
                "use more text, or a plan with shorter sequences");
  return samples;
}

Result<void> Samples::read(std::int64_t position, std::span<std::int32_t> tokens,
                           std::span<std::int32_t> targets) const {
  const std::int64_t first = sample_at(seed_, position, size_) * sequence_length_;
  SAILOR_CHECK(file_.read(first, vocabulary_, tokens));
  return file_.read(first + 1, vocabulary_, targets);
}

}  // namespace sailor::runtime
