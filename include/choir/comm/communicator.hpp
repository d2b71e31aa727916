#pragma once
// A named group of ranks and its operations. Every rank of the group must call the collectives in
// the same order. Counts are in elements and may exceed 2^31, because every kind divides them into
// chunks. Errors are CommErrors that name the call, the communicator, the rank and the text of MPI
// or NCCL.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "choir/comm/flight_log.hpp"
#include "choir/core/dtype.hpp"

namespace choir {

class CallCheck;

enum class ReduceOp { sum, max, min };

/// `fast`: the fastest order (the result is still identical on every rank). `tree`: a fixed binary
/// tree over ranks, ((0+1)+(2+3))+..., so that a sum over a power of two of ranks continues the
/// tree that each rank uses inside (reproducible mode). Only for sums.
enum class Summation { fast, tree };

/// Memory that a communicator reduces and gathers in place. Its creation and destruction are
/// collective.
class CommBuffer {
 public:
  virtual ~CommBuffer() = default;
  virtual void* data() const = 0;  ///< this rank's block, 64-byte aligned, zeroed
  virtual std::size_t bytes() const = 0;
  virtual bool shared() const = 0;  ///< in a node-shared window
  /// Block of another rank of the group if it can be read and written directly, else nullptr. The
  /// caller orders the accesses (for example by barrier() of the same communicator).
  virtual void* block(int /*rank*/) const { return nullptr; }
};

/// An operation in flight. wait() completes it (on a device: for work queued later) and must be
/// called exactly once. A communicator works on its operations in the order of their starts, but
/// later ones may be started and waited for before an earlier one is waited for, as long as at most
/// kMaxInFlight are in flight: PartialGradients hides sums behind the next backward pass in that
/// way. test() makes progress and returns true if wait() would return at once.
class CommRequest {
 public:
  virtual ~CommRequest() = default;
  void wait();
  bool test() { return do_test(); }

 protected:
  virtual void do_wait() = 0;
  virtual bool do_test() = 0;

 private:
  friend class Communicator;
  friend class ExchangeRequest;
  std::uint64_t record_ = 0;  ///< of the flight recorder; 0 for none
  bool queues_ = false;
};

/// One message of an exchange, from or into `data`.
struct Message {
  bool send = false;
  void* data = nullptr;  ///< only read if the message is sent
  std::size_t bytes = 0;
  int peer = 0;  ///< another rank
  int tag = 0;   ///< tag as in send() and receive()
};

/// An exchange in flight.
class ExchangeRequest : public CommRequest {
 public:
  /// Completes the received messages (on a device: all messages, for work queued later); sent
  /// messages may still be in flight. The call is optional, and may be made for a later exchange
  /// first; wait() is required in any case.
  void wait_received();

 protected:
  virtual void do_wait_received() = 0;
};

/// Bytes and calls as in nccl-tests: `bytes` is the payload of one rank.
struct CommTraffic {
  std::int64_t calls = 0;
  double bytes = 0;
  double seconds = 0;  ///< time inside blocking calls and wait(): exposed time
  bool operator==(const CommTraffic&) const = default;
};

/// A communicator works on host memory or, if it is staged or nccl, on memory of the one device for
/// which it was created. The latter runs in order with the main stream of the device: an operation
/// sees the work queued before it, and work queued after its wait() sees the result. "Blocking"
/// then refers to this order and does not mean that the host waits.
///
/// Every call of every kind is first recorded in the flight recorder (flight_log.hpp) and then
/// passed to the do_...() of the kind. Nothing is recorded for a single rank.
class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "mpi", "node" (shared window), "two-level" (shared windows and messages between them),
  /// "staged", "nccl" or "null"
  virtual const char* transport() const = 0;

  /// Collective. The block may be used with any call; in-place collectives of this communicator on
  /// it (or on parts of it at equal offsets) take the fast path.
  virtual std::unique_ptr<CommBuffer> allocate(std::size_t bytes) = 0;

  // Collective, blocking. `data` is read and overwritten in place.
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                  Summation order = Summation::fast);
  /// In place on `size() * count` elements: afterwards the r-th block of `count` on rank r holds
  /// the sum.
  void reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                      Summation order = Summation::fast);
  /// In place on `size() * count` elements: rank r contributes its r-th block.
  void all_gather(void* data, std::size_t count, DType dtype);
  void broadcast(void* data, std::size_t bytes, int root);
  void reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root);
  /// `counts`/`offsets` in bytes, one per rank, significant at the root; `receive` gets `bytes`.
  void scatter(const void* send, const std::int64_t* counts, const std::int64_t* offsets,
               void* receive, std::size_t bytes, int root);
  void gather(const void* send, std::size_t bytes, void* receive, const std::int64_t* counts,
              const std::int64_t* offsets, int root);
  /// Equal blocks of `bytes` to and from every rank.
  void all_to_all(const void* send, void* receive, std::size_t bytes);
  void send(const void* data, std::size_t bytes, int to, int tag);
  void receive(void* data, std::size_t bytes, int from, int tag);
  void barrier();

  // Asynchronous forms. The memory must not change until wait(). At most kMaxInFlight are in
  // flight.
  static constexpr int kMaxInFlight = 64;
  CommRequest& start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                Summation order = Summation::fast);
  CommRequest& start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                    Summation order = Summation::fast);
  CommRequest& start_all_gather(void* data, std::size_t count, DType dtype);
  /// Posts messages together; none of them waits for another, and they count as one call. Not
  /// collective. `messages` and their memory must not change until wait(). The messages from one
  /// rank to another must be received in the order in which they are sent, with the same bytes and
  /// tags, but may be divided into exchanges differently. Communicators for host memory work on all
  /// exchanges in flight (only inside calls, because MPI makes no progress by itself). Those for
  /// device memory work on one after the other, beside the main stream, in the order of the starts;
  /// the starts must therefore be ordered such that exchanges that are waited for at once would not
  /// deadlock.
  ExchangeRequest& start_exchange(std::span<const Message> messages);
  /// Maximum number of other ranks in one exchange.
  static constexpr int kMaxPeers = 4;

  /// Collective: a communicator over the same ranks with its own message space, for another thread.
  virtual std::unique_ptr<Communicator> duplicate(const std::string& name) = 0;

  const CommTraffic& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

  /// Stops recording and checking of calls, for a communicator inside another one, which records
  /// them. Local.
  void silence();
  /// An id that is equal on all ranks of this communicator and differs from those of others; 0 if
  /// nothing is recorded. Local.
  std::uint64_t id() const { return id_; }
  /// From now on all ranks agree on each collective before it begins (see CallCheck); CommError
  /// names the first rank that differs. Must be called on every rank of the communicator or on
  /// none. Local.
  void check_calls(std::unique_ptr<CallCheck> check);

 protected:
  Communicator(std::string name, int rank, int size);
  /// Called by the constructors of kinds that communicate with other ranks: recording begins here.
  void identify(std::uint64_t id);
  /// The id of a communicator that is built on `other`, one for each name.
  static std::uint64_t derived_id(const Communicator& other, const std::string& name);
  CommTraffic traffic_;

  virtual void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                             Summation order) = 0;
  virtual void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                 Summation order) = 0;
  virtual void do_all_gather(void* data, std::size_t count, DType dtype) = 0;
  virtual void do_broadcast(void* data, std::size_t bytes, int root) = 0;
  virtual void do_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) = 0;
  virtual void do_scatter(const void* send, const std::int64_t* counts, const std::int64_t* offsets,
                          void* receive, std::size_t bytes, int root) = 0;
  virtual void do_gather(const void* send, std::size_t bytes, void* receive,
                         const std::int64_t* counts, const std::int64_t* offsets, int root) = 0;
  virtual void do_all_to_all(const void* send, void* receive, std::size_t bytes) = 0;
  virtual void do_send(const void* data, std::size_t bytes, int to, int tag) = 0;
  virtual void do_receive(void* data, std::size_t bytes, int from, int tag) = 0;
  virtual void do_barrier() = 0;
  virtual CommRequest& do_start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                           Summation order) = 0;
  virtual CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype,
                                               ReduceOp op, Summation order) = 0;
  virtual CommRequest& do_start_all_gather(void* data, std::size_t count, DType dtype) = 0;
  virtual ExchangeRequest& do_start_exchange(std::span<const Message> messages) = 0;
  /// True if calls return as soon as they are queued on a device.
  virtual bool queues() const { return false; }

  /// Throws the error of an internal check if `messages` are invalid. Returns their total bytes.
  std::size_t check_exchange(std::span<const Message> messages, int tags) const;

 private:
  std::uint64_t open(CallRecord call, std::uint32_t detail, std::uint64_t count);
  template <class F>
  void blocking(CallRecord call, std::uint32_t detail, std::uint64_t count, const F& f);
  template <class F>
  auto& started(const CallRecord& call, std::uint32_t detail, std::uint64_t count, const F& f);
  std::size_t of_all(std::size_t bytes) const { return bytes * static_cast<std::size_t>(size_); }

  std::string name_;
  int rank_;
  int size_;
  SharedName shared_name_;
  std::uint64_t id_ = 0;
  int place_ = -1;  ///< index in the flight log
  std::uint64_t collectives_ = 0, messages_ = 0;
  std::unique_ptr<CallCheck> check_;
};

}  // namespace choir
