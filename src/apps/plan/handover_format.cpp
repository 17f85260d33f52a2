#include "apps/plan/handover_format.hpp"

#include <fmt/format.h>

#include <iterator>

#include "apps/programs.hpp"
#include "core/log.hpp"
#include "handover/handover.hpp"

namespace sailor::apps {

void add_handover_formats(Option& format) {
  auto names = handover::format_choices();
  std::move(names.begin(), names.end(), std::back_inserter(format.choices));
  format.help +=
      "; megatron, torchtitan (0.3), torchtitan-toml (0.2), deepspeed and nemo write the plan for these frameworks";
}

bool is_handover_format(const std::string& format) { return handover::parse_format(format).has_value(); }

Result<handover::Handover> checked_handover(std::string_view option, handover::Format format, const Plan& plan,
                                            const Model& model, const std::string& program, handover::Ranks ranks) {
  auto written = handover::hand_over(format, plan, model, fmt::format("{} {}", program, version()), ranks);
  if (!written)
    return fail(ErrorCode::usage, fmt::format("{}: {}", option, written.error().what), written.error().hint);
  const std::string made_for = plan.origin.framework.empty() ? "sailor" : plan.origin.framework;
  if (const std::string fitting(handover::description_of(format)); made_for != fitting)
    log_warning("time and memory of this plan were predicted for framework {}; --framework {} predicts what {} does",
                made_for, fitting, option.substr(option.find(' ') + 1));
  for (const std::string& note : written->notes) log_warning("{}: {}", option, note);
  return written;
}

Result<std::string> in_handover_format(const std::string& format, const Plan& plan, const Model& model,
                                       const std::string& program) {
  const auto target = handover::parse_format(format);
  if (!target) return fail(ErrorCode::usage, fmt::format("'{}' is no format of another framework", format));
  const auto written = checked_handover("--format " + format, *target, plan, model, program);
  if (!written) return fail(written.error());
  return written->text();
}

}  // namespace sailor::apps
