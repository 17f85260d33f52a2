// Token files as Megatron-LM's preprocessing writes them: PREFIX.bin holds the tokens of all documents one after the
// other, PREFIX.idx says where each sequence lies and which sequences make a document.
//
// PREFIX.idx, little-endian: "MMIDIDX\0\0", version (uint64, 1), type of a token (uint8), number of sequences S
// (uint64), number of document marks D (uint64), S lengths in tokens (int32), S positions in bytes (int64), D marks
// (int64): document d is the sequences [mark d, mark d+1).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace sailor::runtime {

enum class TokenType : std::uint8_t { uint8 = 1, int8 = 2, int16 = 3, int32 = 4, int64 = 5, uint16 = 8 };

/// A whole file mapped into memory, read-only.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The tokens of PREFIX.bin/.idx as one stream, in the order of the sequences.
class TokenFile {
 public:
  /// Errors: not_found, io, invalid_input (foreign, truncated, inconsistent), naming file and reason.
  static Result<TokenFile> open(const std::string& prefix);

  /// Number of tokens.
  [[nodiscard]] std::int64_t size() const { return first_token_.back(); }
  [[nodiscard]] std::int64_t sequences() const { return static_cast<std::int64_t>(first_token_.size()) - 1; }
  [[nodiscard]] std::int64_t documents() const { return documents_; }
  /// Reads tokens [first, first + tokens.size()), which must lie in the file. Errors (invalid_input): a token outside
  /// [0, vocabulary), with its position.
  [[nodiscard]] Result<void> read(std::int64_t first, int vocabulary, std::span<std::int32_t> tokens) const;

 private:
  TokenFile(MappedFile bin) : bin_(std::move(bin)) {}

  std::string bin_path_;
  MappedFile bin_;
  TokenType type_ = TokenType::uint8;
  std::vector<std::int64_t> first_token_;  // of each sequence in the stream, and the end
  std::vector<std::int64_t> position_;     // of each sequence, bytes in PREFIX.bin
  std::int64_t documents_ = 0;
};

/// Writes PREFIX.bin and PREFIX.idx with uint8 tokens, one sequence per document. Both appear whole; .idx last, so that
/// whoever finds it finds its .bin. Errors: io; invalid_input for empty documents.
Result<void> write_byte_tokens(const std::string& prefix, const std::vector<std::filesystem::path>& documents);

/// The text of an .idx file for sequences of these lengths, each a document.
std::string token_index(TokenType type, std::span<const std::int32_t> lengths);

}  // namespace sailor::runtime
