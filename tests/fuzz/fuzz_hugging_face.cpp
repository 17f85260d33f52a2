#include <cstdint>
#include <string_view>

#include "runtime/checkpoint/hugging_face.hpp"

// Any bytes as config.json or as the index of several files: accepted, or refused with a reason.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto models = sailor::load_models(SAILOR_SOURCE_DIR "/profiles/models").value();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& model : models)
    if (const auto checked = sailor::runtime::check_config(text, "fuzz.json", model);
        !checked && checked.error().what.empty())
      __builtin_trap();
  const auto files = sailor::runtime::parse_weight_map(text, "index.json");
  if (!files && files.error().what.empty()) __builtin_trap();
  if (files)
    for (const auto& [tensor, file] : *files)
      if (file.find('/') != std::string::npos) __builtin_trap();
  return 0;
}
