// Texts to be tokenised, read in parts: files may be larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace sailor::runtime {

/// Passes the file to `part` in parts of at most 1 MiB, in order. Errors: not_found; io (not a regular file,
/// unreadable); those of `part`.
Result<void> read_in_parts(const std::filesystem::path& path,
                           const std::function<Result<void>(std::string_view)>& part);

/// Passes the text at `key` of every line, which must be a JSON object (Megatron-LM's preprocess_data.py reads the
/// same), to `document`; empty lines are skipped. Errors: as read_in_parts(); invalid_input with file and line.
Result<void> read_json_lines(const std::filesystem::path& path, const std::string& key,
                             const std::function<Result<void>(const std::string& text, std::int64_t line)>& document);

}  // namespace sailor::runtime
