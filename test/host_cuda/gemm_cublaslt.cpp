// Products of the cuda device, unchanged, on the library that stands in for cuBLASLt.
#include "kernels/gemm/cuda/gemm_cublaslt.cpp"
