// Training samples: windows of a token stream, in a fixed shuffled order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "runtime/data/token_file.hpp"

namespace sailor::runtime {

/// Sample i is the tokens [i · sequence_length, (i + 1) · sequence_length] of the stream: sequence_length inputs, each
/// with the next token as its target. Documents are concatenated, as in GPT's training.
class Samples {
 public:
  /// Errors: those of TokenFile::open(); invalid_input when the file is shorter than one sample.
  static Result<Samples> open(const std::string& prefix, int sequence_length, int vocabulary, std::uint64_t seed);

  /// Number of samples of an epoch.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// The sample at `position` (sample_order.hpp); tokens and targets have sequence_length entries each.
  [[nodiscard]] Result<void> read(std::int64_t position, std::span<std::int32_t> tokens,
                                  std::span<std::int32_t> targets) const;

 private:
  explicit Samples(TokenFile file) : file_(std::move(file)) {}

  TokenFile file_;
  std::int64_t size_ = 0;
  int sequence_length_ = 0;
  int vocabulary_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace sailor::runtime
