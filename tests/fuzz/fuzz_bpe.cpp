#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/nfc.hpp"
#include "runtime/data/pre_tokenizer.hpp"

namespace {

using sailor::Result;
using sailor::runtime::BpeTokenizer;
using sailor::runtime::BpeVocabulary;

/// GPT-2's 256 characters for bytes, and a few merged ones, as vocab.json has them.
std::string vocab() {
  std::string text = "{";
  int number = 0;
  const auto add = [&](const std::string& name) {
    text += (number > 0 ? ",\"" : "\"") + name + "\":" + std::to_string(number);
    ++number;
  };
  const auto add_character = [&](unsigned code) {
    if (code < 0x80) {
      add(code == '"' || code == '\\' ? std::string("\\") + static_cast<char>(code)
                                      : std::string(1, static_cast<char>(code)));
    } else {
      add({static_cast<char>(0xc0u | (code >> 6)), static_cast<char>(0x80u | (code & 0x3fu))});
    }
  };
  for (unsigned code = '!'; code <= '~'; ++code) add_character(code);
  for (unsigned code = 0xa1; code <= 0xff; ++code)
    if (code != 0xad) add_character(code);
  for (unsigned code = 0x100; code < 0x144; ++code) add_character(code);
  for (const char* more : {"ab", "abc", "th", "the", "in", "<|endoftext|>"}) add(more);
  return text + "}";
}

/// tokenizer.json with that vocabulary, which divides text in this way and composes it to NFC.
std::string tokenizer_json(std::string_view pattern) {
  std::string escaped;
  for (const char character : pattern) escaped += character == '\\' ? "\\\\" : std::string(1, character);
  return R"({"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split",)"
         R"("pattern":{"Regex":")" +
         escaped +
         R"("},"behavior":"Isolated"},{"type":"ByteLevel","use_regex":false}]},"model":{"type":"BPE","vocab":)" +
         vocab() + R"(,"merges":["a b","ab c"]}})";
}

/// It tokenises any bytes, and gives them back, in NFC if it composes; in parts the same.
void check_text(BpeTokenizer& tokenizer, std::string_view text) {
  const auto sample = text.substr(0, 2000);
  const std::vector<std::int32_t> tokens = tokenizer.encode(sample);
  for (const std::int32_t token : tokens)
    if (token < 0 || token >= tokenizer.vocabulary().size()) __builtin_trap();
  const auto again = tokenizer.decode(tokens);
  if (!again || *again != (tokenizer.vocabulary().composes() ? sailor::runtime::to_nfc(sample) : sample))
    __builtin_trap();
  std::vector<std::int32_t> in_parts;
  for (std::size_t begin = 0; begin < sample.size(); begin += 1 + begin % 7)
    tokenizer.add(sample.substr(begin, 1 + begin % 7), in_parts);
  tokenizer.finish(in_parts);
  if (in_parts != tokens) __builtin_trap();
}

/// Whatever was read works.
void check(Result<BpeVocabulary> vocabulary, std::string_view text) {
  if (!vocabulary) {
    if (vocabulary.error().what.empty()) __builtin_trap();
    return;
  }
  BpeTokenizer tokenizer(std::move(*vocabulary));
  if (tokenizer.vocabulary().size() < 256) __builtin_trap();
  check_text(tokenizer, text);
}

}  // namespace

/// The vocabulary; tokenizer.json and merges.txt are files.
extern "C" std::size_t sailor_fuzz_seed(std::vector<std::uint8_t>& seed) {
  const std::string text = vocab();
  seed.assign(text.begin(), text.end());
  return seed.size();
}

// Any bytes as tokenizer.json, as vocab.json and as merges.txt are either a vocabulary that works or a clear error; any
// bytes are a text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string known = vocab();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(BpeVocabulary::parse_tokenizer(text, "fuzz.json"), text);
  check(BpeVocabulary::parse(text, "fuzz.json", "a b\nab c\n", "merges.txt"), text);
  check(BpeVocabulary::parse(known, "vocab.json", text, "fuzz.txt"), text);
  static std::vector<BpeTokenizer> known_tokenizers = [] {
    std::vector<BpeTokenizer> read;
    for (const auto& one : sailor::runtime::known_split_patterns) {
      auto vocabulary = BpeVocabulary::parse_tokenizer(tokenizer_json(one.regex), "known.json");
      if (!vocabulary) __builtin_trap();
      read.emplace_back(std::move(*vocabulary));
    }
    return read;
  }();
  check_text(known_tokenizers[size % known_tokenizers.size()], text);  // mutations have all sizes
  return 0;
}
