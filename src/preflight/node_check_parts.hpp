// The parts of judge(). Internal to the check of nodes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "preflight/node_check.hpp"

namespace sailor::preflight {

/// Collects the verdict of judge(). Findings of skipped checks are dropped.
class Judge {
 public:
  explicit Judge(const Allocation& allocation);

  void node(const std::string& node, Finding finding);
  void job(Finding finding);
  void not_checked(std::string check, std::string what);

  [[nodiscard]] const Allocation& allocation() const { return allocation_; }
  [[nodiscard]] const std::vector<RankFacts>& ranks() const { return allocation_.ranks; }
  /// The ranks of each node; nodes in the order of their first ranks.
  [[nodiscard]] const std::vector<std::vector<const RankFacts*>>& nodes() const { return by_node_; }
  [[nodiscard]] Verdict verdict() &&;

 private:
  [[nodiscard]] bool is_wanted(const std::string& check) const { return !allocation_.skip.contains(check); }

  const Allocation& allocation_;
  std::vector<std::vector<const RankFacts*>> by_node_;
  std::map<std::string, std::size_t> index_;
  Verdict verdict_;
};

/// Sorts the worst first.
void sort_by_outcome(std::vector<Finding>& findings);

void judge_plan(Judge& judge);
void judge_gpu_count(Judge& judge);
void judge_gpu_types(Judge& judge);
void judge_gpu_sharing(Judge& judge);
void judge_gpu_visibility(Judge& judge);
void judge_gpu_health(Judge& judge);
void judge_cores(Judge& judge);
void judge_host(Judge& judge);
void judge_network_cards(Judge& judge);
void judge_fabric(Judge& judge);
void judge_versions(Judge& judge);
void judge_variables(Judge& judge);
void judge_speed(Judge& judge);
void judge_writing(Judge& judge);

/// Kind of a rank's device: ranks are compared with those on devices of the same kind.
std::string kind_of(const RankFacts& facts, const GpuCatalogue& gpus);
/// "45.2 GFLOP/s", "1.20 TFLOP/s"
std::string flop_rate(double flop_per_s);
/// "rank 3", "ranks 0-3,7"
std::string rank_words(const std::vector<int>& ranks);
/// The most frequent value, the first of them on a tie; empty if there is none.
std::string commonest(const std::vector<std::string>& values);

}  // namespace sailor::preflight
