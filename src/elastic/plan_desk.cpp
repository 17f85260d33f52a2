#include "elastic/plan_desk.hpp"

#include <algorithm>
#include <utility>

namespace sailor::elastic {

PlanDesk::PlanDesk(const PlanMaker& make, std::function<void()> done) : make_(make), done_(std::move(done)) {
  thread_ = std::thread([this] { run(); });
}

PlanDesk::~PlanDesk() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<Result<Plan>> PlanDesk::ask(const Plan& before, const std::vector<MemberFacts>& members, bool urgent) {
  const std::string devices = describe_devices(members);
  const std::scoped_lock lock(mutex_);
  if (const auto known = plans_.find(devices); known != plans_.end()) return known->second;
  const auto queued =
      std::find_if(queue_.begin(), queue_.end(), [&](const Order& order) { return order.devices == devices; });
  if (queued != queue_.end() && !urgent) return std::nullopt;
  if (queued != queue_.end()) queue_.erase(queued);
  Order order{devices, before, members};
  if (urgent && under_way_ != devices)
    queue_.push_front(std::move(order));
  else if (under_way_ != devices)
    queue_.push_back(std::move(order));
  changed_.notify_all();
  return std::nullopt;
}

void PlanDesk::put(const std::vector<MemberFacts>& members, const Plan& plan) {
  const std::scoped_lock lock(mutex_);
  plans_.insert_or_assign(describe_devices(members), plan);
}

void PlanDesk::forget() {
  const std::scoped_lock lock(mutex_);
  plans_.clear();
  queue_.clear();
  ++generation_;
}

void PlanDesk::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || !queue_.empty(); });
    if (ended_) return;
    const Order order = std::move(queue_.front());
    queue_.pop_front();
    under_way_ = order.devices;
    const int generation = generation_;
    lock.unlock();
    Result<Plan> plan = make_(order.before, order.members, [this] {
      const std::scoped_lock asking(mutex_);
      return ended_;
    });
    lock.lock();
    under_way_.clear();
    if (generation == generation_) plans_.insert_or_assign(order.devices, std::move(plan));
    lock.unlock();
    done_();
    lock.lock();
  }
}

}  // namespace sailor::elastic
