#include "src/comm/staged/staged_worker.hpp"

#include <algorithm>

#include "choir/comm/chunks.hpp"
#include "choir/comm/mpi/mpi_communicator.hpp"

namespace choir {
namespace {

using Kind = CommCall;

constexpr std::size_t kLeastBytes = 64;

}  // namespace

StagedWorker::StagedWorker(std::unique_ptr<Communicator> host, Device& device,
                           std::size_t slot_bytes)
    : host_(std::move(host)),
      ranks_(static_cast<std::size_t>(host_->size())),
      mine_(static_cast<std::size_t>(host_->rank())),
      pipe_(*host_, device, std::max(slot_bytes, 2 * ranks_ * kLeastBytes)),
      exchange_(*host_, device, pipe_) {}

void StagedWorker::perform(const Work& work, const Event& ready, Event& done) {
  pipe_.begin(ready);
  dispatch(work, ready);
  pipe_.end(done);
}

void StagedWorker::dispatch(const Work& w, const Event& ready) {
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

// Number of elements in one of `blocks` equal parts of a slot.
std::size_t StagedWorker::piece_limit(DType dtype, std::size_t blocks) const {
  const std::size_t bytes = pipe_.slot_bytes() / blocks;
  // A part holds whole chunks of the host's reductions if there is room for one.
  const std::size_t unit =
      bytes >= MpiOptions{}.reduce_chunk_bytes ? MpiOptions{}.reduce_chunk_bytes : kLeastBytes;
  return bytes / unit * unit / size_of(dtype);
}

void StagedWorker::reduce(const Work& w) {
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

void StagedWorker::reduce_scatter(const Work& w) {
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

void StagedWorker::all_gather(const Work& w) {
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

void StagedWorker::broadcast(const Work& w) {
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

void StagedWorker::all_to_all(const Work& w) {
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

void StagedWorker::send(const void* data, std::size_t bytes, int to, int tag) {
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

void StagedWorker::receive(void* data, std::size_t bytes, int from, int tag) {
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

template <class F>
void StagedWorker::for_blocks(const Work& w, const F& f) const {
  for (std::size_t p = 0; p < ranks_; ++p)
    if (p != mine_)
      f(static_cast<int>(p), static_cast<std::size_t>(w.offsets[p]),
        static_cast<std::size_t>(w.counts[p]));
}

// Blocks of any size are sent to or from one rank, one peer after the other, because only the root
// limits the speed.
void StagedWorker::gather(const Work& w) {
  if (host_->rank() != w.peer) return send(w.source, w.count, w.peer, kBlockTag);
  for_blocks(w, [&](int peer, std::size_t offset, std::size_t bytes) {
    receive(at(w.data, offset), bytes, peer, kBlockTag);
  });
}

void StagedWorker::scatter(const Work& w) {
  if (host_->rank() != w.peer) return receive(w.data, w.count, w.peer, kBlockTag);
  for_blocks(w, [&](int peer, std::size_t offset, std::size_t bytes) {
    send(at(w.source, offset), bytes, peer, kBlockTag);
  });
}

}  // namespace choir
