// The words of the control plane's messages, which are JSON objects with "what". Internal to runtime/sockets.
//
// Member to coordinator:  join {facts}              once, first
//                         rejoin {job, epoch, rank, facts}   first on a connection after the one before was lost
//                         ready {why}               for the next epoch; with a reason: this one is broken
//                         call {epoch, group, number, kind, ranks, value}
//                         alive {}                  every quarter of the silence that is allowed
//                         progress {iteration, time, of, redone, from}
//                         done {status, text}       it leaves, and that is no failure
//                         abort {text}              the job is to end
// Coordinator to member:  alive {}                  the same
//                         epoch {job, epoch, rank, addresses, hosts, before, payload}
//                         answer {name, value}
//                         lost {epoch, ranks, why}  the epoch is broken
//                         change {why}              the epoch is to end after the running iteration
//                         bye {kind, why}           the member does not belong to the job any more
//                         abort {text}
#pragma once

namespace sailor::runtime {

inline constexpr const char* message_join = "join";
inline constexpr const char* message_rejoin = "rejoin";
inline constexpr const char* message_ready = "ready";
inline constexpr const char* message_call = "call";
inline constexpr const char* message_alive = "alive";
inline constexpr const char* message_progress = "progress";
inline constexpr const char* message_done = "done";
inline constexpr const char* message_abort = "abort";
inline constexpr const char* message_epoch = "epoch";
inline constexpr const char* message_answer = "answer";
inline constexpr const char* message_lost = "lost";
inline constexpr const char* message_change = "change";
inline constexpr const char* message_bye = "bye";

// Kinds of calls: who gets which values.
inline constexpr const char* call_gather = "gather";        // the first rank those of all
inline constexpr const char* call_all = "all";              // everybody those of all
inline constexpr const char* call_broadcast = "broadcast";  // everybody that of the first

}  // namespace sailor::runtime
