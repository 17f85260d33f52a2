// Texts to make tokens of, read in parts: files may be larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace sailor::runtime {

/// Gives the file in parts of at most 1 MiB, in order. Errors: not_found; io (not a regular file, unreadable); what
/// `part` returns.
Result<void> read_in_parts(const std::filesystem::path& path,
                           const std::function<Result<void>(std::string_view)>& part);

/// Gives the text at `key` of every line, which must be a JSON object (Megatron-LM's preprocess_data.py reads the
/// same); empty lines are skipped. Errors: as read_in_parts(); invalid_input with file and line.
Result<void> read_json_lines(const std::filesystem::path& path, const std::string& key,
                             const std::function<Result<void>(const std::string& text, std::int64_t line)>& document);

}  // namespace sailor::runtime
