#pragma once
// A named group of ranks and what they can do together. Every rank of it must call its collectives
// in the same order. Counts are in elements and may exceed 2^31 (everything goes through one
// chunking helper). Errors are CommErrors that name the call, the communicator, the rank and the
// text of MPI or NCCL.
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

/// `fast`: whatever order is quickest (the result is still identical on every rank).
/// `tree`: a fixed binary tree over ranks, ((0+1)+(2+3))+..., so that a sum over a power of two of
/// ranks continues the tree each rank used inside (reproducible mode). Exists for sums only.
enum class Summation { fast, tree };

/// Memory that a communicator reduces and gathers in place. Collective to create and to destroy.
class CommBuffer {
 public:
  virtual ~CommBuffer() = default;
  virtual void* data() const = 0;  ///< this rank's block, 64-byte aligned, zeroed
  virtual std::size_t bytes() const = 0;
  virtual bool shared() const = 0;  ///< in a node-shared window
  /// Block of another rank of the group where it can be read and written directly, else nullptr.
  /// Who may touch it when is up to the caller (barrier() of the same communicator orders
  /// accesses).
  virtual void* block(int /*rank*/) const { return nullptr; }
};

/// An operation in flight. wait() completes it (on a device: for what is queued later) and must be
/// called exactly once, in the order of the starts; test() makes progress and says whether wait()
/// would return at once.
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
  std::uint64_t record_ = 0;  ///< of the flight recorder; 0: none
  bool queues_ = false;
};

/// One message of an exchange, from or into `data`.
struct Message {
  bool send = false;
  void* data = nullptr;  ///< of what is sent: only read
  std::size_t bytes = 0;
  int peer = 0;  ///< another rank
  int tag = 0;   ///< as of send() and receive()
};

/// An exchange in flight.
class ExchangeRequest : public CommRequest {
 public:
  /// Completes what is received (on a device: all of it, for what is queued later); what is sent
  /// may still be on its way. May be left out, and called for a later exchange first; wait() is due
  /// all the same.
  void wait_received();

 protected:
  virtual void do_wait_received() = 0;
};

/// Bytes and calls, as nccl-tests counts them: `bytes` is the payload of one rank.
struct CommTraffic {
  std::int64_t calls = 0;
  double bytes = 0;
  double seconds = 0;  ///< inside blocking calls and wait(): exposed time
  bool operator==(const CommTraffic&) const = default;
};

/// A communicator is for host memory or, if it is staged or nccl, for memory of the one device it
/// was made for. The latter runs in order with the main stream of the device: an operation sees
/// what was queued before it, and what is queued after its wait() sees the result. "Blocking" then
/// means this order, and not that the host has waited.
///
/// Every call, whatever the kind, is first written into the flight recorder (flight_log.hpp) and
/// then handed to the do_...() of the kind. Nothing is recorded for a single rank.
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

  /// Collective. The block may be used with any call; this communicator's in-place collectives on
  /// it (or on parts of it at equal offsets) are the fast path.
  virtual std::unique_ptr<CommBuffer> allocate(std::size_t bytes) = 0;

  // Collective, blocking. `data` is read and overwritten in place.
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                  Summation order = Summation::fast);
  /// In place on `size() * count` elements: afterwards rank r's r-th block of `count` holds the
  /// sum.
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

  // Asynchronous forms; the memory must stay untouched until wait(). At most kMaxInFlight at a
  // time.
  static constexpr int kMaxInFlight = 64;
  CommRequest& start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                Summation order = Summation::fast);
  CommRequest& start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                    Summation order = Summation::fast);
  CommRequest& start_all_gather(void* data, std::size_t count, DType dtype);
  /// Not collective: messages posted together, none of which waits for another of them, and counted
  /// as one call. `messages` and their memory must stay untouched until wait(). What one rank sends
  /// another must be received in the order in which it is sent, with the same bytes and tags, but
  /// may be parted into exchanges differently. Communicators for host memory work on all exchanges
  /// in flight (inside calls: MPI makes no progress by itself). Those for device memory work on one
  /// after the other, beside the main stream, in the order of the starts: that order must be one in
  /// which exchanges waited for at once would not wait for each other.
  ExchangeRequest& start_exchange(std::span<const Message> messages);
  /// An exchange is with at most this many other ranks.
  static constexpr int kMaxPeers = 4;

  /// Collective: a communicator over the same ranks with its own message space, for another thread.
  virtual std::unique_ptr<Communicator> duplicate(const std::string& name) = 0;

  const CommTraffic& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

  /// Local: calls are no longer recorded or checked. For the inner half of another communicator,
  /// which does the recording.
  void silence();
  /// Local: equal on all ranks of this communicator, and of no other; 0 where nothing is recorded.
  std::uint64_t id() const { return id_; }
  /// Local. From now on all ranks agree on each collective before it begins (see CallCheck), or
  /// CommError names the first that differs. On every rank of the communicator or on none.
  void check_calls(std::unique_ptr<CallCheck> check);

 protected:
  Communicator(std::string name, int rank, int size);
  /// Called by the constructors of kinds that talk to other ranks: from here on calls are recorded.
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
  /// Whether calls return as soon as they are queued on a device.
  virtual bool queues() const { return false; }

  /// It is a programmer's error if `messages` are not as they have to be. Returns the bytes of all.
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
  int place_ = -1;  ///< in the flight log
  std::uint64_t collectives_ = 0, messages_ = 0;
  std::unique_ptr<CallCheck> check_;
};

}  // namespace choir
