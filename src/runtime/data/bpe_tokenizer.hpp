// Conversion of text to tokens of a byte-level BPE vocabulary, and back. Text is composed to NFC where the tokenizer
// does so (nfc.hpp), then divided into pieces (pre_tokenizer.hpp); in each piece the adjacent pair of best rank merges,
// of equal ones the first, until none is left. Special tokens are never made from text: "<|endoftext|>" in a document
// is tokenised like any other text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "runtime/data/bpe_vocabulary.hpp"
#include "runtime/data/nfc.hpp"

namespace sailor::runtime {

class BpeTokenizer {
 public:
  explicit BpeTokenizer(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  [[nodiscard]] const BpeVocabulary& vocabulary() const { return vocabulary_; }
  /// Tokens of any bytes, even of invalid UTF-8.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text);
  /// Returns the text that was encoded, in NFC if the vocabulary composes. Errors: invalid_input, a number that is not
  /// a token.
  [[nodiscard]] Result<std::string> decode(std::span<const std::int32_t> tokens) const;

  /// Encodes a document that arrives in parts: the same tokens as for the whole, without holding it in memory.
  void add(std::string_view part, std::vector<std::int32_t>& tokens);
  void finish(std::vector<std::int32_t>& tokens);

 private:
  void add_text(std::string_view text, std::vector<std::int32_t>& tokens);
  void add_piece(std::string_view piece, std::vector<std::int32_t>& tokens);
  void merge_piece(std::string_view piece, std::vector<std::int32_t>& tokens);

  BpeVocabulary vocabulary_;
  NfcStream nfc_;
  std::string pending_;         // end of the document in parts, not encoded yet
  std::size_t look_again_ = 0;  // size of pending_ at which to look for the end of its first piece again
  std::unordered_map<std::string, std::vector<std::int32_t>> known_;  // cache of earlier pieces
};

}  // namespace sailor::runtime
