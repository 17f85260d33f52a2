// Arguments that an administrator gives to the plugin in plugstack.conf.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sailor::spank {

struct Arguments {
  std::filesystem::path gpus{};         ///< gpus=FILE, the GPU catalogue; empty: the user's or the installed one
  std::filesystem::path environment{};  ///< environment=FILE, the site's variables; empty: none
  /// devices=FOLDER, where the driver describes the GPUs of a node; empty (devices=none): not read
  std::filesystem::path devices{"/proc/driver/nvidia/gpus"};
  std::filesystem::path installed_gpus{};  ///< no argument: the catalogue that came with the plugin
  std::vector<std::string> problems{};     ///< one sentence for each argument that is none of these
};

Arguments read_arguments(int count, const char* const* words);

}  // namespace sailor::spank
