// GPT-2's division of text into pieces, each of which is tokenised on its own. The regular expression of its encoder is
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// (Radford et al. 2019, github.com/openai/gpt-2 src/encoder.py), implemented by hand. A byte that is not part of valid
// UTF-8 counts as a character that is neither space, letter nor number, so that any bytes are divided without loss.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace sailor::runtime {

/// The end of the piece that begins at `begin` < text.size(). With `more`, the text may continue: std::nullopt if the
/// continuation could change the answer.
std::optional<std::size_t> piece_end(std::string_view text, std::size_t begin, bool more = false);

}  // namespace sailor::runtime
