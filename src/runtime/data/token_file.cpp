#include "runtime/data/token_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace sailor::runtime {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace {

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::size_t header_bytes = 9 + 8 + 1 + 8 + 8;

template <class T>
T value_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;  // may lie unaligned in the file
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// Bytes of a token; 0 for an unknown type.
std::int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::uint8:
    case TokenType::int8:
      return 1;
    case TokenType::int16:
    case TokenType::uint16:
      return 2;
    case TokenType::int32:
      return 4;
    case TokenType::int64:
      return 8;
  }
  return 0;
}

std::int64_t token_at(const std::byte* data, TokenType type) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, data, sizeof(T));
    return static_cast<std::int64_t>(value);
  };
  switch (type) {
    case TokenType::uint8:
      return as(std::uint8_t{});
    case TokenType::int8:
      return as(std::int8_t{});
    case TokenType::int16:
      return as(std::int16_t{});
    case TokenType::uint16:
      return as(std::uint16_t{});
    case TokenType::int32:
      return as(std::int32_t{});
    case TokenType::int64:
      return as(std::int64_t{});
  }
  return -1;
}

}  // namespace

Result<MappedFile> MappedFile::open(const fs::path& path) {
  const auto refuse = [&](ErrorCode code, std::string_view why) {
    return fail(code, fmt::format("cannot read '{}': {}", path.string(), why));
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return refuse(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io, std::strerror(errno));
  struct stat status {};
  const bool known = fstat(descriptor, &status) == 0;
  void* data = MAP_FAILED;
  int reason = errno;
  const bool regular = known && S_ISREG(status.st_mode);
  if (regular && status.st_size > 0) {
    data = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    reason = errno;
  }
  close(descriptor);
  if (!known) return refuse(ErrorCode::io, std::strerror(reason));
  if (!regular) return refuse(ErrorCode::io, "not a regular file");
  if (status.st_size == 0) return refuse(ErrorCode::invalid_input, "the file is empty");
  if (data == MAP_FAILED) return refuse(ErrorCode::io, std::strerror(reason));
  return MappedFile(static_cast<const std::byte*>(data), static_cast<std::size_t>(status.st_size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Result<TokenFile> TokenFile::open(const std::string& prefix) {
  const std::string index_path = prefix + ".idx";
  auto index = MappedFile::open(index_path);
  if (!index) {
    Error error = index.error();
    if (error.code == ErrorCode::not_found)
      error.hint = "give the prefix of a .bin and .idx pair, without the ending; sailor-data makes one from text";
    return fail(std::move(error));
  }
  const std::span<const std::byte> bytes = index->bytes();
  const auto refuse = [&](const std::string& path, const std::string& why, std::string hint = {}) {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' {}", path, why), std::move(hint));
  };
  if (bytes.size() < magic.size() || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    return refuse(index_path, "is no Megatron-LM token index: it does not start with MMIDIDX",
                  "make one with sailor-data or Megatron-LM's preprocess_data.py");
  if (bytes.size() < header_bytes) return refuse(index_path, "is truncated: the header is not complete");
  const auto version = value_at<std::uint64_t>(bytes, 9);
  if (version != 1) return refuse(index_path, fmt::format("has version {}; only 1 is known", version));
  const auto type = static_cast<TokenType>(value_at<std::uint8_t>(bytes, 17));
  const std::int64_t width = token_bytes(type);
  if (width == 0)
    return refuse(index_path, fmt::format("has tokens of type {}; known are 1 uint8, 2 int8, 3 int16, 4 int32, "
                                          "5 int64, 8 uint16",
                                          static_cast<int>(type)));
  const auto sequences = value_at<std::uint64_t>(bytes, 18);
  const auto marks = value_at<std::uint64_t>(bytes, 26);
  // Divisions, because products of foreign numbers overflow.
  const std::uint64_t room = bytes.size() - header_bytes;
  if (sequences > room / 12 || marks > (room - sequences * 12) / 8 ||
      header_bytes + sequences * 12 + marks * 8 != bytes.size())
    return refuse(index_path, fmt::format("is truncated or damaged: {} sequences and {} document marks do not make "
                                          "{} bytes",
                                          sequences, marks, bytes.size()));

  const std::string bin_path = prefix + ".bin";
  auto bin = MappedFile::open(bin_path);
  if (!bin) return fail(bin.error());
  const auto bin_bytes = static_cast<std::int64_t>(bin->bytes().size());
  TokenFile file(std::move(*bin));
  file.bin_path_ = bin_path;
  file.type_ = type;
  file.documents_ = marks == 0 ? 0 : static_cast<std::int64_t>(marks) - 1;
  file.first_token_.reserve(sequences + 1);
  file.position_.reserve(sequences);
  file.first_token_.push_back(0);
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const std::int64_t length = value_at<std::int32_t>(bytes, header_bytes + 4 * i);
    const auto position = value_at<std::int64_t>(bytes, header_bytes + 4 * sequences + 8 * i);
    if (length < 0 || position < 0)
      return refuse(index_path, fmt::format("is damaged: sequence {} has length {} at byte {}", i, length, position));
    if (position > bin_bytes || length > (bin_bytes - position) / width)
      return refuse(bin_path, fmt::format("is truncated: it has {} bytes, but by '{}' sequence {} has {} tokens of {} "
                                          "bytes from byte {} on",
                                          bin_bytes, index_path, i, length, width, position));
    file.first_token_.push_back(file.first_token_.back() + length);
    file.position_.push_back(position);
  }
  if (file.size() == 0) return refuse(index_path, "has no tokens");
  return file;
}

Result<void> TokenFile::read(std::int64_t first, int vocabulary, std::span<std::int32_t> tokens) const {
  const std::int64_t width = token_bytes(type_);
  // The sequence that holds token `first`: the last one that starts at or before it.
  auto sequence = static_cast<std::size_t>(std::upper_bound(first_token_.begin(), first_token_.end(), first) -
                                           first_token_.begin() - 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t token = first + static_cast<std::int64_t>(i);
    while (token >= first_token_[sequence + 1]) ++sequence;
    const std::int64_t position = position_[sequence] + (token - first_token_[sequence]) * width;
    const std::int64_t value = token_at(bin_.bytes().data() + position, type_);
    if (value < 0 || value >= vocabulary)
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}' has token {} at byte {} (sequence {}), but the model's vocabulary ends at {}",
                              bin_path_, value, position, sequence, vocabulary - 1),
                  "make the tokens with the model's tokenizer, or take a model with a larger vocabulary");
    tokens[i] = static_cast<std::int32_t>(value);
  }
  return {};
}

}  // namespace sailor::runtime
