// Makes token files (token_file.hpp): the tokens as they come, then the index.
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

/// Takes the tokens of one document after another.
class TokenSink {
 public:
  TokenSink(std::ostream& out, TokenType type) : out_(out), type_(type) {}

  /// Tokens of the present document, each within the type. Errors: invalid_input, io.
  Result<void> add(std::span<const std::int32_t> tokens);
  Result<void> add_bytes(std::string_view bytes);  ///< a token per byte
  /// False when it had no tokens: it is left out.
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

/// Writes PREFIX.bin and PREFIX.idx of what `fill` gives, one sequence per document. Both appear whole; .idx last, so
/// that whoever finds it finds its .bin. A failing `fill` leaves what was there. Errors: io; invalid_input when one of
/// `inputs` would be replaced, or there are no tokens.
Result<void> write_token_file(const std::string& prefix, TokenType type,
                              const std::vector<std::filesystem::path>& inputs,
                              const std::function<Result<void>(TokenSink&)>& fill);

/// uint8 tokens, one document per file. Errors: invalid_input for empty documents besides.
Result<void> write_byte_tokens(const std::string& prefix, const std::vector<std::filesystem::path>& documents);

/// The text of an .idx file for sequences of these lengths, each a document.
std::string token_index(TokenType type, std::span<const std::int32_t> lengths);

}  // namespace sailor::runtime
