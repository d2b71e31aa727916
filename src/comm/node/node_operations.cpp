#include "src/comm/node/node_operations.hpp"

#include <algorithm>

#include "src/comm/communicator_parts.hpp"

namespace choir {

using Kind = NodeCall::Kind;
using Stage = NodeRendezvous::Stage;

NodeOperations::NodeOperations(MPI_Comm comm, int rank, int size, const std::string& label,
                               const NodeOptions& options,
                               std::shared_ptr<const NodeWindows> windows)
    : rank_(rank),
      size_(size),
      streaming_bytes_(options.streaming_bytes),
      meeting_(comm, label, options),
      windows_(std::move(windows)),
      inputs_(static_cast<std::size_t>(size)),
      outputs_(static_cast<std::size_t>(size)) {}

std::uint64_t NodeOperations::begin(const NodeCall& call) {
  at(next_) = {.call = call, .sequence = next_};
  meeting_.arrive(next_, call);
  return next_++;
}

void NodeOperations::complete(std::uint64_t sequence) {
  for (; oldest_ <= sequence; ++oldest_) {
    Operation& operation = at(oldest_);
    if (!operation.shared) {
      meeting_.await(Stage::arrived, oldest_, operation.call);
      check_same(operation);
      while (!work(operation, ~std::size_t{0})) continue;
      publish(operation);
    }
    if (operation.call.kind != Kind::barrier) meeting_.await(Stage::done, oldest_, operation.call);
  }
}

bool NodeOperations::advance(std::uint64_t sequence) {
  while (oldest_ <= sequence) {
    Operation& first = at(oldest_);
    if (!first.shared) {
      if (!meeting_.reached(Stage::arrived, oldest_)) return false;
      check_same(first);
      if (!work(first, kPieceBytes)) return false;
      publish(first);
    }
    if (first.call.kind != Kind::barrier && !meeting_.reached(Stage::done, oldest_)) return false;
    ++oldest_;
  }
  return true;
}

void NodeOperations::check_same(Operation& operation) {
  if (operation.checked) return;
  meeting_.require_same(operation.sequence, operation.call);
  operation.checked = true;
}

void NodeOperations::publish(Operation& operation) {
  meeting_.finish(operation.sequence);
  operation.shared = true;
}

// Does at most `budget` bytes of this rank's share (per block); returns true when all is done.
bool NodeOperations::work(Operation& operation, std::size_t budget) {
  const Kind kind = operation.call.kind;
  if (kind == Kind::barrier || size_ == 1) return true;
  return kind == Kind::all_gather ? collect(operation, budget) : reduce(operation, budget);
}

// Adds the same elements of all blocks, and writes the sums to all blocks or to this rank's block.
bool NodeOperations::reduce(Operation& operation, std::size_t budget) {
  const NodeCall& call = operation.call;
  const std::size_t element = size_of(call.dtype);
  const Chunk share = call.kind == Kind::all_reduce
                          ? share_of(call.count, size_, rank_, 64 / element)
                          : Chunk{static_cast<std::size_t>(rank_) * call.count, call.count};
  const std::size_t done = operation.cursor / element;
  const std::size_t now = std::min(share.count - done, std::max<std::size_t>(1, budget / element));
  const std::size_t offset = call.offset + (share.offset + done) * element;
  const SharedWindow& window = (*windows_)[call.window];
  for (int p = 0; p < size_; ++p)
    inputs_[static_cast<std::size_t>(p)] = outputs_[static_cast<std::size_t>(p)] =
        window.block(p) + offset;
  const bool to_all = call.kind == Kind::all_reduce;
  if (!to_all) outputs_[0] = outputs_[static_cast<std::size_t>(rank_)];
  tree_reduce(inputs_.data(), size_, outputs_.data(), to_all ? size_ : 1, now, call.dtype, call.op);
  operation.cursor += now * element;
  return done + now == share.count;
}

// Copies the blocks of the others, starting with the next rank so that not all ranks read the same
// memory at once.
bool NodeOperations::collect(Operation& operation, std::size_t budget) {
  const NodeCall& call = operation.call;
  const auto ranks = static_cast<std::size_t>(size_);
  const std::size_t block = call.count * size_of(call.dtype);
  const SharedWindow& window = (*windows_)[call.window];
  const std::size_t total = block * (ranks - 1);
  while (operation.cursor < total && budget > 0) {
    const int peer = (rank_ + 1 + static_cast<int>(operation.cursor / block)) % size_;
    const std::size_t inside = operation.cursor % block;
    const std::size_t now = std::min(budget, block - inside);
    const std::size_t offset = call.offset + static_cast<std::size_t>(peer) * block + inside;
    bulk_copy(window.block(rank_) + offset, window.block(peer) + offset, now,
              block * ranks >= streaming_bytes_);
    operation.cursor += now;
    budget -= now;
  }
  return operation.cursor == total;
}

}  // namespace choir
