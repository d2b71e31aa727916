#pragma once
// Collectives of a group that spans nodes, on memory in windows. The ranks of each node add in
// shared memory; each rank and its partners on other nodes complete a part of the result, and it
// writes that part to the blocks of its node. The traffic is minimal: an all-reduce of B bytes over
// n nodes sends 2 (n-1)/n B per node, the other two collectives half of that.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/communicator_parts.hpp"
#include "src/comm/node/node_operations.hpp"
#include "src/comm/node/node_topology.hpp"

namespace choir {

/// Operations are divided into pieces, several of which are in flight at once. A piece passes
/// through phases of work in memory followed by messages, until it is done. The ranks that have the
/// same place on each node work together in rounds (node_topology.hpp): O(log n) messages per rank
/// and piece if n has small factors. A rank that waits works on the pieces of all operations.
class TwoLevelOperations final : public WindowOperations {
 public:
  /// Collective over `group`; `inside` has the ranks of this node in the same order.
  TwoLevelOperations(MPI_Comm group, MPI_Comm inside, NodeMap map, const std::string& label,
                     const NodeOptions& options, std::shared_ptr<const NodeWindows> windows);
  ~TwoLevelOperations() override;
  TwoLevelOperations(const TwoLevelOperations&) = delete;
  TwoLevelOperations& operator=(const TwoLevelOperations&) = delete;

  /// False for sums of 16-bit types or in tree order if the nodes are not branches of that tree.
  bool takes(DType dtype, ReduceOp op, Summation order) const override;
  std::uint64_t next() const override { return next_; }
  std::uint64_t begin(const NodeCall& call) override;
  void complete(std::uint64_t sequence) override;
  bool advance(std::uint64_t sequence) override;
  void abandon() override;

 private:
  struct Operation {
    NodeCall call;
    std::uint64_t sequence = 0;
    std::size_t pieces = 0, begun = 0, finished = 0;
    bool arrived = false;
  };
  struct Piece {
    Operation* operation = nullptr;  ///< nullptr: the piece is free
    std::size_t index = 0;           ///< in the operation
    int phase = 0, tag = 0;
    std::vector<MPI_Request> requests;
    std::vector<Message> messages;  ///< the messages of the requests
    std::byte* staging = nullptr;   ///< received data that will be added
    std::byte* work = nullptr;      ///< sums that are not computed in blocks of the window
  };
  Operation& at(std::uint64_t sequence) { return ring_[sequence % ring_.size()]; }
  std::size_t count_pieces(const NodeCall& call) const;
  /// Type in which sums are sent between nodes: f32 for 16-bit types, so that they are rounded
  /// once, at the end.
  DType between_nodes(const NodeCall& call) const;
  std::size_t elements(const NodeCall& call) const {
    return message_bytes_ / size_of(between_nodes(call));
  }

  /// Does all that is possible without waiting. Returns true if there was anything to do.
  bool step();
  bool begin_piece();
  bool publish();
  bool retire();
  bool all_arrived(Operation& operation);

  /// Runs phases until one has messages to wait for, or the piece is done.
  void proceed(Piece& piece);
  /// Work and messages of the next phase; returns false if there is none.
  bool next_phase(Piece& piece);
  const NodeLanes& lanes(const NodeCall& call) const;
  bool all_reduce(Piece& piece);
  bool reduce_scatter(Piece& piece);
  bool all_gather(Piece& piece);
  bool barrier(Piece& piece);

  NodeLane lane(const Piece& piece, std::size_t part) const;
  /// divide() sends the messages of a round in which a node passes slices of sums on and receives
  /// sums of the slices that it keeps; put_together() those of a reverse round, which gathers
  /// complete slices.
  void divide(Piece& piece, const NodeLane& lane, int round);
  void put_together(Piece& piece, const NodeLane& lane, int round);
  /// Adds the data received in a round. After the last round the result has the type of the call
  /// and is written to its place.
  void add_round(const Piece& piece, const NodeLane& lane, int round, std::byte* result);
  void send(Piece& piece, int to, std::byte* data, std::size_t bytes);
  void receive(Piece& piece, int from, std::byte* data, std::size_t bytes);
  void post(Piece& piece);
  bool messages_done(Piece& piece);

  std::byte* mine(const NodeCall& call, std::size_t byte) const;
  /// Offset in a block at which a piece's part of the block of `rank` begins.
  std::size_t block_of(const Piece& piece, int rank) const;
  std::byte* staged(const Piece& piece, const NodeLane& lane, int round, int digit) const;
  /// Adds the blocks of this node at an offset.
  void add_inside(const NodeCall& call, std::size_t byte, std::size_t count, std::byte* to);
  /// Adds the first `inputs` of inputs_ with the operation of the call; converts from `from` to
  /// `as`.
  void add(const NodeCall& call, int inputs, std::byte* to, std::size_t count, DType from,
           DType as);
  /// Copies data to all blocks of this node except the block that holds it.
  void give_inside(const NodeCall& call, std::size_t byte, std::size_t bytes,
                   const std::byte* from);

  [[noreturn]] void time_out();

  NodeMap map_;
  std::string label_;
  MPI_Comm comm_ = MPI_COMM_NULL;  // used only for these messages
  double timeout_;
  std::size_t message_bytes_, streaming_bytes_;
  int rank_ = 0, node_ = 0, place_ = 0, neighbours_ = 1;
  std::vector<int> places_served_;
  NodeLanes quick_, in_tree_;  // for sums in any order, and for sums in tree order
  NodeRendezvous meeting_;
  std::shared_ptr<const NodeWindows> windows_;
  std::size_t staging_bytes_;  // bytes per piece
  AlignedMemory staging_, work_;
  std::vector<const void*> inputs_;
  std::vector<MPI_Status> statuses_;
  std::array<Operation, Communicator::kMaxInFlight> ring_;
  std::vector<Piece> pieces_;     ///< pieces in flight
  std::uint64_t next_ = 1;        ///< number of the next operation
  std::uint64_t cutting_ = 1;     ///< first operation that has pieces to begin
  std::uint64_t publishing_ = 1;  ///< first operation in which this rank's share is not done
  std::uint64_t oldest_ = 1;      ///< first operation that is not complete
  std::uint64_t begun_ = 0;       ///< number of pieces begun
  bool abandoned_ = false;
  int unwinding_;
};

}  // namespace choir
