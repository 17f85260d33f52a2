// Compares a text with a file in tests/golden/expected. After a change that is meant, rewrite the files with
//   SAILOR_UPDATE_GOLDEN=1 ctest --preset default -L golden
// and read the difference before committing it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/files.hpp"

namespace sailor::testing {

inline std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(SAILOR_SOURCE_DIR) / "tests/golden/expected" / name;
}

/// The first line in which two texts differ, with its number: easier to read than both texts.
inline std::string first_difference(std::string_view expected, std::string_view actual) {
  for (std::size_t line = 1;; ++line) {
    const std::string_view a = expected.substr(0, expected.find('\n'));
    const std::string_view b = actual.substr(0, actual.find('\n'));
    const bool a_ends = a.size() == expected.size();
    const bool b_ends = b.size() == actual.size();
    if (a != b || a_ends != b_ends)
      return "line " + std::to_string(line) + "\n  expected: " + std::string(a) + "\n  actual:   " + std::string(b);
    if (a_ends) return "nowhere";
    expected.remove_prefix(a.size() + 1);
    actual.remove_prefix(b.size() + 1);
  }
}

inline ::testing::AssertionResult matches_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path path = golden_path(name);
  if (const char* update = std::getenv("SAILOR_UPDATE_GOLDEN"); update != nullptr && std::string_view(update) == "1") {
    std::filesystem::create_directories(path.parent_path());
    if (auto written = write_file_atomically(path, text); !written)
      return ::testing::AssertionFailure() << written.error().message();
    return ::testing::AssertionSuccess();
  }
  const auto expected = read_text_file(path);
  if (!expected)
    return ::testing::AssertionFailure() << expected.error().message() << "; SAILOR_UPDATE_GOLDEN=1 writes it";
  if (*expected == text) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << path.string() << " differs in " << first_difference(*expected, text)
                                       << "\nSAILOR_UPDATE_GOLDEN=1 rewrites it, if the change is meant";
}

}  // namespace sailor::testing
