#include "kernels/column_sums/column_sums.cuh"

namespace choir::cuda {

void add_partials(const Stream& stream, const ColumnPartials& partials) {
  const auto tiles = static_cast<unsigned>(blocks_for(partials.width, kWarp));
  launch(stream, "add_partials", add_partials_kernel,
         {dim3(tiles, partials.total[1] == nullptr ? 1 : 2), kPartialThreads}, partials);
}

}  // namespace choir::cuda
