#include "runtime/layers/sequence_exchange.hpp"

#include <numeric>

namespace sailor::runtime {

namespace {

/// Rows that are copied from one array to another, in values.
struct Rows {
  std::int64_t count = 0;
  std::int64_t width = 0;
};
/// Where rows are, in values.
struct Place {
  std::int64_t first = 0;
  std::int64_t stride = 0;
};

void copy(Stream& stream, const Rows& rows, Tensor& to, const Place& there, const Tensor& from, const Place& here) {
  const auto bytes = [&](std::int64_t values) { return bytes_of(to.type(), values); };
  stream.copy_rows((to.values() + there.first).data, bytes(there.stride), (from.values() + here.first).data,
                   bytes(here.stride), bytes(rows.width), static_cast<std::size_t>(rows.count));
}

/// Calls use(rows, here, there) for what every rank's heads take of rows of tokens: `here` in these rows, `there` in an
/// array of one slice per rank.
template <class Use>
void for_heads(std::int64_t ranks, std::int64_t tokens, const std::vector<std::int64_t>& widths, const Use& use) {
  const std::int64_t width = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t before = 0;  // widths of the segments before this one
    for (const std::int64_t segment : widths) {
      use(Rows{tokens, segment}, Place{before * ranks + rank * segment, width * ranks},
          Place{rank * tokens * width + before, width});
      before += segment;
    }
  }
}

/// The same for every rank's part of the rows of all tokens, sequence after sequence. `part`: values of one of them.
template <class Use>
void for_parts(std::int64_t ranks, std::int64_t sequences, std::int64_t part, const Use& use) {
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    use(Rows{sequences, part}, Place{rank * part, ranks * part}, Place{rank * sequences * part, part});
}

}  // namespace

Tensor SequenceExchange::exchanged(const Tensor& from) const {
  Tensor to(*device_, from.shape(), type_);
  group_->all_to_all(device_->main(), from.values(), to.values(), from.elements());
  return to;
}

Tensor SequenceExchange::to_heads(const Tensor& tokens, std::int64_t sequences,
                                  const std::vector<std::int64_t>& widths) const {
  const std::int64_t rows = tokens.shape()[0];
  Tensor slices(*device_, {rows * ranks_, tokens.shape()[1] / ranks_}, type_);
  for_heads(ranks_, rows, widths, [&](const Rows& these, const Place& here, const Place& there) {
    copy(device_->main(), these, slices, there, tokens, here);
  });
  slices = exchanged(slices);
  if (sequences == 1) return slices;
  Tensor heads(*device_, slices.shape(), type_);
  for_parts(ranks_, sequences, heads.elements() / ranks_ / sequences,
            [&](const Rows& these, const Place& here, const Place& there) {
              copy(device_->main(), these, heads, here, slices, there);
            });
  return heads;
}

Tensor SequenceExchange::to_tokens(const Tensor& heads, std::int64_t sequences,
                                   const std::vector<std::int64_t>& widths) const {
  Tensor slices;
  if (sequences > 1) {
    slices = Tensor(*device_, heads.shape(), type_);
    for_parts(ranks_, sequences, heads.elements() / ranks_ / sequences,
              [&](const Rows& these, const Place& here, const Place& there) {
                copy(device_->main(), these, slices, there, heads, here);
              });
  }
  slices = exchanged(sequences > 1 ? slices : heads);
  const std::int64_t rows = heads.shape()[0] / ranks_;
  Tensor tokens(*device_, {rows, heads.shape()[1] * ranks_}, type_);
  for_heads(ranks_, rows, widths, [&](const Rows& these, const Place& here, const Place& there) {
    copy(device_->main(), these, tokens, here, slices, there);
  });
  return tokens;
}

}  // namespace sailor::runtime
