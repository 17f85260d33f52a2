#include "runtime/data/bpe_tokenizer.hpp"

#include <fmt/format.h>

#include <queue>
#include <tuple>
#include <utility>

#include "runtime/data/pre_tokenizer.hpp"

namespace sailor::runtime {

namespace {

constexpr std::size_t longest_known_piece = 64;  // bytes; longer ones rarely occur again
constexpr std::size_t most_known_pieces = std::size_t{1} << 20;

/// A token of the current piece; merged ones leave the row.
struct Symbol {
  std::int32_t token = 0;  // -1: merged away
  std::int64_t before = -1;
  std::int64_t behind = -1;
};

/// Two neighbours that merge. It is outdated if one of them has changed since.
struct Candidate {
  BpeVocabulary::Merge merge{};
  std::int64_t place = 0;  // index of the left one
  std::int32_t left = 0;
  std::int32_t right = 0;

  /// Order for a priority queue, which returns the best first.
  bool operator<(const Candidate& other) const {
    return std::tie(other.merge.rank, other.place) < std::tie(merge.rank, place);
  }
};

}  // namespace

void BpeTokenizer::merge_piece(std::string_view piece, std::vector<std::int32_t>& tokens) {
  if (const auto whole = vocabulary_.whole(piece)) {
    tokens.push_back(*whole);
    return;
  }
  std::vector<Symbol> symbols(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i)
    symbols[i] = {.token = vocabulary_.byte(static_cast<unsigned char>(piece[i])),
                  .before = static_cast<std::int64_t>(i) - 1,
                  .behind = i + 1 < piece.size() ? static_cast<std::int64_t>(i) + 1 : -1};
  const auto at = [&](std::int64_t place) -> Symbol& { return symbols[static_cast<std::size_t>(place)]; };
  std::priority_queue<Candidate> queue;
  const auto consider = [&](std::int64_t place) {
    if (place < 0 || at(place).behind < 0) return;
    const std::int32_t left = at(place).token;
    const std::int32_t right = at(at(place).behind).token;
    if (const auto merge = vocabulary_.merge(left, right)) queue.push({*merge, place, left, right});
  };
  for (std::int64_t place = 0; place < std::ssize(symbols); ++place) consider(place);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.place);
    if (left.token != best.left || left.behind < 0 || at(left.behind).token != best.right) continue;
    Symbol& right = at(left.behind);
    left.token = best.merge.token;
    left.behind = right.behind;
    right.token = -1;
    if (left.behind >= 0) at(left.behind).before = best.place;
    consider(left.before);
    consider(best.place);
  }
  for (std::int64_t place = 0; place >= 0; place = at(place).behind) tokens.push_back(at(place).token);
}

void BpeTokenizer::add_piece(std::string_view piece, std::vector<std::int32_t>& tokens) {
  if (piece.size() > longest_known_piece) {
    merge_piece(piece, tokens);
    return;
  }
  const auto [found, is_new] = known_.try_emplace(std::string(piece));
  if (is_new) merge_piece(piece, found->second);
  tokens.insert(tokens.end(), found->second.begin(), found->second.end());
  if (known_.size() > most_known_pieces) known_.clear();
}

void BpeTokenizer::add_text(std::string_view text, std::vector<std::int32_t>& tokens) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = *piece_end(text, begin, vocabulary_.pattern());
    add_piece(text.substr(begin, end - begin), tokens);
    begin = end;
  }
}

std::vector<std::int32_t> BpeTokenizer::encode(std::string_view text) {
  std::vector<std::int32_t> tokens;
  if (vocabulary_.composes())
    add_text(to_nfc(text), tokens);
  else
    add_text(text, tokens);
  return tokens;
}

Result<std::string> BpeTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto bytes = vocabulary_.bytes(tokens[i]);
    if (!bytes)
      return fail(ErrorCode::invalid_input,
                  fmt::format("token {} (number {} of the text) is not in the vocabulary", tokens[i], i));
    text += *bytes;
  }
  return text;
}

void BpeTokenizer::add(std::string_view part, std::vector<std::int32_t>& tokens) {
  if (vocabulary_.composes())
    nfc_.add(part, pending_);
  else
    pending_ += part;
  if (pending_.size() < look_again_) return;
  std::size_t begin = 0;
  while (begin < pending_.size()) {
    const auto end = piece_end(pending_, begin, vocabulary_.pattern(), true);
    if (!end) break;
    add_piece(std::string_view(pending_).substr(begin, *end - begin), tokens);
    begin = *end;
  }
  pending_.erase(0, begin);
  look_again_ = 2 * pending_.size();  // else a piece of many parts would be scanned for each of them
}

void BpeTokenizer::finish(std::vector<std::int32_t>& tokens) {
  if (vocabulary_.composes()) nfc_.finish(pending_);
  add_text(pending_, tokens);
  pending_.clear();
  look_again_ = 0;
}

}  // namespace sailor::runtime
