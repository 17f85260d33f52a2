#include "elastic/time_account.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/text.hpp"

namespace sailor::elastic {

double number_in(const nlohmann::json& event, const char* key, double missing) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : missing;
}

void TimeAccount::add(const nlohmann::json& event) {
  const auto name = event.find("what");
  if (name == event.end() || !name->is_string()) return;
  const std::string what = name->get<std::string>();
  if (what == "begins") *this = TimeAccount();
  last_ = std::max(last_, number_in(event, "unix_time_s"));
  if (!has_begun() && (what == "begins" || what == "goes_on")) {
    begun_ = number_in(event, "unix_time_s");
    return;  // an interruption before it belongs to the start
  }
  // Not every loss interrupts: that of a spare rank does not.
  const double time = number_in(event, "unix_time_s");
  if (what == "lost" && !lost_) lost_ = time;
  if ((what == "waits" || what == "epoch") && has_begun() && !interrupted_) interrupted_ = lost_.value_or(time);
  if (what != "goes_on") return;
  lost_.reset();
  interrupted_.reset();
  without_training_ += Seconds(number_in(event, "seconds"));
  again_ += Seconds(number_in(event, "seconds_again"));
}

Seconds TimeAccount::without_training(double now) const {
  return without_training_ + Seconds(interrupted_ ? std::max(0.0, now - *interrupted_) : 0.0);
}

double TimeAccount::goodput(double now) const {
  const Seconds all = total(now);
  if (all.value() <= 0.0) return 1.0;
  return std::clamp(1.0 - (without_training(now) + again_) / all, 0.0, 1.0);
}

std::vector<nlohmann::json> events_in(const std::string& text) {
  std::vector<nlohmann::json> events;
  for (const std::string& line : split(text, '\n')) {
    nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object()) events.push_back(std::move(event));
  }
  return events;
}

}  // namespace sailor::elastic
