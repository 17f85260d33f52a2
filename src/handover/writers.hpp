// The writers behind hand_over(), one for each format.
#pragma once

#include <string_view>

#include "core/error.hpp"
#include "handover/handover.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::handover {

Result<Handover> write_megatron(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks);
Result<Handover> write_torchtitan(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks);
Result<Handover> write_torchtitan_toml(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks);
Result<Handover> write_deepspeed(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks);
Result<Handover> write_nemo(const Plan& plan, const Model& model, std::string_view writer, Ranks ranks);

}  // namespace sailor::handover
