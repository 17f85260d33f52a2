// Ranks that exchange tensors: point to point along a pipeline, and sums across replicas.
//
// Pointers are memory of the device that the communicator serves (MPI: the host's). Calls of the same kind between
// the same ranks match in the order they are made. A failure of the transport, or a wait that lasts longer than the
// timeout, prints host, rank, operation and peer on stderr and ends the whole job: nothing here returns an error.
//
// interrupt() breaks off whatever this process waits for: the waits throw Interrupted. What was under way is lost, and
// communicators that were in use must be given up; after resume() new subgroups of the world can be made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "runtime/sharding.hpp"
#include "runtime/values.hpp"

namespace sailor::runtime {

/// Communication was broken off with Communicator::interrupt().
class Interrupted : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "communication was interrupted"; }
};

/// What a message is, so that activations and gradients between the same two ranks keep apart.
enum class MessageKind { activation = 1, gradient = 2, control = 3, link_test = 4, rehearsal = 5 };

/// A transfer under way. Its memory must stay untouched until wait() returned or test() said true.
class Request {
 public:
  virtual ~Request() = default;
  /// Returns when the transfer is done: sent memory may be reused, received memory is filled.
  virtual void wait() = 0;
  /// Lets communication progress; true when the transfer is done.
  [[nodiscard]] virtual bool test() = 0;
};

class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // ---- Point to point
  [[nodiscard]] virtual std::unique_ptr<Request> send_later(const void* data, std::size_t bytes, int to,
                                                            MessageKind kind) = 0;
  [[nodiscard]] virtual std::unique_ptr<Request> receive_later(void* data, std::size_t bytes, int from,
                                                               MessageKind kind) = 0;
  void send(const void* data, std::size_t bytes, int to, MessageKind kind) {
    send_later(data, bytes, to, kind)->wait();
  }
  void receive(void* data, std::size_t bytes, int from, MessageKind kind) {
    receive_later(data, bytes, from, kind)->wait();
  }

  // ---- Collectives: every rank calls them in the same order, with the same counts and types.
  // Sums of bfloat16 are made two at a time, each rounded to the nearest. All ranks get the same bits.
  /// data = sum over ranks, in place.
  virtual void all_reduce_sum(Values data, std::int64_t count) = 0;
  /// The same while the ranks do something else. Such calls and blocking ones on one communicator match in the order
  /// in which they are made.
  [[nodiscard]] virtual std::unique_ptr<Request> all_reduce_sum_later(Values data, std::int64_t count) = 0;
  /// data = largest over ranks, in place.
  virtual void all_reduce_max(float* data, std::int64_t count) = 0;
  // An array of `count` values in size() slices: that of rank i is cut(count, {i, size()}) (sharding.hpp).
  /// Every rank has its slice of data in place; afterwards all slices.
  virtual void all_gather(Values data, std::int64_t count) = 0;
  /// Slice rank() of data = sum over ranks; the other slices are undefined afterwards.
  virtual void reduce_scatter_sum(Values data, std::int64_t count) = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  virtual void barrier() = 0;
  /// A barrier for ranks that may wait long and must leave the cores to others: sleeps between looks, up to 1 ms.
  virtual void idle_barrier() = 0;

  // ---- The same on values of the host, for what ranks agree on.
  [[nodiscard]] virtual double sum(double value) = 0;
  [[nodiscard]] virtual double max(double value) = 0;
  [[nodiscard]] virtual double min(double value) = 0;
  /// Texts of all ranks by rank on rank 0; empty elsewhere.
  [[nodiscard]] virtual std::vector<std::string> gather(const std::string& text) = 0;

  /// A communicator of `ranks` (ascending ranks of this one), which must all call this with the same list; others
  /// do not. Rank i of it is ranks[i].
  [[nodiscard]] virtual std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks) = 0;

  /// Breaks off all waits of this process, on this communicator and all others of its world: those under way and those
  /// that begin before resume() throw Interrupted. May be called by any thread, and from a signal handler.
  virtual void interrupt() noexcept = 0;
  virtual void resume() noexcept = 0;

  /// "gpu07": where this rank runs.
  [[nodiscard]] virtual std::string host() const = 0;
  /// Prints the message with host and rank, and ends the job on all ranks.
  [[noreturn]] virtual void abort(const std::string& message) = 0;
};

}  // namespace sailor::runtime
