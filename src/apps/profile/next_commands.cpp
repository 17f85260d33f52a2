#include "apps/profile/next_commands.hpp"

#include <fmt/format.h>

#include "core/shell.hpp"

namespace sailor::apps {

std::string plan_command(const std::string& model, const std::string& gpu, int sequence_length,
                         const std::string& store, const std::string& models) {
  // Only Slurm or a cluster file says how much memory nodes without GPUs have.
  const bool on_gpus = gpu != "cpu";
  std::string command = fmt::format("sailor-plan --model {} {} --global-batch 64", shell_quote(model),
                                    on_gpus ? "--gpus 2x4:" + gpu : "--partition NAME");
  if (sequence_length > 0) command += fmt::format(" --sequence-length {}", sequence_length);
  if (!store.empty()) command += fmt::format(" --profile {}", shell_quote(store));
  if (!models.empty()) command += fmt::format(" --models {}", shell_quote(models));
  return command + " --output plan.toml  # with your nodes and batch";
}

std::vector<std::string> commands_after_storing(const ProfileData& data, const std::string& store,
                                                const std::string& models) {
  const std::string show = fmt::format("sailor-profile show {}", shell_quote(store));
  if (data.layer_times.empty())
    return {show, fmt::format("sailor-profile layers --model tiny-gpt --store {}  # `sailor models` lists others",
                              shell_quote(store))};
  const LayerKey& key = data.layer_times.front().key;
  return {show, plan_command(key.model, key.gpu, key.sequence_length, store, models)};
}

}  // namespace sailor::apps
