#include "src/comm/node/two_level_operations.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "choir/comm/chunks.hpp"
#include "choir/comm/tree_reduce.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/keep_forever.hpp"
#include "choir/core/plural.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

using Kind = NodeCall::Kind;
using Stage = NodeRendezvous::Stage;

constexpr std::size_t kCacheLine = 64;
constexpr int kTags = 4096;  // pieces on their way are far fewer, so that no two share a tag

/// Messages get shorter where there are many nodes: room for one from each is kept for a piece.
std::size_t bytes_of_message(const NodeOptions& options, int nodes) {
  constexpr std::size_t kShortest = std::size_t{16} << 10, kRoom = std::size_t{4} << 20;
  const std::size_t room = std::max(kShortest, kRoom / static_cast<std::size_t>(nodes));
  return chunk_count(std::min(options.link_message_bytes, room), kCacheLine) * kCacheLine;
}

}  // namespace

TwoLevelOperations::TwoLevelOperations(MPI_Comm group, MPI_Comm inside, NodeMap map,
                                       const std::string& label, const NodeOptions& options,
                                       std::shared_ptr<const NodeWindows> windows)
    : map_(std::move(map)),
      label_(label),
      timeout_(options.timeout_seconds),
      message_bytes_(bytes_of_message(options, map_.nodes())),
      streaming_bytes_(options.streaming_bytes),
      rank_([&] {
        int rank = 0;
        MPI_Comm_rank(group, &rank);
        return rank;
      }()),
      node_(map_.node_of(rank_)),
      place_(map_.place_of(rank_)),
      neighbours_(static_cast<int>(map_.on(node_).size())),
      places_served_(map_.places_served(rank_)),
      ranks_served_(map_.ranks_served(rank_)),
      meeting_(inside, label, options, map_.on(node_)),
      windows_(std::move(windows)),
      unwinding_(std::uncaught_exceptions()) {
  mpi_check(MPI_Comm_dup(group, &comm_), "MPI_Comm_dup", label_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  const auto others = static_cast<std::size_t>(map_.nodes() - 1);
  staging_bytes_ = std::max<std::size_t>(1, places_served_.size()) * others * message_bytes_;
  const std::size_t most =
      2 * std::max<std::size_t>(1, places_served_.size()) * others + ranks_served_.size() + others;
  inputs_.resize(std::max(static_cast<std::size_t>(map_.nodes()), map_.on(node_).size()));
  statuses_.resize(most);
  for (Piece& piece : pieces_) {
    piece.requests.reserve(most);
    piece.messages.reserve(most);
  }
}

TwoLevelOperations::~TwoLevelOperations() {
  const bool in_flight = std::any_of(pieces_.begin(), pieces_.end(),
                                     [](const Piece& piece) { return piece.operation != nullptr; });
  if (in_flight && staging_) keep_forever(std::move(staging_));  // MPI may still write to it
  if (!abandoned_ && std::uncaught_exceptions() == unwinding_) MPI_Comm_free(&comm_);
}

bool TwoLevelOperations::takes(DType dtype, ReduceOp op, Summation order) const {
  if (op != ReduceOp::sum) return true;
  if (dtype == DType::bf16 || dtype == DType::f16) return false;
  return order == Summation::fast || map_.continues_tree();
}

void TwoLevelOperations::abandon() {
  abandoned_ = true;
  meeting_.abandon();
}

std::size_t TwoLevelOperations::count_pieces(const NodeCall& call) const {
  if (call.kind == Kind::barrier) return 1;
  const auto parts = static_cast<std::size_t>(map_.nodes() * map_.most_on_a_node());
  return chunk_count(call.count, elements(call) * (call.kind == Kind::all_reduce ? parts : 1));
}

std::uint64_t TwoLevelOperations::begin(const NodeCall& call) {
  if (!staging_) {
    staging_ = aligned_memory(kPieces * staging_bytes_);
    for (std::size_t p = 0; p < kPieces; ++p)
      pieces_[p].staging = staging_.get() + p * staging_bytes_;
  }
  at(next_) = {.call = call, .sequence = next_, .pieces = count_pieces(call)};
  meeting_.arrive(next_, call);
  return next_++;
}

bool TwoLevelOperations::advance(std::uint64_t sequence) {
  for (std::size_t k = 0; k < kPieces && oldest_ <= sequence && step(); ++k) continue;
  return oldest_ > sequence;
}

void TwoLevelOperations::complete(std::uint64_t sequence) {
  double deadline = 0;
  int idle = 0;
  while (oldest_ <= sequence) {
    if (step()) {
      idle = 0, deadline = 0;
      continue;
    }
    meeting_.pause(++idle);
    if (timeout_ <= 0 || idle % 64 != 0) continue;
    const double now = now_seconds();
    if (deadline == 0) deadline = now + timeout_;
    if (now > deadline) time_out();
  }
}

bool TwoLevelOperations::step() {
  bool moved = false;
  for (std::uint64_t k = 0; k < kPieces; ++k) {  // the oldest first
    Piece& piece = pieces_[(begun_ + k) % kPieces];
    if (piece.operation == nullptr || !messages_done(piece)) continue;
    proceed(piece);
    moved = true;
  }
  moved |= begin_piece();
  moved |= publish();
  moved |= retire();
  return moved;
}

bool TwoLevelOperations::all_arrived(Operation& operation) {
  if (operation.arrived) return true;
  if (!meeting_.reached(Stage::arrived, operation.sequence)) return false;
  meeting_.require_same(operation.sequence, operation.call);
  return operation.arrived = true;
}

// All ranks cut alike and begin in the same order, so that a piece has one number everywhere.
bool TwoLevelOperations::begin_piece() {
  Piece& piece = pieces_[begun_ % kPieces];
  if (piece.operation != nullptr) return false;
  while (cutting_ < next_ && at(cutting_).begun == at(cutting_).pieces) ++cutting_;
  if (cutting_ == next_ || !all_arrived(at(cutting_))) return false;
  piece.operation = &at(cutting_);
  piece.index = piece.operation->begun++;
  piece.phase = 0;
  piece.tag = static_cast<int>(begun_++ % kTags);
  proceed(piece);
  return true;
}

bool TwoLevelOperations::publish() {
  const std::uint64_t before = publishing_;
  while (publishing_ < next_ && all_arrived(at(publishing_)) &&
         at(publishing_).finished == at(publishing_).pieces)
    meeting_.finish(publishing_++);
  return publishing_ != before;
}

bool TwoLevelOperations::retire() {
  const std::uint64_t before = oldest_;
  while (oldest_ < publishing_ && meeting_.reached(Stage::done, oldest_)) ++oldest_;
  return oldest_ != before;
}

void TwoLevelOperations::proceed(Piece& piece) {
  do {
    piece.requests.clear();
    piece.messages.clear();
    if (!next_phase(piece)) {
      ++piece.operation->finished;
      piece.operation = nullptr;
      return;
    }
    ++piece.phase;
  } while (piece.messages.empty());
  post(piece);
}

bool TwoLevelOperations::next_phase(Piece& piece) {
  switch (piece.operation->call.kind) {
    case Kind::all_reduce:
      return all_reduce(piece);
    case Kind::reduce_scatter:
      return reduce_scatter(piece);
    case Kind::all_gather:
      return all_gather(piece);
    case Kind::barrier:
      return barrier(piece);
  }
  return false;
}

// Each place of a node has a part of the piece, of which each node adds a slice.
bool TwoLevelOperations::all_reduce(Piece& piece) {
  const NodeCall& call = piece.operation->call;
  const std::size_t element = size_of(call.dtype), granule = kCacheLine / element;
  const int nodes = map_.nodes(), places = map_.most_on_a_node();
  const Chunk whole =
      chunk_at(piece.index, call.count, elements(call) * static_cast<std::size_t>(nodes * places));
  if (piece.phase > 2) return false;
  for (std::size_t part = 0; part < places_served_.size(); ++part) {
    const int place = places_served_[part];
    const Chunk share = share_of(whole.count, places, place, granule);
    const std::size_t from = (whole.offset + share.offset) * element;
    const auto slice = [&](int node) { return share_of(share.count, nodes, node, granule); };
    const Chunk own = slice(node_);
    std::byte* const own_at = mine(call, from + own.offset * element);
    if (piece.phase == 0) add_inside(call, from, share.count);
    if (piece.phase == 1) add_across(piece, part, own_at, own.count);
    if (piece.phase == 2) give_inside(call, from, share.count * element);
    for (int node = 0; node < nodes && piece.phase < 2; ++node) {
      if (node == node_) continue;
      const int partner = map_.partner(node, place);
      const Chunk theirs = slice(node);
      std::byte* const theirs_at = mine(call, from + theirs.offset * element);
      if (piece.phase == 0) {
        send(piece, partner, theirs_at, theirs.count * element);
        receive(piece, partner, staged(piece, part, node), own.count * element);
      } else {
        send(piece, partner, own_at, own.count * element);
        receive(piece, partner, theirs_at, theirs.count * element);
      }
    }
  }
  return true;
}

// What a rank of another node gets, its partner here adds and sends.
bool TwoLevelOperations::reduce_scatter(Piece& piece) {
  const NodeCall& call = piece.operation->call;
  const std::size_t element = size_of(call.dtype);
  const Chunk part = chunk_at(piece.index, call.count, elements(call));
  const auto block = [&](int rank) {
    return (static_cast<std::size_t>(rank) * call.count + part.offset) * element;
  };
  if (piece.phase > 1) return false;
  if (piece.phase == 1) {
    add_across(piece, 0, mine(call, block(rank_)), part.count);
    return true;
  }
  for (const int rank : ranks_served_) {
    add_inside(call, block(rank), part.count);
    send(piece, rank, mine(call, block(rank)), part.count * element);
  }
  add_inside(call, block(rank_), part.count);
  for (int node = 0; node < map_.nodes(); ++node)
    if (node != node_)
      receive(piece, map_.partner(node, place_), staged(piece, 0, node), part.count * element);
  return true;
}

bool TwoLevelOperations::all_gather(Piece& piece) {
  const NodeCall& call = piece.operation->call;
  const std::size_t element = size_of(call.dtype);
  const Chunk part = chunk_at(piece.index, call.count, elements(call));
  const std::size_t bytes = part.count * element;
  const auto block = [&](int rank) {
    return (static_cast<std::size_t>(rank) * call.count + part.offset) * element;
  };
  if (piece.phase > 1) return false;
  if (piece.phase == 1) {
    for (const int rank : ranks_served_) give_inside(call, block(rank), bytes);
    return true;
  }
  for (int node = 0; node < map_.nodes(); ++node)
    if (node != node_) send(piece, map_.partner(node, place_), mine(call, block(rank_)), bytes);
  for (const int rank : ranks_served_) receive(piece, rank, mine(call, block(rank)), bytes);
  give_inside(call, block(rank_), bytes);
  return true;
}

// One rank of each node tells and hears of more of them in each round; its neighbours wait for it.
bool TwoLevelOperations::barrier(Piece& piece) {
  const int nodes = map_.nodes(), distance = 1 << piece.phase;
  if (place_ != 0 || distance >= nodes) return false;
  piece.messages.push_back(
      {.send = false, .peer = map_.partner((node_ + nodes - distance) % nodes, 0)});
  piece.messages.push_back({.send = true, .peer = map_.partner((node_ + distance) % nodes, 0)});
  return true;
}

void TwoLevelOperations::send(Piece& piece, int to, std::byte* data, std::size_t bytes) {
  if (bytes > 0) piece.messages.push_back({.send = true, .data = data, .bytes = bytes, .peer = to});
}

void TwoLevelOperations::receive(Piece& piece, int from, std::byte* data, std::size_t bytes) {
  if (bytes > 0)
    piece.messages.push_back({.send = false, .data = data, .bytes = bytes, .peer = from});
}

// What is received is posted first, so that it finds its place. The phases of a reduction have tags
// of their own, for a partner may be one ahead.
void TwoLevelOperations::post(Piece& piece) {
  const int tag = 2 * piece.tag + piece.phase % 2;
  piece.requests.resize(piece.messages.size(), MPI_REQUEST_NULL);
  for (const bool sending : {false, true})
    for (std::size_t k = 0; k < piece.messages.size(); ++k) {
      const Message& m = piece.messages[k];
      const auto bytes = static_cast<int>(m.bytes);
      if (m.send != sending) continue;
      if (sending)
        mpi_check(MPI_Isend(m.data, bytes, MPI_BYTE, m.peer, tag, comm_, &piece.requests[k]),
                  "MPI_Isend", label_);
      else
        mpi_check(MPI_Irecv(m.data, bytes, MPI_BYTE, m.peer, tag, comm_, &piece.requests[k]),
                  "MPI_Irecv", label_);
    }
}

bool TwoLevelOperations::messages_done(Piece& piece) {
  int done = 0;
  mpi_check(MPI_Testall(static_cast<int>(piece.requests.size()), piece.requests.data(), &done,
                        statuses_.data()),
            "MPI_Testall", label_);
  if (done == 0) return false;
  for (std::size_t k = 0; k < piece.messages.size(); ++k) {
    const Message& m = piece.messages[k];
    if (m.send) continue;
    int got = 0;
    MPI_Get_count(&statuses_[k], MPI_BYTE, &got);
    if (static_cast<std::size_t>(got) != m.bytes)
      throw CommError(
          fmt::format("{}: {} bytes from rank {} for {}, {} expected", label_, got, m.peer,
                      meeting_.describe(piece.operation->sequence, piece.operation->call), m.bytes),
          "every rank of a communicator makes the same calls in the same order");
  }
  return true;
}

std::byte* TwoLevelOperations::mine(const NodeCall& call, std::size_t byte) const {
  return (*windows_)[call.window].block(place_) + call.offset + byte;
}

std::byte* TwoLevelOperations::staged(const Piece& piece, std::size_t part, int node) const {
  const std::size_t others = static_cast<std::size_t>(map_.nodes() - 1),
                    other = static_cast<std::size_t>(node < node_ ? node : node - 1);
  return piece.staging + (part * others + other) * message_bytes_;
}

void TwoLevelOperations::add_inside(const NodeCall& call, std::size_t byte, std::size_t count) {
  if (neighbours_ == 1 || count == 0) return;
  const SharedWindow& window = (*windows_)[call.window];
  for (int p = 0; p < neighbours_; ++p)
    inputs_[static_cast<std::size_t>(p)] = window.block(p) + call.offset + byte;
  void* out = mine(call, byte);
  tree_reduce(inputs_.data(), neighbours_, &out, 1, count, call.dtype, call.op);
}

void TwoLevelOperations::add_across(const Piece& piece, std::size_t part, std::byte* own,
                                    std::size_t count) {
  if (count == 0) return;
  const NodeCall& call = piece.operation->call;
  for (int node = 0; node < map_.nodes(); ++node)
    inputs_[static_cast<std::size_t>(node)] = node == node_ ? own : staged(piece, part, node);
  void* out = own;
  tree_reduce(inputs_.data(), map_.nodes(), &out, 1, count, call.dtype, call.op);
}

void TwoLevelOperations::give_inside(const NodeCall& call, std::size_t byte, std::size_t bytes) {
  const SharedWindow& window = (*windows_)[call.window];
  const bool streaming = call.count * size_of(call.dtype) >= streaming_bytes_;
  for (int k = 1; k < neighbours_; ++k)
    bulk_copy(window.block((place_ + k) % neighbours_) + call.offset + byte, mine(call, byte),
              bytes, streaming);
}

void TwoLevelOperations::time_out() {
  const Operation& operation = at(oldest_);
  if (!operation.arrived) meeting_.time_out(Stage::arrived, oldest_, operation.call);
  std::vector<int> silent;
  for (const Piece& piece : pieces_)
    for (std::size_t k = 0; piece.operation != nullptr && k < piece.requests.size(); ++k)
      if (piece.requests[k] != MPI_REQUEST_NULL) silent.push_back(piece.messages[k].peer);
  if (silent.empty()) meeting_.time_out(Stage::done, oldest_, operation.call);
  std::sort(silent.begin(), silent.end());
  silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
  std::vector<std::string> names;
  for (const int rank : silent) names.push_back(std::to_string(rank));
  throw CommError(
      fmt::format("{} {} waited {} for messages from or to rank{} {} on another node", label_,
                  meeting_.describe(oldest_, operation.call), format_duration(timeout_),
                  plural(static_cast<int>(silent.size())), join(names, ", ")),
      "look for an earlier error of that rank, a node that is down or a link that is cut");
}

}  // namespace choir
