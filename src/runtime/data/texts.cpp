#include "runtime/data/texts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/files.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t part_bytes = std::size_t{1} << 20;
constexpr std::size_t longest_line = std::size_t{1} << 30;

Result<std::string> text_of_line(std::string_view line, const std::string& key, const std::string& where) {
  using nlohmann::json;
  json object;
  try {
    object = json::parse(line);
  } catch (const json::parse_error& error) {
    return fail(ErrorCode::invalid_input, fmt::format("{}: it is no JSON: the error is at byte {}", where, error.byte),
                "each line must be a JSON object; texts as they are end in another way than .json or .jsonl");
  } catch (const json::exception&) {
    return fail(ErrorCode::invalid_input, fmt::format("{}: a number in it is too large", where));
  }
  if (!object.is_object())
    return fail(ErrorCode::invalid_input, fmt::format("{}: it is no JSON object", where),
                "each line must be an object with a text");
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    std::string keys;
    for (const auto& [name, value] : object.items())
      if (value.is_string()) keys += (keys.empty() ? "" : ", ") + name;
    return fail(ErrorCode::invalid_input, fmt::format("{}: it has no text '{}'", where, key),
                keys.empty() ? "" : fmt::format("choose one of its texts with --json-key: {}", keys));
  }
  return found->get<std::string>();
}

}  // namespace

Result<void> read_in_parts(const fs::path& path, const std::function<Result<void>(std::string_view)>& part) {
  // This is checked before the file is opened: opening a pipe waits for its writer.
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (!fs::is_regular_file(status))
    return fail(fs::exists(status) ? ErrorCode::io : ErrorCode::not_found,
                fmt::format("cannot read '{}': {}", path.string(),
                            fs::exists(status) ? "it is not a regular file" : code.message()),
                "give regular files");
  const auto file = open_to_read(path);
  if (!file) return fail(file.error());
  std::string buffer(part_bytes, '\0');
  while (true) {
    const ssize_t count = ::read(file->get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(ErrorCode::io, fmt::format("cannot read '{}': {}", path.string(), std::strerror(errno)));
    if (count == 0) return {};
    SAILOR_CHECK(part(std::string_view(buffer.data(), static_cast<std::size_t>(count))));
  }
}

Result<void> read_json_lines(const fs::path& path, const std::string& key,
                             const std::function<Result<void>(const std::string& text, std::int64_t line)>& document) {
  std::string line;  // the part of it read so far
  std::int64_t number = 0;
  const auto end_line = [&]() -> Result<void> {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) return {};
    const auto text = text_of_line(line, key, fmt::format("{}:{}", path.string(), number));
    if (!text) return fail(text.error());
    return document(*text, number);
  };
  const auto read = read_in_parts(path, [&](std::string_view part) -> Result<void> {
    for (std::size_t end = part.find('\n'); end != std::string_view::npos; end = part.find('\n')) {
      line += part.substr(0, end);
      SAILOR_CHECK(end_line());
      line.clear();
      part.remove_prefix(end + 1);
    }
    line += part;
    if (line.size() <= longest_line) return {};
    return fail(ErrorCode::invalid_input,
                fmt::format("{}:{}: the line is longer than 1 GiB", path.string(), number + 1),
                "write a JSON object per line");
  });
  if (!read) return fail(read.error());
  return end_line();
}

}  // namespace sailor::runtime
