#include "runtime/data/token_file.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/files.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

namespace {

constexpr std::string_view magic("MMIDIDX\0\0", 9);
constexpr std::size_t header_bytes = 9 + 8 + 1 + 8 + 8;

template <class T>
T value_at(const std::byte* bytes) {
  T value;  // `bytes` may be unaligned
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// Calls take(index, value) for `count` values of the file, starting at `position`.
template <class T, class Take>
Result<void> for_each_value(const InputFile& file, std::int64_t position, std::int64_t count, const Take& take) {
  constexpr std::int64_t block = 1 << 16;
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(block, count)) * sizeof(T));
  for (std::int64_t first = 0; first < count; first += block) {
    const auto here = static_cast<std::size_t>(std::min(block, count - first));
    SAILOR_CHECK(
        file.read(position + first * static_cast<std::int64_t>(sizeof(T)), std::span(bytes).first(here * sizeof(T))));
    for (std::size_t i = 0; i < here; ++i)
      SAILOR_CHECK(take(first + static_cast<std::int64_t>(i), value_at<T>(bytes.data() + i * sizeof(T))));
  }
  return {};
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

Result<InputFile> InputFile::open(const fs::path& path) {
  const auto refuse = [&](ErrorCode code, std::string_view why) {
    return fail(code, fmt::format("cannot read '{}': {}", path.string(), why));
  };
  auto descriptor = open_to_read(path);
  if (!descriptor && descriptor.error().code == ErrorCode::not_found)
    return refuse(ErrorCode::not_found, std::strerror(ENOENT));
  if (!descriptor) return fail(descriptor.error());
  InputFile file(path.string(), *std::move(descriptor), 0);
  struct stat status {};
  if (fstat(file.descriptor_.get(), &status) != 0) return refuse(ErrorCode::io, std::strerror(errno));
  if (status.st_size == 0) return refuse(ErrorCode::invalid_input, "the file is empty");
  file.size_ = status.st_size;
  return file;
}

Result<void> InputFile::read(std::int64_t position, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = pread(descriptor_.get(), bytes.data(), bytes.size(), position);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      return fail(ErrorCode::io, fmt::format("cannot read '{}' at byte {}: {}", path_, position, std::strerror(errno)));
    if (count == 0) {
      struct stat status {};
      const std::int64_t size = fstat(descriptor_.get(), &status) == 0 ? status.st_size : position;
      return fail(ErrorCode::io, fmt::format("'{}' has {} bytes but had {} when it was opened", path_, size, size_),
                  "another process has cut it: make it anew, and change no file that is trained on");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    position += count;
  }
  return {};
}

Result<TokenFile> TokenFile::open(const std::string& prefix) {
  const std::string index_path = prefix + ".idx";
  auto index = InputFile::open(index_path);
  if (!index) {
    Error error = index.error();
    if (error.code == ErrorCode::not_found)
      error.hint = "give the prefix of a .bin and .idx pair, without the ending; sailor-data makes one from text";
    return fail(std::move(error));
  }
  const auto refuse = [&](const std::string& path, const std::string& why, std::string hint = {}) {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' {}", path, why), std::move(hint));
  };
  std::array<std::byte, header_bytes> header{};
  const auto header_size = static_cast<std::size_t>(std::min<std::int64_t>(header_bytes, index->size()));
  SAILOR_CHECK(index->read(0, std::span(header).first(header_size)));
  if (header_size < magic.size() || std::memcmp(header.data(), magic.data(), magic.size()) != 0)
    return refuse(index_path, "is no Megatron-LM token index: it does not start with MMIDIDX",
                  "make one with sailor-data or Megatron-LM's preprocess_data.py");
  if (header_size < header_bytes) return refuse(index_path, "is truncated: the header is not complete");
  const auto version = value_at<std::uint64_t>(header.data() + 9);
  if (version != 1) return refuse(index_path, fmt::format("has version {}; only 1 is known", version));
  const auto type = static_cast<TokenType>(value_at<std::uint8_t>(header.data() + 17));
  const std::int64_t width = token_bytes(type);
  if (width == 0)
    return refuse(index_path, fmt::format("has tokens of type {}; known are 1 uint8, 2 int8, 3 int16, 4 int32, "
                                          "5 int64, 8 uint16",
                                          static_cast<int>(type)));
  const auto sequences = value_at<std::uint64_t>(header.data() + 18);
  const auto marks = value_at<std::uint64_t>(header.data() + 26);
  // Divisions, because products of untrusted numbers may overflow.
  const std::uint64_t room = static_cast<std::uint64_t>(index->size()) - header_bytes;
  if (sequences > room / 12 || marks > (room - sequences * 12) / 8 || sequences * 12 + marks * 8 != room)
    return refuse(index_path, fmt::format("is truncated or damaged: {} sequences and {} document marks do not make "
                                          "{} bytes",
                                          sequences, marks, index->size()));

  auto bin = InputFile::open(prefix + ".bin");
  if (!bin) return fail(bin.error());
  TokenFile file(std::move(*bin));
  file.type_ = type;
  file.documents_ = marks == 0 ? 0 : static_cast<std::int64_t>(marks) - 1;
  const auto count = static_cast<std::int64_t>(sequences);
  file.first_token_.reserve(sequences + 1);
  file.position_.reserve(sequences);
  file.first_token_.push_back(0);
  const auto lengths = for_each_value<std::int32_t>(
      *index, header_bytes, count, [&](std::int64_t i, std::int32_t length) -> Result<void> {
        if (length < 0) return refuse(index_path, fmt::format("is damaged: sequence {} has length {}", i, length));
        file.first_token_.push_back(file.first_token_.back() + length);
        return {};
      });
  if (!lengths) return fail(lengths.error());
  const std::int64_t bytes = file.bin_.size();
  const auto positions = for_each_value<std::int64_t>(
      *index, header_bytes + 4 * count, count, [&](std::int64_t i, std::int64_t position) -> Result<void> {
        const std::int64_t length =
            file.first_token_[static_cast<std::size_t>(i) + 1] - file.first_token_[static_cast<std::size_t>(i)];
        if (position < 0)
          return refuse(index_path, fmt::format("is damaged: sequence {} lies at byte {}", i, position));
        if (position > bytes || length > (bytes - position) / width)
          return refuse(file.bin_.path(),
                        fmt::format("is truncated: it has {} bytes, but by '{}' sequence {} has {} tokens of {} bytes "
                                    "from byte {} on",
                                    bytes, index_path, i, length, width, position));
        file.position_.push_back(position);
        return {};
      });
  if (!positions) return fail(positions.error());
  std::int64_t before = 0;
  const auto documents = for_each_value<std::int64_t>(
      *index, header_bytes + 12 * count, static_cast<std::int64_t>(marks),
      [&](std::int64_t i, std::int64_t mark) -> Result<void> {
        if (mark < before || mark > count)
          return refuse(index_path, fmt::format("is damaged: document mark {} is {}, which is not between {} and the "
                                                "{} sequences",
                                                i, mark, before, count));
        before = mark;
        return {};
      });
  if (!documents) return fail(documents.error());
  if (file.size() == 0) return refuse(index_path, "has no tokens");
  return file;
}

Result<void> TokenFile::read(std::int64_t first, int vocabulary, std::span<std::int32_t> tokens) const {
  const std::int64_t width = token_bytes(type_);
  // The sequence that holds token `first`: the last one that starts at or before it.
  auto sequence = static_cast<std::size_t>(std::upper_bound(first_token_.begin(), first_token_.end(), first) -
                                           first_token_.begin() - 1);
  std::vector<std::byte> bytes;
  while (!tokens.empty()) {
    const std::int64_t left = first_token_[sequence + 1] - first;  // in the sequence
    const auto count = static_cast<std::size_t>(std::min(left, std::ssize(tokens)));
    const std::int64_t position = position_[sequence] + (first - first_token_[sequence]) * width;
    bytes.resize(count * static_cast<std::size_t>(width));
    SAILOR_CHECK(bin_.read(position, bytes));
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t offset = static_cast<std::int64_t>(i) * width;
      const std::int64_t value = token_at(bytes.data() + offset, type_);
      if (value < 0 || value >= vocabulary)
        return fail(ErrorCode::invalid_input,
                    fmt::format("'{}' has token {} at byte {} (sequence {}), but the model's vocabulary ends at {}",
                                bin_.path(), value, position + offset, sequence, vocabulary - 1),
                    "make the tokens with the model's tokenizer, or take a model with a larger vocabulary");
      tokens[i] = static_cast<std::int32_t>(value);
    }
    tokens = tokens.subspan(count);
    first += static_cast<std::int64_t>(count);
    ++sequence;
  }
  return {};
}

}  // namespace sailor::runtime
