// Division of text into pieces, each of which is tokenised on its own: by the regular expressions of GPT-2 (Radford et
// al. 2019, github.com/openai/gpt-2 src/encoder.py), of LLaMA-3 and of Qwen2, Qwen2.5 and Qwen3 (their tokenizer.json),
// implemented by hand. A byte that is not part of valid UTF-8 counts as a character that is neither space, letter nor
// number, so that any bytes are divided without loss.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace sailor::runtime {

enum class SplitPattern { gpt2, llama3, qwen2 };

struct KnownSplitPattern {
  SplitPattern pattern;
  std::string_view regex;
};

inline constexpr std::array known_split_patterns{
    KnownSplitPattern{SplitPattern::gpt2,
                      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    KnownSplitPattern{
        SplitPattern::llama3,
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    KnownSplitPattern{
        SplitPattern::qwen2,
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

/// The end of the piece that begins at `begin` < text.size(). With `more`, the text may continue: std::nullopt if the
/// continuation could change the answer.
std::optional<std::size_t> piece_end(std::string_view text, std::size_t begin, SplitPattern pattern, bool more = false);

}  // namespace sailor::runtime
