// Division of text and NFC against ICU's regular expressions and its composition of UTF-16, on random texts.
#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/regex.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/nfc.hpp"
#include "runtime/data/pre_tokenizer.hpp"

namespace sailor::runtime::icu_reference_test {
namespace {

using Pieces = std::vector<std::string>;

std::string utf8(UChar32 code) {
  std::string text;
  icu::UnicodeString(code).toUTF8String(text);
  return text;
}

/// A random character of Unicode's assigned ones, of those with this general category only if it is not -1.
UChar32 random_character(std::mt19937& random, int category = -1) {
  while (true) {
    const auto code = static_cast<UChar32>(random() % 0x32000);
    const int type = u_charType(code);
    if (type != U_UNASSIGNED && type != U_SURROGATE && (category < 0 || type == category)) return code;
  }
}

/// A short row of what the patterns tell apart.
std::string random_row(std::mt19937& random) {
  static const Pieces fixed{"'s",
                            "'T",
                            "'rE",
                            "'Ve",
                            "'M",
                            "'lL",
                            "'d",
                            "'",
                            "'\u017f",
                            "\u017f",
                            "\r",
                            "\n",
                            "\r\n",
                            " ",
                            "  ",
                            "\t",
                            "\v",
                            "\f",
                            "\x1c",
                            "\u0085",
                            "\u00a0",
                            "\u1680",
                            "\u2003",
                            "\u2028",
                            "\u2029",
                            "\u202f",
                            "\u3000",
                            "\u200b",
                            "\ufeff",
                            "\u180e",
                            "a",
                            "Z",
                            "e",
                            "s",
                            "l",
                            "ll",
                            "\u00e9",
                            "\u03b1",
                            "\u0414",
                            "\u65e5",
                            "\u0e01",
                            "\u05d0",
                            "\u0627",
                            "1",
                            "7",
                            "12",
                            "\u0663",
                            "\u00bd",
                            "\u2167",
                            "\u00b2",
                            "\u4e00",
                            "!",
                            "-",
                            "\"",
                            "_",
                            "\u0301",
                            "\u0327",
                            "\u09be",
                            "\u09c7",
                            "\u1112",
                            "\u1161",
                            "\u11ab",
                            "\u212b",
                            "\U0001f600",
                            "\u200d",
                            "\u1df6",
                            "\ufe0f",
                            "\u20ac",
                            "\xff",
                            "\x80",
                            "\xc3",
                            "\xe6\x97",
                            "\xf0\x9f\x98",
                            "\xc0\xaf",
                            "\xed\xa0\x80",
                            "\xf4\x90\x80\x80"};
  const std::string row = random() % 8 == 0   ? utf8(random_character(random))
                          : random() % 8 == 0 ? utf8(random_character(random, U_NON_SPACING_MARK))
                                              : fixed[random() % fixed.size()];
  std::string text;
  for (auto count = random() % 5 == 0 ? 1 + random() % 5 : 1; count > 0; --count) text += row;
  return text;
}

std::string random_text(std::mt19937& random) {
  std::string text;
  for (auto rows = random() % 25; rows > 0; --rows) text += random_row(random);
  return text;
}

std::string escaped(std::string_view text) {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::string shown;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= ' ' && byte < 0x7f)
      shown += character;
    else
      shown += {'\\', 'x', digits[byte >> 4U], digits[byte & 15U]};
  }
  return shown;
}

/// The text's characters, each with its bytes; -1 for a byte that is invalid.
struct Character {
  UChar32 code = 0;
  std::string bytes;
};
std::vector<Character> characters(const std::string& text) {
  std::vector<Character> found;
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const auto size = static_cast<std::int32_t>(text.size());
  for (std::int32_t i = 0; i < size;) {
    const std::int32_t begin = i;
    UChar32 code = 0;
    U8_NEXT(bytes, i, size, code);
    if (code < 0) i = begin + 1;
    found.push_back({code, text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(i - begin))});
  }
  return found;
}

/// An invalid byte as a character that is neither space, letter nor number and composes with none.
constexpr UChar32 stand_in = 0xe000;

class RegexReference {
 public:
  explicit RegexReference(std::string pattern) {
    // ICU's \s is smaller than that of Oniguruma, which tokenizers uses.
    for (std::size_t at = pattern.find("\\s"); at != std::string::npos; at = pattern.find("\\s", at))
      pattern.replace(at, 2, "\\p{White_Space}");
    for (std::size_t at = pattern.find("\\S"); at != std::string::npos; at = pattern.find("\\S", at))
      pattern.replace(at, 2, "\\P{White_Space}");
    UErrorCode status = U_ZERO_ERROR;
    matcher_ = std::make_unique<icu::RegexMatcher>(icu::UnicodeString::fromUTF8(pattern), 0, status);
    EXPECT_TRUE(U_SUCCESS(status)) << u_errorName(status);
  }

  Pieces pieces(const std::string& text) {
    const std::vector<Character> all = characters(text);
    icu::UnicodeString units;
    for (const Character& character : all) units.append(character.code < 0 ? stand_in : character.code);
    matcher_->reset(units);
    Pieces found;
    std::size_t next = 0;
    UErrorCode status = U_ZERO_ERROR;
    for (std::int32_t end = 0; matcher_->find(status);) {
      EXPECT_EQ(matcher_->start(status), end);
      end = matcher_->end(status);
      std::string piece;
      for (std::int32_t at = matcher_->start(status); at < end; ++next) {
        at += all[next].code < 0 ? 1 : U16_LENGTH(all[next].code);
        piece += all[next].bytes;
      }
      found.push_back(piece);
    }
    EXPECT_EQ(next, all.size());
    return found;
  }

 private:
  std::unique_ptr<icu::RegexMatcher> matcher_;
};

TEST(IcuReference, RegularExpressionsGiveTheSamePieces) {
  std::mt19937 random(20260303);
  for (const KnownSplitPattern& known : known_split_patterns) {
    RegexReference reference{std::string(known.regex)};
    for (int i = 0; i < 10000; ++i) {
      const std::string text = random_text(random);
      Pieces pieces;
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = *piece_end(text, begin, known.pattern);
        pieces.push_back(text.substr(begin, end - begin));
        begin = end;
      }
      ASSERT_EQ(pieces, reference.pieces(text)) << known.regex << ": " << escaped(text);
    }
  }
}

TEST(IcuReference, EveryCharacterIsOfTheSameKind) {
  for (const KnownSplitPattern& known : known_split_patterns) {
    RegexReference reference{std::string(known.regex)};
    for (UChar32 code = 0; code < 0x110000; ++code) {
      if (code == 0xd800) code = 0xe000;
      if (code == 0x40000) code = 0xe0000;  // nothing is assigned between them
      if (code == 0xe0200) break;
      const std::string text = "'" + utf8(code) + "1" + utf8(code) + "a \n" + utf8(code);
      std::size_t begin = 0;
      for (const std::string& piece : reference.pieces(text)) {
        ASSERT_EQ(*piece_end(text, begin, known.pattern), begin + piece.size()) << known.regex << ": " << escaped(text);
        begin += piece.size();
      }
    }
  }
}

bool is_newer_than_unicode_9(UChar32 code) {
  UVersionInfo age{};
  u_charAge(code, age);
  return age[0] == 0 || age[0] > 9;
}

/// Invalid bytes and newer characters as they are, what is between them composed in UTF-16.
std::string reference_nfc(const std::string& text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = icu::Normalizer2::getNFCInstance(status);
  std::string composed;
  icu::UnicodeString valid;
  const auto end_valid = [&] {
    normalizer->normalize(valid, status).toUTF8String(composed);
    valid.remove();
  };
  for (const Character& character : characters(text)) {
    if (character.code < 0 || is_newer_than_unicode_9(character.code)) {
      end_valid();
      composed += character.bytes;
    } else {
      valid.append(character.code);
    }
  }
  end_valid();
  EXPECT_TRUE(U_SUCCESS(status)) << u_errorName(status);
  return composed;
}

TEST(IcuReference, NfcIsTheSameInPartsOfAnySize) {
  std::mt19937 random(20260404);
  int changed = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = random_text(random);
    const std::string expected = reference_nfc(text);
    changed += expected == text ? 0 : 1;
    ASSERT_EQ(to_nfc(text), expected) << escaped(text);
    std::string composed;
    NfcStream stream;
    const std::size_t most = 1 + random() % 8;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t length = 1 + random() % most;
      stream.add(std::string_view(text).substr(begin, length), composed);
      begin += length;
    }
    stream.finish(composed);
    ASSERT_EQ(composed, expected) << escaped(text);
  }
  EXPECT_GT(changed, 1000);
}

}  // namespace
}  // namespace sailor::runtime::icu_reference_test
