#include "choir/data/tokens/prefetcher.hpp"

#include <vector>

#include "choir/data/read_ahead.hpp"

namespace choir {
namespace {

// The slots belong to what fills them: whichever outlives its reader, both do.
class BatchSlots : public SlotSource {
 public:
  BatchSlots(std::unique_ptr<BatchSource> source, int slots) : source_(std::move(source)) {
    for (int i = 0; i < slots; ++i)
      slots_.push_back(std::make_unique<BatchBuffer>(source_->rows(), source_->block_size()));
  }
  void fill(std::int64_t call, int slot) override { source_->fill(call, batch(slot)); }
  void abandon() override { source_->abandon(); }
  Batch& batch(int slot) { return slots_[static_cast<std::size_t>(slot)]->batch; }

 private:
  std::unique_ptr<BatchSource> source_;
  std::vector<std::unique_ptr<BatchBuffer>> slots_;
};

}  // namespace

struct Prefetcher::State {
  State(std::unique_ptr<BatchSlots> slots, bool threaded, int count)
      : slots_there(*slots), ahead(std::move(slots), threaded, count) {}
  BatchSlots& slots_there;  // of `ahead`
  ReadAhead ahead;
};

Prefetcher::Prefetcher(std::unique_ptr<BatchSource> source, bool threaded, int slots)
    : slots_(slots),
      state_(std::make_unique<State>(std::make_unique<BatchSlots>(std::move(source), slots),
                                     threaded, slots)) {}

Prefetcher::~Prefetcher() = default;

const Batch& Prefetcher::next() {
  return state_->slots_there.batch(state_->ahead.next());
}

std::int64_t Prefetcher::calls() const {
  return state_->ahead.calls();
}
double Prefetcher::wait_seconds() const {
  return state_->ahead.wait_seconds();
}

std::size_t Prefetcher::bytes() const {
  const Batch& batch = state_->slots_there.batch(0);
  return static_cast<std::size_t>(slots_) * (batch.inputs.bytes() + batch.targets.bytes());
}

}  // namespace choir
