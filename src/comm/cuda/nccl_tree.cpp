#include "src/comm/cuda/nccl_tree.hpp"

#include "choir/comm/chunks.hpp"
#include "choir/ops/reduce.hpp"

namespace choir::nccl {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{32} << 20;
constexpr std::size_t kGranule = 32;  // 128 bytes

cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace

std::size_t TreeSum::slice_limit() {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const std::size_t limit =
      std::max(kGranule, kScratchBytes / sizeof(float) / ranks / kGranule * kGranule);
  if (scratch_.data() == nullptr) {
    scratch_ = Buffer(device_, ranks * limit * sizeof(float));
    terms_.resize(ranks);
  }
  return limit;
}

template <class SliceOf>
void TreeSum::exchange_and_add(const Stream& stream, const SliceOf& slice_of) {
  const Slice mine = slice_of(rank_);
  const std::size_t limit = slice_limit();
  const Library& api = group_.api();
  group_.grouped([&] {
    for (int p = 0; p < ranks_; ++p) {
      const auto at = static_cast<std::size_t>(p);
      terms_[at] = p == rank_ ? mine.data : static_cast<float*>(scratch_.data()) + at * limit;
      if (p == rank_) continue;
      if (const Slice theirs = slice_of(p); theirs.count > 0)
        group_.settle(
            api.send(theirs.data, theirs.count, Type::f32, p, group_.handle(), native(stream)),
            "ncclSend");
      if (mine.count > 0)
        group_.settle(
            api.receive(terms_[at], mine.count, Type::f32, p, group_.handle(), native(stream)),
            "ncclRecv");
    }
  });
  if (mine.count == 0) return;
  const auto view = [&](float* data) {
    return TensorView{data, DType::f32, {static_cast<std::int64_t>(mine.count)}};
  };
  const auto ranks = static_cast<std::size_t>(ranks_);
  for (std::size_t width = 1; width < ranks; width *= 2)
    for (std::size_t p = 0; p + width < ranks; p += 2 * width) {
      const bool last = 2 * width >= ranks;
      float* sum = last ? mine.data : terms_[p];
      ops::add(stream, view(terms_[p]), view(terms_[p + width]), view(sum));
    }
}

void TreeSum::all_reduce(const Stream& stream, float* data, std::size_t count) {
  const std::size_t limit = slice_limit() * static_cast<std::size_t>(ranks_);
  for_each_chunk(count, limit, [&](std::size_t offset, std::size_t length) {
    const auto slice_of = [&](int p) -> Slice {
      const Chunk share = share_of(length, ranks_, p, kGranule);
      return {data + offset + share.offset, share.count};
    };
    exchange_and_add(stream, slice_of);
    group_.grouped([&] {
      for (int p = 0; p < ranks_; ++p)
        if (const Slice slice = slice_of(p); slice.count > 0)
          group_.settle(group_.api().broadcast(slice.data, slice.data, slice.count, Type::f32, p,
                                               group_.handle(), native(stream)),
                        "ncclBroadcast");
    });
  });
}

void TreeSum::reduce_scatter(const Stream& stream, float* data, std::size_t count) {
  for_each_chunk(count, slice_limit(), [&](std::size_t offset, std::size_t length) {
    exchange_and_add(stream, [&](int p) -> Slice {
      return {data + static_cast<std::size_t>(p) * count + offset, length};
    });
  });
}

}  // namespace choir::nccl
