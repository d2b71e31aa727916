#pragma once
// Sums over NCCL whose order of additions is ours: slices travel to their owner, who adds them in
// the fixed tree of Summation::tree, ((0+1)+(2+3))+..., an odd one out carried up.
#include "choir/device/device.hpp"
#include "src/comm/cuda/nccl_group.hpp"

namespace choir::nccl {

class TreeSum {
 public:
  /// Borrows all three. Scratch memory is allocated by the first sum.
  TreeSum(Group& group, Device& device, int rank, int ranks)
      : group_(group), device_(device), rank_(rank), ranks_(ranks) {}

  // Queued on `stream`; contracts as in Communicator, f32.
  void all_reduce(const Stream& stream, float* data, std::size_t count);
  void reduce_scatter(const Stream& stream, float* data, std::size_t count);

 private:
  struct Slice {
    float* data = nullptr;
    std::size_t count = 0;
  };
  /// Elements of one rank's part of the scratch memory.
  std::size_t slice_limit();
  template <class SliceOf>
  void exchange_and_add(const Stream& stream, const SliceOf& slice_of);

  Group& group_;
  Device& device_;
  int rank_, ranks_;
  Buffer scratch_;
  std::vector<float*> terms_;
};

}  // namespace choir::nccl
