#pragma once
// The collectives of a group that spans nodes, for memory in windows: the ranks of each node add
// in shared memory, each works with its partners on other nodes on a part of the result, and gives
// it to its neighbours, again in shared memory. Each node sends what it must and no more: an
// all-reduce of B bytes over n nodes takes 2 (n-1)/n B a node, the other two half of that.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/aligned_memory.hpp"
#include "src/comm/node/node_lanes.hpp"
#include "src/comm/node/node_map.hpp"
#include "src/comm/node/window_operations.hpp"

namespace choir {

/// Operations are cut into pieces, several of which are on their way at once. A piece goes through
/// phases: work in memory, then messages, until it is done. The ranks that have the same place on
/// each node work together in rounds (node_rounds.hpp): O(log n) messages a rank and piece where n
/// has small factors. Whoever waits works on the pieces of all operations.
class TwoLevelOperations final : public WindowOperations {
 public:
  /// Collective over `group`, of which `inside` has the ranks of this node in the same order.
  TwoLevelOperations(MPI_Comm group, MPI_Comm inside, NodeMap map, const std::string& label,
                     const NodeOptions& options, std::shared_ptr<const NodeWindows> windows);
  ~TwoLevelOperations() override;
  TwoLevelOperations(const TwoLevelOperations&) = delete;
  TwoLevelOperations& operator=(const TwoLevelOperations&) = delete;

  /// Not sums of 16 bits, nor those in tree order, where nodes are not branches of that tree.
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
    Operation* operation = nullptr;  ///< nullptr: free
    std::size_t index = 0;           ///< in the operation
    int phase = 0, tag = 0;
    std::vector<MPI_Request> requests;
    std::vector<Message> messages;  ///< that the requests are of
    std::byte* staging = nullptr;   ///< what comes and is to be added
    std::byte* work = nullptr;      ///< what is not worked on in blocks
  };
  Operation& at(std::uint64_t sequence) { return ring_[sequence % ring_.size()]; }
  std::size_t count_pieces(const NodeCall& call) const;
  /// What sums of a node are sent as: of 16 bits as f32, so that they are rounded once, at the end.
  DType between_nodes(const NodeCall& call) const;
  std::size_t elements(const NodeCall& call) const {
    return message_bytes_ / size_of(between_nodes(call));
  }

  /// All that can be done without waiting; whether that was anything.
  bool step();
  bool begin_piece();
  bool publish();
  bool retire();
  bool all_arrived(Operation& operation);

  /// Does phases until one has messages to wait for, or the piece is done.
  void proceed(Piece& piece);
  /// Work and messages of the next phase; false when there is none.
  bool next_phase(Piece& piece);
  const NodeLanes& lanes(const NodeCall& call) const;
  bool all_reduce(Piece& piece);
  bool reduce_scatter(Piece& piece);
  bool all_gather(Piece& piece);
  bool barrier(Piece& piece);

  NodeLane lane(const Piece& piece, std::size_t part) const;
  /// Messages of a round in which slices of sums are given up for sums of the slices that stay, and
  /// of one backwards, in which complete ones are put together.
  void divide(Piece& piece, const NodeLane& lane, int round);
  void put_together(Piece& piece, const NodeLane& lane, int round);
  /// Adds what has come in a round; after the last one as the type of the call, to its place.
  void add_round(const Piece& piece, const NodeLane& lane, int round, std::byte* result);
  void send(Piece& piece, int to, std::byte* data, std::size_t bytes);
  void receive(Piece& piece, int from, std::byte* data, std::size_t bytes);
  void post(Piece& piece);
  bool messages_done(Piece& piece);

  std::byte* mine(const NodeCall& call, std::size_t byte) const;
  /// The first byte in a block of what a piece has of the block of a rank.
  std::size_t block_of(const Piece& piece, int rank) const;
  std::byte* staged(const Piece& piece, const NodeLane& lane, int round, int digit) const;
  /// Adds the blocks of this node at a place.
  void add_inside(const NodeCall& call, std::size_t byte, std::size_t count, std::byte* to);
  /// Adds so many inputs_ as the call says, of one type as another.
  void add(const NodeCall& call, int inputs, std::byte* to, std::size_t count, DType from,
           DType as);
  /// Copies to all blocks of this node but where it comes from.
  void give_inside(const NodeCall& call, std::size_t byte, std::size_t bytes,
                   const std::byte* from);

  [[noreturn]] void time_out();

  NodeMap map_;
  std::string label_;
  MPI_Comm comm_ = MPI_COMM_NULL;  // for these messages alone
  double timeout_;
  std::size_t message_bytes_, streaming_bytes_;
  int rank_ = 0, node_ = 0, place_ = 0, neighbours_ = 1;
  std::vector<int> places_served_;
  NodeLanes quick_, in_tree_;  // for sums in any order, or in that of a tree
  NodeRendezvous meeting_;
  std::shared_ptr<const NodeWindows> windows_;
  std::size_t staging_bytes_;  // of a piece
  AlignedMemory staging_, work_;
  std::vector<const void*> inputs_;
  std::vector<MPI_Status> statuses_;
  std::array<Operation, Communicator::kMaxInFlight> ring_;
  std::vector<Piece> pieces_;     ///< that are on their way at once
  std::uint64_t next_ = 1;        ///< operation that begins next
  std::uint64_t cutting_ = 1;     ///< first that has pieces to begin
  std::uint64_t publishing_ = 1;  ///< first whose share of this rank is not done
  std::uint64_t oldest_ = 1;      ///< first that is not complete
  std::uint64_t begun_ = 0;       ///< pieces
  bool abandoned_ = false;
  int unwinding_;
};

}  // namespace choir
