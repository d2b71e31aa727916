#pragma once
// Memory for buckets that are whole only for a while. Buckets of the same shape (the blocks of a
// model) take turns in a few slots; one without its like has a slot to itself. Alignment gaps of a
// slot are never written, so they stay zero.
#include <cstdint>
#include <vector>

#include "choir/nn/parameter_set.hpp"
#include "choir/parallel/comm_memory.hpp"
#include "choir/parallel/comm_queue.hpp"
#include "choir/parallel/sharding.hpp"

namespace choir {

class BucketRing {
 public:
  struct Slot {
    TensorView memory;         ///< [bucket size]
    int bucket = -1;           ///< whose content it has; -1: nobody's
    int users = 0;             ///< in use while above 0
    std::uint64_t ticket = 0;  ///< of the operation last started on it, in the queue
    std::uint64_t turn = 0;    ///< of its last claim
  };

  enum class Of { all, trained };
  /// Collective over `comm`. `depth` slots for each shape, fewer where it has fewer buckets; of
  /// trained buckets the others have none. What is in use at the same time does not share slots:
  /// a bucket, that of its frozen parameters, those of its tiles.
  BucketRing(const ParameterSet& parameters, Of which, DType dtype, int depth, Device& device,
             Communicator& comm);

  /// The slot with the content of `bucket`; nullptr: none has it.
  Slot* find(int bucket);
  /// A slot for new content: the one it had, or the one unused for longest, after the operation in
  /// flight there has completed. nullptr: all slots of its shape are in use.
  Slot* claim(int bucket, CommQueue& queue);
  /// No slot has anything of use any more.
  void forget();

  std::size_t bytes() const { return memory_.bytes(); }
  bool shared() const { return memory_.shared(); }

 private:
  CommMemory memory_;
  std::vector<Slot> slots_;
  std::vector<Range> slots_of_;  // of each bucket, in slots_
  std::uint64_t turn_ = 0;
};

}  // namespace choir
