#include "plan/timeline.hpp"

namespace sailor {

std::string_view to_string(Activity activity) {
  switch (activity) {
    case Activity::forward:
      return "forward";
    case Activity::backward:
      return "backward";
    case Activity::send:
      return "send";
    case Activity::receive:
      return "receive";
    case Activity::reduce:
      return "reduce";
    case Activity::update:
      return "update";
  }
  return "?";
}

}  // namespace sailor
