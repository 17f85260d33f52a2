// A byte-level BPE vocabulary as GPT-2, OPT, GPT-Neo, LLaMA-3 and Qwen have it (Radford et al. 2019; Sennrich et al.
// 2016): tokens are byte strings, each byte is a token, and ranked pairs of tokens merge into one. Read from GPT-2's
// vocab.json and merges.txt, or, with how text is divided, from the tokenizer.json of Hugging Face's tokenizers.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.hpp"
#include "runtime/data/pre_tokenizer.hpp"

namespace sailor::runtime {

class BpeVocabulary {
 public:
  /// `vocab` is a JSON object of tokens and their numbers, `merges` has one pair per line, best first. Errors:
  /// invalid_input, naming `vocab_name` or `merges_name` and the problem.
  static Result<BpeVocabulary> parse(std::string_view vocab, std::string_view vocab_name, std::string_view merges,
                                     std::string_view merges_name);
  /// Rejects what tokenizer_steps.hpp does not know: other models than BPE, other normalizers than NFC, other
  /// pre-tokenizers, a space inserted before the text.
  static Result<BpeVocabulary> parse_tokenizer(std::string_view json, std::string_view name);
  /// The same from files. Further errors: not_found and io.
  static Result<BpeVocabulary> load(const std::filesystem::path& vocab, const std::filesystem::path& merges);
  static Result<BpeVocabulary> load_tokenizer(const std::filesystem::path& path);

  struct Merge {
    std::int32_t rank = 0;  ///< the lowest merges first
    std::int32_t token = 0;
  };
  [[nodiscard]] std::optional<Merge> merge(std::int32_t left, std::int32_t right) const;
  [[nodiscard]] std::int32_t byte(unsigned char value) const { return byte_tokens_[value]; }
  /// The bytes of a token, or the name of a special one; std::nullopt for a number that is not a token.
  [[nodiscard]] std::optional<std::string_view> bytes(std::int32_t token) const;
  /// The token with this name in the file: "<|endoftext|>".
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view name) const;
  /// Names of the special tokens, which text is never encoded to, for messages.
  [[nodiscard]] const std::vector<std::string>& special() const { return special_; }
  /// One more than the largest token: the min size of the model's vocabulary.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  /// The token for a whole piece of text, if there is one: it takes precedence over merges.
  [[nodiscard]] std::optional<std::int32_t> whole(std::string_view piece) const;
  /// How text is divided into pieces.
  [[nodiscard]] SplitPattern pattern() const { return pattern_; }
  /// Whether text is composed to NFC first.
  [[nodiscard]] bool composes() const { return composes_; }
  /// Tokens that the tokenizer's post-processor puts before and after each text.
  [[nodiscard]] const std::vector<std::int32_t>& before_text() const { return before_text_; }
  [[nodiscard]] const std::vector<std::int32_t>& after_text() const { return after_text_; }

 private:
  friend class BpeParser;
  std::vector<std::optional<std::string>> tokens_;  // bytes, by number of the token
  std::unordered_map<std::string, std::int32_t> by_name_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // key: left << 32 | right
  std::unordered_map<std::string, std::int32_t> whole_;
  std::array<std::int32_t, 256> byte_tokens_{};
  std::vector<std::string> special_;
  SplitPattern pattern_ = SplitPattern::gpt2;
  bool composes_ = false;
  std::vector<std::int32_t> before_text_;
  std::vector<std::int32_t> after_text_;
};

}  // namespace sailor::runtime
