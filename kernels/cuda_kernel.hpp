#pragma once
// Declares launchers of device code for the CPU side. A program that is linked without CUDA has
// none of them: the symbols are weak and never called, because it cannot create a CUDA stream.
#define CHOIR_CUDA_KERNEL [[gnu::weak]]
