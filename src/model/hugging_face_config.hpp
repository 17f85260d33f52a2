// Reads the architecture of a model from Hugging Face's config.json, so that existing models can be planned and
// simulated unchanged.
#pragma once

#include <string_view>

#include "core/error.hpp"
#include "model/model.hpp"

namespace sailor {

/// The model that a config.json of transformers describes: gemma, gemma2, gemma3_text, deepseek_v3, gpt2, gpt_neox,
/// gpt_oss, llama, mistral, mixtral, opt, qwen2, qwen2_moe, qwen3 and qwen3_moe. `source_name` stands for the file in
/// messages and becomes the model's name. Errors: invalid_input, naming a key that is missing or wrong; unavailable,
/// naming a family, a value or keys that are not understood.
Result<Model> parse_hugging_face_config(std::string_view text, std::string_view source_name);

}  // namespace sailor
