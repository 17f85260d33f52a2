// --format NAME for the formats of other frameworks (src/handover), which sailor-plan and sailor-simulate share.
#pragma once

#include <string>
#include <string_view>

#include "apps/options.hpp"
#include "core/error.hpp"
#include "handover/handover.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace sailor::apps {

/// Adds the names to the choices of --format, and says in its help what they write.
void add_handover_formats(Option& format);
bool is_handover_format(const std::string& format);

/// The plan for a framework, by an option such as "--format megatron", which messages name. Warns where the prediction
/// is for another framework, and of what the user has to do. Errors: usage, for a plan or model that the framework
/// cannot run.
Result<handover::Handover> checked_handover(std::string_view option, handover::Format format, const Plan& plan,
                                            const Model& model, const std::string& program,
                                            handover::Ranks ranks = handover::Ranks::in_plan_order);

/// The plan for that framework, whose prediction and origin are those of the program's own framework description.
/// Warns where these are for another framework, and of what the user has to do. Errors: usage, for a plan or model that
/// the framework cannot run.
Result<std::string> in_handover_format(const std::string& format, const Plan& plan, const Model& model,
                                       const std::string& program);

}  // namespace sailor::apps
