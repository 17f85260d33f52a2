#include "runtime/data/tokenizer_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/text.hpp"

namespace sailor::runtime {

namespace {

using nlohmann::json;

constexpr const char* known_tokenizers =
    "Sailor reads byte-level BPE tokenizers that divide text as those of GPT-2, LLaMA-3 or Qwen2 to Qwen3 do";

bool has_flag(const json& object, const char* key) {
  return object.contains(key) && object[key].is_boolean() && object[key].get<bool>();
}

std::string type_of(const json& object) {
  if (!object.is_object() || !object.contains("type") || !object["type"].is_string()) return "?";
  return object["type"].get<std::string>();
}

/// The parts of a sequence, or the step itself. Pointers: copies of deep values would overflow the stack.
std::optional<std::vector<const json*>> parts_of(const json& step, const char* key) {
  if (type_of(step) != "Sequence") return std::vector<const json*>{&step};
  if (is_none(step, key) || !step[key].is_array()) return std::nullopt;
  std::vector<const json*> parts;
  for (const json& part : step[key]) parts.push_back(&part);
  return parts;
}

class StepsReader {
 public:
  StepsReader(const json& root, std::string_view file) : root_(root), file_(file) {}

  Result<TokenizerSteps> read() {
    SAILOR_CHECK(check_model());
    SAILOR_CHECK(read_normalizer());
    SAILOR_CHECK(read_pre_tokenizer());
    SAILOR_CHECK(read_post_processor());
    return std::move(steps_);
  }

 private:
  [[nodiscard]] tl::unexpected<Error> invalid(const std::string& what, std::string hint = known_tokenizers) const {
    return fail(ErrorCode::invalid_input, fmt::format("'{}': {}", file_, what), std::move(hint));
  }

  Result<void> check_model() {
    const json& model = root_["model"];
    if (!is_none(model, "type") && type_of(model) != "BPE")
      return invalid(fmt::format("its model is {}, not BPE", shown_name(type_of(model))));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!is_none(model, key) && model[key] != "") return invalid(fmt::format("model.{} is not empty", key));
    if (!is_none(model, "dropout") && model["dropout"] != 0.0)
      return invalid("model.dropout makes tokens at random", "set it to null");
    if (has_flag(model, "byte_fallback")) return invalid("model.byte_fallback is on");
    steps_.takes_whole_pieces = has_flag(model, "ignore_merges");
    return {};
  }

  Result<void> read_normalizer() {
    if (is_none(root_, "normalizer")) return {};
    const std::string type = type_of(root_["normalizer"]);
    if (type != "NFC")
      return invalid(fmt::format("its normalizer is '{}', which is not known", shown_name(type)),
                     "known are NFC, and none (null)");
    steps_.composes = true;
    return {};
  }

  Result<void> read_split(const json& part) {
    const bool has_regex = part.contains("pattern") && part["pattern"].is_object() &&
                           part["pattern"].contains("Regex") && part["pattern"]["Regex"].is_string();
    if (!has_regex) return invalid("pre_tokenizer has a Split without a regular expression");
    const auto regex = part["pattern"]["Regex"].get<std::string>();
    const auto known = std::find_if(known_split_patterns.begin(), known_split_patterns.end(),
                                    [&](const KnownSplitPattern& one) { return one.regex == regex; });
    if (known == known_split_patterns.end())
      return invalid(fmt::format("pre_tokenizer splits by a pattern that is not known: {}", shown_name(regex, 300)));
    if (has_flag(part, "invert") || is_none(part, "behavior") || part["behavior"] != "Isolated")
      return invalid("pre_tokenizer does not split into its pattern's matches (behavior Isolated, not inverted)");
    steps_.pattern = known->pattern;
    return {};
  }

  /// It must be there: without one, text is not divided.
  Result<void> read_pre_tokenizer() {
    if (is_none(root_, "pre_tokenizer")) return invalid("it has no pre_tokenizer");
    const auto parts = parts_of(root_["pre_tokenizer"], "pretokenizers");
    if (!parts) return invalid("pre_tokenizer is a sequence without a list");
    bool divides = false;
    bool bytes = false;
    for (const json* part : *parts) {
      const std::string type = type_of(*part);
      if (type == "ByteLevel" && !bytes) {
        if (has_flag(*part, "add_prefix_space"))
          return invalid("pre_tokenizer has add_prefix_space, which changes the text");
        const bool divides_too = is_none(*part, "use_regex") || has_flag(*part, "use_regex");
        if (divides_too && steps_.pattern != SplitPattern::gpt2)
          return invalid("pre_tokenizer splits twice: ByteLevel's use_regex is not false");
        divides = divides || divides_too;
        bytes = true;
      } else if (type == "Split" && !divides && !bytes) {
        SAILOR_CHECK(read_split(*part));
        divides = true;
      } else {
        return invalid(fmt::format("pre_tokenizer has a part '{}'", shown_name(type)));
      }
    }
    if (!divides) return invalid("pre_tokenizer does not divide text");
    if (!bytes) return invalid("pre_tokenizer has no ByteLevel");
    return {};
  }

  Result<void> read_post_processor() {
    if (is_none(root_, "post_processor")) return {};
    const auto parts = parts_of(root_["post_processor"], "processors");
    if (!parts) return invalid("post_processor is a sequence without a list");
    for (const json* part : *parts) {
      const std::string type = type_of(*part);
      if (type == "TemplateProcessing") {
        SAILOR_CHECK(read_template(*part));
      } else if (type == "RobertaProcessing" || type == "BertProcessing") {
        const auto before = token_of_pair(*part, "cls");
        const auto after = token_of_pair(*part, "sep");
        if (!before || !after) return invalid("post_processor has no cls and sep with their numbers");
        surround({*before}, {*after});
      } else if (type != "ByteLevel") {  // which only counts characters otherwise
        return invalid(fmt::format("post_processor has a part '{}', which is not known", shown_name(type)),
                       "known are TemplateProcessing, RobertaProcessing, BertProcessing and ByteLevel");
      }
    }
    return {};
  }

  /// "single" is a list with {"Sequence": {"id": "A"}}, the text, among {"SpecialToken": {"id": NAME}}.
  Result<void> read_template(const json& part) {
    if (is_none(part, "single") || !part["single"].is_array())
      return invalid("post_processor has a template without a list 'single'");
    std::vector<std::int32_t> before;
    std::vector<std::int32_t> after;
    bool has_text = false;
    for (const json& piece : part["single"]) {
      if (piece.is_object() && piece.contains("Sequence") && !has_text) {
        has_text = true;
        continue;
      }
      const auto tokens = template_tokens(part, piece);
      if (!tokens) return invalid("post_processor has a template of another kind than special tokens around one text");
      std::vector<std::int32_t>& side = has_text ? after : before;
      side.insert(side.end(), tokens->begin(), tokens->end());
    }
    if (!has_text) return invalid("post_processor has a template without the text");
    surround(before, after);
    return {};
  }

  static std::optional<std::vector<std::int32_t>> template_tokens(const json& part, const json& piece) {
    if (!piece.is_object() || is_none(piece, "SpecialToken")) return std::nullopt;
    const json& token = piece["SpecialToken"];
    if (is_none(token, "id") || !token["id"].is_string() || is_none(part, "special_tokens")) return std::nullopt;
    const json& all = part["special_tokens"];
    const auto found = all.find(token["id"].get_ref<const std::string&>());
    if (found == all.end() || is_none(*found, "ids") || !(*found)["ids"].is_array()) return std::nullopt;
    std::vector<std::int32_t> numbers;
    for (const json& number : (*found)["ids"]) {
      if (!is_number_of_token(number)) return std::nullopt;
      numbers.push_back(number.get<std::int32_t>());
    }
    return numbers;
  }

  /// [NAME, number]
  static std::optional<std::int32_t> token_of_pair(const json& part, const char* key) {
    if (is_none(part, key) || !part[key].is_array() || part[key].size() != 2 || !is_number_of_token(part[key][1]))
      return std::nullopt;
    return part[key][1].get<std::int32_t>();
  }

  static bool is_number_of_token(const json& number) {
    return number.is_number_integer() && number >= 0 && number <= INT32_MAX;
  }

  /// Post-processors work on what those before them made.
  void surround(const std::vector<std::int32_t>& before, const std::vector<std::int32_t>& after) {
    steps_.before.insert(steps_.before.begin(), before.begin(), before.end());
    steps_.after.insert(steps_.after.end(), after.begin(), after.end());
  }

  const json& root_;
  std::string file_;
  TokenizerSteps steps_;
};

}  // namespace

Result<TokenizerSteps> read_tokenizer_steps(const json& root, std::string_view file) {
  return StepsReader(root, file).read();
}

bool is_none(const json& object, const char* key) {
  return !object.is_object() || !object.contains(key) || object[key].is_null();
}

std::string shown_name(std::string_view name, std::size_t most) {
  return name.size() <= most ? valid_utf8(name) : valid_utf8(name.substr(0, most)) + "...";
}

}  // namespace sailor::runtime
