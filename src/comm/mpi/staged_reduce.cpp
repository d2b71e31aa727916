#include "src/comm/mpi/staged_reduce.hpp"

#include <algorithm>

#include "choir/comm/chunks.hpp"
#include "choir/comm/tree_reduce.hpp"

namespace choir {
namespace {

constexpr int kTagStaged = 32001;
constexpr std::size_t kShortest = 4096;  // bytes of a message, however many ranks there are

}  // namespace

StagedReduce::StagedReduce(MPI_Comm comm, std::string name, int rank, int size,
                           std::size_t chunk_bytes)
    : comm_(comm),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      slot_bytes_(std::max(std::min(kShortest, chunk_bytes),
                           chunk_count(chunk_bytes, static_cast<std::size_t>(size) * 64) * 64)) {}

void StagedReduce::warm_up() {
  if (!staging_.empty()) return;
  const auto ranks = static_cast<std::size_t>(size_);
  staging_.resize(slot_bytes_ * ranks);
  slices_.resize(ranks);
  lengths_.resize(ranks);
  offsets_.resize(ranks);
  inputs_.resize(ranks);
  requests_.resize(2 * ranks, MPI_REQUEST_NULL);
}

std::size_t StagedReduce::slot_count(DType dtype) const {
  return slot_bytes_ / size_of(dtype);
}

void StagedReduce::exchange_and_sum(DType dtype, ReduceOp op) {
  const auto me = static_cast<std::size_t>(rank_);
  int posted = 0;
  for (int step = 0; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const auto p = static_cast<std::size_t>(peer);
    inputs_[p] = peer == rank_ ? slices_[me] : staging_.data() + p * slot_bytes_;
    if (peer == rank_) continue;
    if (lengths_[me] > 0)
      mpi_check(MPI_Irecv(staging_.data() + p * slot_bytes_, lengths_[me], MPI_BYTE, peer,
                          kTagStaged, comm_, &requests_[static_cast<std::size_t>(posted++)]),
                "MPI_Irecv", name_);
    if (lengths_[p] > 0)
      mpi_check(MPI_Isend(slices_[p], lengths_[p], MPI_BYTE, peer, kTagStaged, comm_,
                          &requests_[static_cast<std::size_t>(posted++)]),
                "MPI_Isend", name_);
  }
  mpi_check(MPI_Waitall(posted, requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall", name_);
  void* out = slices_[me];
  tree_reduce(inputs_.data(), size_, &out, 1,
              static_cast<std::size_t>(lengths_[me]) / size_of(dtype), dtype, op);
}

void StagedReduce::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  warm_up();
  const std::size_t element = size_of(dtype);
  const std::size_t piece = slot_count(dtype) * static_cast<std::size_t>(size_);
  for_each_chunk(count, piece, [&](std::size_t offset, std::size_t length) {
    auto* base = static_cast<std::byte*>(data) + offset * element;
    for (int p = 0; p < size_; ++p) {
      const Chunk share = share_of(length, size_, p, 1);
      slices_[static_cast<std::size_t>(p)] = base + share.offset * element;
      lengths_[static_cast<std::size_t>(p)] = static_cast<int>(share.count * element);
      offsets_[static_cast<std::size_t>(p)] = static_cast<int>(share.offset * element);
    }
    exchange_and_sum(dtype, op);
    mpi_check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, base, lengths_.data(),
                             offsets_.data(), MPI_BYTE, comm_),
              "MPI_Allgatherv", name_);
  });
}

void StagedReduce::reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op) {
  warm_up();
  const std::size_t element = size_of(dtype);
  for_each_chunk(count, slot_count(dtype), [&](std::size_t offset, std::size_t length) {
    for (std::size_t p = 0; p < slices_.size(); ++p) {
      slices_[p] = static_cast<std::byte*>(data) + (p * count + offset) * element;
      lengths_[p] = static_cast<int>(length * element);
    }
    exchange_and_sum(dtype, op);
  });
}

void StagedReduce::reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) {
  warm_up();
  const std::size_t element = size_of(dtype);
  for_each_chunk(count, slot_count(dtype), [&](std::size_t offset, std::size_t length) {
    auto* mine = static_cast<std::byte*>(data) + offset * element;
    const auto bytes = static_cast<int>(length * element);
    mpi_check(MPI_Gather(mine, bytes, MPI_BYTE, staging_.data(), bytes, MPI_BYTE, root, comm_),
              "MPI_Gather", name_);
    if (rank_ != root) return;
    for (std::size_t p = 0; p < inputs_.size(); ++p)
      inputs_[p] = staging_.data() + p * static_cast<std::size_t>(bytes);
    void* out = mine;
    tree_reduce(inputs_.data(), size_, &out, 1, length, dtype, op);
  });
}

}  // namespace choir
