#include "runtime/data/pre_tokenizer.hpp"

#include <unicode/uchar.h>

#include <array>
#include <cstdint>

#include "runtime/data/characters.hpp"

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
    const DecodedCharacter decoded = first_character(text_.substr(begin, 4));
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

/// The end of a piece that begins with white space and matches no alternative but \s+(?!\S) and \s+: all of the row at
/// the end of the text; else all but its last character, which joins what follows, unless it is the only one.
/// With `to_line_end`, \s*[\r\n]+ comes before them: up to the row's last line end, if it has one.
std::size_t white_space_end(Scanner& scanner, std::string_view text, std::size_t begin, bool to_line_end) {
  std::size_t last = begin;
  std::size_t end = begin;
  std::size_t line_end = begin;
  for (auto next = scanner.at(end); next && next->kind == Kind::space; next = scanner.at(end)) {
    last = end;
    end = next->end;
    if (text[last] == '\r' || text[last] == '\n') line_end = end;
  }
  if (to_line_end && line_end > begin) return line_end;
  return end < text.size() && last > begin ? last : end;
}

std::size_t gpt2_end(Scanner& scanner, std::string_view text, std::size_t begin) {
  const Character first = *scanner.at(begin);
  if (text[begin] == '\'') {
    for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.substr(begin, ending.size()) == ending) return begin + ending.size();
  }
  if (first.kind != Kind::space) return scanner.row_end(first.end, first.kind);
  if (text[begin] == ' ')
    if (const auto next = scanner.at(first.end); next && next->kind != Kind::space)
      return scanner.row_end(next->end, next->kind);
  return white_space_end(scanner, text, begin, false);
}

/// Length of the contraction's letters behind an apostrophe; 0 if there are none.
std::size_t contraction(std::string_view letters) {
  const auto lower = [&](std::size_t index) {
    if (index >= letters.size()) return '\0';
    const char letter = letters[index];
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  };
  switch (lower(0)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 1;
    case 'r':
    case 'v':
      return lower(1) == 'e' ? 2 : 0;
    case 'l':
      return lower(1) == 'l' ? 2 : 0;
    default:
      return letters.starts_with("\u017f") ? 2 : 0;  // long s, an s in another case
  }
}

/// LLaMA-3's and Qwen2's patterns, which differ in how many characters of a number make a piece.
std::size_t llama3_end(Scanner& scanner, std::string_view text, std::size_t begin, int most_digits) {
  const Character first = *scanner.at(begin);
  if (first.kind == Kind::letter) return scanner.row_end(first.end, Kind::letter);
  if (first.kind == Kind::number) {
    std::size_t end = first.end;
    for (int digits = 1; digits < most_digits; ++digits) {
      const auto next = scanner.at(end);
      if (!next || next->kind != Kind::number) break;
      end = next->end;
    }
    return end;
  }
  if (text[begin] == '\'')
    if (const std::size_t letters = contraction(text.substr(first.end)); letters > 0) return first.end + letters;
  const auto next = scanner.at(first.end);
  if (next && next->kind == Kind::letter && text[begin] != '\r' && text[begin] != '\n')
    return scanner.row_end(next->end, Kind::letter);
  if (first.kind == Kind::space && !(text[begin] == ' ' && next && next->kind == Kind::other))
    return white_space_end(scanner, text, begin, true);
  std::size_t end = scanner.row_end(first.end, Kind::other);
  while (scanner.at(end) && (text[end] == '\r' || text[end] == '\n')) ++end;
  return end;
}

}  // namespace

std::optional<std::size_t> piece_end(std::string_view text, std::size_t begin, SplitPattern pattern, bool more) {
  Scanner scanner(text, more);
  const std::size_t end = pattern == SplitPattern::gpt2
                              ? gpt2_end(scanner, text, begin)
                              : llama3_end(scanner, text, begin, pattern == SplitPattern::llama3 ? 3 : 1);
  if (scanner.open()) return std::nullopt;
  return end;
}

}  // namespace sailor::runtime
