#include "kernels/feature_statistics/feature_statistics.cuh"

#include "kernels/cuda/types.cuh"

namespace choir::cuda {

void normalise_features(const Stream& stream, const TensorView& x, const std::int32_t* lengths) {
  if (x.dtype != DType::f32) refuse_element(x.dtype);
  const std::int64_t parts = blocks_for(x.shape[2], kWarp), blocks = x.shape[0] * parts;
  launch(stream, "normalise_features", normalise_features_kernel,
         {dim3(static_cast<unsigned>(blocks)), dim3(kFeatureThreads)}, x.as<float>(), lengths,
         x.shape[1], static_cast<int>(x.shape[2]), static_cast<unsigned>(parts));
}

}  // namespace choir::cuda
