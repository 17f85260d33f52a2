// Names of the control plane's messages: JSON objects whose "what" is the name. Internal to runtime/sockets.
//
// Member to coordinator:  join {facts}              once, first
//                         rejoin {job, epoch, rank, facts}   first on a connection after the previous one was lost
//                         ready {why}               for the next epoch; with a reason: this epoch is broken
//                         call {epoch, group, number, kind, size, value}
//                         alive {}                  every quarter of the allowed silence
//                         progress {iteration, time, of, redone, busy, from}
//                         done {status, text}       the member leaves without a failure
//                         abort {text}              the job is to end
// Coordinator to member:  alive {}                  the same
//                         epoch {job, epoch, rank, addresses, hosts, before, payload}
//                         answer {name, value}
//                         lost {epoch, ranks, why}  the epoch is broken
//                         change {why}              the epoch is to end after the running iteration
//                         bye {kind, why}           the member no longer belongs to the job
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
inline constexpr const char* call_gather = "gather";        // the first rank gets the values of all
inline constexpr const char* call_all = "all";              // every rank gets the values of all
inline constexpr const char* call_broadcast = "broadcast";  // every rank gets the value of the first

}  // namespace sailor::runtime
