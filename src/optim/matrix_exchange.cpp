#include "src/optim/matrix_exchange.hpp"

#include <algorithm>
#include <map>

#include "choir/core/error.hpp"
#include "choir/ops/copy_rows.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

/// Elements rounded up to 256 bytes of any type.
std::int64_t with_padding(std::int64_t elements) {
  return (elements + 63) / 64 * 64;
}

}  // namespace

AllToAll::AllToAll(int ranks, int rank)
    : ranks_(ranks),
      rank_(rank),
      sent_(static_cast<std::size_t>(ranks)),
      received_(static_cast<std::size_t>(ranks)) {}

void AllToAll::finish() {
  const auto of = [](const std::vector<std::vector<TensorView>>& all, int peer) {
    return std::span(all[static_cast<std::size_t>(peer)]);
  };
  CHOIR_CHECK(of(sent_, rank_).size() == of(received_, rank_).size(), "pieces for nobody");
  for (int distance = 1; distance < ranks_; ++distance) {
    const int to = (rank_ + distance) % ranks_, from = (rank_ - distance + ranks_) % ranks_;
    std::vector<Message> messages;
    for (const TensorView& piece : of(sent_, to))
      messages.push_back({.send = true, .data = piece.data, .bytes = piece.bytes(), .peer = to});
    for (const TensorView& piece : of(received_, from))
      messages.push_back({.send = false, .data = piece.data, .bytes = piece.bytes(), .peer = from});
    if (!messages.empty()) exchanges_.push_back(std::move(messages));
  }
}

void AllToAll::run(const Stream& stream, Communicator* ranks) const {
  const auto& here = sent_[static_cast<std::size_t>(rank_)];
  for (std::size_t i = 0; i < here.size(); ++i)
    ops::copy(stream, here[i], received_[static_cast<std::size_t>(rank_)][i]);
  CHOIR_CHECK(exchanges_.empty() || ranks != nullptr, "an exchange without a communicator");
  for (const std::vector<Message>& messages : exchanges_) ranks->start_exchange(messages).wait();
}

MatrixExchange::MatrixExchange(const ParameterStorage& storage, Device& device,
                               std::vector<MatrixRound> rounds)
    : storage_(&storage),
      rounds_(std::move(rounds)),
      slice_count_(storage.sharding().slices()),
      data_(storage.sharding().data().rank()),
      data_ranks_(storage.sharding().data().size()),
      tensor_(storage.parameters().tensor().rank),
      tensor_ranks_(storage.parameters().tensor().ranks),
      plans_only_(device.kind() == DeviceKind::null),
      round_of_(storage.parameters().buckets().size()),
      slices_(storage.parameters().buckets().size()) {
  Sizes most;
  for (const MatrixRound& round : rounds_) {
    const Sizes sizes = sizes_of(round);
    most.slices = std::max(most.slices, with_padding(sizes.slices));
    most.column = std::max(most.column, with_padding(sizes.column));
    most.gathered = std::max(most.gathered, with_padding(sizes.gathered));
    most.largest = std::max(most.largest, sizes.largest);
  }
  if (tensor_ranks_ == 1) most.gathered = 0;
  const std::int64_t all = most.slices + most.column + most.gathered + most.largest;
  const DType type = storage.precision().gradient;
  memory_ = Buffer(device, static_cast<std::size_t>(all) * size_of(type));
  const TensorView flat{memory_.data(), type, {all}};
  slice_area_ = flat.slice(0, most.slices);
  column_ = flat.slice(most.slices, most.column);
  gathered_ = tensor_ranks_ == 1 ? column_ : flat.slice(most.slices + most.column, most.gathered);
  whole_ = flat.slice(all - most.largest, most.largest);
  if (all > 0) device.zero(memory_.data(), memory_.bytes());
  for (std::size_t r = 0; r < rounds_.size(); ++r) plans_.push_back(plan_of(r));
}

Range MatrixExchange::slice_of(std::size_t bucket, int data) const {
  const std::int64_t size = storage_->parameters().buckets()[bucket].size / slice_count_;
  return {data % slice_count_ * size, size};
}

// Maxima over all ranks, so that all of them need the same.
MatrixExchange::Sizes MatrixExchange::sizes_of(const MatrixRound& round) const {
  std::vector<std::int64_t> slices(static_cast<std::size_t>(slice_count_));
  std::vector<std::int64_t> column(static_cast<std::size_t>(data_ranks_));
  std::vector<std::int64_t> gathered(static_cast<std::size_t>(data_ranks_ * tensor_ranks_));
  Sizes sizes;
  for (const MatrixBlock& block : round.blocks) {
    const Matrix& m = round.matrices[block.matrix];
    gathered[static_cast<std::size_t>(m.data * tensor_ranks_ + m.tensor)] += block.in_bucket.count;
    sizes.largest = std::max(sizes.largest, m.rows * m.columns);
    if (block.tensor != tensor_) continue;
    column[static_cast<std::size_t>(m.data)] += block.in_bucket.count;
    for (int s = 0; s < slice_count_; ++s)
      slices[static_cast<std::size_t>(s)] +=
          overlap(block.in_bucket, slice_of(block.bucket, s)).count;
  }
  sizes.slices = *std::ranges::max_element(slices);
  sizes.column = *std::ranges::max_element(column);
  sizes.gathered = *std::ranges::max_element(gathered);
  return sizes;
}

// Every rank visits the blocks in the same order, in which the pieces between two ranks are sent.
MatrixExchange::Plan MatrixExchange::plan_of(std::size_t r) {
  const MatrixRound& round = rounds_[r];
  for (std::size_t b = round.first; b < round.first + round.count; ++b) round_of_[b] = r;
  Plan plan{.data_there = AllToAll(data_ranks_, data_),
            .data_back = AllToAll(data_ranks_, data_),
            .tensor_there = AllToAll(tensor_ranks_, tensor_),
            .tensor_back = AllToAll(tensor_ranks_, tensor_),
            .owned = {}};
  used_ = {};
  std::map<std::size_t, std::size_t> whole;  // index in plan.owned by that of the matrix
  for (const MatrixBlock& block : round.blocks) {
    const Matrix& m = round.matrices[block.matrix];
    const bool here = block.tensor == tensor_;
    if (here) take_slice(plan, block, m);
    if (m.data != data_) continue;
    TensorView part;
    if (here) part = take_part(plan, block);
    if (here && tensor_ranks_ > 1) {
      if (block.owned) plan.tensor_there.add_send(m.tensor, part);
      plan.tensor_back.add_receive(m.tensor, part);
    }
    if (m.tensor != tensor_) continue;
    if (tensor_ranks_ > 1) {
      part = next_of(gathered_, used_.gathered, block.in_bucket.count);
      if (block.owned) plan.tensor_there.add_receive(block.tensor, part);
      plan.tensor_back.add_send(block.tensor, part);
    }
    const auto [at, is_new] = whole.emplace(block.matrix, plan.owned.size());
    if (is_new) plan.owned.push_back({&m, {}});
    plan.owned[at->second].parts.push_back({&block, part});
  }
  for (AllToAll* all : {&plan.data_there, &plan.data_back, &plan.tensor_there, &plan.tensor_back})
    all->finish();
  return plan;
}

// The owner's column gets a slice from its own ZeRO group, and returns it to all groups.
void MatrixExchange::take_slice(Plan& plan, const MatrixBlock& block, const Matrix& m) {
  const Range mine = overlap(block.in_bucket, slice_of(block.bucket, data_));
  if (mine.count == 0) return;
  const TensorView elements = next_of(slice_area_, used_.slices, mine.count);
  const bool sent = block.owned && m.data / slice_count_ == data_ / slice_count_;
  slices_[block.bucket].push_back({&block, mine, elements, sent});
  if (sent) plan.data_there.add_send(m.data, elements);
  plan.data_back.add_receive(m.data, elements);
}

TensorView MatrixExchange::take_part(Plan& plan, const MatrixBlock& block) {
  const TensorView part = next_of(column_, used_.column, block.in_bucket.count);
  for (int d = 0; d < data_ranks_; ++d) {
    const Range theirs = overlap(block.in_bucket, slice_of(block.bucket, d));
    if (theirs.count == 0) continue;
    const TensorView piece = part.slice(theirs.first - block.in_bucket.first, theirs.count);
    if (block.owned && d / slice_count_ == data_ / slice_count_)
      plan.data_there.add_receive(d, piece);
    plan.data_back.add_send(d, piece);
  }
  return part;
}

void MatrixExchange::gather(const Stream& stream, Communicator& data, Communicator* tensor,
                            std::size_t round) const {
  plans_[round].data_there.run(stream, &data);
  plans_[round].tensor_there.run(stream, tensor);
}

void MatrixExchange::scatter(const Stream& stream, Communicator& data, Communicator* tensor,
                             std::size_t round) const {
  plans_[round].tensor_back.run(stream, tensor);
  plans_[round].data_back.run(stream, &data);
}

void MatrixExchange::on_owned(const Stream& stream, std::size_t r,
                              const std::function<void(const TensorView&)>& work) const {
  const auto matrix = [&](const Matrix& m) {
    return whole_.slice(0, m.rows * m.columns).reshaped({m.rows, m.columns});
  };
  if (plans_only_) {
    const MatrixRound& round = rounds_[r];
    const auto most = std::ranges::max_element(round.loads) - round.loads.begin();
    for (const Matrix& m : round.matrices)
      if (m.data * tensor_ranks_ + m.tensor == most) work(matrix(m));
    return;
  }
  for (const Whole& whole : plans_[r].owned) {
    const TensorView x = matrix(*whole.matrix);
    const auto copy = [&](const Part& part, bool there) {
      const MatrixBlock& b = *part.block;
      const std::int64_t columns = whole.matrix->columns;
      const ops::RowBlock packed{part.elements.data, b.columns};
      const ops::RowBlock inside{
          x.slice(b.row, b.rows).reshaped({b.rows * columns}).slice(b.column, 1).data, columns};
      ops::copy_rows(stream, x.dtype, b.rows, b.columns, there ? packed : inside,
                     there ? inside : packed);
    };
    for (const Part& part : whole.parts)
      if (part.block->owned) copy(part, true);
    work(x);
    for (const Part& part : whole.parts) copy(part, false);
  }
}

void MatrixExchange::add_to(MemoryPlan& plan) const {
  plan.add("matrices of the optimizer", memory_.bytes());
}

}  // namespace choir
