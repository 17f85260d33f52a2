// Writes token files (token_file.hpp): the tokens as they arrive, then the index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "runtime/data/token_file.hpp"

namespace sailor::runtime {

/// Receives the tokens of one document after another.
class TokenSink {
 public:
  TokenSink(std::ostream& out, TokenType type) : out_(out), type_(type) {}

  /// Adds tokens of the current document; each must fit the type. Errors: invalid_input, io.
  Result<void> add(std::span<const std::int32_t> tokens);
  Result<void> add_bytes(std::string_view bytes);  ///< a token per byte
  /// Returns false if the document had no tokens: it is left out.
  bool end_document();

  [[nodiscard]] const std::vector<std::int32_t>& lengths() const { return lengths_; }  ///< of the documents

 private:
  Result<void> put(const char* data, std::size_t bytes, std::size_t tokens);

  std::ostream& out_;
  TokenType type_;
  std::int64_t length_ = 0;
  std::vector<std::int32_t> lengths_;
  std::string buffer_;
};

/// Writes PREFIX.bin and PREFIX.idx from the tokens that `fill` adds, one sequence per document. Both files appear
/// atomically, .idx last, so that its .bin always exists. If `fill` fails, existing files stay. Errors: io;
/// invalid_input if one of `inputs` would be replaced, or there are no tokens.
Result<void> write_token_file(const std::string& prefix, TokenType type,
                              const std::vector<std::filesystem::path>& inputs,
                              const std::function<Result<void>(TokenSink&)>& fill);

/// Writes uint8 tokens, one document per file. Further errors: invalid_input for empty documents.
Result<void> write_byte_tokens(const std::string& prefix, const std::vector<std::filesystem::path>& documents);

/// Contents of an .idx file for sequences of these lengths, each a document.
std::string token_index(TokenType type, std::span<const std::int32_t> lengths);

}  // namespace sailor::runtime
