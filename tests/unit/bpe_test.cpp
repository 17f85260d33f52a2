// Byte-level BPE: against Hugging Face's tokenizers (tests/data/make_bpe_fixture.py), by hand, and decoded again.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#ifdef SAILOR_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

#include "core/files.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/nfc.hpp"
#include "runtime/data/pre_tokenizer.hpp"
#include "runtime/data/texts.hpp"
#include "runtime/data/token_file_writer.hpp"

namespace sailor::runtime::bpe_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string& fixture() {
  static const std::string text = *read_text_file(SAILOR_SOURCE_DIR "/tests/data/bpe_tokenizer.json");
  return text;
}

std::string read_data(const std::string& name) {
  const auto text = read_text_file(fs::path(SAILOR_SOURCE_DIR "/tests/data") / name);
  EXPECT_TRUE(text) << text.error().message();
  return text.value_or("");
}

BpeTokenizer tokenizer_of(const std::string& text) {
  auto vocabulary = BpeVocabulary::parse_tokenizer(text, "tokenizer.json");
  EXPECT_TRUE(vocabulary) << vocabulary.error().message();
  return BpeTokenizer(std::move(*vocabulary));
}

BpeTokenizer fixture_tokenizer() { return tokenizer_of(fixture()); }

std::vector<std::string> pieces(const std::string& text, SplitPattern pattern = SplitPattern::gpt2) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = *piece_end(text, begin, pattern);
    found.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return found;
}

using Pieces = std::vector<std::string>;

TEST(PreTokenizer, DividesAsTheRegularExpressionOfGpt2) {
  EXPECT_EQ(pieces("Hello world"), (Pieces{"Hello", " world"}));
  EXPECT_EQ(pieces("It's we'll 'S"), (Pieces{"It", "'s", " we", "'ll", " '", "S"}));
  EXPECT_EQ(pieces("x!'s"), (Pieces{"x", "!'", "s"}));  // punctuation takes the apostrophe along
  EXPECT_EQ(pieces("a1b 22 $$"), (Pieces{"a", "1", "b", " 22", " $$"}));
  EXPECT_EQ(pieces("a   b"), (Pieces{"a", "  ", " b"}));  // the last space goes with the word
  EXPECT_EQ(pieces("a \n b"), (Pieces{"a", " \n", " b"}));
  EXPECT_EQ(pieces("a\nb"), (Pieces{"a", "\n", "b"}));
  EXPECT_EQ(pieces("a\n\nb"), (Pieces{"a", "\n", "\n", "b"}));
  EXPECT_EQ(pieces("a  "), (Pieces{"a", "  "}));
  EXPECT_EQ(pieces("\u00e9t\u00e9 \u00bd\u2167 \u65e5\u672c"),
            (Pieces{"\u00e9t\u00e9", " \u00bd\u2167", " \u65e5\u672c"}));
  EXPECT_EQ(pieces("a\u00a0b"), (Pieces{"a", "\u00a0", "b"}));  // a space, but no ' '
  EXPECT_EQ(pieces("a\u200bb"), (Pieces{"a", "\u200b", "b"}));  // no space at all
}

TEST(PreTokenizer, BytesThatAreNoUtf8AreOtherCharacters) {
  EXPECT_EQ(pieces("a\xff\xfe!b"), (Pieces{"a", "\xff\xfe!", "b"}));
  EXPECT_EQ(pieces("\xc3"), (Pieces{"\xc3"}));                          // cut
  EXPECT_EQ(pieces("\xc0\xaf/"), (Pieces{"\xc0\xaf/"}));                // too long for what it says
  EXPECT_EQ(pieces("\xed\xa0\x80"), (Pieces{"\xed\xa0\x80"}));          // a surrogate
  EXPECT_EQ(pieces("\xf4\x90\x80\x80"), (Pieces{"\xf4\x90\x80\x80"}));  // beyond Unicode
}

TEST(PreTokenizer, DividesAsTheRegularExpressionOfLlama3) {
  const auto llama3 = [](const std::string& text) { return pieces(text, SplitPattern::llama3); };
  EXPECT_EQ(llama3("It's WE'LL 'x"), (Pieces{"It", "'s", " WE", "'LL", " '", "x"}));
  EXPECT_EQ(llama3("'sa 'lx'Ve"), (Pieces{"'s", "a", " '", "lx", "'Ve"}));
  EXPECT_EQ(llama3("o'\u017f"), (Pieces{"o", "'\u017f"}));
  EXPECT_EQ(llama3("o'\u017fo"), (Pieces{"o", "'\u017f", "o"}));  // a long s is an s
  EXPECT_EQ(llama3("1234567 89"), (Pieces{"123", "456", "7", " ", "89"}));
  EXPECT_EQ(llama3("$x !!y \tz\u00a0w"), (Pieces{"$x", " !!", "y", " ", "\tz", "\u00a0w"}));
  EXPECT_EQ(llama3("a;\r\n\n b"), (Pieces{"a", ";\r\n\n", " b"}));
  EXPECT_EQ(llama3("a \n \n  b"), (Pieces{"a", " \n \n", " ", " b"}));  // up to the last line end
  EXPECT_EQ(llama3("\na\r\u2028b"), (Pieces{"\n", "a", "\r", "\u2028b"}));
  EXPECT_EQ(llama3("a   1"), (Pieces{"a", "  ", " ", "1"}));
  EXPECT_EQ(llama3("\xff"
                   "a\xfe!"),
            (Pieces{"\xff"
                    "a",
                    "\xfe!"}));
}

TEST(PreTokenizer, DividesNumbersOfQwenIntoTheirDigits) {
  EXPECT_EQ(pieces("a123 4\n", SplitPattern::qwen2), (Pieces{"a", "1", "2", "3", " ", "4", "\n"}));
}

TEST(PreTokenizer, SaysOfATextThatGoesOnOnlyWhatIsSure) {
  EXPECT_EQ(piece_end("ab", 0, SplitPattern::gpt2, true), std::nullopt);
  EXPECT_EQ(piece_end("ab    ", 0, SplitPattern::gpt2, true), 2U);
  EXPECT_EQ(piece_end("ab cdef", 2, SplitPattern::gpt2, true), std::nullopt);
  EXPECT_EQ(piece_end("    ", 0, SplitPattern::gpt2, true), std::nullopt);  // the last space may belong to a word
  EXPECT_EQ(piece_end("'r", 0, SplitPattern::gpt2, true), std::nullopt);    // 're?
  EXPECT_EQ(piece_end("1234567", 0, SplitPattern::llama3, true), 3U);
  EXPECT_EQ(piece_end("!\n\n\n\n\n\n", 0, SplitPattern::llama3, true), std::nullopt);
  EXPECT_EQ(piece_end(" \n     ", 0, SplitPattern::llama3, true), std::nullopt);  // another line end may come
}

TEST(Bpe, GivesTheTokensOfHuggingFace) {
  for (const std::string& name : Pieces{"bpe", "llama3", "qwen2"}) {
    BpeTokenizer tokenizer = tokenizer_of(read_data(name + "_tokenizer.json"));
    const json cases = json::parse(read_data(name + "_cases.json"));
    ASSERT_GE(cases.size(), name == "bpe" ? 70U : 200U);
    for (const json& entry : cases) {
      const auto text = entry.at("text").get<std::string>();
      const auto expected = entry.at("tokens").get<std::vector<std::int32_t>>();
      EXPECT_EQ(tokenizer.encode(text), expected) << name << ": " << entry.dump();
      const std::string divided = name == "qwen2" ? to_nfc(text) : text;
      EXPECT_EQ(tokenizer.decode(expected), divided);
      if (name == "bpe") continue;
      std::vector<std::size_t> sizes;
      for (const std::string& piece : pieces(divided, tokenizer.vocabulary().pattern())) sizes.push_back(piece.size());
      EXPECT_EQ(sizes, entry.at("pieces").get<std::vector<std::size_t>>()) << name << ": " << entry.dump();
    }
  }
}

TEST(Bpe, KnowsTheTokensThatThePostProcessorAdds) {
  const auto around = [](const std::string& text) {
    const BpeTokenizer tokenizer = tokenizer_of(text);
    return std::pair(tokenizer.vocabulary().before_text(), tokenizer.vocabulary().after_text());
  };
  using Around = std::pair<std::vector<std::int32_t>, std::vector<std::int32_t>>;
  EXPECT_EQ(around(fixture()), Around());
  EXPECT_EQ(around(read_data("qwen2_tokenizer.json")), Around());
  EXPECT_EQ(around(read_data("llama3_tokenizer.json")), (Around{{701}, {}}));
  json changed = json::parse(read_data("llama3_tokenizer.json"));
  json& processors = changed["post_processor"]["processors"];
  processors[1]["single"].push_back({{"SpecialToken", {{"id", "E"}, {"type_id", 0}}}});
  processors[1]["special_tokens"]["E"] = {{"id", "E"}, {"ids", {702, 5}}, {"tokens", {"E", "F"}}};
  processors.push_back({{"type", "RobertaProcessing"}, {"cls", {"a", 1}}, {"sep", {"b", 2}}});
  EXPECT_EQ(around(changed.dump()), (Around{{1, 701}, {702, 5, 2}}));
}

/// The 256 bytes as tokens 0 to 255 of a vocabulary with these further ones, in GPT-2's spelling.
json bytes_and(const std::vector<std::string>& more) {
  json vocab;
  int number = 0;
  const json trained = json::parse(fixture()).at("model").at("vocab");
  for (const auto& [name, id] : trained.items())
    if (id > 0 && id <= 256) vocab[name] = number++;
  EXPECT_EQ(number, 256);
  for (const std::string& name : more) vocab[name] = number++;
  return vocab;
}

TEST(Bpe, TheBestPairMergesFirstThenTheLeftOne) {
  const json vocab = bytes_and({"ab", "bc", "abc", "aa"});
  const auto tokens = [&](const std::string& merges, const std::string& text) {
    auto vocabulary = BpeVocabulary::parse(vocab.dump(), "vocab.json", merges, "merges.txt");
    EXPECT_TRUE(vocabulary) << vocabulary.error().message();
    BpeTokenizer tokenizer(std::move(*vocabulary));
    Pieces names;
    for (const std::int32_t token : tokenizer.encode(text)) names.emplace_back(*tokenizer.vocabulary().bytes(token));
    return names;
  };
  EXPECT_EQ(tokens("#version: 0.2\na b\nb c\n", "abc"), (Pieces{"ab", "c"}));
  EXPECT_EQ(tokens("b c\na b\n", "abc"), (Pieces{"a", "bc"}));
  EXPECT_EQ(tokens("b c\r\na bc\r\n", "abcab"), (Pieces{"abc", "a", "b"}));
  EXPECT_EQ(tokens("a a\n", "aaaaa"), (Pieces{"aa", "aa", "a"}));
}

TEST(Bpe, VocabAndMergesAreTheSameAsTokenizerJson) {
  const json model = json::parse(fixture()).at("model");
  std::string merges = "#version: 0.2\n";
  for (const json& pair : model.at("merges"))
    merges += pair.at(0).get<std::string>() + " " + pair.at(1).get<std::string>() + "\n";
  auto vocabulary = BpeVocabulary::parse(model.at("vocab").dump(), "vocab.json", merges, "merges.txt");
  ASSERT_TRUE(vocabulary) << vocabulary.error().message();
  EXPECT_EQ(vocabulary->size(), 600);
  EXPECT_EQ(vocabulary->find("<|endoftext|>"), 0);
  BpeTokenizer other(std::move(*vocabulary));
  BpeTokenizer tokenizer = fixture_tokenizer();
  const std::string text = "the plan's   training, \u00e9t\u00e9\n";
  EXPECT_EQ(other.encode(text), tokenizer.encode(text));
}

std::string random_bytes(std::mt19937& random, std::size_t size) {
  static const Pieces parts{" ",      "  ",      "\n",     "\r\n",   "\t",       "'s",         "'LL",
                            "'",      "'\u017f", "the",    "train",  "12",       "3",          "\u00e9",
                            "\u65e5", "\u00a0",  "\u2028", "\xff",   "\xe6\x97", "\x80",       "!",
                            "e",      "\u0301",  "\u0327", "\u1112", "\u1161",   "\u11ab",     "\u0663",
                            "\u212b", "\u09c7",  "\u09be", "\u0f71", "\u0f72",   "\U0001f600", "\U0001d15e"};
  std::string text;
  while (text.size() < size)
    if (random() % 4 == 0)
      text += static_cast<char>(random());
    else
      text += parts[random() % parts.size()];
  return text;
}

std::string escaped(const std::string& text) { return json(text).dump(-1, ' ', true, json::error_handler_t::replace); }

TEST(Bpe, AnyBytesComeBackAndPartsDoNotMatter) {
  std::mt19937 random(20260101);
  for (const char* name : {"bpe_tokenizer.json", "llama3_tokenizer.json", "qwen2_tokenizer.json"}) {
    BpeTokenizer tokenizer = tokenizer_of(read_data(name));
    for (int i = 0; i < 2000; ++i) {
      const std::string text = random_bytes(random, random() % 200);
      const std::vector<std::int32_t> tokens = tokenizer.encode(text);
      ASSERT_EQ(tokenizer.decode(tokens), tokenizer.vocabulary().composes() ? to_nfc(text) : text) << escaped(text);
      std::vector<std::int32_t> in_parts;
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t length = 1 + random() % 20;
        tokenizer.add(std::string_view(text).substr(begin, length), in_parts);
        begin += length;
      }
      tokenizer.finish(in_parts);
      ASSERT_EQ(in_parts, tokens) << name << ": " << escaped(text);
    }
  }
}

TEST(PreTokenizer, WhatIsSureOfTheBeginningHoldsForTheWholeText) {
  std::mt19937 random(20260102);
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_bytes(random, 1 + random() % 60);
    for (const KnownSplitPattern& known : known_split_patterns)
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = *piece_end(text, begin, known.pattern);
        for (std::size_t size = begin + 1; size <= text.size(); ++size)
          ASSERT_EQ(piece_end(std::string_view(text).substr(0, size), begin, known.pattern, true).value_or(end), end)
              << escaped(text) << " from " << begin << ", cut at " << size;
        begin = end;
      }
  }
}

#ifdef SAILOR_HAVE_RAPIDCHECK
RC_GTEST_PROP(BpeProperty, DecodingGivesBackAnyBytes, (const std::vector<std::uint8_t>& bytes)) {
  static BpeTokenizer tokenizer = fixture_tokenizer();
  const std::string text(bytes.begin(), bytes.end());
  RC_ASSERT(tokenizer.decode(tokenizer.encode(text)) == text);
}
#endif

TEST(Bpe, APieceOfMegabytesIsNoTrouble) {
  BpeTokenizer tokenizer = fixture_tokenizer();
  const std::string text(3 << 20, 'a');
  std::vector<std::int32_t> tokens;
  for (std::size_t begin = 0; begin < text.size(); begin += 4096)
    tokenizer.add(std::string_view(text).substr(begin, 4096), tokens);
  tokenizer.finish(tokens);
  EXPECT_EQ(tokenizer.decode(tokens), text);
}

TEST(Nfc, MegabytesWithoutAPlaceToCutAreNoTrouble) {
  std::string text = "e";
  for (int i = 0; i < 1 << 19; ++i) text += "\u0301";
  std::string composed;
  NfcStream stream;
  for (std::size_t begin = 0; begin < text.size(); begin += 2)  // takes minutes if it looks at all of it each time
    stream.add(std::string_view(text).substr(begin, 2), composed);
  stream.finish(composed);
  EXPECT_EQ(composed.size(), text.size() - 1);  // U+00E9
  const std::string stray(3 << 20, '\x80');
  EXPECT_EQ(to_nfc(stray), stray);
}

// ---- What is refused

std::string vocabulary_error(const json& vocab, const std::string& merges) {
  const auto vocabulary = BpeVocabulary::parse(vocab.dump(), "vocab.json", merges, "merges.txt");
  return vocabulary ? "no error" : vocabulary.error().message();
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(BpeVocabularyFiles, AreRefusedWithWhatIsWrong) {
  const json good = bytes_and({"ab"});
  EXPECT_EQ(vocabulary_error(good, "a b\n"), "no error");
  expect_part(vocabulary_error(good, "a b\nb c\n"), "'merges.txt': line 2: 'bc' is not in the vocabulary");
  expect_part(vocabulary_error(good, "a\n"), "line 1 is 'a', no pair of tokens with a space between them");
  expect_part(vocabulary_error(good, "a b c\n"), "no pair");
  json lacking = good;
  lacking.erase("a");
  expect_part(vocabulary_error(lacking, ""), "'vocab.json': byte 97 is no token");
  json twice = good;
  twice["ab"] = 0;
  expect_part(vocabulary_error(twice, ""), "two tokens have number 0");
  json foreign = good;
  foreign["\u2581the"] = 300;
  expect_part(vocabulary_error(foreign, ""), "token '\u2581the' does not stand for bytes");
  for (const json& number : {json(-1), json(1.5), json(std::int64_t{1} << 40)}) {
    json changed = good;
    changed["ab"] = number;
    expect_part(vocabulary_error(changed, ""),
                "token 'ab' has number " + number.dump() + "; numbers are whole, from 0");
  }
  json text = good;
  text["ab"] = "7";
  expect_part(vocabulary_error(text, ""), "token 'ab' has number string; numbers are whole, from 0");
  const auto huge = BpeVocabulary::parse("{\"a\": 1e999}", "vocab.json", "", "merges.txt");
  ASSERT_FALSE(huge);
  expect_part(huge.error().message(), "'vocab.json': it cannot be read as JSON: ");
  const auto deep = BpeVocabulary::parse_tokenizer(std::string(1 << 20, '['), "tokenizer.json");
  ASSERT_FALSE(deep);
  const auto no_json = BpeVocabulary::parse("{\"a\": }", "vocab.json", "", "merges.txt");
  ASSERT_FALSE(no_json);
  expect_part(no_json.error().message(), "'vocab.json': it is no JSON: the error is at byte 7");
}

TEST(BpeVocabularyFiles, TokenizersThatDivideTextOtherwiseAreRefused) {
  const auto error_with = [](const std::string& pointer, const json& value) {
    json changed = json::parse(fixture());
    changed[json::json_pointer(pointer)] = value;
    const auto vocabulary = BpeVocabulary::parse_tokenizer(changed.dump(), "tokenizer.json");
    return vocabulary ? "no error" : vocabulary.error().message();
  };
  expect_part(error_with("/model/type", "Unigram"), "its model is Unigram, not BPE");
  expect_part(error_with("/normalizer", {{"type", "NFKC"}}),
              "its normalizer is 'NFKC', which is not known; known are NFC, and none (null)");
  expect_part(error_with("/pre_tokenizer/add_prefix_space", true), "add_prefix_space");
  expect_part(error_with("/pre_tokenizer", {{"type", "Whitespace"}}), "pre_tokenizer has a part 'Whitespace'");
  expect_part(error_with("/pre_tokenizer", json()), "it has no pre_tokenizer");
  expect_part(error_with("/pre_tokenizer/use_regex", false), "pre_tokenizer does not divide text");
  expect_part(error_with("/model/byte_fallback", true), "byte_fallback");
  const json split{{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}, {"pattern", {{"Regex", "\\w+"}}}};
  const json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto sequence = [](const json& first, const json& second) {
    return json{{"type", "Sequence"}, {"pretokenizers", {first, second}}};
  };
  expect_part(error_with("/pre_tokenizer", sequence(split, bytes)),
              "pre_tokenizer splits by a pattern that is not known: \\w+; Sailor reads byte-level BPE tokenizers that "
              "divide text as those of GPT-2, LLaMA-3 or Qwen2 to Qwen3 do");
  for (const KnownSplitPattern& known : known_split_patterns) {
    json same = split;
    same["pattern"]["Regex"] = known.regex;
    EXPECT_EQ(error_with("/pre_tokenizer", sequence(same, bytes)), "no error");
    expect_part(error_with("/pre_tokenizer", same), "pre_tokenizer has no ByteLevel");
    json twice = bytes;
    twice["use_regex"] = true;
    expect_part(error_with("/pre_tokenizer", sequence(same, twice)),
                known.pattern == SplitPattern::gpt2 ? "no error" : "splits twice: ByteLevel's use_regex is not false");
    same["invert"] = true;
    expect_part(error_with("/pre_tokenizer", sequence(same, bytes)), "does not split into its pattern's matches");
  }
  expect_part(error_with("/post_processor", {{"type", "Other"}}), "post_processor has a part 'Other'");
  expect_part(error_with("/post_processor", {{"type", "RobertaProcessing"}, {"cls", {"a", -1}}, {"sep", {"b", 2}}}),
              "post_processor has no cls and sep with their numbers");
  expect_part(error_with("/post_processor", {{"type", "BertProcessing"}, {"cls", {"a", 1}}, {"sep", {"b", 600}}}),
              "post_processor adds token 600, which is not in the vocabulary");
  const json text{{"Sequence", {{"id", "A"}}}};
  const json special{{"SpecialToken", {{"id", "E"}}}};
  expect_part(error_with("/post_processor", {{"type", "TemplateProcessing"}, {"single", {text, special}}}),
              "post_processor has a template of another kind than special tokens around one text");
  expect_part(error_with("/post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}}),
              "post_processor has a template without the text");
}

// ---- Token files of texts

class TokenFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("sailor-bpe-{}", getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  [[nodiscard]] std::string prefix() const { return (folder_ / "corpus").string(); }
  [[nodiscard]] Result<void> make(TokenType type, const std::vector<std::vector<std::int32_t>>& documents) const {
    return write_token_file(prefix(), type, {}, [&](TokenSink& sink) -> Result<void> {
      for (const auto& document : documents) {
        SAILOR_CHECK(sink.add(document));
        sink.end_document();
      }
      return {};
    });
  }

  fs::path folder_;
};

TEST_F(TokenFiles, DocumentsComeBackInBothWidths) {
  for (const TokenType type : {TokenType::uint16, TokenType::int32}) {
    ASSERT_TRUE(make(type, {{1, 2, 65499}, {}, {4, 5}}));
    const auto file = TokenFile::open(prefix());
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_EQ(file->documents(), 2);
    EXPECT_EQ(fs::file_size(prefix() + ".bin"), 5U * static_cast<std::size_t>(token_bytes(type)));
    std::vector<std::int32_t> tokens(5);
    ASSERT_TRUE(file->read(0, 65500, tokens));
    EXPECT_EQ(tokens, (std::vector<std::int32_t>{1, 2, 65499, 4, 5}));
  }
}

TEST_F(TokenFiles, AFailureLeavesWhatWasThere) {
  ASSERT_TRUE(make(TokenType::uint16, {{1, 2, 3}}));
  const auto failing = write_token_file(prefix(), TokenType::uint16, {}, [](TokenSink& sink) -> Result<void> {
    SAILOR_CHECK(sink.add(std::vector<std::int32_t>{7}));
    return fail(ErrorCode::failure, "on purpose");
  });
  EXPECT_FALSE(failing);
  EXPECT_FALSE(make(TokenType::uint16, {{}, {}}));  // no tokens at all
  const auto file = TokenFile::open(prefix());
  ASSERT_TRUE(file);
  EXPECT_EQ(file->size(), 3);
}

TEST_F(TokenFiles, AFileThatShrinksIsNamedAndNoCrash) {
  std::vector<std::int32_t> many(100000, 7);
  ASSERT_TRUE(make(TokenType::uint16, {many}));
  const auto file = TokenFile::open(prefix());
  ASSERT_TRUE(file);
  fs::resize_file(prefix() + ".bin", 50000);
  std::vector<std::int32_t> tokens(1000);
  EXPECT_TRUE(file->read(0, 10, tokens));
  const auto behind = file->read(24900, 10, tokens);
  ASSERT_FALSE(behind);
  expect_part(behind.error().message(), "corpus.bin' has 50000 bytes but had 200000 when it was opened");
  const auto again = TokenFile::open(prefix());
  ASSERT_FALSE(again);
  expect_part(again.error().message(), "corpus.bin' is truncated: it has 50000 bytes");
}

TEST_F(TokenFiles, JsonLinesAreDocuments) {
  const fs::path file = write(
      "a.jsonl", "{\"text\": \"one\\n\\u00e9\", \"id\": 1}\n\n{\"id\": 2, \"text\": \"\"}\r\n{\"text\": \"three\"}");
  std::vector<std::pair<std::string, std::int64_t>> documents;
  const auto read = read_json_lines(file, "text", [&](const std::string& text, std::int64_t line) -> Result<void> {
    documents.emplace_back(text, line);
    return {};
  });
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(documents, (std::vector<std::pair<std::string, std::int64_t>>{{"one\n\u00e9", 1}, {"", 3}, {"three", 4}}));
}

TEST_F(TokenFiles, ABadLineIsNamed) {
  const auto error_of = [&](const std::string& content) {
    const auto read = read_json_lines(write("a.jsonl", content), "text",
                                      [](const std::string&, std::int64_t) { return Result<void>(); });
    return read ? "no error" : read.error().message();
  };
  expect_part(error_of("{\"text\": \"a\"}\nplain text\n"), "a.jsonl:2: it is no JSON: the error is at byte 1");
  expect_part(error_of("{\"text\": 1e999}\n"), "a.jsonl:1: a number in it is too large");
  expect_part(error_of("[1]\n"), "a.jsonl:1: it is no JSON object");
  expect_part(error_of("{\"content\": \"a\", \"n\": 1}\n"),
              "a.jsonl:1: it has no text 'text'; choose one of its texts with --json-key: content");
  expect_part(error_of("{\"text\": \"\\ud800\"}\n"), "a.jsonl:1: it is no JSON");
  expect_part(error_of("{\"text\": \"\xff\"}\n"), "a.jsonl:1: it is no JSON");
}

}  // namespace
}  // namespace sailor::runtime::bpe_test
