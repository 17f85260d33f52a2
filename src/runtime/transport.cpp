#include "runtime/transport.hpp"

namespace sailor::runtime {

std::string_view describe(MessageKind kind) {
  switch (kind) {
    case MessageKind::activation:
      return "an activation";
    case MessageKind::gradient:
      return "a gradient";
    case MessageKind::other:
      break;
  }
  return "a message";
}

}  // namespace sailor::runtime
