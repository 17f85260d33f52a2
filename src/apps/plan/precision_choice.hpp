// The precision that a training is planned in when nobody says: the profile's, else the best that the devices have; and
// what the next best would give.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "planner/planner.hpp"

namespace sailor::apps {

/// Precisions to plan in, the best of whose plans counts.
struct PrecisionCandidates {
  std::vector<Precision> precisions;  ///< at least one
  std::string why;                    ///< "as --precision says", "as the profile has the model"
};

/// `given` where the user says it; else what the profile measured of the model (tf32 before fp32 before others); else
/// bf16 if every GPU type of `gpus` has it, else bf16 (on those that have it), fp16 (the same) and fp32, as far as any
/// has them and `framework` trains in them (null: any).
PrecisionCandidates precision_candidates(std::optional<Precision> given, const Profile& profile,
                                         const std::string& model, const simulator::Framework* framework,
                                         const GpuCatalogue& catalogue, const std::vector<std::string>& gpus);
/// The one to take where only one can be tried: of several the first that every GPU type has, else fp32.
Precision usual_precision(const PrecisionCandidates& candidates, const GpuCatalogue& catalogue,
                          const std::vector<std::string>& gpus);

/// What the best other precision would give.
struct NextPrecision {
  Precision precision = Precision::fp32;
  planner::Candidate best;
  bool searched_briefly = false;  ///< it is at least this good
};

struct PrecisionAnswer {
  planner::SearchResult found;
  Precision precision = Precision::fp32;
  std::string why;
  std::optional<NextPrecision> next;
};

/// Plans in each of the candidates and, with `compare`, looks briefly at others. Effort::time is for all of it. Errors:
/// of the first candidate that has a plan for some devices.
Result<PrecisionAnswer> plan_in_best_precision(const PrecisionCandidates& candidates, const planner::Request& request,
                                               const simulator::Environment& environment, bool compare,
                                               const std::function<void(const planner::SearchProgress&)>& progress);

/// "Next best precision: fp32, 2.61 times the time of an iteration (3.2 s), $0.12, on 96 devices (estimated).", or
/// "Better precision" where the one that was asked for or measured is not the best: a line; empty without.
std::string next_precision_text(const PrecisionAnswer& answer);
/// Null without.
nlohmann::ordered_json next_precision_to_json(const PrecisionAnswer& answer);

}  // namespace sailor::apps
