#include "core/toml_reader.hpp"

#include <fmt/format.h>

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/files.hpp"
#include "core/text.hpp"

namespace sailor {

namespace detail {

struct TomlState {
  std::string name;
  toml::table root;
  std::optional<Error> error;
  std::pair<const toml::table*, std::string> missing{};  // table and key, when `error` says that a key is missing
  std::set<const toml::node*> known;                     // nodes that a parser has asked for

  std::string where(const toml::node* node) const {
    if (node == nullptr || !node->source().begin) return name;
    return fmt::format("{}:{}:{}", name, node->source().begin.line, node->source().begin.column);
  }
  void record(const toml::node* node, std::string what, std::string hint = {}) {
    if (error) return;
    error = Error{ErrorCode::invalid_input, where(node) + ": " + std::move(what), std::move(hint)};
  }
};

}  // namespace detail

namespace {

using detail::TomlState;

const toml::table* as_table(const void* node) { return static_cast<const toml::table*>(node); }

const char* type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

std::string key_path(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

constexpr int most_key_parts = 32;

/// The end of the string that begins at `begin` (a quotation mark).
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  const char mark = text[begin];
  const std::string three(3, mark);
  const bool multi_line = text.substr(begin, 3) == three;
  std::size_t at = begin + (multi_line ? 3 : 1);
  for (; at < text.size(); ++at) {
    if (mark == '"' && text[at] == '\\') {
      ++at;
    } else if (multi_line ? text.substr(at, 3) == three : text[at] == mark) {
      return at + (multi_line ? 3 : 1);
    } else if (!multi_line && text[at] == '\n') {
      return at;  // not closed: the parser reports it
    }
  }
  return text.size();
}

/// The line of a dotted key with too many parts. toml++ limits how deep values nest, but not this, and destroys tables
/// recursively: a key of 200000 parts overflows the stack.
std::optional<std::size_t> line_of_deep_key(std::string_view text) {
  std::size_t line = 1;
  int dots = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::size_t end = end_of_string(text, at);
      line += static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                                  text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      at = end;
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '.') {
      if (++dots >= most_key_parts) return line;
    } else if (c == '\n' || c == '=' || c == ',' || c == '[' || c == ']' || c == '{' || c == '}') {
      dots = 0;
      if (c == '\n') ++line;
    }
    ++at;
  }
  return std::nullopt;
}

thread_local TomlKeyRecorder* key_recorder = nullptr;

/// The node of a key, marked as known; null if missing.
const toml::node* find(TomlState& state, const void* table, std::string_view path, std::string_view key) {
  TomlKeyRecorder::note(path, key);
  if (table == nullptr) return nullptr;
  const toml::node* node = as_table(table)->get(key);
  if (node != nullptr) state.known.insert(node);
  return node;
}

void missing(TomlState& state, const void* table, std::string_view path, std::string_view key) {
  if (table == nullptr) return;  // an error was recorded when the table was not found
  if (!state.error) state.missing = {as_table(table), std::string(key)};
  state.record(as_table(table), fmt::format("key '{}' is missing", key_path(path, key)));
}

/// The same, but a missing key is an error.
const toml::node* demand(TomlState& state, const void* table, std::string_view path, std::string_view key) {
  const toml::node* node = find(state, table, path, key);
  if (node == nullptr) missing(state, table, path, key);
  return node;
}

void wrong_type(TomlState& state, const toml::node& node, std::string_view path, std::string_view key,
                std::string_view wanted) {
  state.record(&node, fmt::format("'{}' must be {}, not {}", key_path(path, key), wanted, type_name(node)));
}

std::int64_t read_integer(TomlState& state, const toml::node& node, std::string_view path, std::string_view key,
                          IntegerRange range) {
  const std::optional<std::int64_t> value = node.is_integer() ? node.value<std::int64_t>() : std::nullopt;
  if (!value) {
    wrong_type(state, node, path, key, "an integer");
    return std::clamp<std::int64_t>(1, range.minimum, range.maximum);
  }
  if (*value < range.minimum || *value > range.maximum) {
    const std::string bound =
        *value < range.minimum ? fmt::format("at least {}", range.minimum) : fmt::format("at most {}", range.maximum);
    state.record(&node, fmt::format("'{}' is {} but must be {}", key_path(path, key), *value, bound));
    return std::clamp(*value, range.minimum, range.maximum);
  }
  return *value;
}

double read_number(TomlState& state, const toml::node& node, std::string_view path, std::string_view key,
                   NumberRange range) {
  if (!node.is_number()) {
    wrong_type(state, node, path, key, "a number");
    return std::clamp(1.0, range.minimum, range.maximum);
  }
  const double value = *node.value<double>();
  if (!std::isfinite(value) || value < range.minimum || value > range.maximum) {
    const std::string bound = !std::isfinite(value)   ? "finite"
                              : value < range.minimum ? fmt::format("at least {}", range.minimum)
                                                      : fmt::format("at most {}", range.maximum);
    state.record(&node, fmt::format("'{}' is {} but must be {}", key_path(path, key), value, bound));
    return std::clamp(1.0, range.minimum, range.maximum);
  }
  return value;
}

TomlValue read_value(TomlState& state, const toml::node& node, std::string_view path, std::string_view key) {
  if (node.is_integer()) return *node.value<std::int64_t>();
  if (node.is_floating_point()) return *node.value<double>();
  if (node.is_string()) return *node.value<std::string>();
  wrong_type(state, node, path, key, "a number or a string");
  return std::int64_t{0};
}

/// The array of a key; null after an error. `wanted` says what it should be.
const toml::array* demand_array(TomlState& state, const void* table, std::string_view path, std::string_view key,
                                std::string_view wanted) {
  const toml::node* node = demand(state, table, path, key);
  if (node != nullptr && !node->is_array()) wrong_type(state, *node, path, key, wanted);
  return node != nullptr ? node->as_array() : nullptr;
}

/// Depth-first search for a node that nobody asked for. A known array or table does not make its members known.
const toml::node* find_unknown(const TomlState& state, const toml::table& table, const std::string& path,
                               std::string& unknown_path) {
  for (const auto& [key, node] : table) {
    const std::string here = key_path(path, key.str());
    if (!state.known.contains(&node)) {
      unknown_path = here;
      return &node;
    }
    if (const toml::table* sub = node.as_table()) {
      if (const auto* found = find_unknown(state, *sub, here, unknown_path)) return found;
    } else if (const toml::array* array = node.as_array()) {
      std::size_t i = 0;
      for (const toml::node& element : *array) {
        if (const toml::table* row = element.as_table())
          if (const auto* found = find_unknown(state, *row, fmt::format("{}[{}]", here, i), unknown_path)) return found;
        ++i;
      }
    }
  }
  return nullptr;
}

/// A missing key is usually a mistyped one: then the error names the mistyped one.
void blame_mistyped_key(TomlState& state) {
  const auto& [table, key] = state.missing;
  std::vector<std::string> unknown;
  for (const auto& [name, node] : *table)
    if (!state.known.contains(&node)) unknown.emplace_back(name.str());
  const auto mistyped = closest(key, unknown);
  if (!mistyped) return;
  state.error.reset();
  state.record(table->get(*mistyped), fmt::format("unknown key '{}'", *mistyped),
               fmt::format("did you mean '{}'?", key));
}

}  // namespace

TomlKeyRecorder::TomlKeyRecorder() { key_recorder = this; }
TomlKeyRecorder::~TomlKeyRecorder() { key_recorder = nullptr; }

void TomlKeyRecorder::note(std::string_view path, std::string_view key) {
  if (key_recorder == nullptr) return;
  std::string name;  // without the numbers of rows: "pipelines[2]" is "pipelines"
  bool in_number = false;
  for (const char c : key_path(path, key)) {
    if (c == '[') in_number = true;
    if (!in_number) name += c;
    if (c == ']') in_number = false;
  }
  key_recorder->keys_.insert(std::move(name));
}

bool TomlTable::has(std::string_view key) const { return find(*state_, node_, path_, key) != nullptr; }

bool TomlTable::is_table(std::string_view key) const {
  const toml::node* node = find(*state_, node_, path_, key);
  return node != nullptr && node->is_table();
}

bool TomlTable::is_array(std::string_view key) const {
  const toml::node* node = find(*state_, node_, path_, key);
  return node != nullptr && node->is_array();
}

std::vector<std::string> TomlTable::keys() const {
  std::vector<std::pair<toml::source_position, std::string>> entries;
  if (node_ != nullptr)
    for (const auto& [key, node] : *as_table(node_)) {
      state_->known.insert(&node);
      entries.emplace_back(key.source().begin, std::string(key.str()));
    }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (auto& entry : entries) names.push_back(std::move(entry.second));
  return names;
}

std::int64_t TomlTable::integer(std::string_view key, IntegerRange range) const {
  const toml::node* node = demand(*state_, node_, path_, key);
  if (node == nullptr) return std::clamp<std::int64_t>(1, range.minimum, range.maximum);
  return read_integer(*state_, *node, path_, key, range);
}

std::int64_t TomlTable::integer_or(std::string_view key, std::int64_t fallback, IntegerRange range) const {
  return has(key) ? integer(key, range) : fallback;
}

double TomlTable::number(std::string_view key, NumberRange range) const {
  const toml::node* node = demand(*state_, node_, path_, key);
  if (node == nullptr) return std::clamp(1.0, range.minimum, range.maximum);
  return read_number(*state_, *node, path_, key, range);
}

double TomlTable::number_or(std::string_view key, double fallback, NumberRange range) const {
  return has(key) ? number(key, range) : fallback;
}

bool TomlTable::boolean(std::string_view key) const {
  const toml::node* node = demand(*state_, node_, path_, key);
  if (node == nullptr) return false;
  if (!node->is_boolean()) {
    wrong_type(*state_, *node, path_, key, "true or false");
    return false;
  }
  return *node->value<bool>();
}

bool TomlTable::boolean_or(std::string_view key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

std::string TomlTable::text(std::string_view key) const {
  const toml::node* node = demand(*state_, node_, path_, key);
  if (node == nullptr) return {};
  if (!node->is_string()) {
    wrong_type(*state_, *node, path_, key, "a string");
    return {};
  }
  std::string value = *node->value<std::string>();
  if (value.empty()) state_->record(node, fmt::format("'{}' must not be empty", key_path(path_, key)));
  return value;
}

std::string TomlTable::text_or(std::string_view key, std::string fallback) const {
  return has(key) ? text(key) : std::move(fallback);
}

std::vector<std::string> TomlTable::texts(std::string_view key) const {
  std::vector<std::string> values;
  const toml::array* array = demand_array(*state_, node_, path_, key, "an array of strings");
  if (array == nullptr) return values;
  for (const toml::node& element : *array) {
    if (!element.is_string()) {
      wrong_type(*state_, element, path_, key, "an array of strings");
      return values;
    }
    values.push_back(*element.value<std::string>());
  }
  return values;
}

std::vector<std::string> TomlTable::texts_or(std::string_view key, std::vector<std::string> fallback) const {
  return has(key) ? texts(key) : std::move(fallback);
}

std::vector<std::int64_t> TomlTable::integers(std::string_view key, IntegerRange range) const {
  std::vector<std::int64_t> values;
  const toml::array* array = demand_array(*state_, node_, path_, key, "an array of integers");
  if (array == nullptr) return values;
  for (const toml::node& element : *array) values.push_back(read_integer(*state_, element, path_, key, range));
  return values;
}

std::vector<std::vector<std::int64_t>> TomlTable::integer_rows(std::string_view key, IntegerRange range) const {
  const toml::array* array = demand_array(*state_, node_, path_, key, "an array of integers, or of such arrays");
  if (array == nullptr) return {};
  if (array->empty() || !array->get(0)->is_array()) return {integers(key, range)};
  std::vector<std::vector<std::int64_t>> rows;
  for (const toml::node& element : *array) {
    if (!element.is_array()) {
      wrong_type(*state_, element, path_, key, "an array of arrays");
      return rows;
    }
    std::vector<std::int64_t>& row = rows.emplace_back();
    for (const toml::node& value : *element.as_array()) row.push_back(read_integer(*state_, value, path_, key, range));
  }
  return rows;
}

TomlValue TomlTable::value(std::string_view key) const {
  const toml::node* node = demand(*state_, node_, path_, key);
  return node != nullptr ? read_value(*state_, *node, path_, key) : TomlValue{};
}

std::vector<TomlRow> TomlTable::rows(std::string_view key) const {
  std::vector<TomlRow> rows;
  const toml::array* array = demand_array(*state_, node_, path_, key, "an array of arrays");
  if (array == nullptr) return rows;
  for (const toml::node& element : *array) {
    if (!element.is_array()) {
      wrong_type(*state_, element, path_, key, "an array of arrays");
      return rows;
    }
    TomlRow& row = rows.emplace_back();
    row.where = state_->where(&element);
    for (const toml::node& value : *element.as_array()) row.values.push_back(read_value(*state_, value, path_, key));
  }
  return rows;
}

TomlTable TomlTable::table(std::string_view key) const {
  const toml::node* node = demand(*state_, node_, path_, key);
  if (node != nullptr && !node->is_table()) wrong_type(*state_, *node, path_, key, "a table");
  return {state_, node != nullptr ? node->as_table() : nullptr, key_path(path_, key)};
}

std::vector<TomlTable> TomlTable::tables(std::string_view key) const {
  std::vector<TomlTable> rows;
  const toml::node* node = find(*state_, node_, path_, key);
  if (node == nullptr) return rows;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    wrong_type(*state_, *node, path_, key, "an array of tables");
    return rows;
  }
  std::size_t i = 0;
  for (const toml::node& element : *array) {
    if (!element.is_table()) {
      wrong_type(*state_, element, path_, key, "an array of tables");
      return rows;
    }
    rows.emplace_back(state_, element.as_table(), fmt::format("{}[{}]", key_path(path_, key), i++));
  }
  return rows;
}

std::size_t TomlTable::choice(std::string_view key, const std::vector<std::string_view>& choices) const {
  const std::string value = text(key);
  const auto found = std::find(choices.begin(), choices.end(), value);
  if (found == choices.end()) {
    if (!value.empty())
      reject(key, fmt::format("'{}' is '{}'", key_path(path_, key), value),
             fmt::format("use one of: {}", join(choices, ", ")));
    return 0;
  }
  return static_cast<std::size_t>(found - choices.begin());
}

std::size_t TomlTable::choice_or(std::string_view key, const std::vector<std::string_view>& choices,
                                 std::size_t fallback) const {
  return has(key) ? choice(key, choices) : fallback;
}

void TomlTable::reject(std::string_view key, std::string what, std::string hint) const {
  const toml::node* node = find(*state_, node_, path_, key);
  if (node == nullptr && node_ != nullptr) node = as_table(node_);
  state_->record(node, std::move(what), std::move(hint));
}

std::string TomlTable::where(std::string_view key) const {
  const toml::node* node = key.empty() ? nullptr : find(*state_, node_, path_, key);
  if (node == nullptr && node_ != nullptr) node = as_table(node_);
  return state_->where(node);
}

Result<TomlDocument> TomlDocument::load(const std::filesystem::path& path) {
  auto text = read_text_file(path);
  if (!text) return fail(text.error());
  return parse(*text, path.string());
}

Result<TomlDocument> TomlDocument::parse(std::string_view text, std::string_view name) {
  if (const auto line = line_of_deep_key(text))
    return fail(ErrorCode::invalid_input,
                fmt::format("{}:{}: a key has more than {} parts", name, *line, most_key_parts));
  if (text.starts_with("\x89HDF\r\n"))
    return fail(ErrorCode::invalid_input, fmt::format("{}: this is an HDF5 file, not TOML", name),
                "--profile takes profile stores; sailor-report and sailor-simulate --against take run files");
  auto state = std::make_shared<TomlState>();
  state->name = name;
  try {
    state->root = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    return fail(ErrorCode::invalid_input, fmt::format("{}:{}:{}: {}", name, error.source().begin.line,
                                                      error.source().begin.column, error.description()));
  }
  return TomlDocument(std::move(state));
}

TomlTable TomlDocument::root() const { return {state_, &state_->root, ""}; }

namespace {

/// How files of a kind are recognised: by keys of the root that no others have together.
struct KindTraits {
  TomlKind kind;
  std::string_view name;
  std::array<std::string_view, 2> keys;  ///< the second may be empty
  std::string_view taken_by;
};
constexpr std::array kinds{
    KindTraits{TomlKind::plan,
               "a plan (plan.toml)",
               {"job", "pipelines"},
               "sailor-simulate, sailor-report and sailor-submit take it"},
    KindTraits{TomlKind::experiment, "an experiment", {"planners", "clusters"}, "sailor-sweep takes it"},
    KindTraits{TomlKind::cases, "a file of measured cases", {"cases", ""}, "sailor-simulate --against takes it"},
    KindTraits{TomlKind::gpu_catalogue, "a GPU catalogue (gpus.toml)", {"gpus", ""}, "--gpus takes it"},
    KindTraits{TomlKind::framework, "a framework description", {"layers", "time"}, "--framework takes it"},
    KindTraits{TomlKind::profile, "a profile", {"sessions", "kind"}, "sailor-profile import takes it"},
    KindTraits{TomlKind::model, "a model", {"blocks", "hidden"}, "--model takes it"},
    KindTraits{TomlKind::site, "a site file", {"launch", "name"}, "--site takes it"},
    KindTraits{TomlKind::cluster, "a cluster (cluster.toml)", {"nodes", "name"}, "--cluster takes it"},
    KindTraits{
        TomlKind::node_facts, "what sailor-launch --write-node-facts writes", {"nodes", ""}, "--node-facts takes it"},
};

const KindTraits& traits_of(TomlKind kind) {
  return *std::find_if(kinds.begin(), kinds.end(), [&](const KindTraits& traits) { return traits.kind == kind; });
}

/// Null: none that is known.
const KindTraits* kind_of(const toml::table& root) {
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const KindTraits& traits) {
    return std::all_of(traits.keys.begin(), traits.keys.end(),
                       [&](std::string_view key) { return key.empty() || root.contains(key); });
  });
  return found == kinds.end() ? nullptr : &*found;
}

}  // namespace

void TomlDocument::require_schema_version(std::int64_t supported, std::optional<TomlKind> kind) const {
  if (kind) {
    const KindTraits& wanted = traits_of(*kind);
    if (state_->root.empty()) return root().reject("", "the file is empty", fmt::format("it must be {}", wanted.name));
    if (const KindTraits* found = kind_of(state_->root); found != nullptr && found->kind != kind)
      return root().reject("", fmt::format("this is {}, not {}", found->name, wanted.name),
                           std::string(found->taken_by));
  }
  const std::int64_t found = root().integer("schema_version", {.minimum = 1});
  if (found != supported && state_->root.get("schema_version") != nullptr)
    root().reject("schema_version", fmt::format("schema_version is {} but this Sailor reads {}", found, supported),
                  found > supported ? "use a newer Sailor" : "write the file anew with this Sailor");
}

Result<void> TomlDocument::finish(const std::vector<std::string>& known) const {
  if (state_->missing.first != nullptr) blame_mistyped_key(*state_);
  if (!state_->error) {
    std::string path;
    if (const toml::node* unknown = find_unknown(*state_, state_->root, "", path)) {
      state_->record(unknown, fmt::format("unknown key '{}'", path),
                     did_you_mean(path, known, "check the spelling or remove it"));
    }
  }
  if (state_->error) return fail(*state_->error);
  return {};
}

bool TomlDocument::good() const { return !state_->error; }

std::string toml_quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\t':
        quoted += "\\t";
        break;
      case '\r':
        quoted += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
          quoted += fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        else
          quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace sailor
