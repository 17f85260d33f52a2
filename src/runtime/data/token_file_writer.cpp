#include "runtime/data/token_file_writer.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <ostream>
#include <sstream>
#include <system_error>

#include "core/files.hpp"
#include "runtime/data/texts.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

template <class T>
void put_value(std::ostream& out, T value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <class T>
void append(std::string& text, std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    const auto value = static_cast<T>(token);
    text.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
}

void write_index(std::ostream& out, TokenType type, std::span<const std::int32_t> lengths) {
  out.write("MMIDIDX\0\0", 9);
  put_value(out, std::uint64_t{1});
  put_value(out, static_cast<std::uint8_t>(type));
  put_value(out, static_cast<std::uint64_t>(lengths.size()));
  put_value(out, static_cast<std::uint64_t>(lengths.size() + 1));
  for (const std::int32_t length : lengths) put_value(out, length);
  std::int64_t position = 0;
  for (const std::int32_t length : lengths) {
    put_value(out, position);
    position += length * token_bytes(type);
  }
  for (std::size_t mark = 0; mark <= lengths.size(); ++mark) put_value(out, static_cast<std::int64_t>(mark));
}

}  // namespace

Result<void> TokenSink::put(const char* data, std::size_t bytes, std::size_t tokens) {
  length_ += static_cast<std::int64_t>(tokens);
  if (length_ > std::numeric_limits<std::int32_t>::max())
    return fail(ErrorCode::invalid_input, "the document has 2^31 tokens or more",
                "split it: a document's length must fit 31 bits in this format");
  out_.write(data, static_cast<std::streamsize>(bytes));
  if (!out_) return fail(ErrorCode::io, fmt::format("writing tokens failed: {}", std::strerror(errno)));
  return {};
}

Result<void> TokenSink::add(std::span<const std::int32_t> tokens) {
  buffer_.clear();
  switch (token_bytes(type_)) {
    case 1:
      append<std::uint8_t>(buffer_, tokens);
      break;
    case 2:
      append<std::uint16_t>(buffer_, tokens);
      break;
    case 4:
      append<std::int32_t>(buffer_, tokens);
      break;
    default:
      append<std::int64_t>(buffer_, tokens);
  }
  return put(buffer_.data(), buffer_.size(), tokens.size());
}

Result<void> TokenSink::add_bytes(std::string_view bytes) {
  if (type_ == TokenType::uint8) return put(bytes.data(), bytes.size(), bytes.size());
  std::vector<std::int32_t> tokens;
  for (const char byte : bytes) tokens.push_back(static_cast<unsigned char>(byte));
  return add(tokens);
}

bool TokenSink::end_document() {
  if (length_ == 0) return false;
  lengths_.push_back(static_cast<std::int32_t>(length_));
  length_ = 0;
  return true;
}

std::string token_index(TokenType type, std::span<const std::int32_t> lengths) {
  std::ostringstream out;
  write_index(out, type, lengths);
  return out.str();
}

Result<void> write_token_file(const std::string& prefix, TokenType type, const std::vector<fs::path>& inputs,
                              const std::function<Result<void>(TokenSink&)>& fill) {
  if (!fs::path(prefix).has_filename())
    return fail(ErrorCode::invalid_input, fmt::format("prefix '{}' ends in a folder", prefix),
                "add the beginning of the files' names");
  std::error_code code;
  for (const char* ending : {".bin", ".idx"}) {
    SAILOR_CHECK(check_can_write(prefix + ending));
    for (const fs::path& input : inputs)
      if (fs::equivalent(prefix + ending, input, code))
        return fail(ErrorCode::invalid_input, fmt::format("'{}' is a text and would be replaced", input.string()),
                    "write to another prefix");
  }
  const auto failed = [&](const char* ending) {
    return fail(ErrorCode::io, fmt::format("writing '{}{}' failed: {}", prefix, ending, std::strerror(errno)));
  };
  std::vector<std::int32_t> lengths;
  const auto bin = write_file_atomically(prefix + ".bin", [&](const fs::path& temporary) -> Result<void> {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    TokenSink sink(out, type);
    const Result<void> filled = fill(sink);
    if (!out) return failed(".bin");
    SAILOR_CHECK(filled);
    out.close();
    if (!out) return failed(".bin");
    if (sink.lengths().empty())
      return fail(ErrorCode::invalid_input, fmt::format("'{}.bin' would have no tokens", prefix), "give more text");
    lengths = sink.lengths();
    // The old index would not match the new tokens if this process were killed before the new index is written.
    fs::remove(prefix + ".idx", code);
    if (code) return fail(ErrorCode::io, fmt::format("cannot replace '{}.idx': {}", prefix, code.message()));
    return {};
  });
  if (!bin) return fail(bin.error());
  return write_file_atomically(prefix + ".idx", [&](const fs::path& temporary) -> Result<void> {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    write_index(out, type, lengths);
    out.close();
    if (!out) return failed(".idx");
    return {};
  });
}

Result<void> write_byte_tokens(const std::string& prefix, const std::vector<fs::path>& documents) {
  return write_token_file(prefix, TokenType::uint8, documents, [&](TokenSink& sink) -> Result<void> {
    for (const fs::path& document : documents) {
      const auto read = read_in_parts(document, [&](std::string_view part) { return sink.add_bytes(part); });
      if (!read) return fail(read.error(), document.string());
      if (!sink.end_document())
        return fail(ErrorCode::invalid_input, fmt::format("'{}' is empty", document.string()), "leave it out");
    }
    return {};
  });
}

}  // namespace sailor::runtime
