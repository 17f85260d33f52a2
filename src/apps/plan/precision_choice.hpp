// The precision that a training is planned in if none is given: that of the profile, else the best that the devices
// have; and the result with the next best.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "planner/planner.hpp"

namespace sailor::apps {

/// Precisions to plan in; the precision with the best plan is chosen.
struct PrecisionCandidates {
  std::vector<Precision> precisions;  ///< at least one
  std::string why;                    ///< "as --precision says", "as the profile has the model"
};

/// `given` if the user gave it; else those in which the profile measured the model (tf32 before fp32 before others);
/// else bf16 if every GPU type of `gpus` has it, else bf16 (on those that have it), fp16 (likewise) and fp32, as far as
/// any type has them and `framework` trains in them (null: any).
PrecisionCandidates precision_candidates(std::optional<Precision> given, const Profile& profile,
                                         const std::string& model, const simulator::Framework* framework,
                                         const GpuCatalogue& catalogue, const std::vector<std::string>& gpus);
/// The precision to use if only one can be tried: the first candidate that every GPU type has, else fp32.
Precision usual_precision(const PrecisionCandidates& candidates, const GpuCatalogue& catalogue,
                          const std::vector<std::string>& gpus);

/// The result with the best other precision.
struct NextPrecision {
  Precision precision = Precision::fp32;
  planner::Candidate best;
  bool searched_briefly = false;  ///< after a brief search: it is at least this good
};

struct PrecisionAnswer {
  planner::SearchResult found;
  Precision precision = Precision::fp32;
  std::string why;
  std::optional<NextPrecision> next;
  planner::Objective objective = planner::Objective::throughput;  ///< by which `next` is better or not
};

/// Plans in each of the candidates and, with `compare`, searches others briefly. Effort::time is the limit of all
/// searches together. Errors: of the first candidate that has a plan for some devices.
Result<PrecisionAnswer> plan_in_best_precision(const PrecisionCandidates& candidates, const planner::Request& request,
                                               const simulator::Environment& environment, bool compare,
                                               const std::function<void(const planner::SearchProgress&)>& progress);

/// The line "Next best precision (after a brief search): fp32, 2.61 times the time of an iteration (3.2 s), $0.12, on
/// 96 devices (estimated).", or "Better precision" if the one that was given or measured is not the best by the
/// objective; empty if there is no other.
std::string next_precision_text(const PrecisionAnswer& answer);
/// The same as JSON; null if there is no other.
nlohmann::ordered_json next_precision_to_json(const PrecisionAnswer& answer);

}  // namespace sailor::apps
