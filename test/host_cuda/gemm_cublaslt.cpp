// Products of the cuda device as they are, on the library that stands in for cuBLASLt.
#include "kernels/gemm/cuda/gemm_cublaslt.cpp"
