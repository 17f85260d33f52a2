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
  nemo,             ///< command-line overrides of a recipe, NeMo 2.4 to 2.7
};

/// Names of all formats, for options: "megatron", "torchtitan", "torchtitan-toml", "deepspeed", "nemo".
std::vector<std::string> format_choices();
/// Names of those that can express plans for a framework description: "megatron", "nemo" for "megatron-core".
std::vector<std::string> formats_for(std::string_view description);
/// std::nullopt: `name` is none of them.
std::optional<Format> parse_format(std::string_view name);
/// The framework description (profiles/frameworks) whose plans the format can express: "megatron-core".
std::string_view description_of(Format format);
/// The framework as it is called in messages: "Megatron-Core".
std::string_view framework_of(Format format);
/// Where the framework's ranks run.
enum class Ranks {
  in_plan_order,  ///< its rank r runs where the plan's rank r would: torchrun, srun
  as_numbered,    ///< each runs where the plan wants its stage and pipeline: sailor-launch --torch-ranks
};

struct Handover {
  std::string header{};                 ///< lines of a comment: what `body` is, and how to use it; may be empty
  std::string body{};                   ///< commands of bash that set `array`, or the contents of a file
  bool ranks_by_stage = false;          ///< the framework numbers ranks by stage, then pipeline; else as the plan does
  std::string array{};                  ///< "SAILOR_MEGATRON_ARGS"; empty: `body` is a file
  std::vector<std::string> settings{};  ///< names on the command line that the plan decides: "--micro-batch-size"
  std::vector<std::string> notes{};     ///< what the user has to do that the text cannot say

  [[nodiscard]] std::string text() const { return header + body; }
};

/// `writer` names the program in the header: "sailor-plan 0.9.0". Errors: unavailable, naming what the framework cannot
/// run and what to pin instead.
Result<Handover> hand_over(Format format, const Plan& plan, const Model& model, std::string_view writer,
                           Ranks ranks = Ranks::in_plan_order);

}  // namespace sailor::handover
