// Models as Hugging Face's transformers has them: config.json and model.safetensors with the names of
// OPTForCausalLM, GPTNeoForCausalLM, GPT2LMHeadModel and LlamaForCausalLM.
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

/// Where a tensor of theirs lies in ours.
struct ForeignTensor {
  std::string name;  ///< "model.layers.0.self_attn.q_proj.weight"
  Shape shape;
  int layer = 0;
  std::string own_name;
  Range rows{};                  ///< of ours
  std::int64_t width = 1;        ///< of a row of ours
  bool transposed = false;       ///< theirs is (width, rows)
  std::int64_t rows_before = 0;  ///< that theirs has in front of ours and nobody uses
};

/// All parameters of the model, whole, as a checkpoint has them: a tied token embedding once.
std::vector<WholeTensor> whole_tensors(const Model& model);

/// All tensors of theirs. Errors (infeasible): transformers has no such model, and why.
Result<std::vector<ForeignTensor>> foreign_tensors(const Model& model);

/// config.json. Errors as foreign_tensors().
Result<std::string> config_text(const Model& model);
/// Errors (invalid_input): the file does not describe the model, and where it differs.
Result<void> check_config(std::string_view text, std::string_view source_name, const Model& model);

/// Files of a model.safetensors.index.json by tensor. Errors: invalid_input.
Result<std::map<std::string, std::string>> parse_weight_map(std::string_view text, std::string_view source_name);

/// Writes the weights of a checkpoint into `folder`, which is made where it is missing and must not have a model.
Result<void> export_hugging_face(CheckpointReader& checkpoint, const Model& model, const std::filesystem::path& folder);
/// Makes a checkpoint of iteration 0 of the weights in `folder` (F32, BF16 or F16). Errors also for tensors that the
/// model does not have.
Result<void> import_hugging_face(const std::filesystem::path& folder, const Model& model,
                                 const std::filesystem::path& checkpoint);

}  // namespace sailor::runtime
