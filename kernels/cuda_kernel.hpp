#pragma once
// How the CPU side declares a launcher of device code. A program that was linked without CUDA has
// none of them: the symbols are weak, and nobody calls them, since a stream of that kind cannot be
// had there.
#define CHOIR_CUDA_KERNEL [[gnu::weak]]
