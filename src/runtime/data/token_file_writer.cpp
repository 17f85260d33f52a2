#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/files.hpp"
#include "runtime/data/token_file.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

template <class T>
void append(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// Copies a file to the end of `out` and returns its length.
Result<std::int64_t> copy_into(const fs::path& document, std::ofstream& out) {
  // Before it is opened: opening a pipe waits for its writer.
  std::error_code code;
  const fs::file_status status = fs::status(document, code);
  if (!fs::is_regular_file(status))
    return fail(fs::exists(status) ? ErrorCode::io : ErrorCode::not_found,
                fmt::format("cannot read '{}': {}", document.string(),
                            fs::exists(status) ? "it is not a regular file" : code.message()),
                "give regular files");
  const auto too_large = [&] {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' has 2 GiB or more", document.string()),
                "split it: a document's length must fit 31 bits in this format");
  };
  if (fs::file_size(document, code) > std::numeric_limits<std::int32_t>::max() && !code) return too_large();
  std::ifstream in(document, std::ios::binary);
  if (!in) return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", document.string(), std::strerror(errno)));
  std::int64_t length = 0;
  std::string buffer(std::size_t{1} << 20, '\0');
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    out.write(buffer.data(), in.gcount());
    length += in.gcount();
  }
  if (in.bad()) return fail(ErrorCode::io, fmt::format("reading '{}' failed", document.string()));
  if (length == 0)
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is empty", document.string()), "leave it out");
  if (length > std::numeric_limits<std::int32_t>::max()) return too_large();  // it grew
  return length;
}

}  // namespace

std::string token_index(TokenType type, std::span<const std::int32_t> lengths) {
  std::string text("MMIDIDX\0\0", 9);
  append(text, std::uint64_t{1});
  append(text, static_cast<std::uint8_t>(type));
  append(text, static_cast<std::uint64_t>(lengths.size()));
  append(text, static_cast<std::uint64_t>(lengths.size() + 1));
  std::int64_t width = 1;
  if (type == TokenType::int16 || type == TokenType::uint16) width = 2;
  if (type == TokenType::int32) width = 4;
  if (type == TokenType::int64) width = 8;
  for (const std::int32_t length : lengths) append(text, length);
  std::int64_t position = 0;
  for (const std::int32_t length : lengths) {
    append(text, position);
    position += length * width;
  }
  for (std::size_t mark = 0; mark <= lengths.size(); ++mark) append(text, static_cast<std::int64_t>(mark));
  return text;
}

Result<void> write_byte_tokens(const std::string& prefix, const std::vector<fs::path>& documents) {
  if (!fs::path(prefix).has_filename())
    return fail(ErrorCode::invalid_input, fmt::format("prefix '{}' ends in a folder", prefix),
                "add the beginning of the files' names");
  std::error_code code;
  for (const char* ending : {".bin", ".idx"}) {
    SAILOR_CHECK(check_can_write(prefix + ending));
    for (const fs::path& document : documents)
      if (fs::equivalent(prefix + ending, document, code))
        return fail(ErrorCode::invalid_input, fmt::format("'{}' is a text and would be replaced", document.string()),
                    "write to another prefix");
  }
  std::vector<std::int32_t> lengths;
  SAILOR_CHECK(write_file_atomically(prefix + ".bin", [&](const fs::path& temporary) -> Result<void> {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    for (const fs::path& document : documents) {
      const auto length = copy_into(document, out);
      if (!length) return fail(length.error());
      lengths.push_back(static_cast<std::int32_t>(*length));
    }
    out.close();
    if (!out) return fail(ErrorCode::io, fmt::format("writing '{}.bin' failed: {}", prefix, std::strerror(errno)));
    // An old index would describe the new tokens wrongly, should this process be killed in between.
    fs::remove(prefix + ".idx", code);
    if (code) return fail(ErrorCode::io, fmt::format("cannot replace '{}.idx': {}", prefix, code.message()));
    return {};
  }));
  return write_file_atomically(prefix + ".idx", token_index(TokenType::uint8, lengths));
}

}  // namespace sailor::runtime
