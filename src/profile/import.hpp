// Reads published measurements in the JSON formats of github.com/eth-easl/sailor. profiles/README.md describes what
// each number becomes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/gpu_catalogue.hpp"
#include "core/error.hpp"
#include "model/model.hpp"
#include "profile/measurements.hpp"

namespace sailor {

/// File formats that can be read.
enum class ImportForm {
  text,          ///< our own TOML (profile/text.hpp)
  layer_times,   ///< model -> GPU -> micro-batch -> tensor parallel -> layer -> [forward, backward, update] in seconds;
                 ///< or the same without model and GPU
  layer_memory,  ///< model -> tensor parallel -> layer -> parameters, activations, output, input
  inter_node,    ///< zone -> GPU -> GPUs -> zone -> GPU -> GPUs -> [[a, b, c], bytes/s]
  intra_node,    ///< GPU -> GPUs -> [[a, b, c], bytes/s]
  homogeneous,   ///< "inter" and "intra" -> GPU -> GPUs -> [[a, b, c], bytes/s]
};
std::string_view to_string(ImportForm form);

/// Settings that the files do not contain.
struct ImportOptions {
  const std::vector<Model>& models;
  const GpuCatalogue& gpus;
  std::optional<ImportForm> form{};      ///< std::nullopt: recognised by the content
  std::string model{};                   ///< of layer times without a model
  std::string gpu{};                     ///< of layer times without a GPU
  std::optional<Precision> precision{};  ///< of layer times; std::nullopt: tf32 on GPUs that have it, fp32 on others
  Session session{};                     ///< session of the imported rows; not used for text, which has its own
};

/// `name` stands for the file in messages. Errors: invalid_input (damaged, impossible or incomplete, with the path of
/// keys), not_found (a model or GPU that is not known, and what to do), usage (--model or --gpu is missing).
Result<ProfileData> import_profile(std::string_view content, std::string_view name, const ImportOptions& options);

/// Removes links without zones that repeat one inside a zone: same GPUs, same curve. Returns how many there were.
int remove_repeated_links(ProfileData& data);

}  // namespace sailor
