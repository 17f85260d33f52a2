// The control plane: what the ranks of a job tell each other as processes. Everything here is on the host, waits, and
// is collective unless it says otherwise; tensors go over the data plane (transport.hpp).
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
  /// "gpu07": where this rank runs.
  [[nodiscard]] virtual std::string host() const = 0;

  virtual void barrier() = 0;
  /// A barrier for ranks that may wait long and must leave the cores to others: sleeps between looks, up to 1 ms.
  virtual void idle_barrier() = 0;
  [[nodiscard]] virtual double sum(double value) = 0;
  [[nodiscard]] virtual double max(double value) = 0;
  [[nodiscard]] virtual double min(double value) = 0;
  /// Texts of all ranks by rank on rank 0; empty elsewhere.
  [[nodiscard]] virtual std::vector<std::string> gather(const std::string& text) = 0;
  /// The text of rank 0 on all ranks.
  [[nodiscard]] virtual std::string broadcast(std::string text) = 0;
  /// The control plane of `ranks` (ascending ranks of this one), which must all call this with the same list; others do
  /// not. Rank i of it is ranks[i].
  [[nodiscard]] virtual std::unique_ptr<Control> subgroup(const std::vector<int>& ranks) = 0;

  /// For when ranks may have died or hang: those that call this too, within `patience`, are alive. On rank 0 the ranks
  /// that did not, ascending. Others return nothing, after twice the time: rank 0 has it to end the job. Works after
  /// Transport::abort(), too.
  [[nodiscard]] virtual std::vector<int> roll_call(Seconds patience) = 0;
  /// Not collective: prints the message with host and rank, and ends the job on all ranks.
  [[noreturn]] virtual void abort(const std::string& message) = 0;
};

/// Collective. Success if `result` is one on every rank; otherwise the error of the lowest rank that has one, on that
/// rank, and on the others an error of the same code that is_reported_elsewhere(): a mistake is printed once, and every
/// rank fails with the same status.
Result<void> agree(Control& control, const Result<void>& result);

/// The error of a rank that must fail without a message.
Error reported_elsewhere(ErrorCode code);
bool is_reported_elsewhere(const Error& error);

/// Collective: the texts of all ranks, by rank, on every rank. None may contain a line break.
std::vector<std::string> all_texts(Control& control, const std::string& text);

}  // namespace sailor::runtime
