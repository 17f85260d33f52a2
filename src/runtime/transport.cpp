#include "runtime/transport.hpp"

namespace sailor::runtime {

void Group::all_to_all(Stream& stream, ConstValues from, Values to, std::int64_t count) {
  const std::vector<std::int64_t> equal(static_cast<std::size_t>(size()), count / size());
  all_to_all(stream, from, to, SliceSizes{equal, equal});
}

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
