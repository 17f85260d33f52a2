// Constructors of the kinds of layers, for make_layer() only.
#pragma once

#include <memory>

#include "runtime/layer.hpp"

namespace sailor::runtime {

std::unique_ptr<Layer> make_embedding(const Model& model, int index, const LayerContext& context);
std::unique_ptr<Layer> make_block(const Model& model, int index, const LayerContext& context);
std::unique_ptr<Layer> make_final_norm(const Model& model, int index, const LayerContext& context);
std::unique_ptr<Layer> make_head(const Model& model, int index, const LayerContext& context);

/// Standard deviation of all normally initialised matrices, as in GPT-2 and OPT.
inline constexpr float initial_deviation = 0.02f;

}  // namespace sailor::runtime
