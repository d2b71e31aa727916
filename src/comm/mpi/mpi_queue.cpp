#include "src/comm/mpi/mpi_queue.hpp"

#include <algorithm>
#include <utility>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/core/quantities.hpp"

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

MpiQueue::MpiQueue(MPI_Comm comm, std::string name, int rank, int size, const MpiOptions& options,
                   CommTraffic& traffic)
    : comm_(comm),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      options_(options),
      traffic_(traffic),
      requests_(kPosted, MPI_REQUEST_NULL) {
  for (Operation& operation : ring_) operation.queue = this;
}

void MpiQueue::make_sums() {
  if (!sums_.empty()) return;
  for (std::size_t k = 0; k < kSums; ++k)
    sums_.push_back({SliceSum(comm_, name_, rank_, size_, options_.reduce_chunk_bytes)});
  requests_.resize(kPosted + kSums * sums_.front().piece.most_requests(), MPI_REQUEST_NULL);
}

std::size_t MpiQueue::piece_limit(const Work& work) const {
  if (work.sliced) {
    const SliceSum& sum = sums_.front().piece;
    return work.kind == Kind::all_reduce ? sum.elements_of_whole(work.dtype)
                                         : sum.elements_of_block(work.dtype);
  }
  const std::size_t bytes =
      work.kind == Kind::all_gather ? options_.message_bytes : options_.reduce_chunk_bytes;
  return std::max<std::size_t>(1, bytes / size_of(work.dtype));
}

MpiQueue::Operation& MpiQueue::push(const Work& work) {
  Operation& operation = ring_[next_ % kOperations];
  CHOIR_CHECK(operation.free, "more than {} operations in flight on {}", kOperations, name_);
  if (work.sliced) make_sums();
  operation.work = work;
  operation.sequence = next_++;
  operation.posted = operation.finished = 0;
  operation.free = false;
  operation.pieces = chunk_count(work.count, piece_limit(work));
  // A gather in one chunk is one collective; in several chunks it is a broadcast from each root.
  if (work.kind == Kind::all_gather && operation.pieces > 1)
    operation.pieces *= static_cast<std::size_t>(size_);
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
  while (Operation* operation = next_to_post()) {
    if (operation->work.sliced) {
      const auto idle = std::find_if(sums_.begin(), sums_.end(),
                                     [](const Sum& sum) { return sum.owner == nullptr; });
      if (idle == sums_.end()) return;
      begin_sum(*operation, *idle);
      idle->owner = operation;
      ++operation->posted;
      proceed(static_cast<std::size_t>(idle - sums_.begin()));
      continue;
    }
    const auto idle = std::find(owners_.begin(), owners_.end(), nullptr);
    if (idle == owners_.end()) return;
    post_collective(*operation, &requests_[static_cast<std::size_t>(idle - owners_.begin())]);
    *idle = operation;
    ++operation->posted;
  }
}

void MpiQueue::post_collective(const Operation& operation, MPI_Request* request) {
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
  if (operation.pieces > 1) return post_broadcast(operation, request);
  mpi_check(
      MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, work.data,
                     static_cast<int>(work.count * size_of(work.dtype)), MPI_BYTE, comm_, request),
      "MPI_Iallgather", name_);
}

void MpiQueue::post_broadcast(const Operation& operation, MPI_Request* request) {
  const Work& work = operation.work;
  // The order is chunk by chunk and, within a chunk, root by root, so that all ranks send and
  // receive all the time.
  const int root = static_cast<int>(operation.posted % static_cast<std::size_t>(size_));
  const Chunk piece =
      chunk_at(operation.posted / static_cast<std::size_t>(size_), work.count, piece_limit(work));
  const std::size_t element = size_of(work.dtype);
  auto* at = static_cast<std::byte*>(work.data) +
             (static_cast<std::size_t>(root) * work.count + piece.offset) * element;
  mpi_check(MPI_Ibcast(at, static_cast<int>(piece.count * element), MPI_BYTE, root, comm_, request),
            "MPI_Ibcast", name_);
}

void MpiQueue::begin_sum(const Operation& operation, Sum& sum) {
  const Work& work = operation.work;
  const Chunk piece = chunk_at(operation.posted, work.count, piece_limit(work));
  auto* data = static_cast<std::byte*>(work.data);
  const int tag = kFirstTag + static_cast<int>(summed_++ * 2 % kTags);
  if (work.kind == Kind::all_reduce)
    sum.piece.begin_whole(data, piece, work.dtype, work.op, tag);
  else
    sum.piece.begin_scattered(data, work.count, piece, work.dtype, work.op, tag);
}

std::span<MPI_Request> MpiQueue::requests_of(std::size_t sum) {
  const std::size_t each = sums_[sum].piece.most_requests();
  return std::span(requests_).subspan(kPosted + sum * each, each);
}

void MpiQueue::proceed(std::size_t sum) {
  Sum& own = sums_[sum];
  own.pending = own.piece.proceed(requests_of(sum));
  if (own.pending > 0) return;
  ++own.owner->finished;
  own.owner = nullptr;
}

void MpiQueue::retire(std::size_t request) {
  if (request < kPosted) {
    ++owners_[request]->finished;
    owners_[request] = nullptr;
    return;
  }
  const std::size_t sum = (request - kPosted) / sums_.front().piece.most_requests();
  if (--sums_[sum].pending == 0) proceed(sum);
}

void MpiQueue::complete(Operation& operation) {
  while (!operation.done()) {
    post();
    if (operation.done()) return;
    int request = MPI_UNDEFINED;
    mpi_check(MPI_Waitany(static_cast<int>(requests_.size()), requests_.data(), &request,
                          MPI_STATUS_IGNORE),
              "MPI_Waitany", name_);
    CHOIR_CHECK(request != MPI_UNDEFINED, "operation {} on {} can never complete",
                operation.sequence, name_);
    retire(static_cast<std::size_t>(request));
  }
}

void MpiQueue::wait(Operation& operation) {
  CHOIR_CHECK(!operation.free, "wait() called twice on {}", name_);
  const double from = now_seconds();
  complete(operation);
  operation.free = true;
  traffic_.seconds += now_seconds() - from;
}

void MpiQueue::run(const Work& work) {
  Operation& operation = push(work);
  complete(operation);
  operation.free = true;
}

bool MpiQueue::test(Operation& operation) {
  for (int k = 0; k < kPosted && !operation.done(); ++k) {
    post();
    int request = MPI_UNDEFINED, flag = 0;
    mpi_check(MPI_Testany(static_cast<int>(requests_.size()), requests_.data(), &request, &flag,
                          MPI_STATUS_IGNORE),
              "MPI_Testany", name_);
    if (flag == 0 || request == MPI_UNDEFINED) break;
    retire(static_cast<std::size_t>(request));
  }
  post();
  return operation.done();
}

void MpiQueue::drain() {
  for (Operation& operation : ring_)
    if (!operation.free) complete(operation), operation.free = true;
}

MpiExchanges::MpiExchanges(MPI_Comm comm, std::string label, std::size_t limit,
                           CommTraffic& traffic)
    : comm_(comm), label_(std::move(label)), limit_(limit), traffic_(traffic) {
  constexpr std::size_t kUsual = 8;
  for (Operation& operation : ring_) {
    operation.owner = this;
    operation.pieces.reserve(kUsual);
  }
}

MpiExchanges::Operation& MpiExchanges::push(std::span<const Message> messages) {
  const auto operation =
      std::find_if(ring_.begin(), ring_.end(), [](const Operation& o) { return o.free; });
  CHOIR_CHECK(operation != ring_.end(), "more than {} exchanges in flight on {}", ring_.size(),
              label_);
  operation->pieces.clear();
  operation->free = false;
  for (const Message& m : messages)  // receives are posted before anything is sent, so that
                                     // messages find their buffers
    if (!m.send) post(m, operation->pieces);
  for (const Message& m : messages)
    if (m.send) post(m, operation->pieces);
  return *operation;
}

void MpiExchanges::post(const Message& m, std::vector<Piece>& pieces) {
  auto* data = static_cast<std::byte*>(m.data);
  for_each_chunk(m.bytes, limit_, [&](std::size_t offset, std::size_t length) {
    const int bytes = static_cast<int>(length);
    Piece& piece = pieces.emplace_back(Piece{MPI_REQUEST_NULL, bytes, m.send ? -1 : m.peer});
    if (m.send)
      mpi_check(MPI_Isend(data + offset, bytes, MPI_BYTE, m.peer, m.tag, comm_, &piece.request),
                "MPI_Isend", label_);
    else
      mpi_check(MPI_Irecv(data + offset, bytes, MPI_BYTE, m.peer, m.tag, comm_, &piece.request),
                "MPI_Irecv", label_);
  });
}

void MpiExchanges::check_size(const Piece& piece, const MPI_Status& status) const {
  if (piece.from < 0) return;
  int got = 0;
  MPI_Get_count(&status, MPI_BYTE, &got);
  if (got != piece.bytes)
    throw CommError(fmt::format("MPI_Irecv on {}: {} bytes from rank {}, {} expected", label_, got,
                                piece.from, piece.bytes));
}

// Waits for one request after the other; MPI makes progress with all of them meanwhile.
void MpiExchanges::finish(Piece& piece) {
  if (piece.request == MPI_REQUEST_NULL) return;
  MPI_Status status;
  mpi_check(MPI_Wait(&piece.request, &status), "MPI_Wait", label_);
  check_size(piece, status);
}

void MpiExchanges::complete(Operation& operation) {
  for (Piece& piece : operation.pieces) finish(piece);
  operation.free = true;
}

void MpiExchanges::run(std::span<const Message> messages) {
  complete(push(messages));
}

void MpiExchanges::Operation::do_wait() {
  CHOIR_CHECK(!free, "wait() called twice on {}", owner->label_);
  const double from = now_seconds();
  owner->complete(*this);
  owner->traffic_.seconds += now_seconds() - from;
}

void MpiExchanges::Operation::do_wait_received() {
  CHOIR_CHECK(!free, "wait_received() after wait() on {}", owner->label_);
  const double from = now_seconds();
  for (Piece& piece : pieces)
    if (piece.from >= 0) owner->finish(piece);
  owner->traffic_.seconds += now_seconds() - from;
}

bool MpiExchanges::Operation::do_test() {
  for (Piece& piece : pieces) {
    if (piece.request == MPI_REQUEST_NULL) continue;
    int done = 0;
    MPI_Status status;
    mpi_check(MPI_Test(&piece.request, &done, &status), "MPI_Test", owner->label_);
    if (done == 0) return false;
    owner->check_size(piece, status);
  }
  return true;
}

}  // namespace choir
