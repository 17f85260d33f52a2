// The control plane: messages between the processes of a job. All calls run on the host, block, and are collective
// unless stated otherwise; tensors go over the data plane (transport.hpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/units.hpp"

namespace sailor::runtime {

class Control {
 public:
  Control() = default;
  virtual ~Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Name of this rank's host: "gpu07".
  [[nodiscard]] virtual std::string host() const = 0;

  virtual void barrier() = 0;
  /// A barrier for ranks that may wait long and must leave the cores to others: sleeps up to 1 ms between polls.
  virtual void idle_barrier() = 0;
  [[nodiscard]] virtual double sum(double value) = 0;
  [[nodiscard]] virtual double max(double value) = 0;
  [[nodiscard]] virtual double min(double value) = 0;
  /// Texts of all ranks, by rank, on rank 0; empty on other ranks.
  [[nodiscard]] virtual std::vector<std::string> gather(const std::string& text) = 0;
  /// Returns the text of rank 0 on all ranks.
  [[nodiscard]] virtual std::string broadcast(std::string text) = 0;
  /// Control plane of a subset: `ranks` are ascending ranks of this one, which must all call this with the same list;
  /// other ranks do not call it. Rank i of the subset is ranks[i].
  [[nodiscard]] virtual std::unique_ptr<Control> subgroup(const std::vector<int>& ranks) = 0;

  /// Finds ranks that have died or hang: ranks that call this within `patience` are alive. Rank 0 gets the ranks that
  /// did not, ascending. Other ranks get an empty list, after twice the time, in which rank 0 can end the job. Works
  /// after Transport::abort(), too.
  [[nodiscard]] virtual std::vector<int> roll_call(Seconds patience) = 0;
  /// Not collective: prints the message with host and rank, and ends the job on all ranks.
  [[noreturn]] virtual void abort(const std::string& message) = 0;
};

/// Collective. Success if `result` is a success on every rank. Otherwise the lowest rank with an error gets that error,
/// and the other ranks get an error of the same code for which is_reported_elsewhere() holds: a mistake is printed
/// once, and every rank fails with the same status.
Result<void> agree(Control& control, const Result<void>& result);
/// The same for results with a value, which stays where it is.
template <class T>
Result<void> agree(Control& control, const Result<T>& result) {
  return agree(control, result ? Result<void>() : Result<void>(fail(result.error())));
}

/// The error of a rank that must fail without a message.
Error reported_elsewhere(ErrorCode code);
bool is_reported_elsewhere(const Error& error);

/// Collective: the texts of all ranks, by rank, on every rank. None may contain a line break.
std::vector<std::string> all_texts(Control& control, const std::string& text);

}  // namespace sailor::runtime
