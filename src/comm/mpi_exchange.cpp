#include "src/comm/mpi_exchange.hpp"

#include <algorithm>

#include "choir/comm/chunks.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir {

MpiExchanges::MpiExchanges(MPI_Comm comm, std::string label, std::size_t limit,
                           CommTraffic& traffic)
    : comm_(comm), label_(std::move(label)), limit_(limit), traffic_(traffic) {
  constexpr std::size_t kUsual = 8;
  for (Operation& operation : ring_) {
    operation.owner = this;
    operation.pieces.reserve(kUsual);
  }
}

ExchangeRequest& MpiExchanges::start(std::span<const Message> messages) {
  const auto operation =
      std::find_if(ring_.begin(), ring_.end(), [](const Operation& o) { return o.free; });
  CHOIR_CHECK(operation != ring_.end(), "more than {} exchanges in flight on {}", ring_.size(),
              label_);
  operation->pieces.clear();
  operation->free = false;
  for (const Message& m : messages)  // before anything is sent, so that it finds its place
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

// One after the other: MPI makes progress with all of them while it waits for one.
void MpiExchanges::finish(Piece& piece) {
  if (piece.request == MPI_REQUEST_NULL) return;
  MPI_Status status;
  mpi_check(MPI_Wait(&piece.request, &status), "MPI_Wait", label_);
  check_size(piece, status);
}

void MpiExchanges::Operation::do_wait() {
  CHOIR_CHECK(!free, "wait() called twice on {}", owner->label_);
  const double from = now_seconds();
  for (Piece& piece : pieces) owner->finish(piece);
  free = true;
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
