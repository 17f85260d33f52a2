#include "spank_plugin/arguments.hpp"

#include <fmt/format.h>

#include <string_view>

namespace sailor::spank {

Arguments read_arguments(int count, const char* const* words) {
  Arguments arguments;
  for (int i = 0; i < count; ++i) {
    const std::string_view word = words[i] == nullptr ? "" : words[i];
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view name = word.substr(0, equals);
    const std::string_view value = word.substr(std::min(equals + 1, word.size()));
    std::filesystem::path* path = nullptr;
    if (name == "gpus") path = &arguments.gpus;
    if (name == "environment") path = &arguments.environment;
    if (name == "devices") path = &arguments.devices;
    if (path == nullptr)
      arguments.problems.push_back(fmt::format(
          "plugstack.conf: unknown argument '{}' (known: gpus=FILE, environment=FILE, devices=FOLDER|none)", word));
    else if (name == "devices" && value == "none")
      path->clear();
    else if (!value.starts_with('/'))
      arguments.problems.push_back(fmt::format("plugstack.conf: '{}' needs an absolute path", word));
    else
      *path = value;
  }
  return arguments;
}

}  // namespace sailor::spank
