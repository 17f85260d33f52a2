// Trainings that stop and go on: states of all ranks together, bit by bit.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/state_copies.hpp"
#include "runtime/state_pieces.hpp"
#include "runtime/trainer.hpp"
#include "tests/fakes/delayed_device.hpp"
#include "tests/fakes/late_transport.hpp"
#include "trainer_runs.hpp"

namespace sailor::runtime::test {

/// Bits of a float32 by layer, name, array and element of the whole parameter.
using WholeState = std::map<std::tuple<int, std::string, StoredArray>, std::map<std::int64_t, float>>;

/// Adds what a rank steps. Returns false where it is there already with other bits.
inline bool add_state(TrainingState& state, WholeState& whole) {
  bool same = true;
  state.device().synchronize();
  for (const OwnPiece& own : own_pieces(declarations_of(state.parameters()), state.sums().owned)) {
    const Parameter& parameter = *state.parameters().parameters()[own.parameter];
    for (const StoredArray array : stored_arrays) {
      const float* const memory = stepped_memory(state.parameters(), state.optimizer(), array, own.parameter,
                                                 {own.piece.local, own.piece.local + own.piece.count});
      if (memory == nullptr) throw std::runtime_error("a rank does not have what it steps");
      auto& values = whole[{parameter.layer, parameter.name, array}];
      for (std::int64_t i = 0; i < own.piece.count; ++i)
        same = values.try_emplace(own.piece.whole + i, memory[i]).first->second == memory[i] && same;
    }
  }
  return same;
}

inline std::int64_t elements_of(const WholeState& state) {
  std::int64_t count = 0;
  for (const auto& [key, values] : state) count += std::ssize(values);
  return count;
}

/// One rank of a training: its device and its state.
struct Survivor {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<TrainingState> state;
};

inline Samples samples_for(const Model& model) {
  auto samples = Samples::open(corpus().prefix(), sequence_length, model.vocabulary, 5);
  if (!samples) throw std::runtime_error(samples.error().message());
  return *std::move(samples);
}

/// Runs iterations until the state has reached `until`; adds their losses on rank 0.
inline void train_until(std::int64_t until, TrainingState& state, const TrainerSettings& settings, const World& world,
                        std::vector<double>& losses, bool settles = true, StateCopies* copies = nullptr) {
  const Samples samples = samples_for(state.model());
  const auto exchange = copies == nullptr ? nullptr : std::make_unique<CopyExchange>(state, *copies, world);
  Trainer trainer(state, settings, world, &samples, exchange.get());
  while (state.iteration() < until) {
    const IterationResult result = trainer.run();
    if (world.rank() == 0) losses.push_back(result.loss);
  }
  if (!settles) return;
  trainer.settle();
  state.device().synchronize();
}

/// The states of an undisturbed training at the start of each iteration up to `last`.
inline std::vector<WholeState> states_until(std::int64_t last, const Plan& plan, const Model& model) {
  const TrainerSettings settings = settings_of({});
  std::vector<WholeState> states(static_cast<std::size_t>(last) + 1);
  std::mutex mutex;
  run_ranks(plan.ranks(), [&](const World& world) {
    Survivor mine;
    mine.state = std::make_unique<TrainingState>(plan, model, world.rank(), *mine.device);
    mine.state->initialize(settings);
    std::vector<double> losses;
    for (std::int64_t iteration = 0; iteration <= last; ++iteration) {
      train_until(iteration, *mine.state, settings, world, losses);
      const std::scoped_lock lock(mutex);
      if (!add_state(*mine.state, states[static_cast<std::size_t>(iteration)]))
        throw std::runtime_error("two ranks have the same elements with other bits");
    }
  });
  return states;
}

/// Whether that is there of that version, whole, and as `expected`.
inline bool has(const KeptState& kept, std::int64_t iteration, const WholeState& expected) {
  bool found = false;
  for (const KeptState::Buffer& buffer : kept.buffers()) {
    if (!buffer.is_complete() || buffer.version().iteration != iteration) continue;
    found = true;
    for (const StatePart& part : kept.parts())
      for (const StoredArray array : stored_arrays) {
        const float* const memory = kept.find(buffer, array, part.key, part.whole);
        const auto& values = expected.at({part.key.first, part.key.second, array});
        for (std::int64_t i = 0; i < part.whole.size(); ++i)
          if (memory[i] != values.at(part.whole.first + i)) return false;
      }
  }
  return found;
}

/// Whether all that a rank keeps for others has that version.
inline bool keeps_for_others(StateCopies& copies, std::int64_t iteration, const WholeState& expected) {
  const auto& all = copies.current()->of_others;
  return std::all_of(all.begin(), all.end(), [&](const auto& kept) { return has(*kept, iteration, expected); });
}

/// And what it keeps of its own.
inline bool keeps(StateCopies& copies, std::int64_t iteration, const WholeState& expected) {
  const auto& own = copies.current()->own;
  return (own == nullptr || has(*own, iteration, expected)) && keeps_for_others(copies, iteration, expected);
}

/// Whether copies and saved states of two versions are right where devices run late, and copies are sent later still:
/// `states` are states_until(2).
inline bool late_copies_are_right(const Plan& plan, const Model& model, const std::vector<WholeState>& states,
                                  unsigned seed) {
  std::atomic<bool> right = true;
  run_ranks(plan.ranks(), [&](const World& threads) {
    LateTransport transport(threads.transport, 1 << 20, std::chrono::microseconds(200));
    const World world{threads.control, transport};
    DelayedDevice device(seed + 1000 * static_cast<unsigned>(world.rank()));
    TrainingState state(plan, model, world.rank(), device);
    const TrainerSettings settings = settings_of({});
    state.initialize(settings);
    StateCopies copies(device);
    std::vector<double> losses;
    train_until(3, state, settings, world, losses, true, &copies);
    for (const std::int64_t iteration : {1, 2})
      if (!keeps(copies, iteration, states[static_cast<std::size_t>(iteration)])) right = false;
  });
  return right;
}

}  // namespace sailor::runtime::test
