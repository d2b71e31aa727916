#include "src/comm/node/two_level_operations.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

using Kind = NodeCall::Kind;
using Stage = NodeRendezvous::Stage;

constexpr std::size_t kCacheLine = 64;
constexpr int kTags = 4096;  // far more than pieces in flight, so that no two share a tag

bool is_narrow(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16;
}

// Every piece reserves room for a message from each node. With many nodes there are fewer pieces
// first, and then shorter messages.
constexpr std::size_t kRoom = std::size_t{4} << 20, kFewestPieces = 4, kMostPieces = 16;

std::size_t bytes_of_message(const NodeOptions& options, int nodes) {
  constexpr std::size_t kShortest = std::size_t{16} << 10;
  const std::size_t room = std::max(kShortest, kRoom / static_cast<std::size_t>(nodes));
  return chunk_count(std::min(options.link_message_bytes, room), kCacheLine) * kCacheLine;
}

std::size_t pieces_at_once(std::size_t message_bytes, int nodes) {
  const std::size_t piece = message_bytes * static_cast<std::size_t>(nodes);
  return std::clamp(kFewestPieces * kRoom / piece, kFewestPieces, kMostPieces);
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
      quick_(map_, places_served_, false),
      in_tree_(map_, places_served_, true),
      meeting_(inside, label, options, map_.on(node_)),
      windows_(std::move(windows)),
      pieces_(pieces_at_once(message_bytes_, map_.nodes())),
      unwinding_(std::uncaught_exceptions()) {
  mpi_check(MPI_Comm_dup(group, &comm_), "MPI_Comm_dup", label_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  const auto others = static_cast<std::size_t>(map_.nodes() - 1);
  staging_bytes_ = places_served_.size() * others * message_bytes_;
  const std::size_t most = 2 * places_served_.size() * others + 2;
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
  if (in_flight && work_) keep_forever(std::move(work_));        // or read it
  if (!abandoned_ && std::uncaught_exceptions() == unwinding_) MPI_Comm_free(&comm_);
}

bool TwoLevelOperations::takes(DType dtype, ReduceOp op, Summation order) const {
  const bool any_order = op != ReduceOp::sum || (order == Summation::fast && !is_narrow(dtype));
  return any_order || map_.continues_tree();
}

DType TwoLevelOperations::between_nodes(const NodeCall& call) const {
  const bool adds = (call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter) &&
                    call.op == ReduceOp::sum;
  const bool at_once = map_.most_on_a_node() == 1 && in_tree_.rounds().count() == 1;
  return adds && is_narrow(call.dtype) && !at_once ? DType::f32 : call.dtype;
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
    staging_ = aligned_memory(pieces_.size() * staging_bytes_);
    for (std::size_t p = 0; p < pieces_.size(); ++p)
      pieces_[p].staging = staging_.get() + p * staging_bytes_;
  }
  const bool in_blocks = call.kind == Kind::all_reduce && between_nodes(call) == call.dtype;
  if (!in_blocks && call.kind != Kind::barrier && !work_) {
    const std::size_t bytes =
        places_served_.size() * static_cast<std::size_t>(map_.nodes()) * message_bytes_;
    work_ = aligned_memory(pieces_.size() * bytes);
    for (std::size_t p = 0; p < pieces_.size(); ++p) pieces_[p].work = work_.get() + p * bytes;
  }
  at(next_) = {.call = call, .sequence = next_, .pieces = count_pieces(call)};
  meeting_.arrive(next_, call);
  return next_++;
}

bool TwoLevelOperations::advance(std::uint64_t sequence) {
  for (std::size_t k = 0; k < pieces_.size() && oldest_ <= sequence && step(); ++k) continue;
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
  for (std::uint64_t k = 0; k < pieces_.size(); ++k) {  // oldest piece first
    Piece& piece = pieces_[(begun_ + k) % pieces_.size()];
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

// All ranks divide operations alike and begin the pieces in the same order, so a piece has the same
// number everywhere.
bool TwoLevelOperations::begin_piece() {
  Piece& piece = pieces_[begun_ % pieces_.size()];
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

const NodeLanes& TwoLevelOperations::lanes(const NodeCall& call) const {
  const bool in_any_order =
      call.kind == Kind::all_gather || call.op != ReduceOp::sum || !map_.continues_tree();
  return in_any_order ? quick_ : in_tree_;
}

// In an all-reduce each place has a part of the piece, of which all nodes have slices; otherwise
// the slices are the blocks of the ranks that have this place.
NodeLane TwoLevelOperations::lane(const Piece& piece, std::size_t part) const {
  const NodeCall& call = piece.operation->call;
  const auto nodes = static_cast<std::size_t>(map_.nodes());
  const int place = places_served_[part], places = map_.most_on_a_node();
  NodeLane lane{.part = part,
                .place = place,
                .slices = piece.work + part * nodes * message_bytes_,
                .element = size_of(between_nodes(call)),
                .granule = kCacheLine / size_of(between_nodes(call)),
                .count = chunk_at(piece.index, call.count, elements(call)).count,
                .blocks = true};
  if (call.kind != Kind::all_reduce) return lane;
  const Chunk whole =
      chunk_at(piece.index, call.count, elements(call) * nodes * static_cast<std::size_t>(places));
  const Chunk share = share_of(whole.count, places, place, lane.granule);
  lane.blocks = false;
  lane.count = share.count;
  lane.first = whole.offset + share.offset;
  if (lane.element == size_of(call.dtype)) lane.slices = mine(call, lane.first * lane.element);
  return lane;
}

void TwoLevelOperations::divide(Piece& piece, const NodeLane& lane, int round) {
  const NodeLanes& lanes = this->lanes(piece.operation->call);
  const NodeRounds& all = lanes.rounds();
  const std::size_t own = lanes.held(lane, node_, round + 1).count;
  for (int digit = 0; digit < all.radix(round); ++digit) {
    if (digit == all.digit(node_, round)) continue;
    const int node = all.peer(node_, round, digit), partner = map_.partner(node, lane.place);
    const Chunk theirs = lanes.held(lane, node, round + 1);
    send(piece, partner, lane.slices + theirs.offset, theirs.count);
    receive(piece, partner, staged(piece, lane, round, digit), own);
  }
}

void TwoLevelOperations::put_together(Piece& piece, const NodeLane& lane, int round) {
  const NodeLanes& lanes = this->lanes(piece.operation->call);
  const NodeRounds& all = lanes.rounds();
  const Chunk own = lanes.held(lane, node_, round + 1);
  for (int digit = 0; digit < all.radix(round); ++digit) {
    if (digit == all.digit(node_, round)) continue;
    const int node = all.peer(node_, round, digit), partner = map_.partner(node, lane.place);
    const Chunk theirs = lanes.held(lane, node, round + 1);
    send(piece, partner, lane.slices + own.offset, own.count);
    receive(piece, partner, lane.slices + theirs.offset, theirs.count);
  }
}

void TwoLevelOperations::add_round(const Piece& piece, const NodeLane& lane, int round,
                                   std::byte* result) {
  const NodeCall& call = piece.operation->call;
  const NodeLanes& lanes = this->lanes(call);
  const NodeRounds& all = lanes.rounds();
  const Chunk held = lanes.held(lane, node_, round + 1);
  std::byte* const own = lane.slices + held.offset;
  for (int digit = 0; digit < all.radix(round); ++digit)
    inputs_[static_cast<std::size_t>(digit)] =
        digit == all.digit(node_, round) ? own : staged(piece, lane, round, digit);
  const bool last = round + 1 == all.count();
  add(call, all.radix(round), last ? result : own, held.count / lane.element, between_nodes(call),
      last ? call.dtype : between_nodes(call));
}

bool TwoLevelOperations::all_reduce(Piece& piece) {
  const NodeCall& call = piece.operation->call;
  const NodeLanes& lanes = this->lanes(call);
  const NodeRounds& all = lanes.rounds();
  const int turn = all.count();  // the phase in which sums are complete
  if (piece.phase > 2 * turn) return false;
  for (std::size_t part = 0; part < places_served_.size(); ++part) {
    const NodeLane sums = lane(piece, part);
    NodeLane results = sums;
    results.element = size_of(call.dtype);
    const std::size_t from = sums.first * results.element;
    results.slices = mine(call, from);
    const std::size_t own =
        lanes.begin_of(sums, all.held(node_, turn).first) / sums.element * results.element;
    if (piece.phase == 0) add_inside(call, from, sums.count, sums.slices);
    if (piece.phase > 0 && piece.phase <= turn)
      add_round(piece, sums, piece.phase - 1, results.slices + own);
    if (piece.phase < turn) divide(piece, sums, piece.phase);
    if (piece.phase >= turn && piece.phase < 2 * turn)
      put_together(piece, results, 2 * turn - 1 - piece.phase);
    if (piece.phase == 2 * turn)
      give_inside(call, from, results.count * results.element, results.slices);
  }
  return true;
}

// The blocks of ranks of other nodes are added and sent by their partners on this node.
bool TwoLevelOperations::reduce_scatter(Piece& piece) {
  const NodeCall& call = piece.operation->call;
  const NodeLanes& lanes = this->lanes(call);
  const NodeRounds& all = lanes.rounds();
  if (piece.phase > all.count()) return false;
  for (std::size_t part = 0; part < places_served_.size(); ++part) {
    const NodeLane blocks = lane(piece, part);
    for (int slice = 0; slice < map_.nodes() && piece.phase == 0; ++slice)
      if (map_.has_place(all.owner(slice), blocks.place))
        add_inside(call, block_of(piece, map_.partner(all.owner(slice), blocks.place)),
                   blocks.count, blocks.slices + lanes.begin_of(blocks, slice));
    if (piece.phase > 0)
      add_round(piece, blocks, piece.phase - 1, mine(call, block_of(piece, rank_)));
    if (piece.phase < all.count()) divide(piece, blocks, piece.phase);
  }
  return true;
}

bool TwoLevelOperations::all_gather(Piece& piece) {
  const NodeCall& call = piece.operation->call;
  const NodeLanes& lanes = this->lanes(call);
  const NodeRounds& all = lanes.rounds();
  const int last = all.count();
  if (piece.phase > last) return false;
  for (std::size_t part = 0; part < places_served_.size(); ++part) {
    const NodeLane blocks = lane(piece, part);
    const std::size_t bytes = blocks.count * blocks.element;
    if (piece.phase == 0 && blocks.place == place_) {
      const std::byte* const own = mine(call, block_of(piece, rank_));
      bulk_copy(blocks.slices + lanes.begin_of(blocks, all.held(node_, last).first), own, bytes,
                false);
      give_inside(call, block_of(piece, rank_), bytes, own);
    }
    if (piece.phase < last) put_together(piece, blocks, last - 1 - piece.phase);
    for (int slice = 0; slice < map_.nodes() && piece.phase == last; ++slice)
      if (const int node = all.owner(slice); node != node_ && map_.has_place(node, blocks.place))
        give_inside(call, block_of(piece, map_.partner(node, blocks.place)), bytes,
                    blocks.slices + lanes.begin_of(blocks, slice));
  }
  return true;
}

// One rank of each node synchronises with ever more distant nodes in the rounds; the other ranks of
// the node wait for it.
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

// Receives are posted before sends, so that messages find their buffers. Successive phases have
// different tags, because a partner may be one phase ahead.
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

std::size_t TwoLevelOperations::block_of(const Piece& piece, int rank) const {
  const NodeCall& call = piece.operation->call;
  const std::size_t offset = chunk_at(piece.index, call.count, elements(call)).offset;
  return (static_cast<std::size_t>(rank) * call.count + offset) * size_of(call.dtype);
}

std::byte* TwoLevelOperations::staged(const Piece& piece, const NodeLane& lane, int round,
                                      int digit) const {
  const NodeRounds& all = lanes(piece.operation->call).rounds();
  const int other = digit < all.digit(node_, round) ? digit : digit - 1;
  const auto slots = static_cast<std::size_t>(other * all.held(node_, round + 1).count);
  return piece.staging +
         (lane.part * static_cast<std::size_t>(map_.nodes() - 1) + slots) * message_bytes_;
}

void TwoLevelOperations::add_inside(const NodeCall& call, std::size_t byte, std::size_t count,
                                    std::byte* to) {
  if (count == 0 || (neighbours_ == 1 && to == mine(call, byte))) return;
  const SharedWindow& window = (*windows_)[call.window];
  for (int p = 0; p < neighbours_; ++p)
    inputs_[static_cast<std::size_t>(p)] = window.block(p) + call.offset + byte;
  add(call, neighbours_, to, count, call.dtype, between_nodes(call));
}

void TwoLevelOperations::add(const NodeCall& call, int inputs, std::byte* to, std::size_t count,
                             DType from, DType as) {
  void* out = to;
  if (from != as) return tree_sum(inputs_.data(), inputs, out, count, from, as);
  tree_reduce(inputs_.data(), inputs, &out, 1, count, from, call.op);
}

void TwoLevelOperations::give_inside(const NodeCall& call, std::size_t byte, std::size_t bytes,
                                     const std::byte* from) {
  const SharedWindow& window = (*windows_)[call.window];
  const bool streaming = call.count * size_of(call.dtype) >= streaming_bytes_;
  for (int k = 0; k < neighbours_; ++k) {
    std::byte* const to = window.block((place_ + k) % neighbours_) + call.offset + byte;
    if (to != from) bulk_copy(to, from, bytes, streaming);
  }
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
