#include "src/comm/communicator_parts.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "choir/core/error.hpp"

namespace choir {
namespace {

const char* name_of(ReduceOp op) {
  static constexpr std::array kNames{"sum", "max", "min"};
  return kNames[static_cast<std::size_t>(op)];
}

bool same(const PlannedCall& a, const PlannedCall& b) {
  return a.call == b.call && a.detail == b.detail && a.sequence == b.sequence && a.count == b.count;
}

}  // namespace

std::uint32_t detail_of(DType dtype, ReduceOp op) {
  return static_cast<std::uint32_t>(dtype) << 8 | static_cast<std::uint32_t>(op);
}

std::string describe(const PlannedCall& call) {
  const char* name = choir::name_of(call.call);
  const auto dtype = static_cast<DType>(call.detail >> 8 & 0xff);
  switch (call.call) {
    case CommCall::barrier:
      return name;
    case CommCall::all_reduce:
    case CommCall::reduce_scatter:
      return fmt::format("{} of {} {} ({})", name, call.count, choir::name_of(dtype),
                         name_of(static_cast<ReduceOp>(call.detail & 0xff)));
    case CommCall::all_gather:
      return fmt::format("{} of {} {}", name, call.count, choir::name_of(dtype));
    case CommCall::broadcast:
    case CommCall::reduce:
      return fmt::format("{} of {} bytes, root {}", name, call.count, call.detail);
    case CommCall::scatter:
    case CommCall::gather:
      return fmt::format("{} with root {}", name, call.detail);
    default:
      return fmt::format("{} of {} bytes", name, call.count);
  }
}

CallCheck::CallCheck(std::unique_ptr<Communicator> privately, std::string name,
                     std::vector<int> world_ranks)
    : private_(std::move(privately)),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      calls_(static_cast<std::size_t>(private_->size())) {
  CHOIR_CHECK(world_ranks_.size() == calls_.size(), "{} ranks of {}", world_ranks_.size(), name_);
  private_->silence();
}

void CallCheck::agree(const PlannedCall& mine) {
  static_assert(sizeof(PlannedCall) == 24);
  calls_[static_cast<std::size_t>(private_->rank())] = mine;
  private_->all_gather(calls_.data(), sizeof(PlannedCall), DType::u8);
  for (std::size_t r = 1; r < calls_.size(); ++r) {
    if (same(calls_[r], calls_[0])) continue;
    CommError error(fmt::format("{}: ranks disagree on call {}: rank {} calls {} where rank {} "
                                "calls {}{}",
                                name_, calls_[0].sequence, world_ranks_[r], describe(calls_[r]),
                                world_ranks_[0], describe(calls_[0]),
                                calls_[r].sequence == calls_[0].sequence
                                    ? ""
                                    : fmt::format(" (and counts {} calls)", calls_[r].sequence)),
                    "every rank of a communicator makes the same calls in the same order");
    error.set_agreed_ranks(private_->size());
    throw error;
  }
}

}  // namespace choir

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace choir {
namespace {

// Bytes of a rank's block that are summed at a time: two such parts and one or two levels of the
// tree stay in the first-level cache.
constexpr std::size_t kBlockBytes = 8192;
constexpr std::size_t kThreadedBytes = std::size_t{1} << 20;

void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

void stream_copy(void* to, const void* from, std::size_t bytes) {
#if defined(__SSE2__)
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const std::size_t head =
      std::min(bytes, (64 - reinterpret_cast<std::uintptr_t>(out) % 64) % std::size_t{64});
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), _mm512_loadu_si512(in + at));
#else
    for (std::size_t k = 0; k < 64; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + at + k),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at + k)));
#endif
  }
  std::memcpy(out + at, in + at, bytes - at);
#else
  std::memcpy(to, from, bytes);
#endif
}

template <class T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<bf16> {
  using Type = float;
};
template <>
struct Accumulator<f16> {
  using Type = float;
};

template <ReduceOp kOp, class A>
A combine(A a, A b) {
  if constexpr (kOp == ReduceOp::sum) return static_cast<A>(a + b);
  if constexpr (kOp == ReduceOp::max) return a < b ? b : a;
  return b < a ? b : a;
}

template <class T, class Out, ReduceOp kOp>
struct Tree {
  using A = typename Accumulator<T>::Type;
  static constexpr std::size_t kBlock = kBlockBytes / sizeof(A);
  using Level = A[kBlock];

  static void block(const void* const* in, int first, int ranks, std::size_t at, std::size_t count,
                    Level* levels) {
    A* __restrict sum = levels[0];
    const auto* a = static_cast<const T*>(in[first]) + at;
    if (ranks == 1) {
      for (std::size_t i = 0; i < count; ++i) sum[i] = static_cast<A>(a[i]);
      return;
    }
    if (ranks == 2) {
      const auto* b = static_cast<const T*>(in[first + 1]) + at;
      for (std::size_t i = 0; i < count; ++i)
        sum[i] = combine<kOp>(static_cast<A>(a[i]), static_cast<A>(b[i]));
      return;
    }
    const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks - 1)));
    block(in, first, left, at, count, levels);
    block(in, first + left, ranks - left, at, count, levels + 1);
    const A* __restrict right = levels[1];
    for (std::size_t i = 0; i < count; ++i) sum[i] = combine<kOp>(sum[i], right[i]);
  }

  // Two blocks in place, the usual case on a small machine, take one pass that does not use
  // `levels`.
  static void pair(T* __restrict a, T* __restrict b, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      a[i] = b[i] = T(combine<kOp>(static_cast<A>(a[i]), static_cast<A>(b[i])));
  }

  static void run(const void* const* in, int ranks, void* const* out, int outs, Chunk part) {
    if constexpr (std::is_same_v<T, A> && std::is_same_v<T, Out>)
      if (ranks == 2 && outs == 2 && in[0] == out[0] && in[1] == out[1])
        return pair(static_cast<T*>(out[0]) + part.offset, static_cast<T*>(out[1]) + part.offset,
                    part.count);
    // A right child needs one level more than its parent: 20 levels are enough for 2^19 ranks.
    alignas(64) Level levels[20];
    for_each_chunk(part.count, kBlock, [&](std::size_t offset, std::size_t count) {
      const std::size_t at = part.offset + offset;
      block(in, 0, ranks, at, count, levels);
      const void* sum = levels[0];
      alignas(64) std::array<Out, std::is_same_v<Out, A> ? 1 : kBlock> rounded;
      if constexpr (!std::is_same_v<Out, A>) {
        for (std::size_t i = 0; i < count; ++i) rounded[i] = Out(levels[0][i]);
        sum = rounded.data();
      }
      for (int d = 0; d < outs; ++d) {
        void* to = static_cast<Out*>(out[d]) + at;
        std::memcpy(to, sum, count * sizeof(Out));
      }
    });
  }
};

// Runs f(Chunk) over [0, count), on the caller's threads if the count is large.
template <class F>
void over_threads(std::size_t count, std::size_t bytes, std::size_t granule, F f) {
  if (bytes < kThreadedBytes) return f(Chunk{0, count});
  constexpr int kParts = 16;
#pragma omp parallel for schedule(static)
  for (int part = 0; part < kParts; ++part)
    if (const Chunk mine = share_of(count, kParts, part, granule); mine.count > 0) f(mine);
}

template <class T, ReduceOp kOp, class Out = T>
void reduce_typed(const void* const* in, int ranks, void* const* out, int outs, std::size_t count) {
  using Sums = Tree<T, Out, kOp>;
  over_threads(count, count * sizeof(T), Sums::kBlock,
               [=](Chunk part) { Sums::run(in, ranks, out, outs, part); });
}

template <class T>
void reduce_op(const void* const* in, int ranks, void* const* out, int outs, std::size_t count,
               ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_typed<T, ReduceOp::sum>(in, ranks, out, outs, count);
    case ReduceOp::max:
      return reduce_typed<T, ReduceOp::max>(in, ranks, out, outs, count);
    case ReduceOp::min:
      return reduce_typed<T, ReduceOp::min>(in, ranks, out, outs, count);
  }
}

}  // namespace

void tree_reduce(const void* const* in, int ranks, void* const* out, int outs, std::size_t count,
                 DType dtype, ReduceOp op) {
  CHOIR_CHECK(ranks >= 1 && ranks <= (1 << 19), "{} ranks in a tree", ranks);
  switch (dtype) {
    case DType::f64:
      return reduce_op<double>(in, ranks, out, outs, count, op);
    case DType::f32:
      return reduce_op<float>(in, ranks, out, outs, count, op);
    case DType::bf16:
      return reduce_op<bf16>(in, ranks, out, outs, count, op);
    case DType::i64:
      return reduce_op<std::int64_t>(in, ranks, out, outs, count, op);
    case DType::i32:
      return reduce_op<std::int32_t>(in, ranks, out, outs, count, op);
    case DType::u16:
      return reduce_op<std::uint16_t>(in, ranks, out, outs, count, op);
    case DType::u8:
      return reduce_op<std::uint8_t>(in, ranks, out, outs, count, op);
    case DType::f16:
      return reduce_op<f16>(in, ranks, out, outs, count, op);
  }
  CHOIR_CHECK(false, "no host reduction of {}", name_of(dtype));
}

void tree_sum(const void* const* in, int ranks, void* out, std::size_t count, DType from,
              DType to) {
  CHOIR_CHECK(from == DType::f32 || to == DType::f32, "sums of {} as {}", name_of(from),
              name_of(to));
  const bool widens = to == DType::f32;
  if ((widens ? from : to) == DType::bf16)
    return widens ? reduce_typed<bf16, ReduceOp::sum, float>(in, ranks, &out, 1, count)
                  : reduce_typed<float, ReduceOp::sum, bf16>(in, ranks, &out, 1, count);
  CHOIR_CHECK((widens ? from : to) == DType::f16, "sums of {} as {}", name_of(from), name_of(to));
  return widens ? reduce_typed<f16, ReduceOp::sum, float>(in, ranks, &out, 1, count)
                : reduce_typed<float, ReduceOp::sum, f16>(in, ranks, &out, 1, count);
}

void bulk_copy(void* to, const void* from, std::size_t bytes, bool streaming) {
  over_threads(bytes, bytes, 4096, [=](Chunk part) {
    auto* out = static_cast<std::byte*>(to) + part.offset;
    const auto* source = static_cast<const std::byte*>(from) + part.offset;
    if (!streaming) {
      std::memcpy(out, source, part.count);
      return;
    }
    stream_copy(out, source, part.count);
    stream_fence();
  });
}

}  // namespace choir
