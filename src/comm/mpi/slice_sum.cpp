#include "src/comm/mpi/slice_sum.hpp"

#include <algorithm>
#include <utility>

#include "choir/comm/tree_reduce.hpp"

namespace choir {
namespace {

constexpr std::size_t kShortest = 4096;  // minimum bytes of a message for any number of ranks
constexpr std::size_t kCacheLine = 64;

}  // namespace

SliceSum::SliceSum(MPI_Comm comm, std::string name, int rank, int size, std::size_t chunk_bytes)
    : comm_(comm),
      name_(std::move(name)),
      rank_(rank),
      slot_bytes_(std::max(
          std::min(kShortest, chunk_bytes),
          chunk_count(chunk_bytes, static_cast<std::size_t>(size) * kCacheLine) * kCacheLine)),
      slices_(static_cast<std::size_t>(size)),
      inputs_(slices_.size()) {}

void SliceSum::begin(DType dtype, ReduceOp op, int tag, bool whole) {
  staging_.resize(slot_bytes_ * ranks());
  dtype_ = dtype;
  op_ = op;
  tag_ = tag;
  whole_ = whole;
  step_ = Step::send_parts;
}

void SliceSum::begin_scattered(std::byte* blocks, std::size_t count, const Chunk& piece,
                               DType dtype, ReduceOp op, int tag) {
  const std::size_t element = size_of(dtype);
  for (std::size_t p = 0; p < ranks(); ++p)
    slices_[p] = {blocks + (p * count + piece.offset) * element,
                  static_cast<int>(piece.count * element)};
  begin(dtype, op, tag, false);
}

void SliceSum::begin_whole(std::byte* data, const Chunk& piece, DType dtype, ReduceOp op, int tag) {
  const std::size_t element = size_of(dtype);
  const int size = static_cast<int>(ranks());
  for (int p = 0; p < size; ++p) {
    const Chunk share = share_of(piece.count, size, p, 1);
    slices_[static_cast<std::size_t>(p)] = {data + (piece.offset + share.offset) * element,
                                            static_cast<int>(share.count * element)};
  }
  begin(dtype, op, tag, true);
}

std::size_t SliceSum::proceed(std::span<MPI_Request> requests) {
  std::size_t posted = 0;
  while (posted == 0 && step_ != Step::end) switch (step_) {
      case Step::send_parts:
        posted = post_parts(requests);
        step_ = Step::add;
        break;
      case Step::add:
        add();
        step_ = whole_ ? Step::send_sums : Step::end;
        break;
      case Step::send_sums:
        posted = post_sums(requests);
        step_ = Step::end;
        break;
      case Step::end:
        break;
    }
  return posted;
}

void SliceSum::receive(void* data, int bytes, int from, int tag, MPI_Request& request) const {
  mpi_check(MPI_Irecv(data, bytes, MPI_BYTE, from, tag, comm_, &request), "MPI_Irecv", name_);
}

void SliceSum::send(const Slice& slice, int to, int tag, MPI_Request& request) const {
  mpi_check(MPI_Isend(slice.data, slice.bytes, MPI_BYTE, to, tag, comm_, &request), "MPI_Isend",
            name_);
}

std::size_t SliceSum::post_parts(std::span<MPI_Request> requests) {
  const auto me = static_cast<std::size_t>(rank_);
  std::size_t posted = 0;
  inputs_[me] = slices_[me].data;
  for (std::size_t step = 1; step < ranks(); ++step) {
    const std::size_t peer = (me + step) % ranks();
    std::byte* staged = staging_.data() + peer * slot_bytes_;
    inputs_[peer] = staged;
    const int from = static_cast<int>(peer);
    if (slices_[me].bytes > 0) receive(staged, slices_[me].bytes, from, tag_, requests[posted++]);
    if (slices_[peer].bytes > 0) send(slices_[peer], from, tag_, requests[posted++]);
  }
  return posted;
}

void SliceSum::add() {
  const Slice& mine = slices_[static_cast<std::size_t>(rank_)];
  void* out = mine.data;
  tree_reduce(inputs_.data(), static_cast<int>(ranks()), &out, 1,
              static_cast<std::size_t>(mine.bytes) / size_of(dtype_), dtype_, op_);
}

std::size_t SliceSum::post_sums(std::span<MPI_Request> requests) {
  const auto me = static_cast<std::size_t>(rank_);
  std::size_t posted = 0;
  for (std::size_t step = 1; step < ranks(); ++step) {
    const std::size_t peer = (me + step) % ranks();
    const int from = static_cast<int>(peer);
    if (slices_[peer].bytes > 0)
      receive(slices_[peer].data, slices_[peer].bytes, from, tag_ + 1, requests[posted++]);
    if (slices_[me].bytes > 0) send(slices_[me], from, tag_ + 1, requests[posted++]);
  }
  return posted;
}

}  // namespace choir
