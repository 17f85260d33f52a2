// Explains why a plan wins or loses: the parts of its iteration time, compared with another plan's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster.hpp"
#include "core/units.hpp"
#include "planner/planner.hpp"

namespace sailor::planner {

/// Where the time of an iteration goes, on the pipeline that ends last. The parts add up to the time.
struct TimeParts {
  Seconds compute{};          ///< forward and backward passes of its slowest stage, all micro-batches
  Seconds bubble{};           ///< that stage's waiting while the pipeline fills and drains
  Seconds transfers{};        ///< messages between stages during which it cannot compute
  Seconds synchronization{};  ///< gradient reductions that are not hidden
  Seconds update{};           ///< optimizer step
  [[nodiscard]] Seconds total() const { return compute + bubble + transfers + synchronization + update; }
};
TimeParts time_parts(const Plan& plan, const simulator::Prediction& prediction);

/// "1.3%" for 0.0123: rounded up, as it is an upper bound.
std::string at_most(double share);
/// "Proved: no other plan is more than 1.3% faster". `better`: the comparative of the objective ("faster", "cheaper").
/// "" if no bound is known.
std::string proved_text(const Bound& bound, std::string_view better);

/// The pins that a plan breaks: "its pipeline_parallel is 2, --pin pipeline_parallel=4". Excluded nodes are not
/// checked.
std::vector<std::string> broken_pins(const Plan& plan, const Pins& pins);

/// The limits of the request that a plan breaks, and by how much: "an iteration costs $0.31, 24% over --max-cost
/// $0.25". Nodes are counted where the cluster is known.
std::vector<std::string> broken_limits(const Candidate& candidate, const Request& request,
                                       const Cluster* cluster = nullptr);

/// Lines that say why the winner wins (what bounds it, how far from the best possible it may be, how tight memory is,
/// which devices stay idle), then one line for each further plan: "Plan 2 is 12% slower: bubble +8% (24 micro-batches
/// for 8 stages), reduction of gradients +5%".
std::string explain(const SearchResult& result, const Request& request);

/// Lines that compare the user's own plan with the winner, part by part, and name the causes of the difference, even if
/// the plan does not fit or breaks a limit. `problems`: further objections to it (missing memory or devices).
std::string why_not(const Candidate& own, const Candidate& winner, const Request& request,
                    const std::vector<std::string>& problems = {}, const Cluster* cluster = nullptr);

}  // namespace sailor::planner
