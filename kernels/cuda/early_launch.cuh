#pragma once
// Kernels of text generation, which always begin while the previous kernel of their stream still
// runs (see launch.cuh; sm_90 and newer). They are so small that their starts take half of the
// time. With an early launch the next kernel is already on its multiprocessors when this one ends,
// with everything in registers that no earlier kernel writes. They call let_next_begin() first and
// wait_for_earlier() later.
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

/// Number of blocks that leaves room on a GPU for the blocks of the next kernel.
constexpr unsigned kSmallGrid = 132;

/// Like launch(), for a kernel that begins early in recorded and in queued work.
template <class... P, class... A>
void launch_early(const Stream& stream, const char* name, void (*kernel)(P...),
                  const LaunchShape& shape, A... arguments) {
  launch_at(stream, name, has_dependent_launch(stream.device()), kernel, shape, arguments...);
}

/// Uses launch_early() if the grid is small; large kernels do not benefit from it.
template <class... P, class... A>
void launch_small_early(const Stream& stream, const char* name, void (*kernel)(P...),
                        const LaunchShape& shape, A... arguments) {
  if (shape.blocks.x * shape.blocks.y * shape.blocks.z <= kSmallGrid)
    launch_early(stream, name, kernel, shape, arguments...);
  else
    launch(stream, name, kernel, shape, arguments...);
}

}  // namespace choir::cuda
