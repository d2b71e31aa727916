#include "choir/comm/staged_communicator.hpp"

#include <algorithm>

#include "choir/comm/chunks.hpp"
#include "choir/comm/mpi_communicator.hpp"
#include "choir/core/error.hpp"
#include "src/comm/staged_exchange.hpp"
#include "src/comm/staged_jobs.hpp"
#include "src/comm/staged_pipe.hpp"

namespace choir {
namespace {

using Kind = StagedJobs::Kind;
using Work = StagedJobs::Work;

constexpr int kBlockTag = 29999;  // gather and scatter; the calls of others end below

std::byte* at(void* data, std::size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}
const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

/// The collectives, piece by piece.
class StagedWorker final : public StagedJobs::Worker {
 public:
  StagedWorker(std::unique_ptr<Communicator> host, Device& device, std::size_t slot_bytes)
      : host_(std::move(host)),
        ranks_(static_cast<std::size_t>(host_->size())),
        mine_(static_cast<std::size_t>(host_->rank())),
        pipe_(*host_, device, std::max(slot_bytes, 2 * ranks_ * kLeastBytes)),
        exchange_(*host_, device, pipe_) {}

  void perform(const Work& work, const Event& ready, Event& done) override {
    pipe_.begin(ready);
    dispatch(work, ready);
    pipe_.end(done);
  }

 private:
  static constexpr std::size_t kLeastBytes = 64;

  void dispatch(const Work& w, const Event& ready) {
    switch (w.kind) {
      case Kind::all_reduce:
      case Kind::reduce:
        return reduce(w);
      case Kind::reduce_scatter:
        return reduce_scatter(w);
      case Kind::all_gather:
        return all_gather(w);
      case Kind::broadcast:
        return broadcast(w);
      case Kind::all_to_all:
        return all_to_all(w);
      case Kind::exchange:
        return exchange_.run(w.messages);
      case Kind::send:
        return send(w.source, w.count, w.peer, w.tag);
      case Kind::receive:
        return receive(w.data, w.count, w.peer, w.tag);
      case Kind::gather:
        return gather(w);
      case Kind::scatter:
        return scatter(w);
      case Kind::barrier:
        ready.synchronize();
        return host_->barrier();
    }
  }

  /// Elements of one of `blocks` equal parts of a slot.
  std::size_t piece_limit(DType dtype, std::size_t blocks) const {
    const std::size_t bytes = pipe_.slot_bytes() / blocks;
    // Whole pieces of the host's reductions, where there is room for one.
    const std::size_t unit =
        bytes >= MpiOptions{}.reduce_chunk_bytes ? MpiOptions{}.reduce_chunk_bytes : kLeastBytes;
    return bytes / unit * unit / size_of(dtype);
  }

  void reduce(const Work& w) {
    const std::size_t limit = piece_limit(w.dtype, 1), element = size_of(w.dtype);
    const bool keep = w.kind == Kind::all_reduce || host_->rank() == w.peer;
    pipe_.run(
        chunk_count(w.count, limit),
        [&](const Stream& down, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, w.count, limit);
          down.copy_to_host(slot, at(w.data, piece.offset * element), piece.count * element);
        },
        [&](std::byte* slot, std::size_t k) {
          const std::size_t count = chunk_at(k, w.count, limit).count;
          if (w.kind == Kind::all_reduce)
            host_->all_reduce(slot, count, w.dtype, w.op, w.order);
          else
            host_->reduce(slot, count, w.dtype, w.op, w.peer);
        },
        [&](const Stream& up, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, w.count, limit);
          if (keep)
            up.copy_from_host(at(w.data, piece.offset * element), slot, piece.count * element);
        });
  }

  void reduce_scatter(const Work& w) {
    const std::size_t limit = piece_limit(w.dtype, ranks_), element = size_of(w.dtype);
    pipe_.run(
        chunk_count(w.count, limit),
        [&](const Stream& down, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, w.count, limit);
          for (std::size_t p = 0; p < ranks_; ++p)
            down.copy_to_host(slot + p * piece.count * element,
                              at(w.data, (p * w.count + piece.offset) * element),
                              piece.count * element);
        },
        [&](std::byte* slot, std::size_t k) {
          host_->reduce_scatter(slot, chunk_at(k, w.count, limit).count, w.dtype, w.op, w.order);
        },
        [&](const Stream& up, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, w.count, limit);
          up.copy_from_host(at(w.data, (mine_ * w.count + piece.offset) * element),
                            slot + mine_ * piece.count * element, piece.count * element);
        });
  }

  void all_gather(const Work& w) {
    const std::size_t bytes = w.count * size_of(w.dtype), limit = piece_limit(DType::u8, ranks_);
    pipe_.run(
        chunk_count(bytes, limit),
        [&](const Stream& down, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, bytes, limit);
          down.copy_to_host(slot + mine_ * piece.count, at(w.data, mine_ * bytes + piece.offset),
                            piece.count);
        },
        [&](std::byte* slot, std::size_t k) {
          host_->all_gather(slot, chunk_at(k, bytes, limit).count, DType::u8);
        },
        [&](const Stream& up, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, bytes, limit);
          for (std::size_t p = 0; p < ranks_; ++p)
            if (p != mine_)
              up.copy_from_host(at(w.data, p * bytes + piece.offset), slot + p * piece.count,
                                piece.count);
        });
  }

  void broadcast(const Work& w) {
    const bool root = host_->rank() == w.peer;
    const std::size_t limit = piece_limit(DType::u8, 1);
    pipe_.run(
        chunk_count(w.count, limit),
        [&](const Stream& down, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, w.count, limit);
          if (root) down.copy_to_host(slot, at(w.data, piece.offset), piece.count);
        },
        [&](std::byte* slot, std::size_t k) {
          host_->broadcast(slot, chunk_at(k, w.count, limit).count, w.peer);
        },
        [&](const Stream& up, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, w.count, limit);
          if (!root) up.copy_from_host(at(w.data, piece.offset), slot, piece.count);
        });
  }

  void all_to_all(const Work& w) {
    const std::size_t limit = piece_limit(DType::u8, 2 * ranks_);
    pipe_.run(
        chunk_count(w.count, limit),
        [&](const Stream& down, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, w.count, limit);
          for (std::size_t p = 0; p < ranks_; ++p)
            down.copy_to_host(slot + p * piece.count, at(w.source, p * w.count + piece.offset),
                              piece.count);
        },
        [&](std::byte* slot, std::size_t k) {
          const std::size_t bytes = chunk_at(k, w.count, limit).count;
          host_->all_to_all(slot, slot + ranks_ * bytes, bytes);
        },
        [&](const Stream& up, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, w.count, limit);
          for (std::size_t p = 0; p < ranks_; ++p)
            up.copy_from_host(at(w.data, p * w.count + piece.offset),
                              slot + (ranks_ + p) * piece.count, piece.count);
        });
  }

  void send(const void* data, std::size_t bytes, int to, int tag) {
    const std::size_t limit = piece_limit(DType::u8, 1);
    pipe_.run(
        chunk_count(bytes, limit),
        [&](const Stream& down, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, bytes, limit);
          down.copy_to_host(slot, at(data, piece.offset), piece.count);
        },
        [&](std::byte* slot, std::size_t k) {
          host_->send(slot, chunk_at(k, bytes, limit).count, to, tag);
        },
        [](const Stream&, std::byte*, std::size_t) {});
  }

  void receive(void* data, std::size_t bytes, int from, int tag) {
    const std::size_t limit = piece_limit(DType::u8, 1);
    pipe_.run(
        chunk_count(bytes, limit), [](const Stream&, std::byte*, std::size_t) {},
        [&](std::byte* slot, std::size_t k) {
          host_->receive(slot, chunk_at(k, bytes, limit).count, from, tag);
        },
        [&](const Stream& up, std::byte* slot, std::size_t k) {
          const Chunk piece = chunk_at(k, bytes, limit);
          up.copy_from_host(at(data, piece.offset), slot, piece.count);
        });
  }

  // Blocks of any size at one rank: one peer after the other, for whom the root alone is the limit.
  void gather(const Work& w) {
    if (host_->rank() != w.peer) return send(w.source, w.count, w.peer, kBlockTag);
    for_blocks(w, [&](int peer, std::size_t offset, std::size_t bytes) {
      receive(at(w.data, offset), bytes, peer, kBlockTag);
    });
  }

  void scatter(const Work& w) {
    if (host_->rank() != w.peer) return receive(w.data, w.count, w.peer, kBlockTag);
    for_blocks(w, [&](int peer, std::size_t offset, std::size_t bytes) {
      send(at(w.source, offset), bytes, peer, kBlockTag);
    });
  }

  template <class F>
  void for_blocks(const Work& w, const F& f) {
    for (std::size_t p = 0; p < ranks_; ++p)
      if (p != mine_)
        f(static_cast<int>(p), static_cast<std::size_t>(w.offsets[p]),
          static_cast<std::size_t>(w.counts[p]));
  }

  std::unique_ptr<Communicator> host_;
  std::size_t ranks_, mine_;
  StagedPipe pipe_;
  StagedExchange exchange_;
};

class DeviceBuffer final : public CommBuffer {
 public:
  DeviceBuffer(Device& device, std::size_t bytes) : buffer_(device, bytes) {
    if (bytes > 0) device.zero(buffer_.data(), bytes);
  }
  void* data() const override { return buffer_.data(); }
  std::size_t bytes() const override { return buffer_.bytes(); }
  bool shared() const override { return false; }

 private:
  Buffer buffer_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Communicator& host, Device& device, const std::string& name,
                     const StagedOptions& options)
      : Communicator(name, host.rank(), host.size()),
        host_(host),
        device_(device),
        compute_(device),
        options_(options) {
    if (size() == 1) return;
    identify(derived_id(host, name));
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    jobs_ = std::make_unique<StagedJobs>(
        std::make_shared<StagedWorker>(host.duplicate(name + " (staging)"), device,
                                       options.slot_bytes),
        device, fmt::format("{} (rank {} of {})", name, rank(), size()),
        options.threaded && level == MPI_THREAD_MULTIPLE, traffic_);
  }

  const char* transport() const override { return "staged"; }
  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    return std::make_unique<DeviceBuffer>(device_, bytes);
  }

  void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                     Summation order) override {
    do_start_all_reduce(data, count, dtype, op, order).wait();
  }
  void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                         Summation order) override {
    do_start_reduce_scatter(data, count, dtype, op, order).wait();
  }
  void do_all_gather(void* data, std::size_t count, DType dtype) override {
    do_start_all_gather(data, count, dtype).wait();
  }
  void do_broadcast(void* data, std::size_t bytes, int root) override {
    start({.kind = Kind::broadcast, .data = data, .count = bytes, .peer = root}, bytes).wait();
  }
  void do_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) override {
    start({.kind = Kind::reduce,
           .data = data,
           .count = count,
           .dtype = dtype,
           .op = op,
           .peer = root},
          count * size_of(dtype))
        .wait();
  }
  void do_scatter(const void* source, const std::int64_t* counts, const std::int64_t* offsets,
                  void* target, std::size_t bytes, int root) override {
    start({.kind = Kind::scatter,
           .data = target,
           .source = source,
           .count = bytes,
           .peer = root,
           .counts = counts,
           .offsets = offsets},
          bytes)
        .wait();
    if (rank() == root) compute_.copy(target, at(source, own(offsets)), bytes);
  }
  void do_gather(const void* source, std::size_t bytes, void* target, const std::int64_t* counts,
                 const std::int64_t* offsets, int root) override {
    start({.kind = Kind::gather,
           .data = target,
           .source = source,
           .count = bytes,
           .peer = root,
           .counts = counts,
           .offsets = offsets},
          bytes)
        .wait();
    if (rank() == root) compute_.copy(at(target, own(offsets)), source, bytes);
  }
  void do_all_to_all(const void* source, void* target, std::size_t bytes) override {
    start({.kind = Kind::all_to_all, .data = target, .source = source, .count = bytes},
          bytes * ranks())
        .wait();
    if (size() == 1) compute_.copy(target, source, bytes);
  }
  void do_send(const void* data, std::size_t bytes, int to, int tag) override {
    check_tag(tag);
    start({.kind = Kind::send, .source = data, .count = bytes, .peer = to, .tag = tag}, bytes)
        .wait();
  }
  void do_receive(void* data, std::size_t bytes, int from, int tag) override {
    check_tag(tag);
    start({.kind = Kind::receive, .data = data, .count = bytes, .peer = from, .tag = tag}, bytes)
        .wait();
  }
  void do_barrier() override { start({.kind = Kind::barrier}, 0).wait(); }

  CommRequest& do_start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                   Summation order) override {
    return start({.kind = Kind::all_reduce,
                  .data = data,
                  .count = count,
                  .dtype = dtype,
                  .op = op,
                  .order = order},
                 count * size_of(dtype));
  }
  CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                       Summation order) override {
    return start({.kind = Kind::reduce_scatter,
                  .data = data,
                  .count = count,
                  .dtype = dtype,
                  .op = op,
                  .order = order},
                 count * size_of(dtype) * ranks());
  }
  CommRequest& do_start_all_gather(void* data, std::size_t count, DType dtype) override {
    return start({.kind = Kind::all_gather, .data = data, .count = count, .dtype = dtype},
                 count * size_of(dtype) * ranks());
  }

  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    const std::size_t bytes = check_exchange(messages, kBlockTag);
    return start({.kind = Kind::exchange, .messages = messages}, bytes);
  }

  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    return std::make_unique<StagedCommunicator>(host_, device_, name, options_);
  }

  bool queues() const override { return true; }

 private:
  struct Nothing final : ExchangeRequest {
    void do_wait() override {}
    void do_wait_received() override {}
    bool do_test() override { return true; }
  };
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  std::size_t own(const std::int64_t* offsets) const {
    return static_cast<std::size_t>(offsets[rank()]);
  }
  void check_tag(int tag) const {
    CHOIR_CHECK(tag >= 0 && tag < kBlockTag, "tag {} on {}", tag, name());
  }
  ExchangeRequest& start(const Work& work, std::size_t bytes) {
    CHOIR_CHECK(work.peer >= 0 && work.peer < size(), "rank {} does not exist in {}", work.peer,
                name());
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(bytes);
    if (size() == 1) return nothing_;
    return jobs_->start(work);
  }

  Communicator& host_;
  Device& device_;
  Stream compute_;
  StagedOptions options_;
  Nothing nothing_;
  std::unique_ptr<StagedJobs> jobs_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, Device& device,
                                                       const std::string& name,
                                                       const StagedOptions& options) {
  return std::make_unique<StagedCommunicator>(host, device, name, options);
}

}  // namespace choir
