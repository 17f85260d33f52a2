// Strict reading of TOML: unknown keys, wrong types and values out of range are errors that name
// file, line and column. Nothing is replaced by a default in silence.
//
// A document collects the first error; reading goes on with harmless values, so that a parser reads
// like a list of keys and asks once, at its end:
//
//   auto document = TomlDocument::load(path);
//   if (!document) return fail(document.error());
//   TomlTable root = document->root();
//   model.hidden = root.integer("hidden", {.minimum = 1});
//   SAILOR_CHECK(document->finish());
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.hpp"

namespace sailor {

namespace detail {
struct TomlState;
}

struct IntegerRange {
  std::int64_t minimum = std::numeric_limits<std::int64_t>::min();
  std::int64_t maximum = std::numeric_limits<std::int64_t>::max();
};

/// Both ends belong to the range; NaN and infinities are always refused.
struct NumberRange {
  double minimum = std::numeric_limits<double>::lowest();
  double maximum = std::numeric_limits<double>::max();
};

/// A value of a table whose columns the file itself names.
using TomlValue = std::variant<std::int64_t, double, std::string>;
struct TomlRow {
  std::vector<TomlValue> values{};
  std::string where{};  ///< "file:line:column"
};

/// While it lives, notes which keys readers of this thread ask for: "pipelines.stages.layers", whether or not they are
/// there. Tests compare the reference of a file format with them.
class TomlKeyRecorder {
 public:
  TomlKeyRecorder();
  ~TomlKeyRecorder();
  TomlKeyRecorder(const TomlKeyRecorder&) = delete;
  TomlKeyRecorder& operator=(const TomlKeyRecorder&) = delete;
  [[nodiscard]] const std::set<std::string>& keys() const { return keys_; }

  /// Internal.
  static void note(std::string_view path, std::string_view key);

 private:
  std::set<std::string> keys_{};
};

/// A table of a document. Cheap to copy; valid as long as the document lives.
class TomlTable {
 public:
  /// True if the key is there (it then counts as known).
  [[nodiscard]] bool has(std::string_view key) const;
  /// True if the key is there and a table, for keys that take a table or another value.
  [[nodiscard]] bool is_table(std::string_view key) const;
  /// The same for arrays.
  [[nodiscard]] bool is_array(std::string_view key) const;
  /// Names of all keys, in the order of the file; they count as known.
  [[nodiscard]] std::vector<std::string> keys() const;

  // A missing key is an error for the forms without a fallback.
  [[nodiscard]] std::int64_t integer(std::string_view key, IntegerRange range = {}) const;
  [[nodiscard]] std::int64_t integer_or(std::string_view key, std::int64_t fallback, IntegerRange range = {}) const;
  [[nodiscard]] double number(std::string_view key, NumberRange range = {}) const;
  [[nodiscard]] double number_or(std::string_view key, double fallback, NumberRange range = {}) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] bool boolean_or(std::string_view key, bool fallback) const;
  /// The text must not be empty.
  [[nodiscard]] std::string text(std::string_view key) const;
  [[nodiscard]] std::string text_or(std::string_view key, std::string fallback) const;
  [[nodiscard]] std::vector<std::string> texts(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> texts_or(std::string_view key, std::vector<std::string> fallback) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key, IntegerRange range = {}) const;
  /// An array of arrays of integers; an array of integers counts as one row.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> integer_rows(std::string_view key,
                                                                    IntegerRange range = {}) const;
  /// An integer, a number or a string, as it stands (numbers may be NaN).
  [[nodiscard]] TomlValue value(std::string_view key) const;
  /// An array of arrays of such values.
  [[nodiscard]] std::vector<TomlRow> rows(std::string_view key) const;
  /// A table; an empty one after an error.
  [[nodiscard]] TomlTable table(std::string_view key) const;
  /// An array of tables; missing = empty.
  [[nodiscard]] std::vector<TomlTable> tables(std::string_view key) const;

  /// One of `choices`; returns its index. For enumerations.
  [[nodiscard]] std::size_t choice(std::string_view key, const std::vector<std::string_view>& choices) const;
  [[nodiscard]] std::size_t choice_or(std::string_view key, const std::vector<std::string_view>& choices,
                                      std::size_t fallback) const;

  /// Records an error at this key (or at the table if the key is not there): "file:line:column: what".
  void reject(std::string_view key, std::string what, std::string hint = {}) const;
  /// "file:line" of the key or of the table, for errors found later.
  [[nodiscard]] std::string where(std::string_view key = {}) const;

  /// Internal.
  TomlTable(std::shared_ptr<detail::TomlState> state, const void* node, std::string path)
      : state_(std::move(state)), node_(node), path_(std::move(path)) {}

 private:
  std::shared_ptr<detail::TomlState> state_;
  const void* node_ = nullptr;  // const toml::table*, or null after an error
  std::string path_;            // "stages[2]", for messages
};

/// The kinds of files that users give in place of another.
enum class TomlKind { plan, cluster, model, gpu_catalogue, framework, site, profile, experiment, cases, node_facts };

class TomlDocument {
 public:
  /// Errors: not_found, io, invalid_input (syntax, with line and column). Files over 64 MiB are refused.
  static Result<TomlDocument> load(const std::filesystem::path& path);
  /// `name` stands for the file in messages.
  static Result<TomlDocument> parse(std::string_view text, std::string_view name);

  [[nodiscard]] TomlTable root() const;
  /// Checks that `schema_version` is there and equal to `supported` and, as far as the keys of the root tell, that this
  /// is a file of this kind.
  void require_schema_version(std::int64_t supported, std::optional<TomlKind> kind = std::nullopt) const;
  /// The first error, else an unknown key, else success. `known`: valid keys, for suggestions.
  [[nodiscard]] Result<void> finish(const std::vector<std::string>& known = {}) const;
  /// True while no error has been recorded.
  [[nodiscard]] bool good() const;

 private:
  explicit TomlDocument(std::shared_ptr<detail::TomlState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::TomlState> state_;
};

/// A TOML basic string with quotes, escaped; bytes that are not UTF-8 become U+FFFD (see valid_utf8).
std::string toml_quote(std::string_view text);

}  // namespace sailor
