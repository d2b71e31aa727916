#include "src/data/text/batch_sources.hpp"

#include <algorithm>
#include <vector>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/data/read_ahead.hpp"

namespace choir {
namespace {

void place(const MicroBatchOrder& order, std::int64_t call, std::int64_t rows, Batch& batch) {
  batch.micro_batch = order.micro_batch(call);
  batch.first_sample = order.first_sample + batch.micro_batch * rows;
}

}  // namespace

StreamSource::StreamSource(Communicator& comm, const std::string& name, const TokenStream& stream,
                           const ReaderOptions& options, const RowShape& shape, WindowOf window_of,
                           const MicroBatchOrder& order)
    : stream_(stream),
      shape_(shape),
      document_ends_(stream, shape.document_end),
      window_of_(std::move(window_of)),
      order_(order),
      comm_(comm.duplicate(name)),
      reader_(
          make_reader(*comm_, stream, options, shape.rows * (shape.block_size + 1), shape.rows)),
      windows_(static_cast<std::size_t>(shape.rows)) {
  extents_.reserve(windows_.size());
}

void StreamSource::fill(std::int64_t call, Batch& batch) {
  place(order_, call, shape_.rows, batch);
  extents_.clear();
  for (std::size_t row = 0; row < windows_.size(); ++row) {
    windows_[row] = window_of_(batch.first_sample + static_cast<std::int64_t>(row));
    if (windows_[row].targets > 0)
      extents_.push_back({windows_[row].start, windows_[row].targets + 1});
  }
  const void* packed = reader_->read(extents_);
  fill_batch(packed, stream_.token_bytes(), windows_, shape_.vocab_size, stream_, batch);
  if (!shape_.documents) return;
  const auto* inputs = batch.inputs.as<std::int32_t>();
  for (std::size_t row = 0; row < windows_.size(); ++row, inputs += shape_.block_size) {
    document_ends_.mark(windows_[row], inputs, ends_);
    separate_documents(ends_, windows_[row].targets, static_cast<std::int64_t>(row), batch);
  }
}

ResidentTokens::ResidentTokens(Communicator& comm, const TokenStream& stream,
                               const ReaderOptions& options, const RowShape& shape, Device& device)
    : tokens_(stream.count()),
      block_size_(shape.block_size),
      memory_(device, bytes_of(stream, shape.block_size)) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 22;
  const std::int64_t block = std::min(tokens_, kBlock);
  ReaderOptions plain = options;
  plain.preload = Preload::none;
  const auto own = comm.duplicate("data.resident");
  const auto reader = make_reader(*own, stream, plain, block, 1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::max(block, shape.block_size)));
  const auto put = [&](std::int64_t first, std::int64_t count) {
    device.copy_from_host(const_cast<std::byte*>(at(first)), ids.data(),
                          static_cast<std::size_t>(count) * sizeof ids.front());
  };
  put(tokens_, block_size_);
  std::fill(ids.begin(), ids.end(), kIgnoredTarget);
  put(tokens_ + block_size_, block_size_);
  for (std::int64_t first = 0; first < tokens_; first += block) {
    const TokenExtent extent{first, std::min(block, tokens_ - first)};
    const void* packed = reader->read({&extent, 1});
    together(comm, [&] {
      widen_tokens(packed, stream, extent.first, extent.count, shape.vocab_size, ids.data());
    });
    put(first, extent.count);
  }
}

ResidentSource::ResidentSource(const ResidentTokens& tokens, const RowShape& shape,
                               StreamSource::WindowOf window_of, const MicroBatchOrder& order)
    : tokens_(tokens), shape_(shape), window_of_(std::move(window_of)), order_(order) {}

void ResidentSource::fill(std::int64_t call, Batch& batch) {
  place(order_, call, shape_.rows, batch);
  batch.inputs.data = batch.targets.data = nullptr;
  batch.resident_input_padding = tokens_.input_padding();
  batch.resident_target_padding = tokens_.target_padding();
  batch.valid = shape_.rows * shape_.block_size;
  for (std::int64_t row = 0; row < shape_.rows; ++row) {
    const TokenWindow window = window_of_(batch.first_sample + row);
    CHOIR_CHECK(window.targets == shape_.block_size, "a training window of {} tokens",
                window.targets);
    batch.row_addresses[row] = tokens_.at(window.start);
    batch.row_addresses[shape_.rows + row] = tokens_.at(window.start + 1);
  }
  batch.resident_inputs = batch.row_addresses;
  batch.resident_targets = batch.row_addresses + shape_.rows;
}

SharedSource::SharedSource(Communicator& peers, const std::string& name,
                           std::unique_ptr<BatchSource> reading, const RowShape& shape,
                           const MicroBatchOrder& order)
    : shape_(shape),
      order_(order),
      comm_(peers.duplicate(name)),
      group_(*comm_),
      reading_(std::move(reading)) {}

void SharedSource::fill(std::int64_t call, Batch& batch) {
  place(order_, call, shape_.rows, batch);
  std::int64_t valid = 0;
  group_.agree(
      [&] {
        if (!reading_) return;
        reading_->fill(call, batch);
        valid = batch.valid;
      },
      {&valid, 1});
  batch.valid = valid;
  for (const TensorView& part : {batch.inputs, batch.targets, batch.begins, batch.positions})
    if (!part.empty()) group_.broadcast(part.data, part.bytes());
}

void SharedSource::abandon() {
  group_.abandon();
  if (reading_) reading_->abandon();
}

SyntheticSource::SyntheticSource(std::uint64_t seed, std::string name, const RowShape& shape,
                                 const MicroBatchOrder& order, std::int64_t limit)
    : seed_(seed), name_(std::move(name)), shape_(shape), order_(order), limit_(limit) {}

void SyntheticSource::fill(std::int64_t call, Batch& batch) {
  place(order_, call, shape_.rows, batch);
  fill_synthetic(seed_, name_, shape_.vocab_size, batch);
  const std::int64_t counted =
      limit_ == 0 ? shape_.rows
                  : std::clamp<std::int64_t>(limit_ - batch.first_sample, 0, shape_.rows);
  batch.valid = counted * shape_.block_size;
  auto* inputs = batch.inputs.as<std::int32_t>();
  auto* targets = batch.targets.as<std::int32_t>();
  std::fill(inputs + batch.valid, inputs + batch.inputs.count(), 0);
  std::fill(targets + batch.valid, targets + batch.targets.count(), kIgnoredTarget);
  if (shape_.documents) separate_documents(shape_.document_end, counted, batch);
}

namespace {

// The slots belong to the object that fills them, so that they live as long as an unfinished read.
class BatchSlots : public SlotSource {
 public:
  BatchSlots(std::unique_ptr<BatchSource> source, int slots) : source_(std::move(source)) {
    for (int i = 0; i < slots; ++i)
      slots_.push_back(std::make_unique<BatchBuffer>(source_->rows(), source_->block_size(),
                                                     source_->documents()));
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
  BatchSlots& slots_there;  // owned by `ahead`
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
