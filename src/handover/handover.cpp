#include "handover/handover.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "handover/writers.hpp"

namespace sailor::handover {

namespace {

struct Entry {
  Format format;
  std::string_view name;
  std::string_view description;
  std::string_view framework;
  Result<Handover> (*write)(const Plan&, const Model&, std::string_view, Ranks);
};

constexpr std::array entries{
    Entry{Format::megatron, "megatron", "megatron-core", "Megatron-Core", write_megatron},
    Entry{Format::torchtitan, "torchtitan", "torch-fsdp", "torchtitan", write_torchtitan},
    Entry{Format::torchtitan_toml, "torchtitan-toml", "torch-fsdp", "torchtitan", write_torchtitan_toml},
    Entry{Format::deepspeed, "deepspeed", "megatron-deepspeed", "DeepSpeed", write_deepspeed},
    Entry{Format::nemo, "nemo", "megatron-core", "NeMo", write_nemo}};

const Entry& entry_of(Format format) {
  return *std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.format == format; });
}

}  // namespace

std::vector<std::string> format_choices() {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.emplace_back(entry.name);
  return names;
}

std::vector<std::string> formats_for(std::string_view description) {
  std::vector<std::string> names;
  for (const Entry& entry : entries)
    if (entry.description == description) names.emplace_back(entry.name);
  return names;
}

std::optional<Format> parse_format(std::string_view name) {
  for (const Entry& entry : entries)
    if (entry.name == name) return entry.format;
  return std::nullopt;
}

std::string_view description_of(Format format) { return entry_of(format).description; }

std::string_view framework_of(Format format) { return entry_of(format).framework; }

Result<Handover> hand_over(Format format, const Plan& plan, const Model& model, std::string_view writer, Ranks ranks) {
  return entry_of(format).write(plan, model, writer, ranks);
}

}  // namespace sailor::handover
