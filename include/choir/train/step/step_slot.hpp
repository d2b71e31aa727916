#pragma once
// What one queued step owns until its result has been read: host memory that is copied while the
// host goes on, micro-batches in device memory, marks in time, the recorded work. There is one for
// every step that may be in flight, used in turns.
#include <cstdint>
#include <memory>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/train/step/phase_clock.hpp"

namespace choir {

/// The work of steps, recorded, by what must be the same when it is replayed: who holds memory of
/// the arena, and the shapes of the micro-batches. Those that were not used for longest make room.
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

  /// nullptr if there is none.
  NativeGraph find(const Key& key);
  /// Takes over a graph that find() has not.
  void add(Key key, NativeGraph graph);

 private:
  struct Recorded {
    Key key;
    NativeGraph graph;
  };
  void drop_last();

  Device* device_;
  std::size_t most_;
  std::vector<Recorded> recorded_;  // the last used first
};

/// Points in the work of a stream where phases begin; read when the last one was reached.
class StepMarks {
 public:
  StepMarks(Device& device, std::size_t most);
  void begin() { count_ = 0; }
  void enter(const Stream& stream, Phase phase);
  const Event& first() const { return *events_.front(); }
  /// Appends the spans between the marks, the last one until `end`.
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
    std::size_t marks = 0;  ///< phases of a step, where the device keeps time itself
    /// Room for each micro-batch in device memory, bytes_of_fields() of the largest; 0: none is
    /// kept.
    std::size_t batch_bytes = 0;
    bool fixed = false;      ///< every micro-batch is as large
    std::size_t graphs = 1;  ///< recorded steps that are kept
    /// The ranks that share what fields say that they can.
    BatchRanks ranks{};
  };
  StepSlot(Device& device, const Options& options);
  StepSlot(const StepSlot&) = delete;
  StepSlot& operator=(const StepSlot&) = delete;

  /// Queues the copy of micro-batch j, all its fields, whole sequences, from host memory, which is
  /// free again on return.
  void stage(const Stream& copies, std::int64_t j, const ModelBatch& batch);
  /// After the last stage(): later work of `stream` sees the copies.
  void publish(const Stream& copies, const Stream& stream);
  /// This rank's share of micro-batch j in device memory.
  const ModelBatch& staged(std::int64_t j) const { return staged_[static_cast<std::size_t>(j)]; }

  /// Host memory: what the step is told, what it reports.
  ops::StepControl& inputs() const { return *static_cast<ops::StepControl*>(inputs_.data()); }
  ops::StepControl& results() const { return *static_cast<ops::StepControl*>(results_.data()); }
  std::size_t device_bytes() const { return batches_.bytes(); }
  /// The shapes of all that is staged.
  std::vector<std::int64_t> shapes() const;

  StepMarks marks;
  /// Seconds of the host between being asked for the step and queueing its first work, and of them
  /// waiting for data.
  double host_seconds = 0, data_seconds = 0;
  bool alone = true;  ///< nothing was in flight when the step was queued
  StepGraphs graphs;

 private:
  std::byte* at(const void* base, std::int64_t j) const;

  Options options_;
  std::size_t stride_;  // bytes of a micro-batch: first sample, fields
  HostBuffer inputs_, results_, host_batches_;
  Buffer batches_;
  Event published_;
  std::vector<ModelBatch> staged_;
};

}  // namespace choir
