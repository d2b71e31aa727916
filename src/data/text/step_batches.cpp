#include "src/data/text/step_batches.hpp"

#include <algorithm>
#include <vector>

#include "choir/core/error.hpp"
#include "src/data/read_ahead.hpp"

namespace choir {
namespace {

using Buffers = std::vector<std::unique_ptr<BatchBuffer>>;

Buffers buffers_for(const BatchSource& source, std::int64_t per_rank) {
  Buffers made;
  for (std::int64_t i = 0; i < per_rank; ++i)
    made.push_back(std::make_unique<BatchBuffer>(source.rows(), source.block_size(), true));
  return made;
}

struct StepSlot {
  Buffers batches;
  DocumentCounts counts;
};

/// Fills slots with whole steps. The slots belong to the object that fills them, so that they live
/// as long as an unfinished read.
class StepSlots : public SlotSource {
 public:
  StepSlots(Communicator& comm, std::unique_ptr<BatchSource> source, std::int64_t per_rank,
            int slots, std::int64_t window)
      : source_(std::move(source)),
        comm_(comm.duplicate("data.documents")),
        group_(*comm_),
        window_(window),
        slots_(static_cast<std::size_t>(slots)) {
    for (StepSlot& slot : slots_) slot.batches = buffers_for(*source_, per_rank);
  }
  void fill(std::int64_t step, int slot) override {
    StepSlot& to = at(slot);
    const auto per_rank = std::ssize(to.batches);
    DocumentCounts counts;
    for (std::int64_t i = 0; i < per_rank; ++i) {
      Batch& batch = to.batches[static_cast<std::size_t>(i)]->batch;
      source_->fill(step * per_rank + i, batch);
      counts.add(count_documents(batch, window_));
    }
    std::array<std::int64_t, 3> sums{counts.targets, counts.pairs, counts.window_pairs};
    group_.sum(sums);
    to.counts = {.targets = sums[0], .pairs = sums[1], .window_pairs = sums[2]};
  }
  void abandon() override {
    group_.abandon();
    source_->abandon();
  }
  StepSlot& at(int slot) { return slots_[static_cast<std::size_t>(slot)]; }

 private:
  std::unique_ptr<BatchSource> source_;
  std::unique_ptr<Communicator> comm_;  // outlives the group
  MpiGroup group_;
  std::int64_t window_;
  std::vector<StepSlot> slots_;
};

/// One slot, and if a thread reads, those that it fills ahead.
int slots_for(bool threaded, std::int64_t ahead, std::int64_t per_rank) {
  constexpr std::int64_t kMost = 1 << 10;
  if (!threaded) return 1;
  return static_cast<int>(1 +
                          std::clamp((ahead + per_rank - 1) / per_rank, std::int64_t{1}, kMost));
}

}  // namespace

// A slot is filled anew once the next one is asked for. Therefore the batches of a step are swapped
// with those of the step before the previous one, which nobody uses any more: the contents of a
// step are requested while the last batch of the previous one is in use.
struct StepBatches::State {
  State(std::unique_ptr<StepSlots> made, const BatchSource& source, std::int64_t batches,
        bool threaded, int count)
      : slots(*made),
        per_rank(batches),
        number(count),
        held{buffers_for(source, batches), buffers_for(source, batches)},
        reading(std::move(made), threaded, count) {}

  StepSlots& slots;  // owned by `reading`
  std::int64_t per_rank;
  int number;
  std::array<Buffers, 2> held;  // of the last two steps
  ReadAhead reading;
  std::int64_t calls = 0;  // of next()
  std::array<DocumentCounts, kKept> counts{};

  Buffers& batches_of(std::int64_t step) { return held[static_cast<std::size_t>(step % 2)]; }
  static std::size_t place(std::int64_t step) { return static_cast<std::size_t>(step % kKept); }
  void read_up_to(std::int64_t step) {
    while (reading.calls() <= step) {
      const std::int64_t here = reading.calls();
      StepSlot& filled = slots.at(reading.next());
      std::swap(batches_of(here), filled.batches);
      counts[place(here)] = filled.counts;
    }
  }
};

StepBatches::StepBatches(Communicator& comm, std::unique_ptr<BatchSource> source,
                         std::int64_t per_rank, bool threaded, std::int64_t ahead,
                         std::int64_t window) {
  CHOIR_CHECK(source->documents(), "a source whose documents are not separate");
  const int slots = slots_for(threaded, ahead, per_rank);
  const BatchSource& shape = *source;
  auto made = std::make_unique<StepSlots>(comm, std::move(source), per_rank, slots, window);
  state_ = std::make_unique<State>(std::move(made), shape, per_rank, threaded, slots);
}

StepBatches::~StepBatches() = default;

const Batch& StepBatches::next() {
  State& s = *state_;
  const std::int64_t call = s.calls, step = call / s.per_rank;
  s.read_up_to(step);
  ++s.calls;
  return s.batches_of(step)[static_cast<std::size_t>(call % s.per_rank)]->batch;
}

const DocumentCounts& StepBatches::contents(std::int64_t step) {
  State& s = *state_;
  const std::int64_t current = s.calls / s.per_rank;
  CHOIR_CHECK(step >= 0 && step <= current + 1 && step > s.reading.calls() - 1 - kKept,
              "the contents of step {} while step {} is read", step, current);
  s.read_up_to(step);
  return s.counts[State::place(step)];
}

double StepBatches::wait_seconds() const {
  return state_->reading.wait_seconds();
}

std::size_t StepBatches::bytes() const {
  const Batch& batch = state_->held[0].front()->batch;
  const std::int64_t steps = std::ssize(state_->held) + state_->number;
  return 4 * batch.inputs.bytes() * static_cast<std::size_t>(state_->per_rank * steps);
}

}  // namespace choir
