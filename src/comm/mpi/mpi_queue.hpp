#pragma once
// Operations in flight over MPI: collectives, whose chunks are posted in one order that is the same
// on every rank; sums with a defined order of additions; and exchanges of messages, of which up to
// kMaxInFlight proceed side by side.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/comm/communicator_parts.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"

namespace choir {

/// The sum of one chunk: slices are sent to their owner, which adds them in the fixed tree of
/// tree_reduce. It serves Summation::tree, bf16 and f16 (for which MPI has no type) and all
/// reduce-scatters, which MPI would add root by root at a third of the speed.
/// Collective: all ranks begin the same chunks with the same tags. Each step posts messages; the
/// next step follows when all of them are done. Memory is borrowed until the end.
class SliceSum {
 public:
  /// Borrows `comm`. Chunks and the staging memory have about `chunk_bytes`.
  SliceSum(MPI_Comm comm, std::string name, int rank, int size, std::size_t chunk_bytes);

  /// Elements of one block of a chunk; in a scattered sum a chunk has one block per rank.
  std::size_t elements_of_block(DType dtype) const { return slot_bytes_ / size_of(dtype); }
  std::size_t elements_of_whole(DType dtype) const { return elements_of_block(dtype) * ranks(); }
  /// Maximum number of requests of a step.
  std::size_t most_requests() const { return 2 * (ranks() - 1); }

  /// Sums `piece` of each of the blocks of `count` elements; each rank receives its own block.
  void begin_scattered(std::byte* blocks, std::size_t count, const Chunk& piece, DType dtype,
                       ReduceOp op, int tag);
  /// Sums `piece` of `data` for all ranks. The messages use `tag` and `tag` + 1.
  void begin_whole(std::byte* data, const Chunk& piece, DType dtype, ReduceOp op, int tag);
  /// Posts the messages of the next step into the first elements of `requests` and returns their
  /// number; 0 at the end.
  std::size_t proceed(std::span<MPI_Request> requests);

 private:
  enum class Step { send_parts, add, send_sums, end };
  struct Slice {
    std::byte* data = nullptr;
    int bytes = 0;
  };

  std::size_t ranks() const { return slices_.size(); }
  void begin(DType dtype, ReduceOp op, int tag, bool whole);
  void add();
  std::size_t post_parts(std::span<MPI_Request> requests);
  std::size_t post_sums(std::span<MPI_Request> requests);
  void receive(void* data, int bytes, int from, int tag, MPI_Request& request) const;
  void send(const Slice& slice, int to, int tag, MPI_Request& request) const;

  MPI_Comm comm_;
  std::string name_;
  int rank_;
  std::size_t slot_bytes_;
  std::vector<Slice> slices_;  ///< slices of this rank's data, by owner
  std::vector<std::byte> staging_;
  std::vector<const void*> inputs_;
  DType dtype_ = DType::f32;
  ReduceOp op_ = ReduceOp::sum;
  int tag_ = 0;
  bool whole_ = false;
  Step step_ = Step::end;
};

/// Divides operations into chunks and posts the chunks of all operations in the order of the
/// starts, because MPI matches nonblocking collectives by their order.
class MpiQueue {
 public:
  enum class Kind { all_reduce, reduce_scatter, all_gather };
  struct Work {
    Kind kind = Kind::all_reduce;
    void* data = nullptr;
    std::size_t count = 0;
    DType dtype = DType::u8;
    ReduceOp op = ReduceOp::sum;
    bool sliced = false;  ///< computed by SliceSum, as all reduce-scatters are
  };

  /// Borrows `comm`, which must serve nothing else. wait() adds its time to `traffic`.
  MpiQueue(MPI_Comm comm, std::string name, int rank, int size, const MpiOptions& options,
           CommTraffic& traffic);
  CommRequest& start(const Work& work) { return push(work); }
  /// Starts the work and waits; the caller counts the time.
  void run(const Work& work);
  /// Waits for everything in flight, so that the communicator can be freed. Collective.
  void drain();

 private:
  static constexpr std::uint64_t kOperations = Communicator::kMaxInFlight;
  static constexpr int kPosted = 8;        // chunks on which MPI works at a time
  static constexpr std::size_t kSums = 2;  // chunks that SliceSum adds at a time
  static constexpr int kFirstTag = 30000, kTags = 2000;

  struct Operation final : CommRequest {
    void do_wait() override { queue->wait(*this); }
    bool do_test() override { return queue->test(*this); }
    MpiQueue* queue = nullptr;
    Work work;
    std::uint64_t sequence = 0;
    std::size_t pieces = 0, posted = 0, finished = 0;
    bool free = true;
    bool done() const { return finished == pieces; }
  };
  struct Sum {
    SliceSum piece;
    Operation* owner = nullptr;
    std::size_t pending = 0;  ///< number of messages
  };

  Operation& push(const Work& work);
  void wait(Operation& operation);
  bool test(Operation& operation);
  /// Completes operations up to this one.
  void complete(Operation& operation);
  /// Posts pieces while there is room.
  void post();
  void post_collective(const Operation& operation, MPI_Request* request);
  void post_broadcast(const Operation& operation, MPI_Request* request);
  void begin_sum(const Operation& operation, Sum& sum);
  void make_sums();
  std::span<MPI_Request> requests_of(std::size_t sum);
  /// Posts the next step of a sum, or retires it.
  void proceed(std::size_t sum);
  /// The oldest operation that has pieces left to post, or nullptr.
  Operation* next_to_post();
  std::size_t piece_limit(const Work& work) const;
  /// Handles a completed request.
  void retire(std::size_t request);

  MPI_Comm comm_;
  std::string name_;
  int rank_, size_;
  MpiOptions options_;
  CommTraffic& traffic_;
  std::array<Operation, kOperations> ring_;
  std::uint64_t next_ = 0;             ///< sequence number of the next start
  std::uint64_t posting_ = 0;          ///< first operation that is not completely posted
  std::vector<MPI_Request> requests_;  ///< kPosted requests, then those of each sum
  std::array<Operation*, kPosted> owners_{};
  std::vector<Sum> sums_;     ///< kSums, created at the first sum
  std::uint64_t summed_ = 0;  ///< chunks summed, for their tags
};

/// Exchanges of messages. All messages of an exchange are posted together, with requests of their
/// own.
class MpiExchanges {
 public:
  /// Borrows `comm`. `label` is for messages; wait() adds its time to `traffic`. No single MPI call
  /// transfers more than `limit` bytes.
  MpiExchanges(MPI_Comm comm, std::string label, std::size_t limit, CommTraffic& traffic);
  /// Allocates only if an exchange has more parts than any before it in its slot (from 8 on).
  ExchangeRequest& start(std::span<const Message> messages) { return push(messages); }
  /// Starts the exchange and waits; the caller counts the time.
  void run(std::span<const Message> messages);

 private:
  struct Piece {
    MPI_Request request = MPI_REQUEST_NULL;
    int bytes = 0, from = -1;  ///< size and sender of a receive
  };
  struct Operation final : ExchangeRequest {
    void do_wait() override;
    void do_wait_received() override;
    bool do_test() override;
    MpiExchanges* owner = nullptr;
    std::vector<Piece> pieces;
    bool free = true;
  };

  Operation& push(std::span<const Message> messages);
  void complete(Operation& operation);
  void post(const Message& message, std::vector<Piece>& pieces);
  void finish(Piece& piece);
  void check_size(const Piece& piece, const MPI_Status& status) const;

  MPI_Comm comm_;
  std::string label_;
  std::size_t limit_;
  CommTraffic& traffic_;
  std::array<Operation, Communicator::kMaxInFlight> ring_;
};

}  // namespace choir
