#include "apps/simulate/copies.hpp"

#include <fmt/format.h>

#include "core/terminal.hpp"
#include "core/text.hpp"
#include "plan/cluster_nodes.hpp"

namespace sailor::apps {

Result<std::vector<std::string>> hosts_of_ranks(const Plan& plan, const Cluster* cluster) {
  if (cluster != nullptr) return nodes_of_ranks(plan, cluster->usable({}, Availability::all));
  std::vector<std::string> hosts;
  for (int rank = 0; rank < plan.ranks(); ++rank) hosts.push_back(fmt::to_string(rank));
  return hosts;
}

std::string copies_report(const elastic::CopiesEstimate& estimate, bool has_cluster) {
  const std::string title = "copies of the state in peers' memory (elastic training): ";
  if (estimate.senders == 0) return title + "none, as replicas on other nodes hold all of it\n";
  std::string text = title + fmt::format("of {}\n", plural(static_cast<std::size_t>(estimate.senders), "rank"));
  text += fmt::format("  host memory    {} of a rank, {} on a node, at most{}\n", format_bytes(estimate.kept_by_rank),
                      format_bytes(estimate.kept_on_host),
                      has_cluster ? "" : " (each rank on a node of its own: name a cluster)");
  text += fmt::format("  sent           {} by a rank in each iteration, at most, in {}\n", format_bytes(estimate.sent),
                      format_time(estimate.transfer));
  text += estimate.longer > Seconds{} ? fmt::format("  iteration      {} longer: the passes take less than that\n",
                                                    format_time(estimate.longer))
                                      : "  iteration      no longer: the passes take more than that\n";
  return text;
}

nlohmann::ordered_json copies_to_json(const elastic::CopiesEstimate& estimate) {
  return {{"ranks_with_copies", estimate.senders},
          {"host_memory_of_rank_bytes", estimate.kept_by_rank.value()},
          {"host_memory_of_node_bytes", estimate.kept_on_host.value()},
          {"sent_by_rank_bytes", estimate.sent.value()},
          {"transfer_s", estimate.transfer.value()},
          {"iteration_longer_s", estimate.longer.value()}};
}

}  // namespace sailor::apps
