#pragma once
// Those that look on while a run trains, and the clock that tells them what a step is doing: the
// watchdog with its heartbeats, the trace of train.profile, and failures made on purpose.
#include "choir/train/loop/faults.hpp"
#include "choir/train/loop/run_directory.hpp"
#include "choir/train/loop/run_watch.hpp"
#include "choir/train/loop/trace.hpp"
#include "choir/train/step/train_checkpoint.hpp"

namespace choir {

struct Observers {
  /// Collective over the world, to create and to destroy.
  Observers(const Deck& deck, Mesh& mesh, const RunDirectory& directory)
      : faults(deck, mesh.rank()),
        watch(deck, mesh, directory.path()),
        trace(profile_range(deck.train.profile).first, profile_range(deck.train.profile).last) {}

  /// Local. From now on every phase that the clock enters is one of the step after `progress`.
  void follow(const Engine& engine, const Progress& progress);
  /// Whether one of them wants the results and the weights of this step before the next is queued.
  bool settles(std::int64_t step) const {
    return trace.first() == step + 1 || step == trace.last() || watch.weights_due(step) ||
           faults.flips_after(step);
  }
  /// Local, before anything of this step is queued.
  void before_step(Engine& engine, std::int64_t step);
  /// Collective, with no step in flight.
  void after_step(Engine& engine, std::int64_t step);
  /// Collective. A trace that is complete becomes a file in the run's directory.
  void write_trace(const RunDirectory& directory, Communicator& world);

  Faults faults;
  RunWatch watch;
  Trace trace;
  PhaseClock clock;
};

}  // namespace choir
