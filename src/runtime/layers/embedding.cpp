// The first layer: token embedding, projection to the hidden width where the embedding is narrower, and learned
// positions. In a tensor-parallel group each rank has its rows of the table; positions and projection are whole on all.
//
// Position p has row p, and there are max_sequence_length rows. (Hugging Face's OPT has two more rows in front, a
// remnant of fairseq's padding index; its weights are to be read from row 2 on.)
#include <utility>

#include "runtime/layers/make_layers.hpp"

namespace sailor::runtime {

namespace {

class Embedding final : public Layer {
 public:
  Embedding(const Model& model, int index, const LayerContext& context)
      : Layer(context, index),
        hidden_(model.hidden),
        embedding_width_(model.embedding_width),
        rows_(cut(model.vocabulary, shard())),
        has_positions_(model.position == PositionKind::learned),
        table_(declare_divided(token_embedding_name, {model.vocabulary}, embedding_width_, initial_deviation)) {
    if (has_positions_)
      positions_ = declare("position_embedding.weight", {model.max_sequence_length, hidden_}, InitialValue::normal,
                           initial_deviation);
    if (has_projection())
      projection_ = declare("projection.weight", {hidden_, embedding_width_}, InitialValue::normal, initial_deviation);
  }

  Tensor forward(const MicroBatch& micro_batch, Tensor, Slot&) override {
    const std::int64_t tokens = micro_batch.token_count();
    Tensor output = gather(micro_batch);
    if (has_projection()) {
      const Tensor embedded = std::exchange(output, make_activation({tokens, hidden_}));
      linear_forward(embedded.values(), parameter(projection_), nullptr, tokens, output.values());
    }
    if (has_positions_)
      stream().add_repeated(output.values(), parameter(positions_).value + first_position(micro_batch) * hidden_,
                            micro_batch.sequences, micro_batch.sequence_length * hidden_);
    return output;
  }

  Tensor backward(const MicroBatch& micro_batch, Tensor output_gradient, Slot&) override {
    const std::int64_t tokens = micro_batch.token_count();
    if (has_positions_)
      stream().add_repeated_gradient(parameter(positions_).gradient + first_position(micro_batch) * hidden_,
                                     output_gradient.values(), micro_batch.sequences,
                                     micro_batch.sequence_length * hidden_);
    if (has_projection()) {
      Tensor embedded = gather(micro_batch);  // recomputed instead of kept: a few rows, and their all-reduce
      linear_backward_parameters(embedded.values(), output_gradient.values(), parameter(projection_), nullptr, tokens);
      linear_backward_input(output_gradient.values(), parameter(projection_), tokens, embedded.values());
      output_gradient = std::move(embedded);
    }
    stream().scatter_add_rows(parameter(table_).gradient, rows_, micro_batch.tokens, tokens, embedding_width_,
                              output_gradient.values());
    return {};
  }

 private:
  [[nodiscard]] bool has_projection() const { return embedding_width_ != hidden_; }
  /// Of this rank's part of a sequence.
  [[nodiscard]] std::int64_t first_position(const MicroBatch& micro_batch) const {
    return context_parallel().shard.index * micro_batch.sequence_length;
  }

  Tensor gather(const MicroBatch& micro_batch) {
    Tensor embedded = make_activation({micro_batch.token_count(), embedding_width_});
    stream().gather_rows(parameter(table_).value, rows_, micro_batch.tokens, micro_batch.token_count(),
                         embedding_width_, embedded.values());
    sum_over_group(embedded);  // one rank has a token's row, the others zeros
    return embedded;
  }

  std::int64_t hidden_;
  std::int64_t embedding_width_;
  Range rows_;  // of the vocabulary, on this rank
  bool has_positions_;
  // Indices in parameters(). The table comes first: token_embedding() expects it there.
  std::size_t table_;
  std::size_t positions_ = 0;
  std::size_t projection_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_embedding(const Model& model, int index, const LayerContext& context) {
  return std::make_unique<Embedding>(model, index, context);
}

}  // namespace sailor::runtime
