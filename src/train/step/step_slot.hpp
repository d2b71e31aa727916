#pragma once
// Memory that one queued step owns until its result is read: host memory that is copied while the
// host continues, micro-batches in device memory, time marks, and the recorded work. There is one
// slot for every step that may be in flight; they are used in turns.
#include <cstdint>
#include <memory>
#include <vector>

#include "choir/ops/step_control.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/train/step/loss_table.hpp"
#include "src/train/step/phase_clock.hpp"

namespace choir {

/// A cache of recorded steps. Its keys are what must be equal on replay: the live memory of the
/// arena and the shapes of the micro-batches. The least recently used graphs are evicted.
class StepGraphs {
 public:
  struct Key {
    std::size_t held = 0;  ///< Arena::live()
    std::vector<std::int64_t>
        shapes;  ///< of all fields of all micro-batches; none if they never change
    friend bool operator==(const Key&, const Key&) = default;
  };
  StepGraphs(Device& device, std::size_t most) : device_(&device), most_(most) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  /// Returns nullptr if there is none.
  NativeGraph find(const Key& key);
  /// Takes ownership of a graph whose key find() does not have.
  void add(Key key, NativeGraph graph);

 private:
  struct Recorded {
    Key key;
    NativeGraph graph;
  };
  void drop_last();

  Device* device_;
  std::size_t most_;
  std::vector<Recorded> recorded_;  // most recently used first
};

/// Marks in the work of a stream at which phases begin; they are read when the last one is reached.
class StepMarks {
 public:
  StepMarks(Device& device, std::size_t most);
  void begin() { count_ = 0; }
  void enter(const Stream& stream, Phase phase);
  const Event& first() const { return *events_.front(); }
  /// Appends the spans between the marks; the last span ends at `end`.
  void spans_until(const Event& end, std::vector<PhaseSpan>& spans) const;

 private:
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<Phase> phases_;
  std::size_t count_ = 0;
};

class StepSlot {
 public:
  struct Options {
    std::int64_t micro_batches = 1;
    std::size_t marks = 0;  ///< phases of a step, if the device measures time itself
    /// Device memory per micro-batch: bytes_of_fields() of the largest; 0: micro-batches are not
    /// kept.
    std::size_t batch_bytes = 0;
    bool fixed = false;      ///< all micro-batches have the same size
    std::size_t graphs = 1;  ///< recorded steps to keep
    /// The ranks that divide the fields which can be divided.
    BatchRanks ranks{};
    std::size_t terms = 1;    ///< terms of the loss
    std::int64_t places = 1;  ///< micro-batches of a step on all ranks
    std::int64_t sums = 0;    ///< further sums that are reduced with the losses
  };
  StepSlot(Device& device, const Options& options);
  StepSlot(const StepSlot&) = delete;
  StepSlot& operator=(const StepSlot&) = delete;

  /// Queues the copy of micro-batch j with all its fields (whole sequences) from host memory, which
  /// may be reused on return. Rows of fields that are resident on the device are gathered there.
  void stage(const Stream& copies, std::int64_t j, const ModelBatch& batch);
  /// Called after the last stage(): later work of `stream` sees the copies.
  void publish(const Stream& copies, const Stream& stream);
  /// This rank's share of micro-batch j in device memory.
  const ModelBatch& staged(std::int64_t j) const { return staged_[static_cast<std::size_t>(j)]; }

  /// Host memory with the inputs and the results of the step.
  ops::StepControl& inputs() const { return *static_cast<ops::StepControl*>(inputs_.data()); }
  ops::StepControl& results() const { return *static_cast<ops::StepControl*>(results_.data()); }
  std::size_t device_bytes() const { return batches_.bytes(); }
  /// The shapes of all staged micro-batches, as whole sequences: ranks that divide the same
  /// micro-batches have the same list.
  const std::vector<std::int64_t>& shapes() const { return shapes_; }

  StepMarks marks;
  /// Host seconds from the request of the step to its first queued work, and the part of them spent
  /// waiting for data.
  double host_seconds = 0, data_seconds = 0;
  bool alone = true;  ///< nothing was in flight when the step was queued
  StepGraphs graphs;
  LossTable losses;
  StepTargets targets;    ///< as announced, for messages
  std::int64_t step = 0;  ///< from 1

 private:
  std::byte* at(const void* base, std::int64_t j) const;

  Options options_;
  std::size_t stride_;  // bytes of a micro-batch: first sample, fields
  HostBuffer inputs_, results_, host_batches_;
  Buffer batches_;
  Event published_;
  std::vector<ModelBatch> staged_;
  std::vector<std::int64_t> shapes_;
};

}  // namespace choir
