// A plan as the arguments or configuration file of another training framework. What a framework cannot run is refused,
// never left out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::handover {

enum class Format {
  megatron,         ///< arguments of Megatron-Core's pretrain_gpt.py, as an array of bash
  torchtitan,       ///< command-line overrides of a registered configuration, torchtitan 0.3
  torchtitan_toml,  ///< sections of a configuration file, torchtitan 0.2
  deepspeed,        ///< ds_config.json
};

/// Names of all formats, for options: "megatron", "torchtitan", "torchtitan-toml", "deepspeed".
std::vector<std::string> format_choices();
/// std::nullopt: `name` is none of them.
std::optional<Format> parse_format(std::string_view name);
/// The framework description (profiles/frameworks) whose plans the format can express: "megatron-core".
std::string_view description_of(Format format);

struct Handover {
  std::string text;
  std::vector<std::string> notes{};  ///< what the user has to do that the text cannot say
};

/// `writer` names the program in the header: "sailor-plan 0.9.0". Errors: unavailable, naming what the framework cannot
/// run and what to pin instead.
Result<Handover> hand_over(Format format, const Plan& plan, const Model& model, std::string_view writer);

}  // namespace sailor::handover
