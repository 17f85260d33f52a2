// The words of the control plane's messages, which are JSON objects with "what". Internal to runtime/sockets.
//
// Member to coordinator:  join {host, data, rank}   once, first
//                         ready {}                  for the next epoch
//                         call {epoch, group, number, kind, ranks, value}
//                         alive {}                  every quarter of the silence that is allowed
//                         abort {text}              the job is to end
// Coordinator to member:  epoch {job, epoch, rank, addresses, hosts, before}
//                         answer {name, value}
//                         lost {epoch, ranks, why}  the epoch is broken
//                         abort {text}
#pragma once

namespace sailor::runtime {

inline constexpr const char* message_join = "join";
inline constexpr const char* message_ready = "ready";
inline constexpr const char* message_call = "call";
inline constexpr const char* message_alive = "alive";
inline constexpr const char* message_abort = "abort";
inline constexpr const char* message_epoch = "epoch";
inline constexpr const char* message_answer = "answer";
inline constexpr const char* message_lost = "lost";

// Kinds of calls: who gets which values.
inline constexpr const char* call_gather = "gather";        // the first rank those of all
inline constexpr const char* call_all = "all";              // everybody those of all
inline constexpr const char* call_broadcast = "broadcast";  // everybody that of the first

}  // namespace sailor::runtime
