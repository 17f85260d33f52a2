// Families of models that both transformers and this runtime have.
#pragma once

#include "core/error.hpp"
#include "model/model.hpp"

namespace sailor::runtime {

enum class Family { opt, gpt_neo, gpt2, llama, mixtral };

/// Whether the family is LLaMA or differs from it in its feed-forward part only.
constexpr bool is_like_llama(Family family) { return family == Family::llama || family == Family::mixtral; }

/// Errors (infeasible): the model is of no family, and what the nearest one would need.
Result<Family> family_of(const Model& model);

}  // namespace sailor::runtime
