// Where the controller has its plans made, while training goes on.
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

/// A plan for the members' devices. Called by the desk's thread, one call at a time; `is_interrupted`
/// says when nobody wants it any more. Errors: infeasible, and whatever else.
using PlanMaker = std::function<Result<Plan>(const Plan& before, std::span<const MemberFacts> members,
                                             const std::function<bool()>& is_interrupted)>;

/// Makes plans in a thread of its own, each set of devices once. All methods may be called by any thread.
class PlanDesk {
 public:
  /// `done` is called by the desk's thread after every plan. `make` must outlive the desk.
  PlanDesk(const PlanMaker& make, std::function<void()> done);
  /// Interrupts the plan that is being made, and waits for that.
  ~PlanDesk();
  PlanDesk(const PlanDesk&) = delete;
  PlanDesk& operator=(const PlanDesk&) = delete;

  /// The plan for these devices, or why there is none; nothing: it is being made. `urgent`: before what was asked for
  /// in advance.
  std::optional<Result<Plan>> ask(const Plan& before, const std::vector<MemberFacts>& members, bool urgent);
  /// These devices get this plan, whatever would have been made.
  void put(const std::vector<MemberFacts>& members, const Plan& plan);
  /// All plans, since they were made from another one than is trained now.
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
