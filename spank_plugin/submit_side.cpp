#include "spank_plugin/submit_side.hpp"

#include <fmt/format.h>

#include <system_error>

#include "spank_plugin/plan_file.hpp"

namespace sailor::spank {

namespace {

/// Slurm hands the options of a plugin to the commands inside a job in one of these.
bool is_of_enclosing_job(const std::string& argument, const slurm::Lookup& environment) {
  return environment("_SLURM_SPANK_OPTION_sailor_sailor_plan") == argument ||
         environment("SLURM_SPANK__SLURM_SPANK_OPTION_sailor_sailor_plan") == argument;
}

/// Absolute path with links resolved: jobs may start in another folder.
Result<std::filesystem::path> checked_plan(const std::filesystem::path& named) {
  if (named.empty()) return fail(ErrorCode::usage, "no file is named", fmt::format("'{}' means no plan", no_plan));
  if (const auto plan = read_plan_file(named); !plan) return fail(plan.error());
  std::error_code code;
  std::filesystem::path path = std::filesystem::canonical(named, code);
  if (code)
    return fail(ErrorCode::io, fmt::format("cannot find the way to the plan '{}': {}", named.string(), code.message()));
  return path;
}

}  // namespace

Result<void> SubmitSide::take_option(const std::string& argument, const slurm::Lookup& environment) {
  if (is_of_enclosing_job(argument, environment)) {
    if (origin_ == Origin::command_line) return {};
    origin_ = Origin::enclosing_job;
    argument_ = argument;
    return {};
  }
  argument_ = argument;
  origin_ = Origin::command_line;
  checked_.clear();
  if (argument == no_plan) return {};
  auto path = checked_plan(argument);
  if (!path) return fail(path.error(), "--sailor-plan");
  checked_ = *std::move(path);
  return {};
}

Result<std::optional<std::filesystem::path>> SubmitSide::settle(const slurm::Lookup& environment) const {
  if (origin_ != Origin::nobody && argument_ == no_plan) return std::nullopt;
  if (origin_ == Origin::command_line) return checked_;
  const auto exported = environment(plan_variable);
  const std::string named = exported ? *exported : environment(carried_variable).value_or(argument_);
  if (named.empty()) return std::nullopt;
  auto path = checked_plan(named);
  if (!path) return fail(path.error(), exported ? plan_variable : "the plan of the enclosing job");
  return *std::move(path);
}

}  // namespace sailor::spank
