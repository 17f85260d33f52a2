// A byte-level BPE vocabulary as GPT-2, OPT and GPT-Neo have it (Radford et al. 2019; Sennrich et al. 2016): tokens are
// byte strings, each byte is a token, and ranked pairs of tokens merge into one. Read from GPT-2's vocab.json and
// merges.txt, or from the tokenizer.json of Hugging Face's tokenizers.
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

namespace sailor::runtime {

class BpeVocabulary {
 public:
  /// `vocab`: a JSON object of tokens and their numbers, `merges`: a pair a line, best first. Errors: invalid_input,
  /// naming `vocab_name` or `merges_name` and what is wrong.
  static Result<BpeVocabulary> parse(std::string_view vocab, std::string_view vocab_name, std::string_view merges,
                                     std::string_view merges_name);
  /// Refused is what would divide text otherwise than GPT-2: another model than BPE, normalizers, other
  /// pre-tokenizers, a space put before the text.
  static Result<BpeVocabulary> parse_tokenizer(std::string_view json, std::string_view name);
  /// The same from files. Errors: not_found and io besides.
  static Result<BpeVocabulary> load(const std::filesystem::path& vocab, const std::filesystem::path& merges);
  static Result<BpeVocabulary> load_tokenizer(const std::filesystem::path& path);

  struct Merge {
    std::int32_t rank = 0;  ///< the lowest goes first
    std::int32_t token = 0;
  };
  [[nodiscard]] std::optional<Merge> merge(std::int32_t left, std::int32_t right) const;
  [[nodiscard]] std::int32_t byte(unsigned char value) const { return byte_tokens_[value]; }
  /// The bytes of a token, or the name of a special one; nothing for a number that is no token.
  [[nodiscard]] std::optional<std::string_view> bytes(std::int32_t token) const;
  /// The token that is written so in the file: "<|endoftext|>".
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view name) const;
  /// Names of the tokens that no text becomes, for messages.
  [[nodiscard]] const std::vector<std::string>& special() const { return special_; }
  /// Above all tokens: what the model's vocabulary must have at least.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  /// A piece of text that is a token becomes it, whatever merges say.
  [[nodiscard]] std::optional<std::int32_t> whole(std::string_view piece) const;

 private:
  friend class BpeParser;
  std::vector<std::optional<std::string>> tokens_;  // bytes, by number
  std::unordered_map<std::string, std::int32_t> by_name_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by left << 32 | right
  std::unordered_map<std::string, std::int32_t> whole_;
  std::array<std::int32_t, 256> byte_tokens_{};
  std::vector<std::string> special_;
};

}  // namespace sailor::runtime
