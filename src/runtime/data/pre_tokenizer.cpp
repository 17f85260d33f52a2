#include "runtime/data/pre_tokenizer.hpp"

#include <unicode/uchar.h>

#include <array>
#include <cstdint>

namespace sailor::runtime {

namespace {

enum class Kind { space, letter, number, other };

struct Character {
  Kind kind = Kind::other;
  std::size_t end = 0;
};

Kind kind_of(UChar32 code) {
  if (u_isUWhiteSpace(code)) return Kind::space;
  const auto category = static_cast<std::uint32_t>(U_GET_GC_MASK(code));
  if ((category & U_GC_L_MASK) != 0) return Kind::letter;
  if ((category & U_GC_N_MASK) != 0) return Kind::number;
  return Kind::other;
}

struct Decoded {
  UChar32 code = -1;  // -1: invalid UTF-8
  std::size_t length = 1;
};

/// The first character of the text, which is not ASCII.
Decoded decode(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<UChar32>(static_cast<unsigned char>(text[index])); };
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return {};
  UChar32 code = byte(0) & (0xff >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3f);
  }
  // Overlong encodings, surrogates, and values beyond Unicode are invalid.
  if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000) || (code >= 0xd800 && code < 0xe000) ||
      code > 0x10ffff)
    return {};
  return {code, length};
}

const std::array<Kind, 128>& ascii_kinds() {
  static const std::array<Kind, 128> kinds = [] {
    std::array<Kind, 128> table{};
    for (std::size_t code = 0; code < table.size(); ++code) table[code] = kind_of(static_cast<UChar32>(code));
    return table;
  }();
  return kinds;
}

/// Reads the text character by character.
class Scanner {
 public:
  Scanner(std::string_view text, bool more) : text_(text), more_(more) {}

  /// std::nullopt at the end of the text.
  [[nodiscard]] std::optional<Character> at(std::size_t begin) {
    // No character is longer than four bytes.
    if (more_ && begin + 4 > text_.size()) open_ = true;
    if (begin >= text_.size()) return std::nullopt;
    const auto byte = static_cast<unsigned char>(text_[begin]);
    if (byte < 0x80) return Character{ascii_kinds()[byte], begin + 1};
    const Decoded decoded = decode(text_.substr(begin, 4));
    if (decoded.code < 0) return Character{Kind::other, begin + 1};
    return Character{kind_of(decoded.code), begin + decoded.length};
  }

  /// The end of the run of characters of this kind.
  [[nodiscard]] std::size_t row_end(std::size_t begin, Kind kind) {
    for (auto next = at(begin); next && next->kind == kind; next = at(begin)) begin = next->end;
    return begin;
  }

  /// Whether the answer may depend on what follows the text.
  [[nodiscard]] bool open() const { return open_; }

 private:
  std::string_view text_;
  bool more_;
  bool open_ = false;
};

std::size_t end_of(Scanner& scanner, std::string_view text, std::size_t begin) {
  const Character first = *scanner.at(begin);
  if (text[begin] == '\'') {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.substr(begin, ending.size()) == ending) return begin + ending.size();
  }
  if (first.kind != Kind::space) return scanner.row_end(first.end, first.kind);
  if (text[begin] == ' ')
    if (const auto next = scanner.at(first.end); next && next->kind != Kind::space)
      return scanner.row_end(next->end, next->kind);
  // Spaces: all at the end of the text; else all but the last, which joins what follows, unless it is the only one.
  std::size_t last = begin;
  std::size_t end = first.end;
  for (auto next = scanner.at(end); next && next->kind == Kind::space; next = scanner.at(end)) {
    last = end;
    end = next->end;
  }
  return end < text.size() && last > begin ? last : end;
}

}  // namespace

std::optional<std::size_t> piece_end(std::string_view text, std::size_t begin, bool more) {
  Scanner scanner(text, more);
  const std::size_t end = end_of(scanner, text, begin);
  if (scanner.open()) return std::nullopt;
  return end;
}

}  // namespace sailor::runtime
