#include "runtime/data/bpe_vocabulary.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/files.hpp"
#include "core/text.hpp"
#include "runtime/data/tokenizer_steps.hpp"

namespace sailor::runtime {

namespace {

using nlohmann::json;

constexpr std::int64_t most_tokens = 1 << 24;
constexpr std::size_t largest_file = std::size_t{256} << 20;
constexpr const char* other_kinds = "Sailor reads byte-level BPE vocabularies";

/// The byte that each character in a token's name stands for: bytes that are printable in Latin-1 are their own
/// characters, the others, in their order, are U+0100 and on (GPT-2's bytes_to_unicode()). Indexed by character, which
/// is below 512.
const std::array<std::int16_t, 512>& bytes_by_character() {
  static const std::array<std::int16_t, 512> table = [] {
    std::array<std::int16_t, 512> bytes{};
    bytes.fill(-1);
    std::size_t next = 256;
    for (std::int16_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      bytes[printable ? static_cast<std::size_t>(byte) : next++] = byte;
    }
    return bytes;
  }();
  return table;
}

/// std::nullopt if a character stands for no byte. All of these characters take at most two bytes of UTF-8.
std::optional<std::string> bytes_of_name(std::string_view name) {
  std::string bytes;
  for (std::size_t i = 0; i < name.size(); ++i) {
    auto character = static_cast<unsigned>(static_cast<unsigned char>(name[i]));
    if (character >= 0x80) {
      if ((character & 0xe0u) != 0xc0u || i + 1 == name.size()) return std::nullopt;
      const auto second = static_cast<unsigned>(static_cast<unsigned char>(name[++i]));
      if ((second & 0xc0u) != 0x80u) return std::nullopt;
      character = ((character & 0x1fu) << 6) | (second & 0x3fu);
    }
    if (character >= bytes_by_character().size() || bytes_by_character()[character] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_by_character()[character]);
  }
  return bytes;
}

}  // namespace

/// Fills a vocabulary from the parts of a file; its errors name the file.
class BpeParser {
 public:
  explicit BpeParser(std::string_view file) : file_(file) {}

  [[nodiscard]] tl::unexpected<Error> invalid(const std::string& what, std::string hint = {}) const {
    return fail(ErrorCode::invalid_input, fmt::format("'{}': {}", file_, what), std::move(hint));
  }

  Result<json> read(std::string_view text) const {
    try {
      return json::parse(text);
    } catch (const json::parse_error& error) {
      return invalid(fmt::format("it is no JSON: the error is at byte {}", error.byte));
    } catch (const json::exception& error) {
      return invalid(fmt::format("it cannot be read as JSON: {}", valid_utf8(error.what())));
    }
  }

  Result<void> add_tokens(const json& vocab) {
    if (!vocab.is_object()) return invalid("the vocabulary is no object of tokens and their numbers", other_kinds);
    for (const auto& [name, number] : vocab.items()) {
      const auto bytes = bytes_of_name(name);
      if (!bytes || bytes->empty())
        return invalid(fmt::format("token '{}' does not stand for bytes", shown_name(name)), other_kinds);
      SAILOR_CHECK(add(name, number, *bytes));
      result_.by_name_.emplace(name, number.get<std::int32_t>());
    }
    for (int value = 0; value < 256; ++value) {
      const std::string byte(1, static_cast<char>(value));
      const auto found = by_bytes_.find(byte);
      if (found == by_bytes_.end())
        return invalid(fmt::format("byte {} is no token", value),
                       "train the vocabulary with all 256 bytes as its alphabet");
      result_.byte_tokens_[static_cast<std::size_t>(value)] = found->second;
    }
    return {};
  }

  Result<void> add_merge(std::string_view left, std::string_view right, std::string_view where) {
    std::array<std::int32_t, 3> tokens{};
    const std::string joined = std::string(left) + std::string(right);
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string name = i == 0 ? std::string(left) : i == 1 ? std::string(right) : joined;
      const auto found = result_.by_name_.find(name);
      if (found == result_.by_name_.end())
        return invalid(fmt::format("{}: '{}' is not in the vocabulary", where, shown_name(name)),
                       "take vocabulary and merges of the same tokenizer");
      tokens[i] = found->second;
    }
    const auto key = (static_cast<std::uint64_t>(tokens[0]) << 32) | static_cast<std::uint64_t>(tokens[1]);
    const auto rank = static_cast<std::int32_t>(rank_++);
    result_.merges_.insert_or_assign(key, BpeVocabulary::Merge{.rank = rank, .token = tokens[2]});
    return {};
  }

  Result<void> add_merges(std::string_view text) {
    std::size_t line = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view pair = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line;
      if (!pair.empty() && pair.back() == '\r') pair.remove_suffix(1);
      if (pair.empty() || (line == 1 && pair.starts_with("#version"))) continue;
      SAILOR_CHECK(add_pair(pair, fmt::format("line {}", line)));
    }
    return {};
  }

  Result<void> add_merges(const json& merges) {
    if (!merges.is_array()) return invalid("model.merges is no list");
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const json& entry = merges[i];
      const std::string where = fmt::format("model.merges[{}]", i);
      if (entry.is_string()) {
        SAILOR_CHECK(add_pair(entry.get_ref<const std::string&>(), where));
      } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
        SAILOR_CHECK(add_merge(entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>(), where));
      } else {
        return invalid(fmt::format("{} is no pair of tokens", where));
      }
    }
    return {};
  }

  /// Adds the tokens that tokenizer.json lists outside the model: no text is encoded to them.
  Result<void> add_special(const json& entries) {
    if (!entries.is_array()) return invalid("added_tokens is no list");
    for (const json& entry : entries) {
      if (!entry.is_object() || !entry.contains("id") || !entry.contains("content") || !entry["content"].is_string())
        return invalid("an entry of added_tokens has no id and content");
      const auto& content = entry["content"].get_ref<const std::string&>();
      if (content.empty()) return invalid("an entry of added_tokens is empty");
      const auto known = result_.by_name_.find(content);
      if (known != result_.by_name_.end() && entry["id"].is_number_integer() && entry["id"] == known->second) {
        result_.tokens_[static_cast<std::size_t>(known->second)] = content;
      } else {
        SAILOR_CHECK(add(content, entry["id"], content));
        result_.by_name_.insert_or_assign(content, entry["id"].get<std::int32_t>());
      }
      result_.special_.push_back(content);
    }
    return {};
  }

  /// Behind all tokens.
  Result<void> add_steps(TokenizerSteps steps) {
    for (const auto* added : {&steps.before, &steps.after})
      for (const std::int32_t token : *added)
        if (!result_.bytes(token))
          return invalid(fmt::format("post_processor adds token {}, which is not in the vocabulary", token),
                         "take vocabulary and post_processor of the same tokenizer");
    result_.pattern_ = steps.pattern;
    result_.composes_ = steps.composes;
    result_.before_text_ = std::move(steps.before);
    result_.after_text_ = std::move(steps.after);
    return {};
  }

  void take_whole_pieces() { result_.whole_ = by_bytes_; }

  BpeVocabulary take() {
    if (result_.special_.empty() && result_.by_name_.contains("<|endoftext|>"))
      result_.special_.emplace_back("<|endoftext|>");
    return std::move(result_);
  }

  void set_file(std::string_view file) { file_ = file; }

 private:
  Result<void> add(std::string_view name, const json& number, const std::string& bytes) {
    if (!number.is_number_integer() || number < 0 || number >= most_tokens)
      return invalid(fmt::format("token '{}' has number {}; numbers are whole, from 0 to {}", shown_name(name),
                                 number.is_number() ? number.dump() : number.type_name(), most_tokens - 1));
    const auto index = number.get<std::size_t>();
    if (index >= result_.tokens_.size()) result_.tokens_.resize(index + 1);
    if (result_.tokens_[index])
      return invalid(fmt::format("two tokens have number {}, one is '{}'", index, shown_name(name)));
    result_.tokens_[index] = bytes;
    by_bytes_.emplace(bytes, static_cast<std::int32_t>(index));
    return {};
  }

  Result<void> add_pair(std::string_view pair, std::string_view where) {
    const std::size_t space = pair.find(' ');
    if (space == 0 || space == std::string_view::npos || space + 1 == pair.size() ||
        pair.find(' ', space + 1) != std::string_view::npos)
      return invalid(fmt::format("{} is '{}', no pair of tokens with a space between them", where, shown_name(pair)));
    return add_merge(pair.substr(0, space), pair.substr(space + 1), where);
  }

  std::string file_;
  BpeVocabulary result_;
  std::unordered_map<std::string, std::int32_t> by_bytes_;
  std::int64_t rank_ = 0;
};

Result<BpeVocabulary> BpeVocabulary::parse(std::string_view vocab, std::string_view vocab_name, std::string_view merges,
                                           std::string_view merges_name) {
  BpeParser parser(vocab_name);
  const auto tokens = parser.read(vocab);
  if (!tokens) return fail(tokens.error());
  SAILOR_CHECK(parser.add_tokens(*tokens));
  parser.set_file(merges_name);
  SAILOR_CHECK(parser.add_merges(merges));
  return parser.take();
}

Result<BpeVocabulary> BpeVocabulary::parse_tokenizer(std::string_view text, std::string_view name) {
  BpeParser parser(name);
  const auto root = parser.read(text);
  if (!root) return fail(root.error());
  if (!root->is_object() || !root->contains("model") || !(*root)["model"].is_object())
    return parser.invalid("it has no model", "give a tokenizer.json of Hugging Face's tokenizers");
  auto steps = read_tokenizer_steps(*root, name);
  if (!steps) return fail(steps.error());
  const json& model = (*root)["model"];
  if (!model.contains("vocab") || !model.contains("merges")) return parser.invalid("its model has no vocab and merges");
  SAILOR_CHECK(parser.add_tokens(model["vocab"]));
  SAILOR_CHECK(parser.add_merges(model["merges"]));
  if (steps->takes_whole_pieces) parser.take_whole_pieces();
  if (!is_none(*root, "added_tokens")) SAILOR_CHECK(parser.add_special((*root)["added_tokens"]));
  SAILOR_CHECK(parser.add_steps(std::move(*steps)));
  return parser.take();
}

Result<BpeVocabulary> BpeVocabulary::load(const std::filesystem::path& vocab, const std::filesystem::path& merges) {
  const auto tokens = read_text_file(vocab, largest_file);
  if (!tokens) return fail(tokens.error());
  const auto pairs = read_text_file(merges, largest_file);
  if (!pairs) return fail(pairs.error());
  return parse(*tokens, vocab.string(), *pairs, merges.string());
}

Result<BpeVocabulary> BpeVocabulary::load_tokenizer(const std::filesystem::path& path) {
  const auto text = read_text_file(path, largest_file);
  if (!text) return fail(text.error());
  return parse_tokenizer(*text, path.string());
}

std::optional<BpeVocabulary::Merge> BpeVocabulary::merge(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find((static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint64_t>(right));
  if (found == merges_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string_view> BpeVocabulary::bytes(std::int32_t token) const {
  if (token < 0 || token >= size() || !tokens_[static_cast<std::size_t>(token)]) return std::nullopt;
  return *tokens_[static_cast<std::size_t>(token)];
}

std::optional<std::int32_t> BpeVocabulary::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::int32_t> BpeVocabulary::whole(std::string_view piece) const {
  if (whole_.empty()) return std::nullopt;
  const auto found = whole_.find(std::string(piece));
  if (found == whole_.end()) return std::nullopt;
  return found->second;
}

}  // namespace sailor::runtime
