#include "elastic/copies_estimate.hpp"

#include <algorithm>
#include <map>

#include "runtime/copy_layout.hpp"
#include "runtime/trainer.hpp"
#include "simulator/price_list.hpp"

namespace sailor::elastic {

namespace {

using runtime::CopyLayout;

/// Time of the copy that takes longest, where all are sent at once.
Result<Seconds> slowest_transfer(const Plan& plan, const simulator::Environment& environment,
                                 const std::vector<CopyLayout::Copy>& copies,
                                 const std::vector<runtime::CopyCost>& costs, const std::vector<std::string>& hosts) {
  simulator::PriceList prices(environment);
  const std::vector<RankRole> roles = rank_roles(plan);
  const auto host_of = [&](int rank) -> const std::string& { return hosts[static_cast<std::size_t>(rank)]; };
  const auto place_of = [&](int rank) {
    return prices.place_of(stage_of(plan, roles[static_cast<std::size_t>(rank)]));
  };
  std::map<std::string, int> senders;
  std::map<std::string, int> receivers;
  for (const CopyLayout::Copy& copy : copies) {
    ++senders[host_of(copy.owner)];
    ++receivers[host_of(copy.keeper)];
  }
  Seconds slowest{};
  for (const CopyLayout::Copy& copy : copies) {
    const auto from = place_of(copy.owner);
    if (!from) return fail(from.error());
    const auto to = place_of(copy.keeper);
    if (!to) return fail(to.error());
    const bool is_near = host_of(copy.owner) == host_of(copy.keeper);
    const auto time = prices.send_time(*from, *to, senders[host_of(copy.owner)], receivers[host_of(copy.keeper)],
                                       is_near ? simulator::Reach::node : simulator::Reach::leaf,
                                       costs[static_cast<std::size_t>(copy.owner)].sent);
    if (!time) return fail(time.error());
    slowest = std::max(slowest, time->time);
  }
  return slowest;
}

}  // namespace

Result<CopiesEstimate> estimate_copies(const Plan& plan, const std::vector<std::string>& hosts,
                                       const simulator::Environment& environment,
                                       const simulator::Prediction& prediction) {
  Plan trained = plan;
  if (trained.job.precision == Precision::tf32) trained.job.precision = Precision::fp32;  // a mode of the products
  if (auto good = runtime::check_trainable(trained, environment.model, trained.ranks()); !good)
    return fail(good.error(), "sailor-train does not train this plan");
  const runtime::ParameterMap map(trained, environment.model);
  const CopyLayout layout(map, hosts);
  CopiesEstimate estimate{.senders = static_cast<int>(layout.copies().size())};
  const std::vector<runtime::CopyCost> costs = layout.costs();
  std::map<std::string, Bytes> on_host;
  for (std::size_t rank = 0; rank < costs.size(); ++rank) {
    const runtime::CopyCost& cost = costs[rank];
    Bytes& kept = on_host[hosts[rank]];
    kept += cost.kept;
    estimate.kept_by_rank = std::max(estimate.kept_by_rank, cost.kept);
    estimate.kept_on_host = std::max(estimate.kept_on_host, kept);
    estimate.sent = std::max(estimate.sent, cost.sent);
  }
  const auto transfer = slowest_transfer(plan, environment, layout.copies(), costs, hosts);
  if (!transfer) return fail(transfer.error());
  estimate.transfer = *transfer;
  estimate.longer = std::max(Seconds{}, estimate.transfer - prediction.pipeline_time);
  return estimate;
}

}  // namespace sailor::elastic
