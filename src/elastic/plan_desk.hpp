// Makes the plans of the controller in a thread of its own, while training goes on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "elastic/roles.hpp"
#include "plan/plan.hpp"

namespace sailor::elastic {

/// Makes a plan for the members' devices. Called by the desk's thread, one call at a time; `is_interrupted` returns
/// true once the plan is no longer wanted. Errors: infeasible, and others.
using PlanMaker = std::function<Result<Plan>(const Plan& before, std::span<const MemberFacts> members,
                                             const std::function<bool()>& is_interrupted)>;

/// Makes plans in a thread of its own, once per set of devices. All methods may be called by any thread.
class PlanDesk {
 public:
  /// `done` is called by the desk's thread after every plan. `make` must outlive the desk.
  PlanDesk(const PlanMaker& make, std::function<void()> done);
  /// Interrupts the plan under way and waits for the thread to end.
  ~PlanDesk();
  PlanDesk(const PlanDesk&) = delete;
  PlanDesk& operator=(const PlanDesk&) = delete;

  /// The plan for these devices, or why there is none; std::nullopt while it is being made. `urgent`: goes before the
  /// plans that were asked for in advance.
  std::optional<Result<Plan>> ask(const Plan& before, const std::vector<MemberFacts>& members, bool urgent);
  /// Sets the plan for these devices, in place of any that was made for them.
  void put(const std::vector<MemberFacts>& members, const Plan& plan);
  /// Discards all plans: they were made from another plan than the one that is trained now.
  void forget();

 private:
  struct Order {
    std::string devices;
    Plan before;
    std::vector<MemberFacts> members;
  };
  void run();

  const PlanMaker& make_;
  std::function<void()> done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Result<Plan>> plans_;  // by devices
  std::deque<Order> queue_;
  std::string under_way_;
  int generation_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace sailor::elastic
