// Host execution has no cuDNN: attention runs on choir's own kernels.
#include "kernels/attention/attention_cudnn_cuda_absent.cpp"
