#pragma once
// The losses of a step and the numbers of their targets. Every micro-batch of the global batch has
// elements of its own, [terms] sums and [terms] counts, which are zero on the ranks that do not
// compute it: the sum over ranks is exact, and the tree over the micro-batches of a term does not
// depend on their distribution. Stages of a pipeline add to the elements of the same micro-batch,
// as do ranks of the context axis; the last bits of these sums can depend on the number of ranks.

#include <cstdint>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/error.hpp"
#include "choir/models/model.hpp"
#include "choir/nn/pass.hpp"
#include "choir/run/training_data.hpp"

namespace choir {

class LossTable {
 public:
  /// `places`: micro-batches of a step on all ranks. `others`: the most further sums of reduce().
  LossTable(Device& device, std::size_t terms, std::int64_t places, std::int64_t others = 0);
  LossTable(const LossTable&) = delete;

  /// Begins a step. `hash` (device memory) is added over the ranks of reduce() too, see hashes().
  void begin(const Stream& stream, const double* hash) const;
  /// The memory that collects the losses of one micro-batch.
  LossSums of(std::int64_t place) const;
  /// The ranks of a step: those with other micro-batches or positions, those of the tensor axis,
  /// which have the same losses and targets as this one, and those of the pipeline axis.
  struct Ranks {
    Communicator& data;
    Communicator& tensor;
    Communicator& stages;
  };
  /// Sums over all ranks (of the tensor axis only the hashes) and then over the micro-batches.
  /// `others`, f64 on the device, are sums over all ranks too: they travel in the same messages.
  /// Collective.
  void reduce(const Stream& stream, const Ranks& ranks, const TensorView& others = {}) const;
  TensorView sums() const;    ///< [terms] f64 after reduce()
  TensorView counts() const;  ///< [terms] f64 after reduce()
  TensorView hashes() const;  ///< [1] f64 after reduce()
  /// The numbers of targets of a term by micro-batch, for messages. Local, after reduce().
  std::vector<double> counted(std::size_t term) const;
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  std::int64_t elements() const { return 2 * terms_ * places_; }
  /// The first element after those that are reduced.
  std::int64_t reduced() const { return elements() + 1 + others_; }
  /// Elements [first, first + count) of the memory.
  TensorView part(std::int64_t first, std::int64_t count) const;
  /// [places]: the sums of term `row`, or the counts of term `row - terms`.
  TensorView row(std::int64_t row) const { return part(row * places_, places_); }

  Device* device_;
  std::int64_t terms_, places_, others_;
  Buffer memory_;  // [2 * terms, places], the hashes, the others, and the sum of each row
};

/// A step in which the model has used another number of targets than the data announced: the losses
/// were divided by a wrong number.
struct Miscount {
  std::int64_t step = 0;  ///< from 1
  const std::vector<LossTerm>& terms;
  const StepTargets& announced;
  int term = -1;  ///< the term that is miscounted; -1: the ranks have different announcements
  std::vector<double> counted{};  ///< by micro-batch, in the order of their global index
};

/// Names the step, the term, the first micro-batch whose numbers differ (if the data announced them
/// one by one) and both numbers. Local.
NumericError miscount_error(const Miscount& of);

}  // namespace choir
