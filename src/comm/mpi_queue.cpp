#include "src/comm/mpi_queue.hpp"

#include "choir/comm/chunks.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir {

MpiQueue::MpiQueue(MPI_Comm comm, std::string name, int rank, int size, const MpiOptions& options,
                   CommTraffic& traffic)
    : comm_(comm),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      options_(options),
      traffic_(traffic),
      staged_(comm, name_, rank, size, options.reduce_chunk_bytes) {
  requests_.fill(MPI_REQUEST_NULL);
  for (Operation& operation : ring_) operation.queue = this;
}

std::size_t MpiQueue::piece_limit(const Work& work) const {
  const std::size_t bytes =
      work.kind == Kind::all_gather ? options_.max_chunk_bytes : options_.reduce_chunk_bytes;
  return std::max<std::size_t>(1, bytes / size_of(work.dtype));
}

CommRequest& MpiQueue::start(const Work& work) {
  Operation& operation = ring_[next_ % kOperations];
  CHOIR_CHECK(operation.free, "more than {} operations in flight on {}", kOperations, name_);
  operation.work = work;
  operation.sequence = next_++;
  operation.posted = operation.finished = 0;
  operation.free = false;
  operation.pieces = chunk_count(work.count, piece_limit(work));
  // A gather in one piece is one collective; everything else by block goes root by root.
  const bool by_root =
      work.kind == Kind::reduce_scatter || (work.kind == Kind::all_gather && operation.pieces > 1);
  if (by_root) operation.pieces *= static_cast<std::size_t>(size_);
  if (work.staged) operation.pieces = 1;
  if (size_ == 1) operation.pieces = 0;
  post();
  return operation;
}

MpiQueue::Operation* MpiQueue::next_to_post() {
  while (posting_ < next_) {
    Operation& operation = ring_[posting_ % kOperations];
    if (operation.sequence == posting_ && !operation.free && operation.posted < operation.pieces)
      return &operation;
    ++posting_;
  }
  return nullptr;
}

void MpiQueue::post() {
  for (int slot = 0; slot < kPosted; ++slot) {
    const auto s = static_cast<std::size_t>(slot);
    if (owners_[s] != nullptr) continue;
    Operation* operation = next_to_post();
    if (operation == nullptr || operation->work.staged) return;
    post_piece(*operation, &requests_[s]);
    owners_[s] = operation;
    ++operation->posted;
  }
}

void MpiQueue::post_piece(Operation& operation, MPI_Request* request) {
  const Work& work = operation.work;
  if (work.kind == Kind::all_reduce) {
    const Chunk piece = chunk_at(operation.posted, work.count, piece_limit(work));
    mpi_check(
        MPI_Iallreduce(
            MPI_IN_PLACE, static_cast<std::byte*>(work.data) + piece.offset * size_of(work.dtype),
            static_cast<int>(piece.count), mpi_type(work.dtype), mpi_op(work.op), comm_, request),
        "MPI_Iallreduce", name_);
    return;
  }
  if (work.kind == Kind::all_gather && operation.pieces == 1) {
    mpi_check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, work.data,
                             static_cast<int>(work.count * size_of(work.dtype)), MPI_BYTE, comm_,
                             request),
              "MPI_Iallgather", name_);
    return;
  }
  post_rooted(operation, request);
}

void MpiQueue::post_rooted(const Operation& operation, MPI_Request* request) {
  const Work& work = operation.work;
  // Piece by piece, and for each piece root by root, so that all ranks send and receive all the
  // time.
  const int root = static_cast<int>(operation.posted % static_cast<std::size_t>(size_));
  const Chunk piece =
      chunk_at(operation.posted / static_cast<std::size_t>(size_), work.count, piece_limit(work));
  const std::size_t element = size_of(work.dtype);
  auto* at = static_cast<std::byte*>(work.data) +
             (static_cast<std::size_t>(root) * work.count + piece.offset) * element;
  if (work.kind == Kind::all_gather) {
    mpi_check(
        MPI_Ibcast(at, static_cast<int>(piece.count * element), MPI_BYTE, root, comm_, request),
        "MPI_Ibcast", name_);
    return;
  }
  const bool mine = root == rank_;
  mpi_check(
      MPI_Ireduce(mine ? MPI_IN_PLACE : at, mine ? at : nullptr, static_cast<int>(piece.count),
                  mpi_type(work.dtype), mpi_op(work.op), root, comm_, request),
      "MPI_Ireduce", name_);
}

void MpiQueue::retire(int slot) {
  const auto s = static_cast<std::size_t>(slot);
  ++owners_[s]->finished;
  owners_[s] = nullptr;
}

void MpiQueue::complete(Operation& operation) {
  while (!operation.done()) {
    post();
    Operation* next = next_to_post();
    const bool staged_turn =
        next != nullptr && next->work.staged && next->sequence <= operation.sequence;
    int slot = MPI_UNDEFINED;
    mpi_check(MPI_Waitany(kPosted, requests_.data(), &slot, MPI_STATUS_IGNORE), "MPI_Waitany",
              name_);
    if (slot != MPI_UNDEFINED) {
      retire(slot);
      continue;
    }
    CHOIR_CHECK(staged_turn, "operation {} on {} can never complete", operation.sequence, name_);
    const Work& work = next->work;
    if (work.kind == Kind::all_reduce)
      staged_.all_reduce(work.data, work.count, work.dtype, work.op);
    else
      staged_.reduce_scatter(work.data, work.count, work.dtype, work.op);
    next->posted = next->finished = 1;
  }
}

void MpiQueue::wait(Operation& operation) {
  CHOIR_CHECK(!operation.free, "wait() called twice on {}", name_);
  const double from = now_seconds();
  complete(operation);
  operation.free = true;
  traffic_.seconds += now_seconds() - from;
}

bool MpiQueue::test(Operation& operation) {
  if (operation.done()) return true;
  for (int k = 0; k < kPosted; ++k) {
    post();
    int slot = MPI_UNDEFINED, flag = 0;
    mpi_check(MPI_Testany(kPosted, requests_.data(), &slot, &flag, MPI_STATUS_IGNORE),
              "MPI_Testany", name_);
    if (flag == 0 || slot == MPI_UNDEFINED) break;
    retire(slot);
  }
  post();
  return operation.done();
}

void MpiQueue::drain() {
  for (Operation& operation : ring_)
    if (!operation.free) complete(operation), operation.free = true;
}

}  // namespace choir
