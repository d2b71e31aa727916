#pragma once
// Observers of a training run, and the clock that reports the phase of a step to them: the watchdog
// with its heartbeats, the trace of train.profile, and the faults of drills.
#include "choir/train/loop/faults.hpp"
#include "choir/train/loop/run_directory.hpp"
#include "choir/train/loop/run_watch.hpp"
#include "choir/train/loop/trace.hpp"
#include "choir/train/step/train_checkpoint.hpp"

namespace choir {

struct Observers {
  /// Construction and destruction are collective over the world.
  Observers(const Deck& deck, Mesh& mesh, const RunDirectory& directory)
      : faults(deck, mesh.rank()),
        watch(deck, mesh, directory.path()),
        trace(profile_range(deck.train.profile).first, profile_range(deck.train.profile).last) {}

  /// From now on every phase that the clock enters belongs to the step after `progress`. Local.
  void follow(const Engine& engine, const Progress& progress);
  /// True if an observer needs the results and the weights of this step before the next one is
  /// queued.
  bool settles(std::int64_t step) const {
    return trace.first() == step + 1 || step == trace.last() || watch.weights_due(step) ||
           faults.flips_after(step);
  }
  /// Called before work of this step is queued. Local.
  void before_step(Engine& engine, std::int64_t step);
  /// Called with no step in flight. Collective.
  void after_step(Engine& engine, std::int64_t step);
  /// Writes a complete trace to a file in the run directory. Collective.
  void write_trace(const RunDirectory& directory, Communicator& world);

  Faults faults;
  RunWatch watch;
  Trace trace;
  PhaseClock clock;
};

}  // namespace choir
