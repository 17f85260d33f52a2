// The places where a stream waits for another, or the host for a device, by name. In a test build (SAILOR_TEST_WAITS)
// any one of them can be left out, to check that a test notices.
#pragma once

#include <string_view>

#ifdef SAILOR_TEST_WAITS
#include <atomic>
#endif

namespace sailor::runtime {

enum class Wait {
  sums_for_gradients,      ///< the reducer's stream, before it reduces: for the backward passes
  update_for_sums,         ///< the main stream, before the gradient norm: for all reductions
  gathers_for_update,      ///< the reducer's stream, before ZeRO-1's all-gathers: for the update
  layer_for_its_values,    ///< the main stream, before a forward pass: for ZeRO-1's all-gathers
  reader_for_all_values,   ///< the main stream, before weights are read from outside: for ZeRO-1's all-gathers
  receive_for_its_buffer,  ///< a link's stream, before it receives: for the last reader of the buffer
  pass_for_its_input,      ///< the main stream: for the message that a pass needs
  send_for_its_data,       ///< a link's stream, before it sends: for the pass that makes the message
  release_for_the_send,    ///< the main stream, before a sent tensor's memory is used again
  copies_for_update,       ///< streams that save, send and receive copies of the state: for the previous update
  update_for_copies,       ///< the main stream, before the totals: for those streams
  host_for_the_totals,     ///< the host: for norm and loss of an iteration
  host_for_the_timeline,   ///< the host, before it reads times: for the end of an iteration
  count
};

constexpr std::string_view to_string(Wait wait) {
  switch (wait) {
    case Wait::sums_for_gradients:
      return "sums_for_gradients";
    case Wait::update_for_sums:
      return "update_for_sums";
    case Wait::gathers_for_update:
      return "gathers_for_update";
    case Wait::layer_for_its_values:
      return "layer_for_its_values";
    case Wait::reader_for_all_values:
      return "reader_for_all_values";
    case Wait::receive_for_its_buffer:
      return "receive_for_its_buffer";
    case Wait::pass_for_its_input:
      return "pass_for_its_input";
    case Wait::send_for_its_data:
      return "send_for_its_data";
    case Wait::release_for_the_send:
      return "release_for_the_send";
    case Wait::copies_for_update:
      return "copies_for_update";
    case Wait::update_for_copies:
      return "update_for_copies";
    case Wait::host_for_the_totals:
      return "host_for_the_totals";
    case Wait::host_for_the_timeline:
      return "host_for_the_timeline";
    case Wait::count:
      break;
  }
  return "?";
}

#ifdef SAILOR_TEST_WAITS
inline std::atomic<int> left_out_wait = -1;
inline bool waits(Wait wait) { return left_out_wait.load(std::memory_order_relaxed) != static_cast<int>(wait); }
#else
/// Always true. Usage: `if (waits(Wait::x)) stream.wait(event);`
constexpr bool waits(Wait) { return true; }
#endif

}  // namespace sailor::runtime
