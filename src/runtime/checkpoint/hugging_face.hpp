// Models in the format of Hugging Face's transformers: config.json and model.safetensors with the names of
// OPTForCausalLM, GPTNeoForCausalLM, GPT2LMHeadModel, LlamaForCausalLM and MixtralForCausalLM.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "model/model.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

namespace sailor::runtime {

/// Location of a Hugging Face tensor ("theirs") in a tensor of this model ("ours").
struct ForeignTensor {
  std::string name;  ///< "model.layers.0.self_attn.q_proj.weight"
  Shape shape;
  int layer = 0;
  std::string own_name;
  Range rows{};                  ///< of ours
  std::int64_t width = 1;        ///< of a row of ours
  bool transposed = false;       ///< theirs is (width, rows)
  std::int64_t rows_before = 0;  ///< unused rows at the beginning of theirs
};

/// All parameters of the model, whole, as a checkpoint stores them: a tied token embedding only once.
std::vector<WholeTensor> whole_tensors(const Model& model);

/// All Hugging Face tensors of the model. Errors (infeasible): transformers has no such model, and why.
Result<std::vector<ForeignTensor>> foreign_tensors(const Model& model);

/// The text of config.json. Errors: those of foreign_tensors().
Result<std::string> config_text(const Model& model);
/// Checks that a config.json describes the model. Errors (invalid_input): it does not, and where it differs.
Result<void> check_config(std::string_view text, std::string_view source_name, const Model& model);

/// The file of each tensor, from a model.safetensors.index.json. Errors: invalid_input.
Result<std::map<std::string, std::string>> parse_weight_map(std::string_view text, std::string_view source_name);

/// Writes the weights of a checkpoint to `folder`, which is created if missing and must not contain a model.
Result<void> export_hugging_face(CheckpointReader& checkpoint, const Model& model, const std::filesystem::path& folder);
/// Creates a checkpoint of iteration 0 from the weights in `folder` (F32, BF16 or F16). Tensors that the model does not
/// have are errors, too.
Result<void> import_hugging_face(const std::filesystem::path& folder, const Model& model,
                                 const std::filesystem::path& checkpoint);

}  // namespace sailor::runtime
