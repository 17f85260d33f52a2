#include "runtime/data/nfc.hpp"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstdint>
#include <new>

#include "runtime/data/characters.hpp"

namespace sailor::runtime {

namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;  // ICU counts bytes in 32 bits
constexpr std::size_t longest_character = 4;

/// ICU's data is compiled into it: there is no other cause.
void require(UErrorCode status) {
  if (U_FAILURE(status)) throw std::bad_alloc();
}

/// NFC for the characters of Unicode 9; others are kept.
class Normalizer {
 public:
  static const icu::Normalizer2& get() {
    static const Normalizer one;
    return one.filtered_;
  }

 private:
  static icu::UnicodeSet characters() {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(icu::UnicodeString("[:Age=9.0:]"), status);  // this age or older
    require(status);
    set.freeze();
    return set;
  }
  static const icu::Normalizer2& all() {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* found = icu::Normalizer2::getNFCInstance(status);
    require(status);
    return *found;
  }

  icu::UnicodeSet characters_ = characters();
  icu::FilteredNormalizer2 filtered_{all(), characters_};
};

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

/// Whether the text before `index` and that from there on are composed independently of each other.
bool is_boundary(std::string_view text, std::size_t index) {
  // A byte behind three that continue a character begins nothing and is part of nothing.
  if (continues_character(text[index]))
    return index >= 3 && std::all_of(&text[index - 3], &text[index], continues_character);
  const DecodedCharacter character = first_character(text.substr(index, longest_character));
  return character.code < 0 || Normalizer::get().hasBoundaryBefore(character.code) != 0;
}

/// The last place to cut a text that continues; 0 if there is none.
std::size_t last_boundary(std::string_view text) {
  if (text.size() < longest_character) return 0;
  std::size_t index = text.size() - longest_character;
  while (index > 0 && !is_boundary(text, index)) --index;
  return index;
}

void append_composed(std::string_view text, std::string& composed) {
  // Characters below U+0300 are composed already: their first bytes are below 0xcc.
  if (std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0xcc; })) {
    composed += text;
    return;
  }
  icu::StringByteSink<std::string> sink(&composed);
  while (!text.empty()) {
    std::size_t valid = 0;
    while (valid < text.size()) {
      const DecodedCharacter character = first_character(text.substr(valid, longest_character));
      if (character.code < 0) break;
      valid += character.length;
    }
    UErrorCode status = U_ZERO_ERROR;
    Normalizer::get().normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(valid)), sink, nullptr,
                                    status);
    require(status);
    if (valid < text.size()) composed += text[valid++];
    text.remove_prefix(valid);
  }
}

}  // namespace

void NfcStream::add(std::string_view part, std::string& composed) {
  while (!part.empty()) {
    const std::string_view block = part.substr(0, block_bytes);
    part.remove_prefix(block.size());
    pending_ += block;
    if (pending_.size() < look_again_) continue;
    const std::size_t end = last_boundary(pending_);
    append_composed(std::string_view(pending_).substr(0, end), composed);
    pending_.erase(0, end);
    look_again_ = 2 * pending_.size();  // else combining characters in many parts would be scanned for each of them
  }
}

void NfcStream::finish(std::string& composed) {
  append_composed(pending_, composed);
  pending_.clear();
  look_again_ = 0;
}

std::string to_nfc(std::string_view text) {
  std::string composed;
  NfcStream stream;
  stream.add(text, composed);
  stream.finish(composed);
  return composed;
}

}  // namespace sailor::runtime
