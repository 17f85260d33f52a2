#include "profile/traces/gzip_stream.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#if SAILOR_HAVE_ZLIB
#include <zlib.h>
#endif

namespace sailor::traces {

#if SAILOR_HAVE_ZLIB
struct GzipStream::Buffer : std::streambuf {
  explicit Buffer(gzFile file) : file_(file) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() override { gzclose(file_); }
  int_type underflow() override {
    const int count = gzread(file_, data_.data(), static_cast<unsigned>(data_.size()));
    int code = Z_OK;
    if (const char* text = gzerror(file_, &code); code != Z_OK && code != Z_STREAM_END) problem = text;
    if (count <= 0) return traits_type::eof();
    setg(data_.data(), data_.data(), data_.data() + count);
    return traits_type::to_int_type(data_.front());
  }
  std::string problem;

 private:
  gzFile file_;
  std::array<char, std::size_t{1} << 16> data_{};
};
#endif

Result<GzipStream> GzipStream::open(const std::filesystem::path& file) {
  GzipStream result;
  auto plain = std::make_shared<std::filebuf>();
  if (std::filesystem::is_directory(file) || plain->open(file, std::ios::in | std::ios::binary) == nullptr)
    return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", file.string(), std::strerror(errno)));
  std::array<char, 2> magic{};
  const bool compressed = plain->sgetn(magic.data(), 2) == 2 && magic[0] == '\x1f' && magic[1] == '\x8b';
  plain->pubseekpos(0);
  result.buffer_ = plain;
  if (compressed) {
#if SAILOR_HAVE_ZLIB
    const gzFile opened = gzopen(file.c_str(), "rb");
    if (opened == nullptr)
      return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", file.string(), std::strerror(errno)));
    result.buffer_ = std::make_shared<Buffer>(opened);
#else
    return fail(ErrorCode::unavailable, fmt::format("{}: this build of Sailor has no zlib", file.string()),
                "decompress the file with gunzip");
#endif
  }
  result.stream_ = std::make_unique<std::istream>(result.buffer_.get());
  return result;
}

std::string GzipStream::problem() const {
#if SAILOR_HAVE_ZLIB
  if (const auto* buffer = dynamic_cast<const Buffer*>(buffer_.get())) return buffer->problem;
#endif
  return {};
}

}  // namespace sailor::traces
