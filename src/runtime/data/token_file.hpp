// Token files as Megatron-LM's preprocessing writes them: PREFIX.bin holds the tokens of all documents one after the
// other, PREFIX.idx says where each sequence lies and which sequences make a document.
//
// PREFIX.idx, little-endian: "MMIDIDX\0\0", version (uint64, 1), type of a token (uint8), number of sequences S
// (uint64), number of document marks D (uint64), S lengths in tokens (int32), S positions in bytes (int64), D marks
// (int64): document d is the sequences [mark d, mark d+1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/descriptor.hpp"
#include "core/error.hpp"

namespace sailor::runtime {

enum class TokenType : std::uint8_t { uint8 = 1, int8 = 2, int16 = 3, int32 = 4, int64 = 5, uint16 = 8 };

/// Bytes of a token; 0 for an unknown type.
std::int64_t token_bytes(TokenType type);

/// A file with random access. It is not mapped into memory: touching a page that no longer exists, because another
/// process has truncated the file or its disk has failed, would end the process without a message (SIGBUS).
class InputFile {
 public:
  /// Errors: not_found; io (not a regular file, unreadable); invalid_input when it is empty.
  static Result<InputFile> open(const std::filesystem::path& path);

  [[nodiscard]] std::int64_t size() const { return size_; }  ///< when it was opened
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Fills `bytes` from `position` on. Errors: io, also when the file has become shorter since.
  [[nodiscard]] Result<void> read(std::int64_t position, std::span<std::byte> bytes) const;

 private:
  InputFile(std::string path, Descriptor descriptor, std::int64_t size)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), size_(size) {}
  std::string path_;
  Descriptor descriptor_;
  std::int64_t size_ = 0;
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
  /// [0, vocabulary), with its position; io when the file has changed since it was opened.
  [[nodiscard]] Result<void> read(std::int64_t first, int vocabulary, std::span<std::int32_t> tokens) const;

 private:
  explicit TokenFile(InputFile bin) : bin_(std::move(bin)) {}

  InputFile bin_;
  TokenType type_ = TokenType::uint8;
  std::vector<std::int64_t> first_token_;  // of each sequence in the stream, and the end
  std::vector<std::int64_t> position_;     // of each sequence, bytes in PREFIX.bin
  std::int64_t documents_ = 0;
};

}  // namespace sailor::runtime
