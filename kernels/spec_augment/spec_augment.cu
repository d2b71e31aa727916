#include "kernels/spec_augment/spec_augment.cuh"

#include "kernels/cuda/types.cuh"

namespace choir::cuda {

void spec_augment(const Stream& stream, const ops::SpecAugment& options, const TensorView& x,
                  const std::int32_t* lengths, const std::int64_t* sample_ids, PhiloxKey key) {
  if (x.dtype != DType::f32) refuse_element(x.dtype);
  static_assert(kMostMasks <= kMaskThreads);
  const std::int64_t parts = blocks_for(x.shape[1], kMaskFrames), blocks = x.shape[0] * parts;
  launch(stream, "spec_augment", spec_augment_kernel,
         {dim3(static_cast<unsigned>(blocks)), dim3(kMaskThreads)}, options, x.as<float>(), lengths,
         sample_ids, key, x.shape[1], static_cast<int>(x.shape[2]), static_cast<unsigned>(parts));
}

}  // namespace choir::cuda
